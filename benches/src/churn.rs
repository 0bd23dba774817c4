//! Many live blocks of random sizes: again and again one of them goes and another comes.
//!
//! Main types: [`Churn`], [`Sizes`]. Neighbours: `contender` has the allocators, `chunks` times the pairs;
//! `benches/churn.rs`, `benches/live.rs` and `benches/mapped.rs` run it.

use std::fmt;

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::contender::Contender;

/// Pairs that are drawn before the clock starts, at least.
const PROGRAM: usize = 1 << 16;

/// Sizes in bytes, log-uniform: as many from each power of two to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The smallest; not 0.
    pub least: u64,
    /// The largest.
    pub most: u64,
}

impl Sizes {
    /// 512 bytes to 64 MiB: from a scalar to an activation.
    pub const ALL: Self = Self { least: 512, most: 64 << 20 };
    /// 512 bytes to 1 MiB: what lies in heaps of small blocks.
    pub const SMALL: Self = Self { least: 512, most: 1 << 20 };
    /// A little over 1 MiB to 20 MiB: some pages each, in heaps of large blocks.
    pub const LARGE: Self = Self { least: (1 << 20) + 512, most: 20 << 20 };

    /// So many of them, by seed.
    ///
    /// # Panics
    /// If the smallest is 0 or above the largest.
    pub fn draw(self, count: usize, seed: u64) -> Vec<u64> {
        assert!(0 < self.least && self.least <= self.most, "no sizes: {self:?}");
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (least, most) = ((self.least as f64).ln(), (self.most as f64).ln());
        let draw = |_| (random.random_range(least..=most).exp() as u64).clamp(self.least, self.most);
        (0..count).map(draw).collect()
    }
}

/// A contender with many live blocks, and what happens to them.
pub struct Churn<C: Contender> {
    contender: C,
    live: Vec<Option<C::Block>>,
    /// Which block goes, and the bytes of the one that comes for it. As long as there are blocks, at least.
    program: Vec<(u32, u64)>,
    at: usize,
}

impl<C: Contender + fmt::Debug> fmt::Debug for Churn<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Churn");
        fields.field("contender", &self.contender).field("blocks", &self.live.len()).finish_non_exhaustive()
    }
}

impl<C: Contender> Churn<C> {
    /// So many live blocks, churned for two rounds of the program already, which is 65,536 pairs long, or as long as
    /// there are blocks: pairs seldom make a driver call from then on.
    ///
    /// # Panics
    /// If there are no blocks, or more than 4 Gi.
    pub fn new(contender: C, blocks: usize, sizes: Sizes) -> Self {
        let mut churn = Self::cold(contender, blocks, sizes);
        churn.pairs(2 * churn.program.len() as u64);
        churn
    }

    /// The same before the first pair.
    ///
    /// # Panics
    /// If there are no blocks, or more than 4 Gi.
    pub fn cold(mut contender: C, blocks: usize, sizes: Sizes) -> Self {
        let most = u32::try_from(blocks).expect("at most 4 Gi blocks");
        let mut random = ChaCha8Rng::seed_from_u64(2);
        let come = sizes.draw(PROGRAM.max(blocks), 1);
        let program: Vec<(u32, u64)> =
            come.into_iter().map(|bytes| (random.random_range(0..most), bytes)).collect();
        let live = program[..blocks].iter().map(|&(_, bytes)| Some(contender.allocate(bytes))).collect();
        Self { contender, live, program, at: 0 }
    }

    /// So many times: a block goes, another comes.
    pub fn pairs(&mut self, pairs: u64) {
        for _ in 0..pairs {
            let (slot, bytes) = self.program[self.at];
            self.at = if self.at + 1 == self.program.len() { 0 } else { self.at + 1 };
            let place = &mut self.live[slot as usize];
            if let Some(block) = place.take() {
                self.contender.free(block);
            }
            *place = Some(self.contender.allocate(bytes));
        }
    }

    /// So many times: a block comes and goes, of the sizes of the program by turns, with all others staying.
    pub fn hits(&mut self, pairs: u64) {
        for _ in 0..pairs {
            let (_, bytes) = self.program[self.at];
            self.at = if self.at + 1 == self.program.len() { 0 } else { self.at + 1 };
            let block = self.contender.allocate(bytes);
            self.contender.free(block);
        }
    }

    /// So many times: a block of this size comes and goes, with all others staying.
    pub fn pairs_of(&mut self, bytes: u64, pairs: u64) {
        self.contender.pairs(bytes, pairs);
    }

    /// The contender.
    pub const fn contender(&self) -> &C {
        &self.contender
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Churn, Contender, Sizes};

    /// Numbers its blocks, and knows which are live.
    #[derive(Debug, Default)]
    struct Book {
        next: u64,
        live: BTreeMap<u64, u64>,
        freed: u64,
    }

    impl Contender for Book {
        type Block = u64;

        fn name(&self) -> &'static str {
            "book"
        }

        fn allocate(&mut self, bytes: u64) -> u64 {
            self.next += 1;
            self.live.insert(self.next, bytes);
            self.next
        }

        fn free(&mut self, block: u64) {
            self.live.remove(&block).expect("live");
            self.freed += 1;
        }
    }

    #[test]
    fn as_many_blocks_stay_live_and_one_goes_for_each_that_comes() {
        let mut churn = Churn::cold(Book::default(), 100, Sizes::SMALL);
        let first = churn.contender.live.clone();
        assert_eq!(first.len(), 100);
        // Once through the program and over its end.
        churn.pairs(65_536 + 10);
        assert_eq!((churn.contender.live.len(), churn.contender.freed), (100, 65_546));
        assert!(churn.contender.live.keys().all(|block| !first.contains_key(block)), "all were exchanged");
        assert_eq!(churn.at, 10);
        churn.hits(7);
        churn.pairs_of(512, 3);
        assert_eq!((churn.contender.live.len(), churn.contender.freed), (100, 65_556));
    }

    #[test]
    fn sizes_are_as_many_from_each_power_of_two_to_the_next() {
        let sizes = Sizes { least: 512, most: 8_192 }.draw(40_000, 3);
        assert!(sizes.iter().all(|bytes| (512..=8_192).contains(bytes)));
        for power in 9..13 {
            let within = sizes.iter().filter(|bytes| bytes.ilog2() == power).count();
            // A quarter each; five standard deviations of a binomial are 433.
            assert!((9_567..=10_433).contains(&within), "{within} of 2^{power}");
        }
        assert_eq!(Sizes { least: 512, most: 512 }.draw(3, 1), [512; 3]);
    }
}
