//! A case as charts and tables show it: a name, a hue, its figures by their JSON keys.
//!
//! Main types: [`Member`]. Neighbours: `metric` reads figures from it; the charts draw its observation. That figures
//! are read from the JSON, and not from the outcome's fields, makes the page say what the JSON says, and shows figures
//! that only some runs have where they are there.

use concertina_trace::{Observation, Picture, Sample};
use serde_json::Value;

use super::hue::{Hue, HueBook};
use super::{Observed, TraceReport, label};

/// One case of a trace.
pub(super) struct Member<'a> {
    /// The allocator, with its options or their number, and its policy where there are several. Cleaned.
    pub(super) name: String,
    /// Its colour.
    pub(super) hue: Hue,
    /// The outcome as JSON.
    figures: Value,
    observation: Option<&'a Observation>,
}

impl<'a> Member<'a> {
    /// The cases of a trace.
    pub(super) fn all(trace: &'a TraceReport, hues: &HueBook) -> Vec<Self> {
        trace.cases.iter().map(|case| Self::new(case, hues)).collect()
    }

    fn new(case: &'a Observed, hues: &HueBook) -> Self {
        let outcome = &case.outcome;
        Self {
            name: hues.name(outcome),
            hue: hues.hue(outcome),
            // Text keys and numbers: nothing in an outcome can fail here, and without figures cells are empty.
            figures: serde_json::to_value(outcome).unwrap_or_default(),
            observation: case.observation.as_ref(),
        }
    }

    /// A case with these figures and nothing else.
    #[cfg(test)]
    pub(super) fn of_figures(name: &str, figures: Value) -> Self {
        Self { name: name.to_owned(), hue: Hue::FIRST, figures, observation: None }
    }

    /// The name, short enough to stand beside a chart.
    pub(super) fn short_name(&self) -> String {
        label::short(&self.name, 22)
    }

    /// The value at a JSON pointer (RFC 6901), none if it is not there or null.
    pub(super) fn value(&self, pointer: &str) -> Option<&Value> {
        self.figures.pointer(pointer).filter(|value| !value.is_null())
    }

    /// A number at a JSON pointer.
    pub(super) fn number(&self, pointer: &str) -> Option<f64> {
        self.value(pointer)?.as_f64()
    }

    /// A count or a number of bytes at a JSON pointer.
    pub(super) fn whole(&self, pointer: &str) -> Option<u64> {
        self.value(pointer)?.as_u64()
    }

    /// A text at a JSON pointer.
    pub(super) fn text(&self, pointer: &str) -> Option<&str> {
        self.value(pointer)?.as_str()
    }

    /// Whether the trace ran to its end.
    pub(super) fn completed(&self) -> bool {
        self.value("/completed").and_then(Value::as_bool).unwrap_or(false)
    }

    /// How it ended, if not well.
    pub(super) fn failure(&self) -> Option<String> {
        if self.completed() {
            return None;
        }
        let kind = self.text("/failure").unwrap_or("failed").replace('_', " ");
        let event =
            self.whole("/failed_at_event").map(|event| format!(" at event {}", crate::number::count(event)));
        Some(format!("{kind}{}", event.unwrap_or_default()))
    }

    /// Samples, by event; empty if nobody watched.
    pub(super) fn samples(&self) -> &'a [Sample] {
        self.observation.map_or(&[], |observation| &observation.samples)
    }

    /// Memory at the moment, if a picture was taken and shows something.
    pub(super) fn picture(&self) -> Option<&'a Picture> {
        self.observation?.picture.as_ref().filter(|picture| !picture.is_blind())
    }

    /// The driver's smallest mappable size, in bytes.
    pub(super) fn page_bytes(&self) -> u64 {
        self.whole("/granularity_bytes").unwrap_or(0).max(1)
    }
}
