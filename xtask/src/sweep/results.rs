//! Results of a sweep in a file: JSON, a line a point.
//!
//! Main types: [`ResultLine`], [`Recorded`], [`ResultFile`]. Neighbours: `run` appends to one, `merge` joins several, `show`
//! reads them.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use concertina_bench::Outcome;
use serde::{Deserialize, Serialize};

use super::error::SweepError;
use super::point::Point;
use crate::error::XtaskError;

/// One line: a point, and what came out or why nothing could.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResultLine {
    /// The point's id.
    pub(crate) id: String,
    /// The point in words.
    pub(crate) point: Point,
    /// The figures of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) outcome: Option<Outcome>,
    /// Why there was no run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl ResultLine {
    /// The same without the times of the host, which no two runs share.
    pub(crate) fn counted(&self) -> Self {
        let mut line = self.clone();
        if let Some(outcome) = &mut line.outcome {
            outcome.host_ns_per_event = 0.0;
        }
        line
    }

    fn to_json(&self) -> io::Result<String> {
        let mut text = serde_json::to_string(self)?;
        text.push('\n');
        Ok(text)
    }
}

/// A line with where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    /// Counted from 1.
    pub(crate) line: usize,
    pub(crate) result: ResultLine,
}

/// Whole lines of a file's content, and how many bytes they are: a run that was killed may have left a part of a line
/// behind, without its end.
fn parse(path: &Path, content: &[u8]) -> Result<(Vec<Recorded>, usize), SweepError> {
    let whole = content.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let mut results = Vec::new();
    for (index, bytes) in content[..whole].split_inclusive(|&byte| byte == b'\n').enumerate() {
        let line = index + 1;
        let result = serde_json::from_slice(bytes).map_err(|error| SweepError::Line {
            path: path.to_owned(),
            line,
            reason: error.to_string(),
        })?;
        results.push(Recorded { line, result });
    }
    Ok((results, whole))
}

/// All results in a file; a last line that is cut off is passed over.
///
/// # Errors
/// A file that can't be read, or a line that is no result.
pub(crate) fn read(path: &Path) -> Result<Vec<Recorded>, XtaskError> {
    let content = fs::read(path).map_err(|source| XtaskError::io("read", path, source))?;
    Ok(parse(path, &content)?.0)
}

/// Writes all results at once; the file is whole or as it was.
///
/// # Errors
/// What the system says.
pub(crate) fn replace(path: &Path, results: &[ResultLine]) -> Result<(), XtaskError> {
    let failed = |source| XtaskError::io("write", path, source);
    let text: String = results.iter().map(ResultLine::to_json).collect::<Result<_, _>>().map_err(failed)?;
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, path));
    written.map_err(|source| {
        // It may not be there; what went wrong first is what counts.
        let _ = fs::remove_file(&part);
        failed(source)
    })
}

/// A file that results are appended to as they come.
#[derive(Debug)]
pub(crate) struct ResultFile {
    path: PathBuf,
    file: File,
}

impl ResultFile {
    /// Opens or makes the file, and its folder, and tells what is in it. A part of a line at its end is cut off.
    ///
    /// # Errors
    /// A file that can't be opened or is none of results; then nothing in it has changed.
    pub(crate) fn open(path: &Path) -> Result<(Self, Vec<Recorded>), XtaskError> {
        let failed = |source| XtaskError::io("write", path, source);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        let mut file =
            File::options().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        let mut content = Vec::new();
        file.read_to_end(&mut content).map_err(|source| XtaskError::io("read", path, source))?;
        let (results, whole) = parse(path, &content)?;
        file.set_len(whole as u64).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok((Self { path: path.to_owned(), file }, results))
    }

    /// Appends one result, with its end: a killed run loses no more than the point that it was at.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn append(&mut self, result: &ResultLine) -> Result<(), XtaskError> {
        let written = result.to_json().and_then(|text| {
            self.file.write_all(text.as_bytes())?;
            self.file.flush()
        });
        written.map_err(|source| XtaskError::io("write", &self.path, source))
    }
}

#[cfg(test)]
mod tests;
