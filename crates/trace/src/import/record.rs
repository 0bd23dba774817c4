//! A trace in the making, from a record that knows blocks by their addresses and streams by their handles, and where
//! some blocks are older than the record.
//!
//! Main types: [`Record`], [`Finished`], [`RecordMistake`]. Neighbours: the readers of the formats fill it, `draft`
//! numbers what it collected, `import` hands out the trace.

use std::collections::HashMap;

use super::draft::{Block, Draft, Numbering, RawStream};
use super::error::{Misplaced, Place};
use super::note::{Note, NoteKind, one_line};
use crate::header::Header;
use crate::reader::Trace;

/// Largest block that is believed, in bytes: the addresses of a device have at most 57 bits (CUDA C++ Programming Guide,
/// unified memory on systems with five-level page tables).
const MOST_BLOCK_BYTES: u64 = 1 << 57;
/// Largest request that is taken for one that could be served, in bytes, where the size of the device is not known. A
/// program that asks for more made a mistake, and every allocator refuses.
const MOST_SERVABLE_BYTES: u64 = 1 << 40;

/// A record that contradicts itself, or says what can't be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordMistake {
    /// Two blocks at one address.
    #[error(
        "allocates at address {address:#x}, where {since} allocated a block that nothing freed: the record misses \
         frees, or is damaged"
    )]
    AllocatedTwice {
        /// The address.
        address: u64,
        /// Where the first is allocated.
        since: Place,
    },
    /// A block that was freed already.
    #[error(
        "frees address {address:#x}, which {since} freed, and nothing allocated it since: the record misses \
         allocations, or is damaged"
    )]
    FreedTwice {
        /// The address.
        address: u64,
        /// Where it was freed.
        since: Place,
    },
    /// A block of more bytes than a device has addresses.
    #[error("a block of {bytes} bytes: no device has addresses for more than {most}")]
    TooLarge {
        /// Its size in bytes.
        bytes: u64,
        /// Largest size that is taken, in bytes.
        most: u64,
    },
    /// More live bytes than a trace can have.
    #[error("{exbibytes} EiB are live at once, and a trace counts live bytes in 64 bits")]
    TooMuchLive {
        /// Live bytes at the peak, in 2^60 bytes.
        exbibytes: u64,
    },
    /// More streams than a trace can have.
    #[error("more streams than 32 bits count")]
    TooManyStreams,
}

/// What is known of an address.
#[derive(Clone, Copy, Debug)]
enum State {
    Live { block: usize, since: Place },
    Freed { since: Place },
}

/// A block as a record describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Described {
    pub(super) address: u64,
    /// Size in bytes, 1 or more.
    pub(super) bytes: u64,
    pub(super) stream: RawStream,
}

/// What the record said so far.
#[derive(Debug, Default)]
pub(super) struct Record {
    blocks: Vec<Block>,
    drafts: Vec<Draft>,
    addresses: HashMap<u64, State>,
    /// Address and block of what is older than the record.
    older: Vec<(u64, usize)>,
    /// Blocks among them that the program had freed, and that waited for other streams.
    older_pending: Vec<usize>,
    notes: Vec<Note>,
}

impl Record {
    /// A block is allocated.
    pub(super) fn allocate(&mut self, block: Described, place: Place) -> Result<(), Misplaced> {
        if let Some(&State::Live { since, .. }) = self.addresses.get(&block.address) {
            let mistake = RecordMistake::AllocatedTwice { address: block.address, since };
            return Err(place.is_wrong(mistake));
        }
        let number = self.push_block(block.bytes, block.stream, place)?;
        self.addresses.insert(block.address, State::Live { block: number, since: place });
        self.drafts.push(Draft::Allocate(number));
        Ok(())
    }

    /// The block at an address is freed; `uses` is a stream that may still work with it. If nothing is known of the
    /// address, the block is older than the record and is as described.
    pub(super) fn free(
        &mut self,
        block: Described,
        uses: Option<RawStream>,
        place: Place,
    ) -> Result<(), Misplaced> {
        let number = match self.addresses.get(&block.address) {
            Some(&State::Live { block, .. }) => block,
            Some(&State::Freed { since }) => {
                let mistake = RecordMistake::FreedTwice { address: block.address, since };
                return Err(place.is_wrong(mistake));
            }
            None => self.push_older(block, place)?,
        };
        self.addresses.insert(block.address, State::Freed { since: place });
        if let Some(stream) = uses.filter(|stream| *stream != self.blocks[number].stream) {
            self.drafts.push(Draft::Use(number, stream));
        }
        self.drafts.push(Draft::Free(number));
        Ok(())
    }

    /// Size in bytes of the live block at an address, if there is one.
    pub(super) fn live_bytes_at(&self, address: u64) -> Option<u64> {
        match self.addresses.get(&address) {
            Some(&State::Live { block, .. }) => Some(self.blocks[block].bytes),
            _ => None,
        }
    }

    /// Stream of the live block at an address, if there is one.
    pub(super) fn live_stream_at(&self, address: u64) -> Option<RawStream> {
        match self.addresses.get(&address) {
            Some(&State::Live { block, .. }) => Some(self.blocks[block].stream),
            _ => None,
        }
    }

    /// Whether the record named the address before.
    pub(super) fn knows(&self, address: u64) -> bool {
        self.addresses.contains_key(&address)
    }

    /// A block that was live when the record began, and that nothing in it freed. Nothing is known of its address yet.
    pub(super) fn older(&mut self, block: Described, place: Place) -> Result<(), Misplaced> {
        let number = self.push_older(block, place)?;
        self.addresses.insert(block.address, State::Live { block: number, since: place });
        Ok(())
    }

    /// A block that the program had freed when the record began, and that other streams still used.
    pub(super) fn older_pending(&mut self, block: Described, place: Place) -> Result<(), Misplaced> {
        let number = self.push_older(block, place)?;
        self.older_pending.push(number);
        self.addresses.insert(block.address, State::Freed { since: place });
        Ok(())
    }

    /// A block without an address; its number frees it.
    pub(super) fn allocate_unplaced(
        &mut self,
        bytes: u64,
        stream: RawStream,
        place: Place,
    ) -> Result<usize, Misplaced> {
        let number = self.push_block(bytes, stream, place)?;
        self.drafts.push(Draft::Allocate(number));
        Ok(number)
    }

    /// Frees what [`allocate_unplaced`](Self::allocate_unplaced) allocated.
    pub(super) fn free_unplaced(&mut self, number: usize) {
        self.drafts.push(Draft::Free(number));
    }

    /// A request that was refused: a mark that says so, and the request itself, freed at once, if a device of
    /// `capacity_bytes` could serve it. False if not.
    pub(super) fn refused(
        &mut self,
        bytes: u64,
        stream: RawStream,
        label: &str,
        capacity_bytes: Option<u64>,
        place: Place,
    ) -> Result<bool, Misplaced> {
        self.mark(label);
        let servable = (1..=capacity_bytes.unwrap_or(MOST_SERVABLE_BYTES)).contains(&bytes);
        if servable {
            let number = self.allocate_unplaced(bytes, stream, place)?;
            self.free_unplaced(number);
        }
        Ok(servable)
    }

    pub(super) fn release_cached(&mut self) {
        self.drafts.push(Draft::ReleaseCached);
    }

    /// A mark, if the label says anything.
    pub(super) fn mark(&mut self, label: &str) {
        let label = one_line(label);
        if !label.is_empty() {
            self.drafts.push(Draft::Mark(label.into()));
        }
    }

    pub(super) fn note(&mut self, kind: NoteKind, text: impl Into<String>) {
        self.notes.push(Note { kind, text: text.into() });
    }

    /// Blocks that are older than the record, and their bytes.
    pub(super) fn older_blocks(&self) -> (usize, u128) {
        let bytes = self.older.iter().map(|(_, number)| u128::from(self.blocks[*number].bytes));
        (self.older.len(), bytes.sum())
    }

    /// Those that the program had freed already.
    pub(super) fn older_pending_blocks(&self) -> (usize, u128) {
        let bytes = self.older_pending.iter().map(|number| u128::from(self.blocks[*number].bytes));
        (self.older_pending.len(), bytes.sum())
    }

    /// Blocks that have an address and are live after all that happened so far.
    pub(super) fn live_blocks(&self) -> usize {
        self.addresses.values().filter(|state| matches!(state, State::Live { .. })).count()
    }

    fn push_block(&mut self, bytes: u64, stream: RawStream, place: Place) -> Result<usize, Misplaced> {
        if bytes > MOST_BLOCK_BYTES {
            return Err(place.is_wrong(RecordMistake::TooLarge { bytes, most: MOST_BLOCK_BYTES }));
        }
        self.blocks.push(Block { bytes, stream });
        Ok(self.blocks.len() - 1)
    }

    fn push_older(&mut self, block: Described, place: Place) -> Result<usize, Misplaced> {
        let number = self.push_block(block.bytes, block.stream, place)?;
        self.older.push((block.address, number));
        Ok(number)
    }

    /// The trace: the older blocks in the order of their addresses, then what happened. `lines` stand first in the
    /// header, then the notes, the peak and the number of events.
    pub(super) fn finish(mut self, lines: &[(&str, String)]) -> Result<Finished, Misplaced> {
        self.older.sort_unstable();
        let pending = self.older_pending.iter();
        let pending = pending.flat_map(|&block| [Draft::Use(block, RawStream::Unknown), Draft::Free(block)]);
        let begins = (!self.older.is_empty() && !self.drafts.is_empty())
            .then(|| Draft::Mark("the record begins".into()));
        let older = self.older.iter().map(|&(_, block)| Draft::Allocate(block));

        let mut numbering = Numbering::new(&self.blocks);
        for draft in older.chain(pending).chain(begins).chain(std::mem::take(&mut self.drafts)) {
            numbering.push(draft).map_err(|mistake| Place::File.is_wrong(mistake))?;
        }
        let streams = numbering.streams();
        let unknown_stream = numbering.number_of(RawStream::Unknown);
        let (peak, at_end) = (numbering.peak_bytes(), numbering.live_bytes());
        let peak_live_bytes = u64::try_from(peak).map_err(|_| {
            Place::File.is_wrong(RecordMistake::TooMuchLive { exbibytes: (peak >> 60) as u64 })
        })?;
        let events = numbering.into_events();

        if let Some(stream) = unknown_stream {
            let text = format!("which other streams used pending blocks: stream {stream} stands for them");
            self.note(NoteKind::Missing, text);
        }
        let mut header = Header::new();
        let mut push = |key: &str, value: &str| {
            header.push(key, &one_line(value)).expect("a key of ours, and a value without line breaks");
        };
        for (key, value) in lines {
            push(key, value);
        }
        for note in &self.notes {
            push(note.kind.key(), &note.text);
        }
        push("peak_live", &peak_live_bytes.to_string());
        push("events", &events.len().to_string());
        Ok(Finished {
            trace: Trace { header, events },
            blocks: self.blocks.len(),
            older_blocks: self.older.len(),
            streams,
            peak_live_bytes,
            // No more than the peak, which fits.
            live_at_end_bytes: at_end as u64,
            notes: self.notes,
        })
    }
}

/// A finished record.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) trace: Trace,
    pub(super) blocks: usize,
    pub(super) older_blocks: usize,
    pub(super) streams: usize,
    pub(super) peak_live_bytes: u64,
    pub(super) live_at_end_bytes: u64,
    pub(super) notes: Vec<Note>,
}
