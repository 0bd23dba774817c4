//! Blocks of any size that live for any time: the trace that never repeats.
//!
//! Neighbours: `builder` makes the trace.

use std::collections::BTreeMap;
use std::ops::Range;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::builder::{BlockId, Builder};
use super::draw::{halving, log_uniform};
use crate::reader::Trace;

/// Sizes from 512 bytes to 256 MiB, as powers of two.
const EXPONENTS: Range<u32> = 9..28;
/// Three sizes of ten are powers of two themselves, as programs like them.
const POWER_OF_TWO_SHARE: f64 = 0.3;
/// One block of fifty lives long.
const LONG_LIVED_SHARE: f64 = 0.02;
/// Half of the others live longer than this many allocations, …
const MEDIAN_LIFETIME: u64 = 140;
/// … half of the long-lived than this many.
const MEDIAN_LONG_LIFETIME: u64 = 7_000;
/// Allocations from one mark to the next.
const MARK_EVERY: u64 = 2_000;

/// A trace of `events` events, marks among them.
pub(super) fn random(rng: &mut ChaCha8Rng, seed: u64, events: u64) -> Trace {
    let mut trace = Builder::new();
    // Blocks by the allocation before which they are freed; several may share one.
    let mut due: BTreeMap<u64, Vec<BlockId>> = BTreeMap::new();
    let mut allocation = 0;
    'events: while (trace.len() as u64) < events {
        if allocation % MARK_EVERY == 0 {
            trace.mark(format!("allocation {}", allocation + 1));
        }
        allocation += 1;
        while let Some(entry) = due.first_entry()
            && *entry.key() <= allocation
        {
            for block in entry.remove() {
                if trace.len() as u64 >= events {
                    break 'events;
                }
                trace.free(block);
            }
        }
        if trace.len() as u64 >= events {
            break;
        }
        let block = trace.allocate(size(rng));
        due.entry(allocation + lifetime(rng)).or_default().push(block);
    }
    trace.finish(
        "random",
        "generated: log-uniform sizes from 512 bytes to 256 MiB, exponential lifetimes, one block of fifty long-lived",
        &[("seed", seed)],
    )
}

/// In bytes.
fn size(rng: &mut ChaCha8Rng) -> u64 {
    if rng.random_bool(POWER_OF_TWO_SHARE) {
        return 1 << rng.random_range(EXPONENTS.start..=EXPONENTS.end);
    }
    log_uniform(rng, EXPONENTS)
}

/// In allocations; 1 or more.
fn lifetime(rng: &mut ChaCha8Rng) -> u64 {
    let long = rng.random_bool(LONG_LIVED_SHARE);
    halving(rng, if long { MEDIAN_LONG_LIFETIME } else { MEDIAN_LIFETIME })
}
