//! Numbers by seed: the same seed gives the same program on every machine.
//!
//! Main type: [`Dice`]. Neighbours: `setup`, `op` and `program` draw.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub(crate) struct Dice(ChaCha8Rng);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number from 0 to `most`, exclusive.
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0.random_range(0..most)
    }

    /// The same as an index.
    pub(crate) fn index(&mut self, most: usize) -> usize {
        self.below(most as u64) as usize
    }

    /// A number of the range, both ends included.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        self.0.random_range(least..=most)
    }

    /// True once in so many times.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// Something within the range, once in so many times.
    pub(crate) fn sometimes(&mut self, times: u64, least: u64, most: u64) -> Option<u64> {
        self.once_in(times).then(|| self.between(least, most))
    }
}
