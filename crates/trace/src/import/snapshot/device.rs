//! The devices of a snapshot, and which one to import.
//!
//! Main types: [`Devices`]. Neighbours: `snapshot` asks it first.

use std::collections::BTreeMap;

use super::SnapshotMistake;
use super::object::Object;
use crate::import::error::{Misplaced, Place};
use crate::import::note::{NoteKind, count_of};
use crate::import::pickle::Pickle;
use crate::import::pickle::Value;
use crate::import::record::Record;

/// Devices that an error lists.
const LISTED: usize = 16;

/// What there is of one device.
#[derive(Clone, Copy, Debug, Default)]
struct Content {
    events: usize,
    segments: usize,
}

/// The devices of which there is something.
#[derive(Debug)]
pub(super) struct Devices {
    contents: BTreeMap<u32, Content>,
}

impl Devices {
    /// Counts events and segments of each.
    pub(super) fn of(pickle: &Pickle<'_>, segments: &[Value], traces: &[Value]) -> Result<Self, Misplaced> {
        let mut contents: BTreeMap<u32, Content> = BTreeMap::new();
        for (device, &trace) in (0_u32..).zip(traces) {
            let events = pickle.list(trace).ok_or_else(|| {
                let found = trace.kind();
                let mistake = SnapshotMistake::WrongKind { key: "device_traces", expected: "lists", found };
                Place::File.is_wrong(mistake)
            })?;
            if !events.is_empty() {
                contents.entry(device).or_default().events = events.len();
            }
        }
        for (number, &segment) in segments.iter().enumerate() {
            let device = Object::new(pickle, segment, Place::Segment(number))?.device()?;
            contents.entry(device).or_default().segments += 1;
        }
        Ok(Self { contents })
    }

    /// The device that was asked for; else the only one with events; else, where none has any, the only one with
    /// segments.
    pub(super) fn choose(&self, asked: Option<u32>) -> Result<u32, Misplaced> {
        let wrong = |mistake| Err(Place::File.is_wrong(mistake));
        if self.contents.is_empty() {
            return wrong(SnapshotMistake::Empty);
        }
        if let Some(device) = asked {
            return match self.contents.contains_key(&device) {
                true => Ok(device),
                false => wrong(SnapshotMistake::NoDevice { device, found: self.list() }),
            };
        }
        let mut with_events = self.contents.iter().filter(|(_, content)| content.events > 0);
        let mut all = self.contents.iter();
        let (first, second) = match with_events.next() {
            Some(first) => (Some(first), with_events.next()),
            None => (all.next(), all.next()),
        };
        match (first, second) {
            (Some((&device, _)), None) => Ok(device),
            _ => wrong(SnapshotMistake::SeveralDevices { found: self.list() }),
        }
    }

    fn list(&self) -> String {
        let mut list: Vec<_> = self.contents.iter().take(LISTED).map(Self::describe).collect();
        if self.contents.len() > LISTED {
            list.push(format!("{} more", self.contents.len() - LISTED));
        }
        list.join(", ")
    }

    fn describe((device, content): (&u32, &Content)) -> String {
        let (events, segments) = (count_of(content.events, "event"), count_of(content.segments, "segment"));
        format!("device {device} ({events}, {segments})")
    }

    /// Notes the devices that are not imported.
    pub(super) fn note_others(&self, device: u32, record: &mut Record) {
        let others = self.contents.iter().filter(|(other, _)| **other != device);
        let mut others: Vec<_> = others.take(LISTED + 1).map(Self::describe).collect();
        if others.len() > LISTED {
            others[LISTED] = "and more".to_owned();
        }
        if !others.is_empty() {
            record.note(NoteKind::LeftOut, others.join(", "));
        }
    }
}
