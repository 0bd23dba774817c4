//! Imports what other programs record of their allocations: PyTorch's memory snapshots, RMM's event logs, tables of
//! buffer lifetimes.
//!
//! Main types: [`Importer`], [`Imported`], [`ImportFormat`], [`ImportError`]. Neighbours: one file a format below; what
//! maps to what, and what a record can't say, is in `docs/import.md`.
//!
//! A file may be damaged or hostile. Nothing in it is run, nothing recurses, and memory is bounded by its size: 80
//! bytes a byte at the worst, which a pickle of nothing but empty lists comes near, and a few for a real one.

mod draft;
mod error;
mod format;
mod lifetimes;
mod note;
mod pickle;
mod record;
mod rmm;
mod snapshot;
mod source;
mod table;

use std::path::Path;
use std::sync::Arc;

use self::error::Misplaced;
pub use self::error::{ImportError, ImportErrorKind, Place};
pub use self::format::{ImportFormat, UnknownImportFormat};
pub use self::lifetimes::LifetimesMistake;
pub use self::note::{Note, NoteKind};
pub use self::pickle::PickleMistake;
use self::record::Finished;
pub use self::record::RecordMistake;
pub use self::rmm::RmmMistake;
pub use self::snapshot::SnapshotMistake;
use self::source::Bounds;
pub use self::table::TableMistake;
use crate::reader::Trace;

#[cfg(test)]
mod tests;

/// How to import a file. The default finds everything out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Importer {
    /// What the file is; by its content if none is given.
    pub format: Option<ImportFormat>,
    /// Which device of a snapshot; if none is given, the only one that it has events of, or else anything.
    pub device: Option<u32>,
}

/// An imported file.
#[derive(Debug)]
pub struct Imported {
    /// The trace. Its header has all that is below.
    pub trace: Trace,
    /// What the file was.
    pub format: ImportFormat,
    /// The device of a snapshot.
    pub device: Option<u32>,
    /// Blocks of the trace.
    pub blocks: usize,
    /// Blocks that were there before the record began; they stand first.
    pub older_blocks: usize,
    /// Streams, the default one included.
    pub streams: usize,
    /// Most bytes that are live at once.
    pub peak_live_bytes: u64,
    /// Bytes that are live after the last event.
    pub live_at_end_bytes: u64,
    /// Bytes that the program could get from the device, if the record tells.
    pub capacity_bytes: Option<u64>,
    /// The last request that was refused, in words.
    pub out_of_memory: Option<String>,
    /// The settings of the allocator that made the record, as in `PYTORCH_CUDA_ALLOC_CONF`.
    pub allocator_settings: Option<String>,
    /// What can't be known, what was guessed, what was left out.
    pub notes: Vec<Note>,
}

impl Importer {
    /// Imports a file, plain or zstd.
    ///
    /// # Errors
    /// What the system says of the file, or the first thing in it that is wrong.
    pub fn open(&self, path: &Path) -> Result<Imported, ImportError> {
        let file: Arc<str> = path.display().to_string().into();
        let bytes = Bounds::default().open(path).map_err(|error| error.in_file(&file))?;
        self.import(&bytes, &file).map_err(|error| error.in_file(&file))
    }

    /// Imports the bytes of a file, plain or zstd; errors and the trace's header call it `file`.
    ///
    /// # Errors
    /// The first thing in it that is wrong.
    pub fn read(&self, bytes: Vec<u8>, file: &str) -> Result<Imported, ImportError> {
        let file: Arc<str> = file.into();
        let bytes = Bounds::default().unpack(bytes).map_err(|error| error.in_file(&file))?;
        self.import(&bytes, &file).map_err(|error| error.in_file(&file))
    }

    fn import(&self, bytes: &[u8], file: &str) -> Result<Imported, Misplaced> {
        if bytes.is_empty() {
            return Err(Place::File.is_wrong(ImportErrorKind::Empty));
        }
        let format = match self.format {
            Some(format) => format,
            None => ImportFormat::of_content(bytes).map_err(|kind| Place::File.is_wrong(kind))?,
        };
        let name = Path::new(file).file_name().and_then(|name| name.to_str()).unwrap_or(file);
        let mut about = vec![("name", stem(name).to_owned())];
        let mut source = format!("imported from {name}, {}", format.description());
        let (mut device, mut capacity_bytes, mut out_of_memory, mut allocator_settings) =
            (None, None, None, None);
        let record = match format {
            ImportFormat::RmmLog => rmm::read(bytes)?,
            ImportFormat::Lifetimes => lifetimes::read(bytes)?,
            ImportFormat::PytorchSnapshot => {
                let reading = snapshot::read(bytes, self.device)?;
                source.push_str(&format!(", device {}", reading.device));
                device = Some(reading.device);
                (capacity_bytes, out_of_memory) = (reading.capacity_bytes, reading.out_of_memory);
                allocator_settings = reading.allocator_settings;
                reading.record
            }
        };
        about.push(("source", source));
        about.extend(capacity_bytes.map(|bytes| ("capacity", bytes.to_string())));
        about.extend(allocator_settings.iter().map(|text| ("allocator_settings", text.clone())));
        about.extend(out_of_memory.iter().map(|text| ("out_of_memory", text.clone())));
        let Finished { trace, blocks, older_blocks, streams, peak_live_bytes, live_at_end_bytes, notes } =
            record.finish(&about)?;
        Ok(Imported {
            trace,
            format,
            device,
            blocks,
            older_blocks,
            streams,
            peak_live_bytes,
            live_at_end_bytes,
            capacity_bytes,
            out_of_memory,
            allocator_settings,
            notes,
        })
    }
}

/// A file's name without the endings that say how it is written.
fn stem(name: &str) -> &str {
    let mut stem = name.strip_suffix(".zst").unwrap_or(name);
    for ending in [".pickle", ".pkl", ".csv", ".log", ".txt"] {
        stem = stem.strip_suffix(ending).unwrap_or(stem);
    }
    if stem.is_empty() { name } else { stem }
}
