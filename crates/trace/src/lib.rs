//! Allocation traces of GPU programs: the format, its reader and writer, made traces, figures of a trace, and a
//! replay that drives an allocator on the emulated device and checks what it hands out. Records of other programs can be
//! imported.
//!
//! Main types: [`TraceReader`], [`TraceWriter`], [`LoadedTrace`], [`Generator`], [`Importer`],
//! [`Replay`]. Neighbours:
//! `concertina-baselines` and the benches implement [`target::ReplayTarget`]; `xtask` is the command line. The format
//! is in `docs/trace-format.md`.

#![forbid(unsafe_code)]

mod checker;
mod device;
mod event;
mod generator;
mod header;
mod import;
mod intervals;
mod latency;
mod lines;
mod live;
mod loaded;
mod mistake;
mod picture;
mod reader;
mod replay;
mod report;
mod stat;
pub mod target;
mod watch;
mod work;
mod writer;

pub use checker::{BlockPlace, Violation, ViolationKind};
pub use device::ReplayDevice;
pub use event::{Event, Letter};
pub use generator::{Generator, GeneratorError, GeneratorOptions, PublicCase};
pub use header::Header;
pub use import::{
    ImportError, ImportErrorKind, ImportFormat, Imported, Importer, LifetimesMistake, Note, NoteKind,
    PickleMistake, Place, RecordMistake, RmmMistake, SnapshotMistake, TableMistake, UnknownImportFormat,
};
pub use latency::Latencies;
pub use lines::{Encoding, MAX_LINE_BYTES};
pub use loaded::{LoadedTrace, Mark, Peak, Step};
pub use mistake::{Field, Mistake, ReadError, ReadErrorKind};
pub use picture::{PageState, Picture, PictureBlock, PicturePage};
pub use reader::{Trace, TraceReader};
pub use replay::{PROGRESS_EVENTS, Progress, Replay};
pub use report::{AtLivePeak, FailureCause, MarkReport, ReplayFailure, ReplayReport};
pub use stat::{Disagreement, EventCounts, Lifetimes, LiveAt, MarkStat, SizeClass, StreamStat, TraceStat};
pub use watch::{Observation, Sample, Watch};
pub use work::Workload;
pub use writer::{TraceWriter, WriteError};
