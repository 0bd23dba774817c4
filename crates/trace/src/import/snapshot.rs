//! PyTorch's memory snapshots, with and without history, of all versions since 2022.
//!
//! Main types: [`SnapshotMistake`], [`Reading`]. Neighbours: `pickle` decodes the file, `object` looks things up in it,
//! `segments` reads what was there when the snapshot was taken, `history` what had happened, `annotations` what the program
//! said about it.
//!
//! What the entries mean is in `torch/csrc/cuda/memory_snapshot.cpp` and `c10/cuda/CUDACachingAllocator.cpp`, and in
//! `torch/cuda/_memory_viz.py`, which reads them too.

mod annotations;
mod device;
mod history;
mod object;
mod release;
mod segments;

use self::annotations::Annotations;
use self::device::Devices;
use self::history::{History, OutOfMemory, Outcome};
use self::object::Object;
use self::segments::{BlockState, Segments};
use super::error::{Misplaced, Place};
use super::note::{NoteKind, count_of, one_line};
use super::pickle::Pickle;
use super::pickle::Value;
use super::record::Record;

#[cfg(test)]
mod tests;

/// A pickle that is no memory snapshot, or one that says what can't be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotMistake {
    /// The pickle holds something else.
    #[error("this is no memory snapshot: {found} instead of a dict with `segments`, or a list of segments")]
    NotASnapshot {
        /// What it holds.
        found: &'static str,
    },
    /// A value that has to be there is not.
    #[error("no `{key}`")]
    Missing {
        /// The value's key.
        key: &'static str,
    },
    /// A value of the wrong kind.
    #[error("`{key}` is {found}, and should be {expected}")]
    WrongKind {
        /// The value's key, or `the entry`.
        key: &'static str,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A number that can't be right.
    #[error("`{key}` is {found}: expected a number from 0 to {most}")]
    OutOfRange {
        /// The number's key.
        key: &'static str,
        /// The number.
        found: i64,
        /// The largest that is taken.
        most: u64,
    },
    /// A block with a state that PyTorch doesn't have.
    #[error("block state {found:?}: expected active_allocated, active_pending_free or inactive")]
    UnknownState {
        /// The state.
        found: String,
    },
    /// An address or size that goes beyond 64 bits.
    #[error("the blocks of the segment reach beyond the last address")]
    BeyondAddresses,
    /// Two blocks at one address.
    #[error("a second block at address {address:#x}")]
    RepeatedBlock {
        /// The address.
        address: u64,
    },
    /// More blocks than the file has room for: lists of blocks that several segments refer to.
    #[error("the segments share their blocks: more than {most} are listed, and the file has fewer values")]
    SharedBlocks {
        /// Values in the file.
        most: usize,
    },
    /// Several devices, and none was chosen.
    #[error("several devices: choose one with --device N; there are {found}")]
    SeveralDevices {
        /// The devices, and what there is of each.
        found: String,
    },
    /// The chosen device is not there.
    #[error("nothing of device {device}; there is {found}")]
    NoDevice {
        /// The chosen device.
        device: u32,
        /// The devices, and what there is of each.
        found: String,
    },
    /// No device has anything.
    #[error("the snapshot is empty: no segments, no events. It was taken before the program used the device")]
    Empty,
}

/// What a snapshot says.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) record: Record,
    /// The device that it is about.
    pub(super) device: u32,
    /// Bytes that the program could get on it, if the snapshot tells.
    pub(super) capacity_bytes: Option<u64>,
    /// The last request that was refused, in words, if there is one.
    pub(super) out_of_memory: Option<String>,
    /// `PYTORCH_CUDA_ALLOC_CONF`, if it was set.
    pub(super) allocator_settings: Option<String>,
}

/// Reads what a snapshot says of one device: `device`, or the only one there is.
pub(super) fn read(bytes: &[u8], device: Option<u32>) -> Result<Reading, Misplaced> {
    let pickle = Pickle::decode(bytes)?;
    let root = pickle.root();
    let (root, segments) = match root {
        Value::List(_) => (None, pickle.list(root).unwrap_or_default()),
        Value::Dict(_) => {
            let object = Object::new(&pickle, root, Place::File)?;
            if object.get("segments").is_none() && object.get("device_traces").is_none() {
                let mistake = SnapshotMistake::NotASnapshot { found: "a dict without `segments`" };
                return Err(Place::File.is_wrong(mistake));
            }
            (Some(object), object.list_or_empty("segments")?)
        }
        other => return Err(Place::File.is_wrong(SnapshotMistake::NotASnapshot { found: other.kind() })),
    };
    let traces = root.map_or(Ok(&[][..]), |root| root.list_or_empty("device_traces"))?;
    let devices = Devices::of(&pickle, segments, traces)?;
    let device = devices.choose(device)?;
    let segments = Segments::of(&pickle, segments, device)?;
    let annotations = match root {
        Some(root) => Annotations::of(&pickle, root.list_or_empty("external_annotations")?, device)?,
        None => Annotations::default(),
    };
    let events = traces.get(device as usize).and_then(|trace| pickle.list(*trace)).unwrap_or_default();

    let mut record = Record::default();
    let Outcome { events, last_refusal } =
        History::new(&pickle, events, device, &segments)?.read(annotations, &mut record)?;
    add_segments(&mut record, &segments)?;
    note_the_record(&mut record, &segments, events);
    devices.note_others(device, &mut record);

    Ok(Reading {
        record,
        device,
        capacity_bytes: last_refusal.as_ref().and_then(|refusal| refusal.capacity_bytes),
        out_of_memory: last_refusal.as_ref().map(OutOfMemory::to_string),
        allocator_settings: settings(&pickle, root)?,
    })
}

/// Compares what the events left with what is in the segments, and adds what no event allocated.
fn add_segments(record: &mut Record, segments: &Segments) -> Result<(), Misplaced> {
    let (mut listed_live, mut other_size, mut later) = (0, 0, 0);
    for listed in &segments.blocks {
        let (block, place) = (listed.block, listed.place);
        listed_live += usize::from(listed.state == BlockState::Allocated);
        match (listed.state, record.live_bytes_at(block.address)) {
            (BlockState::Allocated, Some(bytes)) => other_size += usize::from(bytes != block.bytes),
            (BlockState::Allocated, None) if record.knows(block.address) => {
                if later == 0 {
                    record.mark("after the record");
                }
                later += 1;
                record.allocate(block, place)?;
            }
            (BlockState::Allocated, None) => record.older(block, place)?,
            (BlockState::PendingFree, _) if record.knows(block.address) => {}
            (BlockState::PendingFree, _) => record.older_pending(block, place)?,
        }
    }
    if other_size > 0 {
        let blocks = count_of(other_size, "live block");
        record.note(
            NoteKind::Guessed,
            format!("sizes as in the events: the segments have others for {blocks}"),
        );
    }
    if later > 0 {
        let blocks = count_of(later, "block");
        let text =
            format!("when {blocks} were allocated that are live in the segments and freed in the events");
        record.note(NoteKind::Missing, text);
    }
    let strangers = record.live_blocks().saturating_sub(listed_live);
    if strangers > 0 && segments.count > 0 {
        let blocks = count_of(strangers, "block");
        record.note(
            NoteKind::Guessed,
            format!("{blocks} live in the events and not in the segments: kept live"),
        );
    }
    Ok(())
}

/// What the trace's reader should know, beyond what the parts noted themselves.
fn note_the_record(record: &mut Record, segments: &Segments, events: usize) {
    let (older, bytes) = record.older_blocks();
    let (pending, pending_bytes) = record.older_pending_blocks();
    if events == 0 {
        let blocks = count_of(older - pending, "block");
        let text = format!("all history: {blocks} live in the snapshot, in the order of their addresses");
        record.note(NoteKind::Missing, text);
    } else if older > 0 {
        let blocks = count_of(older, "block");
        let text = format!(
            "what was before the record: {blocks} of {bytes} bytes were there, and stand first in the order of their \
             addresses, without the holes between them"
        );
        record.note(NoteKind::Missing, text);
    }
    if pending > 0 {
        let blocks = count_of(pending, "block");
        let text = format!(
            "what {blocks} of {pending_bytes} bytes waited for: the program had freed them, other streams used them; \
             allocated, used and freed first"
        );
        record.note(NoteKind::Missing, text);
    }
    record.note(NoteKind::Missing, "waits between streams and of the host; uses on other streams");
    if segments.private > 0 {
        let text = format!(
            "private pools: {} of {} segments, {} of {} bytes; a trace has one pool",
            segments.private,
            segments.count,
            count_of(segments.private_blocks, "block"),
            segments.private_bytes
        );
        record.note(NoteKind::LeftOut, text);
    }
    if segments.guessed_sizes > 0 {
        let blocks = count_of(segments.guessed_sizes, "block");
        record.note(
            NoteKind::Guessed,
            format!("{blocks} as large as their place: what was asked is not recorded"),
        );
    }
}

/// What `PYTORCH_CUDA_ALLOC_CONF` was, if the snapshot tells and it was set.
fn settings(pickle: &Pickle<'_>, root: Option<Object<'_>>) -> Result<Option<String>, Misplaced> {
    let Some(settings) = root.and_then(|root| root.get("allocator_settings")) else { return Ok(None) };
    let settings = Object::new(pickle, settings, Place::File)?;
    let text = settings.text_if_any("PYTORCH_CUDA_ALLOC_CONF")?.unwrap_or_default();
    Ok((!text.is_empty()).then(|| one_line(text)))
}
