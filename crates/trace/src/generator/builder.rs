//! Builds a trace event by event: gives IDs, keeps the live bytes, writes the header.
//!
//! Main types: [`Builder`], [`BlockId`]. Neighbours: every generator uses it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::event::Event;
use crate::header::Header;
use crate::reader::Trace;

/// A block of the trace under construction. Given back to [`Builder::free`], once.
#[derive(Debug)]
pub(super) struct BlockId {
    id: u64,
    bytes: u64,
}

impl BlockId {
    /// Size in bytes.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A trace under construction. IDs start at 1; the lowest free one is given first.
#[derive(Debug, Default)]
pub(super) struct Builder {
    events: Vec<Event>,
    next_id: u64,
    freed_ids: BinaryHeap<Reverse<u64>>,
    live_bytes: u64,
    peak_bytes: u64,
}

impl Builder {
    /// An empty trace.
    pub(super) fn new() -> Self {
        Self { next_id: 1, ..Self::default() }
    }

    /// On the default stream. `bytes` must be 1 or more.
    pub(super) fn allocate(&mut self, bytes: u64) -> BlockId {
        self.allocate_on(bytes, 0)
    }

    /// `bytes` must be 1 or more.
    pub(super) fn allocate_on(&mut self, bytes: u64, stream: u32) -> BlockId {
        let id = match self.freed_ids.pop() {
            Some(Reverse(id)) => id,
            None => {
                self.next_id += 1;
                self.next_id - 1
            }
        };
        self.live_bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        self.events.push(Event::Allocate { id, bytes, stream });
        BlockId { id, bytes }
    }

    pub(super) fn free(&mut self, block: BlockId) {
        self.live_bytes -= block.bytes;
        self.freed_ids.push(Reverse(block.id));
        self.events.push(Event::Free { id: block.id });
    }

    /// The host waits for the stream.
    pub(super) fn synchronize(&mut self, stream: u32) {
        self.events.push(Event::Synchronize { stream: Some(stream) });
    }

    /// The host waits for the device.
    pub(super) fn synchronize_device(&mut self) {
        self.events.push(Event::Synchronize { stream: None });
    }

    pub(super) fn release_cached(&mut self) {
        self.events.push(Event::ReleaseCached);
    }

    /// Bytes that are live now.
    pub(super) const fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    pub(super) fn mark(&mut self, label: impl Into<Box<str>>) {
        self.events.push(Event::Mark { label: label.into() });
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// Ends the trace. `keys` come after name and source; peak and number of events are added last.
    pub(super) fn finish(self, name: &str, source: &str, keys: &[(&str, u64)]) -> Trace {
        let mut header = Header::new();
        let mut push = |key: &str, value: &str| {
            header.push(key, value).expect("generators write no malformed header");
        };
        push("name", name);
        push("source", source);
        for (key, value) in keys {
            push(key, &value.to_string());
        }
        push("peak_live", &self.peak_bytes.to_string());
        push("events", &self.events.len().to_string());
        Trace { header, events: self.events }
    }
}
