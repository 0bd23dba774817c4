//! What the program said about itself while a snapshot was recorded: marks by time.
//!
//! Main types: [`Annotations`]. Neighbours: `history` puts them between the events.

use super::object::Object;
use crate::import::error::{Misplaced, Place};
use crate::import::note::{NoteKind, count_of};
use crate::import::pickle::Pickle;
use crate::import::pickle::Value;
use crate::import::record::Record;

/// The annotations of one device, in the order of time.
#[derive(Debug, Default)]
pub(super) struct Annotations {
    /// Time in microseconds, and text; the next one last.
    waiting: Vec<(u64, String)>,
    left_out: usize,
}

impl Annotations {
    /// Reads those that have a time, and are of `device` or of none.
    pub(super) fn of(pickle: &Pickle<'_>, annotations: &[Value], device: u32) -> Result<Self, Misplaced> {
        let mut all = Self::default();
        for (at, &annotation) in annotations.iter().enumerate() {
            let annotation = Object::new(pickle, annotation, Place::Annotation(at))?;
            if annotation.get("device").is_some() && annotation.device()? != device {
                continue;
            }
            let stage = match annotation.text_if_any("stage")? {
                Some("START") => "begin ",
                Some("END") => "end ",
                _ => "",
            };
            match (annotation.number_if_any("time_us")?, annotation.text_if_any("name")?) {
                (Some(time), Some(name)) => all.waiting.push((time, format!("{stage}{name}"))),
                _ => all.left_out += 1,
            }
        }
        // A stable sort: what has the same time stays in the order of the list.
        all.waiting.sort_by_key(|(time, _)| *time);
        all.waiting.reverse();
        Ok(all)
    }

    /// Leaves out what is from before the first event, or everything if that has no time.
    pub(super) fn begin(&mut self, first_event_us: Option<u64>) {
        let first = first_event_us.unwrap_or(u64::MAX);
        let before = self.waiting.iter().rev().take_while(|(time, _)| *time < first).count();
        self.waiting.truncate(self.waiting.len() - before);
        self.left_out += before;
    }

    /// Marks what is from before `time`, in microseconds.
    pub(super) fn mark_before(&mut self, time: u64, record: &mut Record) {
        while let Some((_, label)) = self.waiting.pop_if(|(at, _)| *at <= time) {
            record.mark(&label);
        }
    }

    /// Marks the rest.
    pub(super) fn end(mut self, record: &mut Record) {
        self.mark_before(u64::MAX, record);
        if self.left_out > 0 {
            let annotations = count_of(self.left_out, "annotation");
            record
                .note(NoteKind::LeftOut, format!("{annotations} without a time, or from before the record"));
        }
    }
}
