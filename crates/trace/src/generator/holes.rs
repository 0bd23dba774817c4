//! Hundreds of small holes, none of which fits a large request.
//!
//! Neighbours: `builder` makes the trace.

use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::builder::{BlockId, Builder};
use crate::reader::Trace;

const MIB: u64 = 1 << 20;
/// No hole is larger.
const LARGEST_HOLE_BYTES: u64 = 30 * MIB;
/// No hole is smaller.
const SMALLEST_HOLE_BYTES: u64 = 4 * MIB;
/// The blocks between the holes, which stay.
const LARGEST_KEPT_BYTES: u64 = 40 * MIB;
/// The large request, the first time.
const REQUEST_BYTES: u64 = 512 * MIB;
/// How often the pattern comes again, with other holes.
const ROUNDS: u32 = 12;
/// The later requests, in MiB.
const LATER_REQUEST_MIB: std::ops::RangeInclusive<u64> = 300..=900;

/// Makes `holes` holes, then asks for 512 MiB. Then, round by round: blocks are freed and others allocated in their
/// place, the large block is freed, and another large one comes that no hole fits.
pub(super) fn small_holes(rng: &mut ChaCha8Rng, seed: u64, holes: u64) -> Trace {
    let mut trace = Builder::new();
    let mut kept = Vec::new();
    let mut between = Vec::new();
    for _ in 0..holes {
        between.push(trace.allocate(rng.random_range(SMALLEST_HOLE_BYTES..=LARGEST_HOLE_BYTES)));
        kept.push(trace.allocate(rng.random_range(SMALLEST_HOLE_BYTES..=LARGEST_KEPT_BYTES)));
    }
    for hole in between {
        trace.free(hole);
    }
    trace.mark("the request that no hole fits");
    let mut large = trace.allocate(REQUEST_BYTES);
    for round in 0..ROUNDS {
        trace.mark(format!("again {round}"));
        exchange(&mut trace, rng, &mut kept);
        trace.free(large);
        large = trace.allocate(rng.random_range(LATER_REQUEST_MIB) * MIB);
    }
    trace.finish(
        "small-holes",
        "generated: free holes of at most 30 MiB between live blocks, then 512 MiB; then the pattern again",
        &[("seed", seed), ("holes", holes)],
    )
}

/// Frees a fifth of the kept blocks, one after the other, and allocates a block of another size after each.
fn exchange(trace: &mut Builder, rng: &mut ChaCha8Rng, kept: &mut Vec<BlockId>) {
    let count = kept.len() / 5;
    kept.partial_shuffle(rng, count);
    // The chosen ones are at the end now.
    for block in kept.split_off(kept.len() - count) {
        trace.free(block);
        let bytes = rng.random_range(SMALLEST_HOLE_BYTES..=LARGEST_KEPT_BYTES);
        kept.push(trace.allocate(bytes));
    }
}
