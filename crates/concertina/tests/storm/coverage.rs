//! What programs came to do: a storm that never steals shows nothing.
//!
//! Main type: [`Coverage`]. Neighbours: `site` counts at the end of each program, `random` asks for enough.

use std::collections::BTreeMap;

use concertina::Stats;
use concertina_emulator::Counts;

use crate::op::CALLS;

/// Sums over programs, by name.
#[derive(Debug, Default)]
pub(crate) struct Coverage(BTreeMap<String, u64>);

impl Coverage {
    pub(crate) fn add(&mut self, what: impl Into<String>, count: u64) {
        *self.0.entry(what.into()).or_default() += count;
    }

    pub(crate) fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    pub(crate) fn merge(&mut self, other: Self) {
        other.0.into_iter().for_each(|(what, count)| self.add(what, count));
    }

    pub(crate) fn add_figures(&mut self, stats: &Stats, counts: &Counts) {
        self.add("stolen frames", stats.stolen_frames);
        self.add("revived pages", stats.revived_pages);
        self.add("replaced pages", stats.replaced_pages);
        self.add("moved segments", stats.moved_segments);
        self.add("waits on the device", stats.fences.waits);
        self.add("waits of the host", stats.fences.host_waits);
        self.add("events recorded", stats.fences.records);
        for call in CALLS {
            self.add(call.name(), counts.of(call));
            self.add(format!("{call} failed"), counts.failed(call));
        }
    }
}
