//! A whole trace in memory with everything looked up beforehand, so that a timed replay neither parses nor hashes.
//!
//! Main types: [`LoadedTrace`], [`Step`], [`Mark`], [`Peak`]. Neighbours: `reader` fills it, `replay` runs it, `stat`
//! measures it.

use std::io::BufRead;
use std::path::Path;

use crate::event::{Event, Letter};
use crate::header::Header;
use crate::live::LiveIds;
use crate::mistake::{Mistake, ReadError};
use crate::reader::{Trace, TraceReader};

/// An event with its block and streams resolved to small numbers.
///
/// A slot stands for one block while it lives and is given again after the free. Streams are numbered from 0 in
/// ascending order of the trace's numbers; 0 is always the default stream (see [`LoadedTrace::streams`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A block of `bytes` on `stream`, from now on in `slot`.
    Allocate {
        /// Where the replay keeps the block.
        slot: u32,
        /// The stream.
        stream: u32,
        /// Size in bytes, as asked.
        bytes: u64,
    },
    /// The block in `slot` is freed.
    Free {
        /// Where the replay keeps the block.
        slot: u32,
    },
    /// Work queued on `stream` uses the block too.
    RecordStream {
        /// Where the replay keeps the block.
        slot: u32,
        /// The other stream.
        stream: u32,
    },
    /// Work queued on `stream` from here on waits for all queued on `on`.
    StreamWait {
        /// The stream that waits.
        stream: u32,
        /// The stream that it waits for.
        on: u32,
    },
    /// The host waits for one stream or for the device.
    Synchronize {
        /// The stream, or none for the device.
        stream: Option<u32>,
    },
    /// Cached memory goes back to the driver.
    ReleaseCached,
    /// The mark with this number.
    Mark {
        /// Its place in [`LoadedTrace::marks`].
        number: u32,
    },
}

impl Step {
    /// The letter of its line.
    pub const fn letter(self) -> Letter {
        match self {
            Self::Allocate { .. } => Letter::A,
            Self::Free { .. } => Letter::F,
            Self::RecordStream { .. } => Letter::U,
            Self::StreamWait { .. } => Letter::W,
            Self::Synchronize { .. } => Letter::Y,
            Self::ReleaseCached => Letter::E,
            Self::Mark { .. } => Letter::I,
        }
    }
}

/// A mark of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its text.
    pub label: Box<str>,
    /// Which event it is, counted from 0.
    pub event: usize,
}

/// The largest number of live bytes, and where it was reached first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Live bytes, as asked.
    pub bytes: u64,
    /// The event that reached them, counted from 0.
    pub event: usize,
}

/// A trace ready for replay.
#[derive(Clone, Debug)]
pub struct LoadedTrace {
    name: String,
    header: Header,
    steps: Vec<Step>,
    marks: Vec<Mark>,
    streams: Vec<u32>,
    slot_count: u32,
    live_peak: Peak,
    first_event_line: u64,
}

impl LoadedTrace {
    /// Reads a file, plain or zstd.
    ///
    /// # Errors
    /// As [`TraceReader`].
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        Self::read(TraceReader::open(path)?)
    }

    /// Reads the rest of a trace.
    ///
    /// # Errors
    /// The first one in it.
    pub fn read<R: BufRead>(mut reader: TraceReader<R>) -> Result<Self, ReadError> {
        let mut loader = Loader::default();
        let mut first_event_line = None;
        while let Some(event) = reader.next() {
            let event = event?;
            first_event_line.get_or_insert(reader.line());
            loader.push(&event, reader.last_slot(), reader.live_bytes());
        }
        let header = reader.header().clone();
        let name = header.get("name").map_or_else(|| stem(reader.file()), str::to_owned);
        let first_event_line = first_event_line.unwrap_or(2 + header.len() as u64);
        Ok(loader.finish(name, header, reader.slot_count(), first_event_line))
    }

    /// Takes a trace from memory, checking it as a reader would.
    ///
    /// # Errors
    /// The first mistake, at the line that it would have in a file; the file is called by the trace's name.
    pub fn from_trace(trace: &Trace) -> Result<Self, ReadError> {
        let name = trace.header.get("name").unwrap_or("trace").to_owned();
        let mut loader = Loader::default();
        let mut live = LiveIds::default();
        let first_event_line = trace.first_event_line();
        for (line, event) in (first_event_line..).zip(&trace.events) {
            let fail = |mistake: Mistake| ReadError {
                file: name.as_str().into(),
                line: Some(line),
                kind: mistake.into(),
            };
            event.check().map_err(fail)?;
            let slot = live.apply(event, line).map_err(fail)?;
            loader.push(event, slot, live.bytes());
        }
        Ok(loader.finish(name, trace.header.clone(), live.slot_count(), first_event_line))
    }

    /// The header's `name`, or the file's name without its endings.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The `# key: value` lines.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Size in bytes of the device that the trace was made for, if the header has a `capacity`.
    pub fn capacity_bytes(&self) -> Option<u64> {
        self.header.number("capacity")
    }

    /// All events, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// All marks, in order.
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// The trace's own number of each stream, by the number that steps use. Entry 0 is 0, used or not.
    pub fn streams(&self) -> &[u32] {
        &self.streams
    }

    /// Slots that a replay needs: the most blocks that are live at once.
    pub const fn slot_count(&self) -> u32 {
        self.slot_count
    }

    /// The peak of live bytes.
    pub const fn live_peak(&self) -> Peak {
        self.live_peak
    }

    /// The trace up to the event that reaches the live peak, and then one more request of so many bytes (1 or more) on the
    /// stream of that event. The peak of that trace is its last event.
    ///
    /// A trace without allocations is its own peak, and the request comes on the default stream.
    #[must_use]
    pub fn to_peak_and(&self, bytes: u64) -> Self {
        let peak = self.live_peak.event;
        let (upto, stream) = match self.steps.get(peak) {
            Some(&Step::Allocate { stream, .. }) => (peak + 1, stream),
            _ => (0, 0),
        };
        let mut steps = Vec::with_capacity(upto + 1);
        steps.extend_from_slice(&self.steps[..upto]);
        steps.push(Step::Allocate { slot: self.slot_count, stream, bytes });
        Self {
            name: self.name.clone(),
            header: self.header.clone(),
            steps,
            marks: self.marks.iter().filter(|mark| mark.event < upto).cloned().collect(),
            streams: self.streams.clone(),
            slot_count: self.slot_count + 1,
            live_peak: Peak { bytes: self.live_peak.bytes.saturating_add(bytes), event: upto },
            first_event_line: self.first_event_line,
        }
    }

    /// The line of an event (counted from 0) in the trace's file, counted from 1.
    pub const fn line_of(&self, event: usize) -> u64 {
        // Nothing but events stands below the first one.
        self.first_event_line + event as u64
    }
}

/// A path's last part without `.zst` and `.trace`.
fn stem(path: &str) -> String {
    let name = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or(path);
    let name = name.strip_suffix(".zst").unwrap_or(name);
    name.strip_suffix(".trace").unwrap_or(name).to_owned()
}

/// Collects steps with the trace's stream numbers, which `finish` replaces.
#[derive(Default)]
struct Loader {
    steps: Vec<Step>,
    marks: Vec<Mark>,
    /// Stream numbers met so far, ascending.
    streams: Vec<u32>,
    live_peak: Peak,
}

impl Loader {
    fn push(&mut self, event: &Event, slot: Option<u32>, live_bytes: u64) {
        let at = self.steps.len();
        if live_bytes > self.live_peak.bytes {
            self.live_peak = Peak { bytes: live_bytes, event: at };
        }
        let step = match (event, slot) {
            (&Event::Allocate { bytes, stream, .. }, Some(slot)) => {
                self.meet(stream);
                Step::Allocate { slot, stream, bytes }
            }
            (Event::Free { .. }, Some(slot)) => Step::Free { slot },
            (&Event::RecordStream { stream, .. }, Some(slot)) => {
                self.meet(stream);
                Step::RecordStream { slot, stream }
            }
            (&Event::StreamWait { stream, on }, _) => {
                self.meet(stream);
                self.meet(on);
                Step::StreamWait { stream, on }
            }
            (&Event::Synchronize { stream }, _) => {
                if let Some(stream) = stream {
                    self.meet(stream);
                }
                Step::Synchronize { stream }
            }
            (Event::ReleaseCached, _) => Step::ReleaseCached,
            (Event::Mark { label }, _) => {
                self.marks.push(Mark { label: label.clone(), event: at });
                Step::Mark { number: (self.marks.len() - 1) as u32 }
            }
            (Event::Allocate { .. } | Event::Free { .. } | Event::RecordStream { .. }, None) => {
                unreachable!("`LiveIds::apply` gives these a slot")
            }
        };
        self.steps.push(step);
    }

    fn meet(&mut self, stream: u32) {
        if let Err(at) = self.streams.binary_search(&stream) {
            self.streams.insert(at, stream);
        }
    }

    fn finish(mut self, name: String, header: Header, slot_count: u32, first_event_line: u64) -> LoadedTrace {
        self.meet(0);
        let streams = self.streams;
        let place = |stream: &mut u32| {
            *stream = streams.binary_search(stream).expect("every stream was met") as u32;
        };
        for step in &mut self.steps {
            match step {
                Step::Allocate { stream, .. } | Step::RecordStream { stream, .. } => place(stream),
                Step::StreamWait { stream, on } => {
                    place(stream);
                    place(on);
                }
                Step::Synchronize { stream: Some(stream) } => place(stream),
                Step::Free { .. }
                | Step::Synchronize { stream: None }
                | Step::ReleaseCached
                | Step::Mark { .. } => {}
            }
        }
        LoadedTrace {
            name,
            header,
            steps: self.steps,
            marks: self.marks,
            streams,
            slot_count,
            live_peak: self.live_peak,
            first_event_line,
        }
    }
}

#[cfg(test)]
mod tests;
