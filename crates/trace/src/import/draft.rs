//! Events of a record with blocks and streams as the record has them, and their numbers in the trace.
//!
//! Main types: [`Draft`], [`RawStream`], [`Numbering`]. Neighbours: `record` collects drafts and numbers them last, when
//! the blocks are known that are older than all of them.

use std::collections::HashMap;

use super::record::RecordMistake;
use crate::event::Event;

/// A stream as a record names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RawStream {
    /// By its handle; 0 is the default stream.
    Handle(u64),
    /// The default stream of this thread.
    OfThread(u64),
    /// Some other stream: the record doesn't say which.
    Unknown,
}

/// What happened, with blocks by their place in the record's list.
#[derive(Clone, Debug)]
pub(super) enum Draft {
    Allocate(usize),
    Free(usize),
    Use(usize, RawStream),
    ReleaseCached,
    Mark(Box<str>),
}

/// A block of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Size in bytes, 1 or more.
    pub(super) bytes: u64,
    pub(super) stream: RawStream,
}

/// Numbers blocks from 1 and streams from 0, both in the order in which they come up.
#[derive(Debug)]
pub(super) struct Numbering<'r> {
    blocks: &'r [Block],
    /// The ID of each block; 0 for those that didn't come up.
    ids: Vec<u64>,
    last_id: u64,
    streams: HashMap<RawStream, u32>,
    events: Vec<Event>,
    live_bytes: u128,
    peak_bytes: u128,
}

impl<'r> Numbering<'r> {
    pub(super) fn new(blocks: &'r [Block]) -> Self {
        Self {
            blocks,
            ids: vec![0; blocks.len()],
            last_id: 0,
            streams: HashMap::from([(RawStream::Handle(0), 0)]),
            events: Vec::new(),
            live_bytes: 0,
            peak_bytes: 0,
        }
    }

    pub(super) fn push(&mut self, draft: Draft) -> Result<(), RecordMistake> {
        let event = match draft {
            Draft::Allocate(block) => {
                let Block { bytes, stream } = self.blocks[block];
                self.last_id += 1;
                self.ids[block] = self.last_id;
                self.live_bytes += u128::from(bytes);
                self.peak_bytes = self.peak_bytes.max(self.live_bytes);
                Event::Allocate { id: self.last_id, bytes, stream: self.stream(stream)? }
            }
            Draft::Free(block) => {
                self.live_bytes -= u128::from(self.blocks[block].bytes);
                Event::Free { id: self.ids[block] }
            }
            Draft::Use(block, stream) => {
                Event::RecordStream { id: self.ids[block], stream: self.stream(stream)? }
            }
            Draft::ReleaseCached => Event::ReleaseCached,
            Draft::Mark(label) => Event::Mark { label },
        };
        self.events.push(event);
        Ok(())
    }

    fn stream(&mut self, stream: RawStream) -> Result<u32, RecordMistake> {
        if let Some(&number) = self.streams.get(&stream) {
            return Ok(number);
        }
        let number = u32::try_from(self.streams.len()).map_err(|_| RecordMistake::TooManyStreams)?;
        self.streams.insert(stream, number);
        Ok(number)
    }

    /// The number of a stream that came up.
    pub(super) fn number_of(&self, stream: RawStream) -> Option<u32> {
        self.streams.get(&stream).copied()
    }

    /// Streams so far, the default one included.
    pub(super) fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Most bytes that were live at once.
    pub(super) const fn peak_bytes(&self) -> u128 {
        self.peak_bytes
    }

    /// Bytes that are live now.
    pub(super) const fn live_bytes(&self) -> u128 {
        self.live_bytes
    }

    pub(super) fn into_events(self) -> Vec<Event> {
        self.events
    }
}
