//! Tables in CSV: a line of column names, then rows of as many fields.
//!
//! Main types: [`Table`], [`Row`], [`TableMistake`]. Neighbours: `rmm` and `lifetimes` say which columns they need.

use std::iter::Enumerate;
use std::slice::Split;

use super::error::{Misplaced, Place};
use crate::lines::MAX_LINE_BYTES;
use crate::mistake::excerpt;

/// What is wrong with a table, in the line that the error has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableMistake {
    /// A line that is no UTF-8.
    #[error("not UTF-8: {found:?}")]
    NotUtf8 {
        /// The line, with the wrong bytes replaced.
        found: String,
    },
    /// A line that is no row.
    #[error("line longer than {most} bytes: this is no table, or it lost its line breaks")]
    LongLine {
        /// The longest line allowed, in bytes.
        most: usize,
    },
    /// A column that has to be there is not.
    #[error("no column {name:?}; the columns are {found:?}")]
    NoColumn {
        /// The column; of several names that it may have, the first.
        name: &'static str,
        /// The line of names.
        found: String,
    },
    /// Two columns for the same thing.
    #[error("more than one column {name:?} in {found:?}")]
    TwoColumns {
        /// The column.
        name: &'static str,
        /// The line of names.
        found: String,
    },
    /// A row of more or fewer fields than there are columns.
    #[error("{fields} fields, and there are {columns} columns: {found:?}")]
    Fields {
        /// Fields of the row.
        fields: usize,
        /// Columns of the table.
        columns: usize,
        /// The row.
        found: String,
    },
    /// A field that is no number, or one that is negative or too large for its column.
    #[error("{column} {found:?} is not a number from {least} to {most}")]
    NotANumber {
        /// The column.
        column: &'static str,
        /// The field.
        found: String,
        /// Smallest number that the column takes.
        least: i64,
        /// Largest number that the column takes.
        most: u64,
    },
}

/// Lines of a text, without their line breaks.
type Lines<'b> = Enumerate<Split<'b, u8, fn(&u8) -> bool>>;

/// A table whose column names were read.
#[derive(Debug)]
pub(super) struct Table<'b> {
    lines: Lines<'b>,
    names: &'b str,
    line: Place,
}

/// The place of a column in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    name: &'static str,
    at: usize,
}

/// One row.
#[derive(Clone, Debug)]
pub(super) struct Row<'b> {
    /// Its line.
    pub(super) place: Place,
    fields: Vec<&'b str>,
}

impl<'b> Table<'b> {
    /// Reads the line of names.
    pub(super) fn new(bytes: &'b [u8]) -> Result<Self, Misplaced> {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let line_break: fn(&u8) -> bool = |byte| *byte == b'\n';
        let lines = bytes.split(line_break).enumerate();
        let mut table = Self { lines, names: "", line: Place::Line(1) };
        table.names = table.next_line()?.unwrap_or("");
        Ok(table)
    }

    /// The column with one of these names, whatever their case, if there is one.
    pub(super) fn find(&self, names: &[&'static str]) -> Result<Option<Column>, Misplaced> {
        let is_named = |found: &str| names.iter().any(|name| found.eq_ignore_ascii_case(name));
        let mut columns = fields(self.names).enumerate().filter(|(_, found)| is_named(found));
        let (first, second) = (columns.next(), columns.next());
        let name = names[0];
        match second {
            Some(_) => Err(Place::Line(1).is_wrong(TableMistake::TwoColumns { name, found: self.excerpt() })),
            None => Ok(first.map(|(at, _)| Column { name, at })),
        }
    }

    /// The same for a column that must be there.
    pub(super) fn column(&self, names: &[&'static str]) -> Result<Column, Misplaced> {
        self.find(names)?.ok_or_else(|| {
            Place::Line(1).is_wrong(TableMistake::NoColumn { name: names[0], found: self.excerpt() })
        })
    }

    fn excerpt(&self) -> String {
        excerpt(self.names.as_bytes())
    }

    /// The names of all columns.
    pub(super) fn names(&self) -> impl Iterator<Item = &'b str> {
        fields(self.names)
    }

    /// The next row. Lines with nothing in them are no rows.
    pub(super) fn next_row(&mut self) -> Result<Option<Row<'b>>, Misplaced> {
        let columns = self.names().count();
        loop {
            let Some(line) = self.next_line()? else { return Ok(None) };
            if line.trim().is_empty() {
                continue;
            }
            // No more fields are kept than there are columns, however many commas there are.
            let row = Row { place: self.line, fields: fields(line).take(columns).collect() };
            let found = fields(line).count();
            if found != columns {
                let found_text = excerpt(line.as_bytes());
                let mistake = TableMistake::Fields { fields: found, columns, found: found_text };
                return Err(self.line.is_wrong(mistake));
            }
            return Ok(Some(row));
        }
    }

    fn next_line(&mut self) -> Result<Option<&'b str>, Misplaced> {
        let Some((number, line)) = self.lines.next() else { return Ok(None) };
        self.line = Place::Line(number as u64 + 1);
        if line.len() > MAX_LINE_BYTES {
            return Err(self.line.is_wrong(TableMistake::LongLine { most: MAX_LINE_BYTES }));
        }
        match std::str::from_utf8(line) {
            Ok(line) => Ok(Some(line.strip_suffix('\r').unwrap_or(line))),
            Err(_) => Err(self.line.is_wrong(TableMistake::NotUtf8 { found: excerpt(line) })),
        }
    }
}

impl<'b> Row<'b> {
    /// The field in a column.
    pub(super) fn text(&self, column: Column) -> &'b str {
        // Rows have as many fields as there are columns.
        self.fields.get(column.at).copied().unwrap_or("")
    }

    /// A whole number that is not negative.
    pub(super) fn number(&self, column: Column) -> Result<u64, Misplaced> {
        let text = self.text(column);
        text.parse().map_err(|_| self.not_a_number(column, 0, u64::MAX))
    }

    /// A whole number.
    pub(super) fn signed(&self, column: Column) -> Result<i64, Misplaced> {
        let text = self.text(column);
        text.parse().map_err(|_| self.not_a_number(column, i64::MIN, i64::MAX as u64))
    }

    /// A pointer as C and C++ print it: `0x` and hexadecimal digits, `(nil)`, or decimal digits.
    pub(super) fn pointer(&self, column: Column) -> Result<u64, Misplaced> {
        let text = self.text(column);
        let read = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(digits) if digits.starts_with('+') => None,
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None if text == "(nil)" => Some(0),
            None => text.parse().ok(),
        };
        read.ok_or_else(|| self.not_a_number(column, 0, u64::MAX))
    }

    fn not_a_number(&self, column: Column, least: i64, most: u64) -> Misplaced {
        let found = excerpt(self.text(column).as_bytes());
        self.place.is_wrong(TableMistake::NotANumber { column: column.name, found, least, most })
    }
}

/// The fields of a line, without the spaces and quotes around them.
pub(super) fn fields(line: &str) -> impl Iterator<Item = &str> {
    line.split(',').map(|field| {
        let field = field.trim();
        field.strip_prefix('"').and_then(|field| field.strip_suffix('"')).unwrap_or(field)
    })
}
