//! Numbers drawn by seed. Integers only: the logarithms of a machine's own library differ in their last bits, and the
//! same seed has to give the same trace everywhere.
//!
//! Neighbours: `random` and `nlp` draw with it.

use std::ops::Range;

use rand::{Rng, RngCore};
use rand_chacha::ChaCha8Rng;

/// A number from 2^`start` to below 2^`end` of `exponents`: every power of two is equally likely, and inside one
/// every number. As good as log-uniform.
pub(super) fn log_uniform(rng: &mut ChaCha8Rng, exponents: Range<u32>) -> u64 {
    let exponent = rng.random_range(exponents);
    rng.random_range(1_u64 << exponent..2_u64 << exponent)
}

/// A number from 1 on whose likelihood halves every `half` numbers: as good as exponential, with a median of `half`
/// and a mean of about one and a half.
pub(super) fn halving(rng: &mut ChaCha8Rng, half: u64) -> u64 {
    let halvings = u64::from(rng.next_u64().trailing_zeros());
    halvings * half + rng.random_range(1..=half)
}
