//! Why a file can't be imported: the file, the place in it, and what is wrong there.
//!
//! Main types: [`ImportError`], [`ImportErrorKind`], [`Place`]. Neighbours: the readers of the formats beside it, each
//! with its own mistakes.

use std::sync::Arc;
use std::{error, fmt, io};

use super::lifetimes::LifetimesMistake;
use super::pickle::PickleMistake;
use super::record::RecordMistake;
use super::rmm::RmmMistake;
use super::snapshot::SnapshotMistake;
use super::table::TableMistake;

/// A place in a file that is imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The file as a whole.
    File,
    /// A byte, counted from 0; of a compressed file, in what it unpacks to.
    Byte(usize),
    /// A line, counted from 1.
    Line(u64),
    /// `segments[N]` of a snapshot.
    Segment(usize),
    /// `segments[N].blocks[M]` of a snapshot.
    Block(usize, usize),
    /// `device_traces[N][M]` of a snapshot.
    Event(u32, usize),
    /// `external_annotations[N]` of a snapshot.
    Annotation(usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => f.write_str("the file"),
            Self::Byte(at) => write!(f, "byte {at}"),
            Self::Line(line) => write!(f, "line {line}"),
            Self::Segment(segment) => write!(f, "segments[{segment}]"),
            Self::Block(segment, block) => write!(f, "segments[{segment}].blocks[{block}]"),
            Self::Event(device, event) => write!(f, "device_traces[{device}][{event}]"),
            Self::Annotation(at) => write!(f, "external_annotations[{at}]"),
        }
    }
}

/// Why a file can't be imported.
#[derive(Debug)]
pub struct ImportError {
    /// The file's path, or the name that the caller gave the bytes.
    pub file: Arc<str>,
    /// Where in it.
    pub place: Place,
    /// What is wrong there.
    pub kind: ImportErrorKind,
}

/// What keeps a file from being imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportErrorKind {
    /// The system can't read the file.
    #[error("can't read: {0}")]
    Io(#[source] io::Error),
    /// The zstd data can't be decoded, or ends too early.
    #[error("the zstd data is damaged or cut off: {0}")]
    Damaged(#[source] io::Error),
    /// The file, or what it unpacks to, is larger than an import takes.
    #[error(
        "more than {most} bytes, the most that an import of this file reads; record fewer events, or without stacks"
    )]
    TooLong {
        /// The most bytes that are read.
        most: u64,
    },
    /// There is nothing in the file.
    #[error("the file is empty")]
    Empty,
    /// The file is packed in a way that is not unpacked here.
    #[error("this is a {packing} file: unpack it and import what is in it")]
    Packed {
        /// How it is packed.
        packing: &'static str,
    },
    /// The file is a trace already.
    #[error(
        "this is a trace already and needs no import; `cargo xtask trace convert` packs and unpacks traces"
    )]
    Trace,
    /// RMM's debug log, which is not its event log.
    #[error(
        "this is RMM's debug log, which is no record of allocations: wrap the resource in a \
         logging_resource_adaptor, and import the CSV file that it writes"
    )]
    RmmDebugLog,
    /// No format begins like this.
    #[error(
        "unknown format: it begins with {found:?}; expected a PyTorch memory snapshot (pickle), an RMM event log \
         (Thread,Time,Action,Pointer,Size,Stream) or a table of lifetimes (id,lower,upper,size)"
    )]
    UnknownFormat {
        /// How it begins.
        found: String,
    },
    /// The pickle is damaged, or holds what a snapshot doesn't need.
    #[error(transparent)]
    Pickle(#[from] PickleMistake),
    /// The pickle is no memory snapshot.
    #[error(transparent)]
    Snapshot(#[from] SnapshotMistake),
    /// The rows or columns are wrong.
    #[error(transparent)]
    Table(#[from] TableMistake),
    /// A row that is no row of an RMM log.
    #[error(transparent)]
    Rmm(#[from] RmmMistake),
    /// A row that is no lifetime.
    #[error(transparent)]
    Lifetimes(#[from] LifetimesMistake),
    /// The record contradicts itself.
    #[error(transparent)]
    Record(#[from] RecordMistake),
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        match self.place {
            Place::File => {}
            Place::Line(line) => write!(f, ":{line}")?,
            place => write!(f, ": {place}")?,
        }
        write!(f, ": {}", self.kind)
    }
}

impl error::Error for ImportError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match &self.kind {
            ImportErrorKind::Io(error) | ImportErrorKind::Damaged(error) => Some(error),
            _ => None,
        }
    }
}

/// A mistake with its place, before the file's name is known.
#[derive(Debug)]
pub(super) struct Misplaced {
    pub(super) place: Place,
    pub(super) kind: ImportErrorKind,
}

impl Misplaced {
    pub(super) fn in_file(self, file: &Arc<str>) -> ImportError {
        ImportError { file: file.clone(), place: self.place, kind: self.kind }
    }
}

impl Place {
    /// The mistake `kind` here.
    pub(super) fn is_wrong(self, kind: impl Into<ImportErrorKind>) -> Misplaced {
        Misplaced { place: self, kind: kind.into() }
    }
}
