//! Streams and events: what is queued, and what of it is done.
//!
//! Main types: [`Timeline`]. Neighbours: `device` calls it; `config::EventCompletion` says how work completes.
//!
//! Two clocks, by the configuration. Counted in operations, each record is due a fixed number of operations later, and
//! never before what its stream waits for: a due time says it all. By hand, each stream has a number up to which its
//! records are done, and a list of the waits in it, so that completing a record completes what it waited for.

use std::collections::VecDeque;

use concertina_vmm::CaptureStatus;

use crate::config::EventCompletion;
use crate::slab::Slab;

/// A position in a stream that an event stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    stream: u32,
    /// Counted from 1 in the stream.
    number: u64,
    /// In operations.
    due: u64,
    pub(crate) captured: bool,
}

/// Records from number `before` on can only complete after a record of another stream.
#[derive(Clone, Copy, Debug)]
struct Wait {
    before: u64,
    stream: u32,
    number: u64,
}

#[derive(Debug)]
struct Stream {
    /// Earliest time, in operations, at which something queued now may complete.
    due: u64,
    recorded: u64,
    done: u64,
    /// By position; those for records that are done are gone. Used by hand only.
    waits: VecDeque<Wait>,
    capture: CaptureStatus,
}

#[derive(Debug)]
pub(crate) struct Timeline {
    completion: EventCompletion,
    /// Operations queued so far, and those that passed while the host waited.
    now: u64,
    /// The latest time at which anything recorded is due.
    latest_due: u64,
    streams: Vec<Stream>,
    events: Slab<Option<Record>>,
}

impl Timeline {
    pub(crate) const fn new(completion: EventCompletion) -> Self {
        Self { completion, now: 0, latest_due: 0, streams: Vec::new(), events: Slab::new() }
    }

    pub(crate) fn add_stream(&mut self) -> u32 {
        let capture = CaptureStatus::None;
        self.streams.push(Stream { due: 0, recorded: 0, done: 0, waits: VecDeque::new(), capture });
        u32::try_from(self.streams.len() - 1).expect("fewer than 2^32 streams")
    }

    pub(crate) fn capture(&self, stream: u32) -> CaptureStatus {
        self.streams[stream as usize].capture
    }

    pub(crate) fn set_capture(&mut self, stream: u32, status: CaptureStatus) {
        self.streams[stream as usize].capture = status;
    }

    pub(crate) fn advance(&mut self, operations: u64) {
        self.now = self.now.saturating_add(operations);
    }

    pub(crate) fn create_event(&mut self) -> u32 {
        self.events.insert(None).slot
    }

    pub(crate) fn destroy_event(&mut self, event: u32) {
        self.events.remove(event);
    }

    pub(crate) fn event_count(&self) -> u64 {
        self.events.len() as u64
    }

    pub(crate) fn record_of(&self, event: u32) -> Option<Record> {
        *self.events.at(event)
    }

    pub(crate) fn record(&mut self, event: u32, stream: u32) {
        let lag = match self.completion {
            EventCompletion::AtOnce => 0,
            EventCompletion::AfterOperations(lag) => lag,
            EventCompletion::ByHand => u64::MAX,
        };
        let queue = &mut self.streams[stream as usize];
        queue.recorded += 1;
        queue.due = queue.due.max(self.now.saturating_add(lag));
        self.latest_due = self.latest_due.max(queue.due);
        let captured = queue.capture != CaptureStatus::None;
        *self.events.at_mut(event) =
            Some(Record { stream, number: queue.recorded, due: queue.due, captured });
    }

    /// What is queued on `stream` from now on completes after the event as recorded now. An event never recorded
    /// stands for nothing.
    pub(crate) fn wait(&mut self, stream: u32, event: u32) {
        let Some(record) = self.record_of(event) else { return };
        if record.stream == stream || self.is_done(record) {
            return;
        }
        let queue = &mut self.streams[stream as usize];
        queue.due = queue.due.max(record.due);
        self.latest_due = self.latest_due.max(queue.due);
        if self.completion == EventCompletion::ByHand {
            let before = queue.recorded + 1;
            queue.waits.push_back(Wait { before, stream: record.stream, number: record.number });
        }
    }

    pub(crate) fn is_done(&self, record: Record) -> bool {
        match self.completion {
            EventCompletion::ByHand => record.number <= self.streams[record.stream as usize].done,
            EventCompletion::AtOnce | EventCompletion::AfterOperations(_) => record.due <= self.now,
        }
    }

    /// The record, and all that it waits for, is done: time passes as far as needed.
    pub(crate) fn complete(&mut self, record: Record) {
        match self.completion {
            EventCompletion::ByHand => self.complete_by_hand(record.stream, record.number),
            EventCompletion::AtOnce | EventCompletion::AfterOperations(_) => {
                self.now = self.now.max(record.due);
            }
        }
    }

    /// All that is queued on the stream, and all that it waits for, is done.
    pub(crate) fn complete_stream(&mut self, stream: u32) {
        let queue = &self.streams[stream as usize];
        match self.completion {
            // Also the waits behind the last record.
            EventCompletion::ByHand => self.complete_by_hand(stream, queue.recorded + 1),
            EventCompletion::AtOnce | EventCompletion::AfterOperations(_) => {
                self.now = self.now.max(queue.due);
            }
        }
    }

    /// All that is queued anywhere is done.
    pub(crate) fn complete_all(&mut self) {
        if self.completion != EventCompletion::ByHand {
            self.now = self.now.max(self.latest_due);
            return;
        }
        for stream in &mut self.streams {
            stream.done = stream.recorded;
            stream.waits.clear();
        }
    }

    fn complete_by_hand(&mut self, stream: u32, number: u64) {
        let mut ahead = vec![(stream, number)];
        while let Some((stream, number)) = ahead.pop() {
            let queue = &mut self.streams[stream as usize];
            queue.done = queue.done.max(number.min(queue.recorded));
            while let Some(&wait) = queue.waits.front().filter(|wait| wait.before <= number) {
                queue.waits.pop_front();
                ahead.push((wait.stream, wait.number));
            }
        }
    }
}
