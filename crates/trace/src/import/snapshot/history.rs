//! The events of a snapshot's history, as requests of the program.
//!
//! Main types: [`History`], [`OutOfMemory`]. Neighbours: `snapshot` hands it the events of one device, `release` tells
//! who gave segments back, `annotations` has the marks.

use std::collections::BTreeMap;
use std::fmt;

use super::annotations::Annotations;
use super::object::Object;
use super::release::{Next, Releases};
use super::segments::Segments;
use crate::import::draft::RawStream;
use crate::import::error::{Misplaced, Place};
use crate::import::note::{NoteKind, count_of, one_line};
use crate::import::pickle::Pickle;
use crate::import::pickle::Value;
use crate::import::record::{Described, Record};
use crate::mistake::excerpt;

/// Names of unknown actions that are told apart.
const NAMED_ACTIONS: usize = 8;

/// What an event says, by its `action`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Allocate,
    FreeRequested,
    FreeCompleted,
    /// A segment, or pages of one, come from the driver.
    Acquire,
    /// They go back.
    Release,
    OutOfMemory,
    Snapshot,
    Unknown,
}

impl Action {
    fn of(name: &str) -> Self {
        match name {
            "alloc" => Self::Allocate,
            "free_requested" => Self::FreeRequested,
            "free_completed" => Self::FreeCompleted,
            "segment_alloc" | "segment_map" => Self::Acquire,
            "segment_free" | "segment_unmap" => Self::Release,
            "oom" => Self::OutOfMemory,
            "snapshot" | "workspace_snapshot" => Self::Snapshot,
            _ => Self::Unknown,
        }
    }
}

/// The last request that was refused.
#[derive(Debug)]
pub(super) struct OutOfMemory {
    bytes: u64,
    free_bytes: u64,
    /// Bytes that the program could have got: what it had mapped, and what was free. None without segments.
    pub(super) capacity_bytes: Option<u64>,
    place: Place,
    /// Refusals so far, this one included.
    count: usize,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, free_bytes, capacity_bytes, place, count } = self;
        write!(f, "{place}: {bytes} bytes asked, {free_bytes} free on the device")?;
        if let Some(capacity) = capacity_bytes {
            write!(f, ", {} mapped", capacity - free_bytes)?;
        }
        if *count > 1 { write!(f, "; the last of {count}") } else { Ok(()) }
    }
}

/// What the history came to, beside the record.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Events about blocks.
    pub(super) events: usize,
    /// The last request that was refused, if there is one.
    pub(super) last_refusal: Option<OutOfMemory>,
}

/// How much of something there was.
#[derive(Debug, Default)]
struct Tally {
    /// Events about blocks.
    blocks: usize,
    empty: usize,
    private: usize,
    pending: usize,
    completed_only: usize,
    hopeless: usize,
    unknown: BTreeMap<String, usize>,
}

/// The events of one device.
#[derive(Debug)]
pub(super) struct History<'p> {
    pickle: &'p Pickle<'p>,
    events: &'p [Value],
    device: u32,
    /// Whether the record has requests to free, and whether it has frees that were completed: one can choose what is
    /// recorded.
    has_requested: bool,
    has_completed: bool,
    /// Bytes mapped before the next event; none without segments, or if the events can't be right.
    mapped_bytes: Option<i128>,
    last_refusal: Option<OutOfMemory>,
    tally: Tally,
    releases: Releases,
}

impl<'p> History<'p> {
    /// Looks through the events once.
    pub(super) fn new(
        pickle: &'p Pickle<'p>,
        events: &'p [Value],
        device: u32,
        segments: &Segments,
    ) -> Result<Self, Misplaced> {
        let mut history = Self {
            pickle,
            events,
            device,
            has_requested: false,
            has_completed: false,
            mapped_bytes: None,
            last_refusal: None,
            tally: Tally::default(),
            releases: Releases::default(),
        };
        let mut acquired = 0_i128;
        for at in 0..events.len() {
            let event = history.event(at)?;
            match Action::of(event.text("action")?) {
                Action::FreeRequested => history.has_requested = true,
                Action::FreeCompleted => history.has_completed = true,
                Action::Acquire => acquired += i128::from(event.number("size")?),
                Action::Release => acquired -= i128::from(event.number("size")?),
                _ => {}
            }
        }
        if segments.count > 0 {
            let at_end = i128::try_from(segments.mapped_bytes).unwrap_or(i128::MAX);
            history.mapped_bytes = at_end.checked_sub(acquired);
        }
        Ok(history)
    }

    fn event(&self, at: usize) -> Result<Object<'p>, Misplaced> {
        Object::new(self.pickle, self.events[at], Place::Event(self.device, at))
    }

    /// Fills the record.
    pub(super) fn read(
        mut self,
        mut annotations: Annotations,
        record: &mut Record,
    ) -> Result<Outcome, Misplaced> {
        let mut metadata = String::new();
        let first_time = match self.events {
            [] => None,
            _ => self.event(0)?.number_if_any("time_us")?,
        };
        annotations.begin(first_time);
        for at in 0..self.events.len() {
            let event = self.event(at)?;
            let action = Action::of(event.text("action")?);
            match action {
                Action::Release => {}
                Action::Acquire | Action::OutOfMemory => self.releases.end_run(Next::Need, record),
                _ => self.releases.end_run(Next::Other, record),
            }
            if let Some(time) = event.number_if_any("time_us")? {
                annotations.mark_before(time, record);
            }
            if let Some(Value::Text(text)) = event.get("user_metadata") {
                let label = one_line(self.pickle.text(text));
                if label != metadata {
                    record.mark(&label);
                    metadata = label;
                }
            }
            self.apply(action, at, &event, record)?;
        }
        self.releases.end_run(Next::Other, record);
        annotations.end(record);
        self.note(record);
        Ok(Outcome { events: self.tally.blocks, last_refusal: self.last_refusal })
    }

    fn apply(
        &mut self,
        action: Action,
        at: usize,
        event: &Object<'p>,
        record: &mut Record,
    ) -> Result<(), Misplaced> {
        let place = event.place();
        let is_about_blocks = matches!(
            action,
            Action::Allocate | Action::FreeRequested | Action::FreeCompleted | Action::OutOfMemory
        );
        self.tally.blocks += usize::from(is_about_blocks);
        match action {
            Action::Allocate => {
                let block = described(event)?;
                if block.bytes == 0 {
                    self.tally.empty += 1;
                    return Ok(());
                }
                self.tally.private += usize::from(event.is_private("pool_id"));
                record.allocate(block, place)?;
            }
            Action::FreeRequested => self.free(described(event)?, at, place, record)?,
            Action::FreeCompleted => self.complete(described(event)?, at, place, record)?,
            Action::Acquire => self.map(i128::from(event.number("size")?)),
            Action::Release => {
                self.map(-i128::from(event.number("size")?));
                self.releases.release(self.pickle, event);
            }
            Action::OutOfMemory => self.refuse(event, record)?,
            Action::Snapshot => {
                let mapped = event.number_if_any("size")?.unwrap_or(0);
                record.mark(&format!("snapshot: {mapped} bytes mapped"));
            }
            Action::Unknown => {
                let mut name = excerpt(event.text("action")?.as_bytes());
                if self.tally.unknown.len() >= NAMED_ACTIONS && !self.tally.unknown.contains_key(&name) {
                    name = "others".to_owned();
                }
                *self.tally.unknown.entry(name).or_default() += 1;
            }
        }
        Ok(())
    }

    /// The program frees a block. PyTorch completes a free under the same lock unless another stream used the block, so
    /// nothing comes between the two then.
    fn free(
        &mut self,
        block: Described,
        at: usize,
        place: Place,
        record: &mut Record,
    ) -> Result<(), Misplaced> {
        if block.bytes == 0 && record.live_bytes_at(block.address).is_none() {
            return Ok(());
        }
        let mut uses = None;
        if self.has_completed && !self.completes(at + 1, block.address)? {
            self.tally.pending += 1;
            uses = Some(RawStream::Unknown);
        }
        record.free(block, uses, place)
    }

    /// Whether an event completes the free of the block at `address`.
    fn completes(&self, at: usize, address: u64) -> Result<bool, Misplaced> {
        if at >= self.events.len() {
            return Ok(false);
        }
        let event = self.event(at)?;
        Ok(Action::of(event.text("action")?) == Action::FreeCompleted && event.number("addr")? == address)
    }

    /// A free is completed. That it was requested may not be in the record: it was not recorded, or was before the first
    /// event.
    fn complete(
        &mut self,
        block: Described,
        at: usize,
        place: Place,
        record: &mut Record,
    ) -> Result<(), Misplaced> {
        if !self.has_requested || record.live_bytes_at(block.address).is_some() {
            if block.bytes == 0 && !record.knows(block.address) {
                return Ok(());
            }
            self.tally.completed_only += usize::from(self.has_requested);
            return record.free(block, None, place);
        }
        // The first event may be the second half of a free that waited for nothing.
        if at > 0 && block.bytes > 0 && !record.knows(block.address) {
            record.older_pending(block, place)?;
        }
        Ok(())
    }

    fn map(&mut self, bytes: i128) {
        self.mapped_bytes = self.mapped_bytes.and_then(|mapped| mapped.checked_add(bytes));
    }

    fn refuse(&mut self, event: &Object<'p>, record: &mut Record) -> Result<(), Misplaced> {
        let bytes = event.number("size")?;
        // The oldest layout has what was free where other events have an address.
        let free_bytes = match event.number_if_any("device_free")? {
            Some(free) => free,
            None => event.number_if_any("addr")?.unwrap_or(0),
        };
        let mapped = self.mapped_bytes.and_then(|mapped| u64::try_from(mapped).ok());
        let capacity_bytes = mapped.and_then(|mapped| mapped.checked_add(free_bytes));
        let count = self.last_refusal.as_ref().map_or(0, |last| last.count) + 1;
        let stream = RawStream::Handle(event.handle("stream")?);
        let label = format!("out of memory: {bytes} bytes asked, {free_bytes} free on the device");
        let servable = record.refused(bytes, stream, &label, capacity_bytes, event.place())?;
        self.tally.hopeless += usize::from(!servable);
        self.last_refusal =
            Some(OutOfMemory { bytes, free_bytes, capacity_bytes, place: event.place(), count });
        Ok(())
    }

    fn note(&self, record: &mut Record) {
        let Tally { empty, private, pending, completed_only, hopeless, ref unknown, .. } = self.tally;
        self.releases.note(record);
        if let Some(last) = &self.last_refusal {
            let requests = count_of(last.count, "refused request");
            record.note(NoteKind::Guessed, format!("{requests}: a mark, the request, and its free at once"));
        }
        let mut say = |count: usize, kind, noun: &str, text: &str| {
            if count > 0 {
                record.note(kind, format!("{} {text}", count_of(count, noun)));
            }
        };
        let (guessed, left_out) = (NoteKind::Guessed, NoteKind::LeftOut);
        say(pending, guessed, "free", "waited for other streams: a use on one (`u`), just before the free");
        say(completed_only, guessed, "free", "completed that nobody requested: freed there");
        say(
            hopeless,
            left_out,
            "refused request",
            "that could not be served in an empty device: the mark alone",
        );
        say(private, left_out, "allocation", "from a private pool: the trace has one pool");
        say(empty, left_out, "allocation", "of 0 bytes");
        for (action, count) in unknown {
            say(*count, left_out, "event", &format!("with the action {action}"));
        }
    }
}

/// The block that an event is about.
fn described(event: &Object<'_>) -> Result<Described, Misplaced> {
    Ok(Described {
        address: event.number("addr")?,
        bytes: event.number("size")?,
        stream: RawStream::Handle(event.handle("stream")?),
    })
}
