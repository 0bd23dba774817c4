//! Files that `bench` writes, opened before the runs so that these are not in vain.
//!
//! Main types: [`OutFile`], [`OutFolder`]. Neighbours: `bench` opens them, and fills them when all has run.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::error::XtaskError;

/// A file that an option names.
#[derive(Debug)]
pub(super) struct OutFile<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> OutFile<'a> {
    /// Opens or makes the file, and its directories. What is in it stays until [`write`](Self::write).
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn open(path: &'a Path) -> Result<Self, XtaskError> {
        let failed = |source| XtaskError::io("write", path, source);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        let file = File::options().create(true).write(true).truncate(false).open(path).map_err(failed)?;
        Ok(Self { path, file })
    }

    /// Puts the text in the place of what was in the file.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn write(mut self, text: &str) -> Result<(), XtaskError> {
        let written = self.file.set_len(0).and_then(|()| self.file.write_all(text.as_bytes()));
        written.map_err(|source| self.failed(source))
    }

    /// That nothing can be written here.
    pub(super) fn failed(&self, source: io::Error) -> XtaskError {
        XtaskError::io("write", self.path, source)
    }
}

/// A directory that an option names.
#[derive(Debug)]
pub(super) struct OutFolder<'a> {
    path: &'a Path,
}

impl<'a> OutFolder<'a> {
    /// Makes the directory, and opens or makes the files that will be in it for sure.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn open(path: &'a Path, sure: &[String]) -> Result<Self, XtaskError> {
        fs::create_dir_all(path).map_err(|source| XtaskError::io("write", path, source))?;
        sure.iter().try_for_each(|name| OutFile::open(&path.join(name)).map(drop))?;
        Ok(Self { path })
    }

    /// Writes the file of this name.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), XtaskError> {
        let path = self.path.join(name);
        fs::write(&path, text).map_err(|source| XtaskError::io("write", &path, source))
    }
}
