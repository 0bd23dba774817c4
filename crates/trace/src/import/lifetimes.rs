//! Tables of buffer lifetimes, as planners of memory take them: `id,lower,upper,size`.
//!
//! Main types: [`LifetimesMistake`]. Neighbours: `table` reads the rows, `record` makes the trace.
//!
//! Names and meaning of the columns are those of MiniMalloc (google/minimalloc, `src/converter.cc`): a buffer lives from
//! `lower` (`begin`, `start`) up to, and not at, `upper`; where the column is called `end`, still at `end`.

use std::collections::HashMap;

use super::draft::RawStream;
use super::error::{Misplaced, Place};
use super::note::{NoteKind, count_of};
use super::record::Record;
use super::table::Table;
use crate::mistake::excerpt;

#[cfg(test)]
mod tests;

/// Names of the column of IDs.
const ID: [&str; 3] = ["id", "buffer", "buffer_id"];
/// Names of the column with the moment from which a buffer lives.
pub(super) const LOWER: [&str; 3] = ["lower", "begin", "start"];
/// Name of the column with the first moment at which it does not live any more.
pub(super) const UPPER: &str = "upper";
/// Name of the column with the last moment at which it lives.
pub(super) const END: &str = "end";

/// A row that is no lifetime.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LifetimesMistake {
    /// Two rows for one buffer.
    #[error("buffer {id:?} again: {since} has it")]
    RepeatedId {
        /// The ID.
        id: String,
        /// Where it stands first.
        since: Place,
    },
    /// A buffer that ends before it begins.
    #[error("a lifetime from {lower} to {upper} ends before it begins")]
    EndsBeforeItBegins {
        /// Its beginning.
        lower: i64,
        /// Its end.
        upper: i64,
    },
}

/// One end of a lifetime. Their order is the trace's: by time, at one moment frees before allocations, else as the rows
/// stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct End {
    time: i128,
    kind: EndKind,
    row: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EndKind {
    Free,
    Allocate,
}

/// Reads the whole table.
pub(super) fn read(bytes: &[u8]) -> Result<Record, Misplaced> {
    let mut table = Table::new(bytes)?;
    let id = table.column(&ID)?;
    let lower = table.column(&LOWER)?;
    let upper = table.column(&[UPPER, END])?;
    let size = table.column(&["size"])?;
    // What is added to a number of the column for the first moment at which the buffer is gone.
    let past_end: i128 = if table.find(&[END])?.is_some() { 1 } else { 0 };
    let others: Vec<&str> = {
        let known = ID.iter().chain(&LOWER).chain(&[UPPER, END, "size"]);
        table.names().filter(|name| !known.clone().any(|known| known.eq_ignore_ascii_case(name))).collect()
    };

    let mut ids: HashMap<&str, Place> = HashMap::new();
    let mut sizes = Vec::new();
    let mut ends = Vec::new();
    let mut never = 0;
    while let Some(row) = table.next_row()? {
        let name = row.text(id);
        if let Some(since) = ids.insert(name, row.place) {
            let mistake = LifetimesMistake::RepeatedId { id: excerpt(name.as_bytes()), since };
            return Err(row.place.is_wrong(mistake));
        }
        let (lower, upper, bytes) = (row.signed(lower)?, row.signed(upper)?, row.number(size)?);
        if upper < lower {
            return Err(row.place.is_wrong(LifetimesMistake::EndsBeforeItBegins { lower, upper }));
        }
        let past = i128::from(upper) + past_end;
        if past == lower.into() || bytes == 0 {
            never += 1;
            continue;
        }
        ends.push(End { time: lower.into(), kind: EndKind::Allocate, row: sizes.len() });
        ends.push(End { time: past, kind: EndKind::Free, row: sizes.len() });
        sizes.push((bytes, row.place));
    }

    ends.sort_unstable();
    let mut record = Record::default();
    let mut live = vec![0; sizes.len()];
    for end in ends {
        match end.kind {
            EndKind::Allocate => {
                let (bytes, place) = sizes[end.row];
                live[end.row] = record.allocate_unplaced(bytes, RawStream::Handle(0), place)?;
            }
            EndKind::Free => record.free_unplaced(live[end.row]),
        }
    }
    record.note(NoteKind::Missing, "streams, waits, and the order of what happens at one moment");
    let at_one_moment = if past_end == 0 {
        "a buffer is gone at the moment `upper`: frees come before allocations of the same moment"
    } else {
        "a buffer lives at the moment `end`, and is freed before the allocations of the next"
    };
    record.note(NoteKind::Guessed, at_one_moment);
    if never > 0 {
        let text = format!("{} of 0 bytes, or that never live", count_of(never, "buffer"));
        record.note(NoteKind::LeftOut, text);
    }
    if !others.is_empty() {
        record.note(NoteKind::LeftOut, format!("the columns {}", others.join(", ")));
    }
    Ok(record)
}
