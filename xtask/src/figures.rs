//! How tables look in the terminal.
//!
//! Main types: [`Column`]. Neighbours: every command that prints a table; `concertina_bench` has the numbers.

use comfy_table::{Cell, CellAlignment, Table, TableComponent, presets};
pub(crate) use concertina_bench::number::{bytes, count, milliseconds, rough_count};

/// The head of a column, and the side that its cells keep to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    head: &'static str,
    alignment: CellAlignment,
}

impl Column {
    /// A column of words.
    pub(crate) const fn left(head: &'static str) -> Self {
        Self { head, alignment: CellAlignment::Left }
    }

    /// A column of numbers.
    pub(crate) const fn right(head: &'static str) -> Self {
        Self { head, alignment: CellAlignment::Right }
    }
}

/// An empty table with these columns, `gap` spaces between two: one line, under the heads.
pub(crate) fn table(columns: &[Column], gap: u16) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_style(TableComponent::HeaderLines, '-');
    table.set_header(columns.iter().map(|column| Cell::new(column.head).set_alignment(column.alignment)));
    for (column, described) in table.column_iter_mut().zip(columns) {
        column.set_padding((0, gap)).set_cell_alignment(described.alignment);
    }
    table
}

/// The table as text, without spaces at the ends of its lines.
pub(crate) fn text(table: &Table) -> String {
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
