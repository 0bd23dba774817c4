//! A pool whose free bytes lie between small blocks that stay.
//!
//! Neighbours: `case` has the report.

use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::generator::builder::Builder;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// What the pool had taken from the driver when it failed, in bytes.
const TAKEN_BYTES: u64 = 84_490_059_776;
/// What was in use then.
const USED_BYTES: u64 = 53_514_136_688;
/// What was refused.
const REQUEST_BYTES: u64 = 132_870_728;
/// Seed of the sizes, and of which large blocks are freed.
const SEED: u64 = 1_245;

/// 1 to 32 small blocks lie behind each large one. They stay, so that no hole is larger than one large block.
pub(super) fn small_between_large(trace: &mut Builder) -> Option<u64> {
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let mut large = Vec::new();
    'fill: loop {
        let smalls = rng.random_range(1..=32);
        let small = std::iter::repeat_with(|| rng.random_range(256 * KIB..=512 * KIB)).take(smalls);
        let small: Vec<u64> = small.collect();
        let bytes = rng.random_range(16 * MIB..=120 * MIB);
        for (number, bytes) in std::iter::once(bytes).chain(small).enumerate() {
            if trace.live_bytes() + bytes > TAKEN_BYTES {
                break 'fill;
            }
            let block = trace.allocate(bytes);
            if number == 0 {
                large.push(block);
            }
        }
    }
    large.shuffle(&mut rng);
    while trace.live_bytes() > USED_BYTES
        && let Some(block) = large.pop()
    {
        trace.free(block);
    }
    trace.mark("the request that failed");
    while trace.live_bytes() + REQUEST_BYTES <= TAKEN_BYTES {
        trace.allocate(REQUEST_BYTES);
    }
    None
}
