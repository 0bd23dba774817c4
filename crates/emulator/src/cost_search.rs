//! Finds a cost table by a word: one that is compiled in, a file, or one that was measured and lies in a directory.
//!
//! Main types: none; [`CostTable::find`]. Neighbours: `cost` has the tables that are compiled in, `cost_file` reads files.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cost::CostTable;
use crate::cost_file::CostFileError;

impl CostTable {
    /// The names of the tables that are compiled in, which [`CostTable::named`] takes.
    pub const NAMES: &[&str] = &["h100", "a100"];

    /// The table of this name that is compiled in.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "h100" => Some(Self::h100()),
            "a100" => Some(Self::a100()),
            _ => None,
        }
    }

    /// The table that `word` names: one that is compiled in, or the file at this path, or the file `WORD.toml` anywhere
    /// below the directory `measured`; of several the last in the order of their paths, which is the newest where
    /// directories are named by dates.
    ///
    /// # Errors
    /// If there is none ([`CostFileError::NotFound`], with the names that there are), or it is no cost table.
    pub fn find(word: &str, measured: &Path) -> Result<Self, CostFileError> {
        if let Some(table) = Self::named(word) {
            return Ok(table);
        }
        let path = Path::new(word);
        if path.is_file() {
            return Self::from_file(path);
        }
        let tables = tables_below(measured);
        let found = tables.iter().rfind(|path| path.file_stem().is_some_and(|stem| stem == word));
        match found {
            Some(path) => Self::from_file(path),
            None => Err(CostFileError::NotFound { word: word.to_owned(), known: known(&tables) }),
        }
    }
}

/// All names, those compiled in first.
fn known(tables: &[PathBuf]) -> String {
    let stems = tables.iter().filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()));
    let mut measured: Vec<String> = stems.collect();
    measured.sort();
    measured.dedup();
    CostTable::NAMES.iter().map(|name| (*name).to_owned()).chain(measured).collect::<Vec<_>>().join(", ")
}

/// Every `.toml` below a directory, in the order of the paths. What can't be read is not there.
fn tables_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        let Ok(entries) = fs::read_dir(directory) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            // Links to directories are not followed: there may be a circle.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "toml") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
