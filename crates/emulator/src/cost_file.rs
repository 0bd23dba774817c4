//! Reads a cost table from TOML.
//!
//! Main types: [`CostFileError`]. Neighbours: `cost` has the table.
//!
//! ```toml
//! name = "h200"               # shown in output; the file's "custom" without it
//! based_on = "h100"           # "h100" or "a100": what is not said below; without it every kind must be there
//! small_malloc_ns = 4000
//!
//! [set_access]                # a section a kind of call, by its name in output
//! base_ns = 52000
//! per_gib_ns = 150000         # 0 if not said, also with `based_on`
//! per_mapping_ns = 400
//! ```

use std::path::{Path, PathBuf};

use concertina_vmm::Call;
use toml::{Table, Value};

use crate::cost::{CallCost, CostTable};

/// Largest value of a cost in nanoseconds: 1,000 s a call is a mistake, and sums stay far inside 64 bits.
const MAX_NS: i64 = 1_000_000_000_000;

/// Why a text or file is no cost table.
#[derive(Debug, thiserror::Error)]
pub enum CostFileError {
    /// No table has this name.
    #[error("no cost table `{word}`: neither a file nor one of {known}")]
    NotFound {
        /// The word.
        word: String,
        /// The names that there are.
        known: String,
    },
    /// The file can't be read.
    #[error("cost table {}: {error}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        error: std::io::Error,
    },
    /// It is no TOML.
    #[error("cost table {place}, line {line}: {message}")]
    Syntax {
        /// The file, or "text".
        place: String,
        /// The line, from 1.
        line: usize,
        /// What the TOML reader says.
        message: String,
    },
    /// A key that no table has.
    #[error("cost table {place}: unknown key `{key}`; known here: {known}")]
    UnknownKey {
        /// The file, or "text".
        place: String,
        /// The key, with its section.
        key: String,
        /// The keys that may stand there.
        known: String,
    },
    /// A value of a wrong type or out of range.
    #[error("cost table {place}: `{key}` is {value}; must be {expected}")]
    BadValue {
        /// The file, or "text".
        place: String,
        /// The key, with its section.
        key: String,
        /// The value as found.
        value: String,
        /// What may stand there.
        expected: &'static str,
    },
    /// A key that must be there is not.
    #[error("cost table {place}: no `{key}`; add it, or name a table to start from with `based_on`")]
    MissingKey {
        /// The file, or "text".
        place: String,
        /// The key, with its section.
        key: String,
    },
}

impl CostTable {
    /// The table that a TOML text describes. Errors name the place "text".
    ///
    /// # Errors
    /// If the text is no TOML, or has an unknown key, a value that is no count of nanoseconds, or too few keys.
    pub fn from_toml(text: &str) -> Result<Self, CostFileError> {
        read(text, "text")
    }

    /// The table in a TOML file. Errors name the file.
    ///
    /// # Errors
    /// As [`CostTable::from_toml`], and if the file can't be read.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, CostFileError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)
            .map_err(|error| CostFileError::Read { path: path.to_owned(), error })?;
        read(&text, &path.display().to_string())
    }
}

const TOP_KEYS: [&str; 3] = ["name", "based_on", "small_malloc_ns"];
const CALL_KEYS: [&str; 3] = ["base_ns", "per_gib_ns", "per_mapping_ns"];

fn read(text: &str, place: &str) -> Result<CostTable, CostFileError> {
    let source = Source { place };
    let top: Table = text.parse().map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or("");
        CostFileError::Syntax {
            place: place.to_owned(),
            line: before.matches('\n').count() + 1,
            message: error.message().replace('\n', " "),
        }
    })?;
    for key in top.keys() {
        if !TOP_KEYS.contains(&key.as_str()) && !Call::ALL.iter().any(|call| call.name() == key) {
            let calls = Call::ALL.iter().map(|call| call.name());
            return Err(source.unknown(key, TOP_KEYS.into_iter().chain(calls)));
        }
    }

    let basis = match top.get("based_on") {
        None => None,
        Some(value) => match value.as_str().and_then(CostTable::named) {
            Some(table) => Some(table),
            None => return Err(source.bad("based_on", value, "\"h100\" or \"a100\"")),
        },
    };
    let complete = basis.is_some();
    let mut table = basis.unwrap_or_else(CostTable::free_of_charge);
    table.name = match top.get("name") {
        None => "custom".to_owned(),
        Some(Value::String(name)) => name.clone(),
        Some(other) => return Err(source.bad("name", other, "a string")),
    };
    match top.get("small_malloc_ns") {
        Some(value) => table.small_malloc_ns = source.nanoseconds("small_malloc_ns", value)?,
        None if complete => {}
        None => return Err(source.missing("small_malloc_ns")),
    }
    for &call in Call::ALL {
        match top.get(call.name()) {
            Some(Value::Table(section)) => table = table.with(call, source.cost(call, section)?),
            Some(other) => return Err(source.bad(call.name(), other, "a section")),
            None if complete => {}
            None => return Err(source.missing(call.name())),
        }
    }
    Ok(table)
}

/// Where the text came from, for errors.
#[derive(Clone, Copy)]
struct Source<'a> {
    place: &'a str,
}

impl Source<'_> {
    fn cost(self, call: Call, section: &Table) -> Result<CallCost, CostFileError> {
        let key_of = |key: &str| format!("{}.{key}", call.name());
        if let Some(key) = section.keys().find(|key| !CALL_KEYS.contains(&key.as_str())) {
            return Err(self.unknown(&key_of(key), CALL_KEYS));
        }
        let value =
            |key: &str| section.get(key).map(|value| self.nanoseconds(&key_of(key), value)).transpose();
        Ok(CallCost {
            base_ns: value("base_ns")?.ok_or_else(|| self.missing(&key_of("base_ns")))?,
            per_gib_ns: value("per_gib_ns")?.unwrap_or(0),
            per_mapping_ns: value("per_mapping_ns")?.unwrap_or(0),
        })
    }

    fn nanoseconds(self, key: &str, value: &Value) -> Result<u64, CostFileError> {
        value
            .as_integer()
            .filter(|ns| (0..=MAX_NS).contains(ns))
            .and_then(|ns| u64::try_from(ns).ok())
            .ok_or_else(|| self.bad(key, value, "a whole number of nanoseconds from 0 to 10^12"))
    }

    fn unknown<'k>(self, key: &str, known: impl IntoIterator<Item = &'k str>) -> CostFileError {
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        CostFileError::UnknownKey { place: self.place.to_owned(), key: key.to_owned(), known }
    }

    fn bad(self, key: &str, value: &Value, expected: &'static str) -> CostFileError {
        CostFileError::BadValue {
            place: self.place.to_owned(),
            key: key.to_owned(),
            value: shown(value),
            expected,
        }
    }

    fn missing(self, key: &str) -> CostFileError {
        CostFileError::MissingKey { place: self.place.to_owned(), key: key.to_owned() }
    }
}

/// The value as an error shows it, on one line.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(flag) => flag.to_string(),
        Value::Datetime(_) => "a date".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Table(_) => "a section".to_owned(),
    }
}
