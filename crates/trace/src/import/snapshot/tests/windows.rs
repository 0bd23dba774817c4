//! Random histories of which the record has the end only, against a model that counts live bytes.
//!
//! Main types: [`Model`]. Neighbours: the tests above it are made by hand.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::imported;
use crate::event::Event;
use crate::import::pickle::writer::{Data, block, event, segment, snapshot};

/// Places of blocks: few, so that addresses are used again and again.
const PLACES: u64 = 8;
/// Bytes of a place.
const PLACE_BYTES: u64 = 1 << 20;

/// What a program does next; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Do {
    Allocate {
        place: u64,
        bytes: u64,
    },
    /// Frees a block that no other stream uses.
    Free {
        block: usize,
    },
    /// Frees one that some other stream uses.
    FreeLater {
        block: usize,
    },
    /// The other stream is done with the oldest of those.
    Complete,
}

/// An allocator that does nothing but count.
#[derive(Debug, Default)]
struct Model {
    live: BTreeMap<u64, u64>,
    pending: Vec<(u64, u64)>,
    /// Each event, and the live bytes before it.
    events: Vec<(Data, u64)>,
}

impl Model {
    fn live_bytes(&self) -> u64 {
        self.live.values().sum()
    }

    fn log(&mut self, action: &str, address: u64, bytes: u64) {
        self.events.push((event(action, address, bytes), self.live_bytes()));
    }

    fn take(&mut self, block: usize) -> Option<(u64, u64)> {
        let address = *self.live.keys().nth(block.checked_rem(self.live.len())?)?;
        Some((address, self.live[&address]))
    }

    fn run(&mut self, step: &Do) {
        match *step {
            Do::Allocate { place, bytes } => {
                let address = (1 + place % PLACES) * PLACE_BYTES;
                let is_taken = self.pending.iter().any(|(pending, _)| *pending == address);
                if !self.live.contains_key(&address) && !is_taken {
                    self.log("alloc", address, bytes);
                    self.live.insert(address, bytes);
                }
            }
            Do::Free { block } => {
                let Some((address, bytes)) = self.take(block) else { return };
                self.log("free_requested", address, bytes);
                self.live.remove(&address);
                self.log("free_completed", address, bytes);
            }
            Do::FreeLater { block } => {
                let Some((address, bytes)) = self.take(block) else { return };
                self.log("free_requested", address, bytes);
                self.live.remove(&address);
                self.pending.push((address, bytes));
                // Something comes before it is completed, if it is the request of another stream.
                self.log("segment_alloc", 1 << 40, 1);
            }
            Do::Complete => {
                if !self.pending.is_empty() {
                    let (address, bytes) = self.pending.remove(0);
                    self.log("free_completed", address, bytes);
                }
            }
        }
    }

    /// The snapshot now, with the events from `start` on.
    fn snapshot(&self, start: usize) -> Data {
        let live = self.live.iter().map(|(address, bytes)| (*address, *bytes, "active_allocated"));
        let pending = self.pending.iter().map(|(address, bytes)| (*address, *bytes, "active_pending_free"));
        let blocks = live.chain(pending);
        let blocks =
            blocks.map(|(address, bytes, state)| block(address, PLACE_BYTES, bytes, state)).collect();
        let events = self.events[start..].iter().map(|(event, _)| event.clone()).collect();
        snapshot(vec![segment(PLACE_BYTES, PLACES * PLACE_BYTES, blocks)], vec![events])
    }
}

fn program() -> impl Strategy<Value = Vec<Do>> {
    let step = prop_oneof![
        4 => (any::<u64>(), 1..PLACE_BYTES).prop_map(|(place, bytes)| Do::Allocate { place, bytes }),
        2 => any::<usize>().prop_map(|block| Do::Free { block }),
        1 => any::<usize>().prop_map(|block| Do::FreeLater { block }),
        1 => Just(Do::Complete),
    ];
    prop::collection::vec(step, 1..60)
}

/// Whether an event has this action.
fn is(event: &Data, action: &str) -> bool {
    let Data::Dict(pairs) = event else { return false };
    matches!(&pairs[0].1, Data::Text(found) if found == action)
}

/// Live bytes before each event of the trace, and after the last.
fn live_bytes(events: &[Event]) -> Vec<u64> {
    let mut sizes = BTreeMap::new();
    let mut series = vec![0];
    for event in events {
        let now = series.last().copied().unwrap_or(0);
        match *event {
            Event::Allocate { id, bytes, .. } => {
                assert!(sizes.insert(id, bytes).is_none());
                series.push(now + bytes);
            }
            Event::Free { id } => series.push(now - sizes.remove(&id).expect("it is live")),
            _ => {}
        }
    }
    series
}

proptest! {
    /// Wherever the record begins, the bytes that are live at each of its events are those that were.
    #[test]
    fn a_record_can_begin_anywhere(program in program(), start in any::<prop::sample::Index>()) {
        let mut model = Model::default();
        program.iter().for_each(|step| model.run(step));
        let start = start.index(model.events.len() + 1);
        let has = |action| model.events[start..].iter().any(|(event, _)| is(event, action));
        // A record that has completed frees and no requests may be one for which requests were not recorded.
        let start = if has("free_completed") && !has("free_requested") { 0 } else { start };
        let events = &model.events[start..];
        let imported = imported(&model.snapshot(start));

        let changes = events.iter().filter(|(event, _)| is(event, "alloc") || is(event, "free_requested"));
        let mut expected: Vec<u64> = changes.map(|(_, live)| *live).collect();
        expected.push(model.live_bytes());
        let found = live_bytes(&imported.trace.events);
        prop_assert_eq!(&found[found.len() - expected.len()..], &expected[..], "events from {}", start);
        prop_assert_eq!(imported.live_at_end_bytes, model.live_bytes());
    }
}
