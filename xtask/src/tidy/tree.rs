//! The files of the repository, read once.
//!
//! Main types: [`Tree`]. Neighbours: every rule of `tidy` reads it; tests make one from texts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::error::XtaskError;

/// Directories that hold nothing of the repository's own.
const SKIPPED: &[&str] = &[".git", "target", "out"];

/// Endings of files whose text is read; of the others only the path is known.
const TEXT: &[&str] = &["rs", "md", "toml", "sh", "yml", "yaml", "py", "txt"];

/// Paths from the root of the repository, with `/` between the parts, and the text of those that are text.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, Option<String>>,
}

impl Tree {
    /// Reads everything under `root` but build outputs and the history.
    ///
    /// # Errors
    /// [`XtaskError::Io`] with the path that can't be read.
    pub(crate) fn load(root: &Path) -> Result<Self, XtaskError> {
        let mut tree = Self::default();
        tree.load_directory(root, "")?;
        Ok(tree)
    }

    fn load_directory(&mut self, directory: &Path, prefix: &str) -> Result<(), XtaskError> {
        let io = |source| XtaskError::io("read", directory, source);
        for entry in fs::read_dir(directory).map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().map_err(io)?;
            let path = format!("{prefix}{name}");
            if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
                self.load_directory(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() {
                let text = if is_text(&path) {
                    let file = entry.path();
                    Some(fs::read_to_string(&file).map_err(|source| XtaskError::io("read", &file, source))?)
                } else {
                    None
                };
                self.files.insert(path, text);
            }
        }
        Ok(())
    }

    /// A tree of these paths and texts.
    #[cfg(test)]
    pub(crate) fn from_texts<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let files = files.into_iter().map(|(path, text)| (path.to_owned(), Some(text.to_owned()))).collect();
        Self { files }
    }

    /// All paths, in order.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// The text of the file, if it is there and text.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// Paths and texts of the files with this ending (`.rs`), in order.
    pub(crate) fn texts<'a>(&'a self, ending: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let files = self.files.iter().filter(move |(path, _)| path.ends_with(ending));
        files.filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    /// Whether there is such a file or directory. The empty path is the root.
    pub(crate) fn contains(&self, path: &str) -> bool {
        let directory = format!("{path}/");
        path.is_empty()
            || self.files.contains_key(path)
            || self.files.range(directory.clone()..).next().is_some_and(|(p, _)| p.starts_with(&directory))
    }
}

fn is_text(path: &str) -> bool {
    path == ".ci/run" || path.rsplit_once('.').is_some_and(|(_, ending)| TEXT.contains(&ending))
}
