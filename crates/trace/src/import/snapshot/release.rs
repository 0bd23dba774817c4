//! Runs of releases in a history, and who is behind them: the program, by `empty_cache`, or the allocator.
//!
//! Main types: [`Releases`], [`Next`]. Neighbours: `history` hands it the events.

use std::collections::HashMap;

use super::object::Object;
use crate::import::note::{NoteKind, count_of};
use crate::import::pickle::Pickle;
use crate::import::pickle::Value;
use crate::import::record::Record;

/// What comes after a run of releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The allocator takes memory from the driver, or can't: it may have released to make room.
    Need,
    /// Anything else, or the end: nobody but the program had a reason.
    Other,
}

/// Tells the runs apart. PyTorch's allocator gives segments back in three cases: `empty_cache`; before it asks the driver
/// a second time, where a segment or an out of memory follows; and for `garbage_collection_threshold`, where a segment
/// follows. If stacks were recorded with all events, they name `empty_cache`.
#[derive(Debug, Default)]
pub(super) struct Releases {
    /// Whether a run is open, and if so whether its stacks name the program's call.
    open: Option<bool>,
    /// Whether a list of frames names it, by the list's number: events share lists, and lists share frames.
    named: HashMap<u32, bool>,
    named_runs: usize,
    guessed_runs: usize,
    own_runs: usize,
}

impl Releases {
    /// A segment, or pages of one, goes back to the driver.
    pub(super) fn release(&mut self, pickle: &Pickle<'_>, event: &Object<'_>) {
        let is_named = match event.get("frames") {
            Some(frames @ Value::List(number)) => {
                *self.named.entry(number).or_insert_with(|| names_the_call(pickle, frames))
            }
            _ => false,
        };
        self.open = Some(is_named || self.open.unwrap_or(false));
    }

    /// Something else comes: if a run ends by it that is the program's, the trace has its `e` here.
    pub(super) fn end_run(&mut self, next: Next, record: &mut Record) {
        match (self.open.take(), next) {
            (None, _) => {}
            (Some(true), _) => {
                self.named_runs += 1;
                record.release_cached();
            }
            (Some(false), Next::Other) => {
                self.guessed_runs += 1;
                record.release_cached();
            }
            (Some(false), Next::Need) => self.own_runs += 1,
        }
    }

    /// Says what was guessed.
    pub(super) fn note(&self, record: &mut Record) {
        if self.guessed_runs > 0 {
            let runs = count_of(self.guessed_runs, "run");
            let text = format!("{runs} of releases that no new segment follows are `empty_cache` (`e`)");
            record.note(NoteKind::Guessed, text);
        }
        if self.own_runs > 0 {
            let runs = count_of(self.own_runs, "run");
            let text = format!(
                "{runs} of releases before a new segment or an out of memory are the allocator's own"
            );
            record.note(NoteKind::Guessed, text);
        }
    }
}

/// Whether a list of frames has one of `torch.cuda.empty_cache`, in Python or C++.
fn names_the_call(pickle: &Pickle<'_>, frames: Value) -> bool {
    let frames = pickle.list(frames).unwrap_or_default();
    let names = frames.iter().filter_map(|frame| match pickle.get(*frame, "name") {
        Some(Value::Text(name)) => Some(pickle.text(name)),
        _ => None,
    });
    names.into_iter().any(|name| name == "empty_cache" || name.contains("emptyCache"))
}
