//! What can be wrong with a trace, and where.
//!
//! Main types: [`Mistake`], [`ReadError`], [`Field`]. Neighbours: `event`, `header` and `live` find mistakes,
//! `reader` says in which file and line, `writer` refuses to write them.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::{error, fmt};

use crate::event::Letter;

/// Bytes of a wrong value that an error shows.
const EXCERPT_BYTES: usize = 80;

/// A field of a line, named as in the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// The block's ID.
    Id,
    /// The block's size in bytes.
    Size,
    /// A stream.
    Stream,
    /// The stream that is waited for.
    On,
    /// The text of a mark.
    Label,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Id => "ID",
            Self::Size => "SIZE",
            Self::Stream => "STREAM",
            Self::On => "ON",
            Self::Label => "LABEL",
        })
    }
}

/// One way in which a trace breaks the format. `found` is the value as it stands there, cut to 80 bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mistake {
    /// The first line is not `alloc-trace 1`.
    #[error("not an allocation trace: it begins with {found:?}, not with `alloc-trace 1`")]
    NotATrace {
        /// The first line.
        found: String,
    },
    /// The first line names a version that this reader does not know.
    #[error("unknown version {found:?} of the trace format: only version 1 is known; convert the trace")]
    UnknownVersion {
        /// The version.
        found: String,
    },
    /// A header line that is not `# key: value`.
    #[error("malformed header line {found:?}: expected `# key: value`")]
    MalformedHeader {
        /// The line.
        found: String,
    },
    /// A header line below the first event.
    #[error("header line {found:?} after the first event: headers stand before all events")]
    LateHeader {
        /// The line.
        found: String,
    },
    /// A line with nothing in it.
    #[error("empty line: every line is an event")]
    EmptyLine,
    /// A line that begins with no letter of the format.
    #[error("unknown letter {found:?}: expected one of a f u w y e i")]
    UnknownLetter {
        /// What stands there.
        found: String,
    },
    /// The line ends too early.
    #[error("`{letter}` without its {field}")]
    MissingField {
        /// The line's letter.
        letter: Letter,
        /// The first field that is missing.
        field: Field,
    },
    /// The line goes on too long.
    #[error("`{letter}` with {found:?} after its last field")]
    ExtraField {
        /// The line's letter.
        letter: Letter,
        /// What is too much.
        found: String,
    },
    /// A field that is no decimal number.
    #[error("malformed {field} {found:?}: expected a decimal number")]
    MalformedField {
        /// The field.
        field: Field,
        /// What stands there.
        found: String,
    },
    /// A number that is too large for its field.
    #[error("{field} {found} is too large: the most is {most}")]
    TooLarge {
        /// The field.
        field: Field,
        /// The number.
        found: String,
        /// The largest that fits.
        most: u64,
    },
    /// An allocation of nothing.
    #[error("SIZE 0 for ID {id}: the smallest allocation is 1 byte")]
    SizeZero {
        /// The block.
        id: u64,
    },
    /// An allocation under an ID that is live.
    #[error("ID {id} is allocated again while it is live since line {since_line}")]
    AllocatedAgain {
        /// The block.
        id: u64,
        /// The line that allocated it, counted from 1.
        since_line: u64,
    },
    /// A free or a use of an ID that is not live.
    #[error("`{letter}` of ID {id}, which is not live here")]
    NotLive {
        /// The line's letter.
        letter: Letter,
        /// The ID.
        id: u64,
    },
    /// More blocks live at once than can be numbered.
    #[error("more than {} blocks are live", u32::MAX)]
    TooManyLive,
    /// More bytes live at once than a 64-bit number holds.
    #[error("with {bytes} bytes for ID {id} the live bytes pass 2^64")]
    TooMuchLive {
        /// The block.
        id: u64,
        /// Its size in bytes.
        bytes: u64,
    },
    /// A line longer than [`MAX_LINE_BYTES`](crate::lines::MAX_LINE_BYTES).
    #[error("line longer than {most} bytes: this is no trace, or it lost its line breaks")]
    LongLine {
        /// The longest line allowed, in bytes.
        most: usize,
    },
    /// Bytes that are no UTF-8.
    #[error("not UTF-8: {found:?}")]
    NotUtf8 {
        /// The line, with the wrong bytes replaced.
        found: String,
    },
    /// A text to be written that would break its line.
    #[error("{found:?} holds a line break and can't be written in one line")]
    LineBreak {
        /// The text.
        found: String,
    },
}

/// `bytes` as text for an error, cut to a length that fits on a screen.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    if bytes.len() <= EXCERPT_BYTES {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let mut text = String::from_utf8_lossy(&bytes[..EXCERPT_BYTES]).into_owned();
    text.push('…');
    text
}

/// Why a trace can't be read: the file, the line if there is one, and what is wrong there.
#[derive(Debug)]
pub struct ReadError {
    /// The file's path, or the name that the caller gave the source.
    pub file: Arc<str>,
    /// The line, counted from 1; none where the file could not be opened at all.
    pub line: Option<u64>,
    /// What is wrong.
    pub kind: ReadErrorKind,
}

/// What kept a trace from being read.
#[derive(Debug, thiserror::Error)]
pub enum ReadErrorKind {
    /// The trace breaks the format.
    #[error("{0}")]
    Mistake(#[from] Mistake),
    /// The zstd data stops in the middle of a frame.
    #[error("the zstd data ends in the middle of a frame: the file is cut off")]
    Truncated,
    /// The zstd data can't be decoded.
    #[error("the zstd data is damaged: {0}")]
    Damaged(#[source] io::Error),
    /// The system can't read the file.
    #[error("can't read: {0}")]
    Io(#[source] io::Error),
}

impl ReadError {
    pub(crate) fn open(path: &Path, error: io::Error) -> Self {
        Self { file: path.display().to_string().into(), line: None, kind: ReadErrorKind::Io(error) }
    }

    /// The mistake in the trace, if that is what it is.
    pub fn mistake(&self) -> Option<&Mistake> {
        match &self.kind {
            ReadErrorKind::Mistake(mistake) => Some(mistake),
            _ => None,
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.kind)
    }
}

impl error::Error for ReadError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match &self.kind {
            ReadErrorKind::Mistake(_) | ReadErrorKind::Truncated => None,
            ReadErrorKind::Damaged(error) | ReadErrorKind::Io(error) => Some(error),
        }
    }
}
