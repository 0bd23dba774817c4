//! RMM's event log: a CSV file in which a `logging_resource_adaptor` writes each allocation and each free.
//!
//! Main types: [`RmmMistake`]. Neighbours: `table` reads the rows, `record` makes the trace.
//!
//! Columns and actions are those of RAPIDS RMM, `cpp/src/mr/detail/logging_resource_adaptor_impl.cpp`. It logs an
//! allocation after it was made and a free before it is, so that no address is allocated twice in an honest log, with
//! any number of threads.

use super::draft::RawStream;
use super::error::Misplaced;
use super::note::{NoteKind, count_of};
use super::record::{Described, Record};
use super::table::Table;
use crate::mistake::excerpt;

#[cfg(test)]
mod tests;

/// Names that the columns must have.
const COLUMNS: [&str; 6] = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"];
/// The default stream by another name: `cudaStreamLegacy` (CUDA Runtime API, stream synchronization behavior).
const LEGACY: u64 = 1;
/// The default stream of the calling thread: `cudaStreamPerThread`.
const PER_THREAD: u64 = 2;

/// A row that is no row of an RMM log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RmmMistake {
    /// An action that RMM does not log.
    #[error("action {found:?}: expected allocate, free or allocate failure")]
    UnknownAction {
        /// What stands there.
        found: String,
    },
}

/// Reads the whole log.
pub(super) fn read(bytes: &[u8]) -> Result<Record, Misplaced> {
    let mut table = Table::new(bytes)?;
    let [thread, _, action, pointer, size, stream] = COLUMNS;
    let thread = table.column(&[thread])?;
    let action = table.column(&[action])?;
    let pointer = table.column(&[pointer])?;
    let size = table.column(&[size])?;
    let stream = table.column(&[stream])?;

    let mut record = Record::default();
    let (mut empty, mut refused, mut hopeless, mut other_stream) = (0, 0, 0, 0);
    while let Some(row) = table.next_row()? {
        let bytes = row.number(size)?;
        let stream = match row.pointer(stream)? {
            LEGACY => RawStream::Handle(0),
            PER_THREAD => RawStream::OfThread(row.number(thread)?),
            handle => RawStream::Handle(handle),
        };
        let block = Described { address: row.pointer(pointer)?, bytes, stream };
        match row.text(action) {
            "allocate" if bytes == 0 => empty += 1,
            "allocate" => record.allocate(block, row.place)?,
            "free" => match record.live_stream_at(block.address) {
                None if bytes == 0 => {}
                of => {
                    other_stream += usize::from(of.is_some_and(|of| of != stream));
                    record.free(block, Some(stream), row.place)?;
                }
            },
            "allocate failure" => {
                refused += 1;
                let label = format!("out of memory: {bytes} bytes asked");
                let servable = record.refused(bytes, stream, &label, None, row.place)?;
                hopeless += usize::from(!servable);
            }
            found => {
                let mistake = RmmMistake::UnknownAction { found: excerpt(found.as_bytes()) };
                return Err(row.place.is_wrong(mistake));
            }
        }
    }

    record.note(
        NoteKind::Missing,
        "waits between streams and of the host, uses on other streams before the free",
    );
    let (older, bytes) = record.older_blocks();
    if older > 0 {
        let text = format!(
            "when {} of {bytes} bytes were allocated that the log only frees: they stand first",
            count_of(older, "block")
        );
        record.note(NoteKind::Missing, text);
    }
    if other_stream > 0 {
        let text = format!(
            "{} on another stream than the block's: a use there (`u`), then the free",
            count_of(other_stream, "free")
        );
        record.note(NoteKind::Guessed, text);
    }
    if refused > 0 {
        let text =
            format!("{} refused: a mark, the request, and its free at once", count_of(refused, "request"));
        record.note(NoteKind::Guessed, text);
    }
    if hopeless > 0 {
        let text =
            format!("{} that no device could serve: the mark alone", count_of(hopeless, "refused request"));
        record.note(NoteKind::LeftOut, text);
    }
    if empty > 0 {
        record.note(NoteKind::LeftOut, format!("{} of 0 bytes", count_of(empty, "allocation")));
    }
    Ok(record)
}
