//! The index of holes: finds the smallest hole that fits, the lowest address among equals.
//!
//! Main types: [`HoleIndex`], [`Hole`]. Neighbours: `heap` keeps it in step with the blocks; `hole_class` is
//! one class.
//!
//! Two levels, as in a two-level segregated fit (Masmano et al., "TLSF", ECRTS 2004): a class for each of 64 parts of a
//! power of two, a bitmap of classes that have holes, and inside a class the holes in order, so that the fit is exact.
//! (A fit that takes any hole of a class doubled the maps on the trace t2.)

use crate::hole_class::{At, Class};

/// Bits of a size that tell classes apart, below its highest.
const CLASS_BITS: u32 = 6;
/// Sizes below this have a class each.
const EXACT: u32 = 1 << (CLASS_BITS + 1);
/// Classes up to the largest size that 32 bits hold.
const CLASSES: usize = ((33 - CLASS_BITS) as usize) << CLASS_BITS;
const WORDS: usize = CLASSES / 64;

/// A free block as the index knows it. Preferred is the smaller one, then the older arena, then the lower address.
// Two words, which are handed over in registers, and compared as one number where four fields would branch.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Hole {
    // The steps above, the arena below.
    size: u64,
    // The start above, the number below.
    place: u64,
}

impl core::fmt::Debug for Hole {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Hole")
            .field("steps", &self.steps())
            .field("arena", &self.arena())
            .field("start", &self.start())
            .field("block", &self.block())
            .finish()
    }
}

impl Hole {
    /// The block with this number, of so many steps, that begins at `start` of an arena.
    #[inline]
    pub fn new(steps: u32, arena: u32, start: u32, block: u32) -> Self {
        let words = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        Self { size: words(steps, arena), place: words(start, block) }
    }

    /// Its size in steps.
    #[inline]
    pub fn steps(&self) -> u32 {
        (self.size >> 32) as u32
    }

    /// Which arena of the heap it is in; older arenas first.
    #[inline]
    pub fn arena(&self) -> u32 {
        self.size as u32
    }

    /// Where it begins, in steps.
    #[inline]
    pub fn start(&self) -> u32 {
        (self.place >> 32) as u32
    }

    /// Its number.
    #[inline]
    pub fn block(&self) -> u32 {
        self.place as u32
    }

    #[inline]
    fn rank(&self) -> u128 {
        u128::from(self.size) << 64 | u128::from(self.place)
    }
}

impl PartialOrd for Hole {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }

    #[inline]
    fn lt(&self, other: &Self) -> bool {
        self.rank() < other.rank()
    }
}

impl Ord for Hole {
    #[inline]
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// A hole, and where the index has it until it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The hole.
    pub hole: Hole,
    class: usize,
    at: At,
}

/// All holes of a heap by size.
#[derive(Debug)]
pub struct HoleIndex {
    // Empty until the first hole comes: a heap of a stream that allocates nothing costs nothing.
    classes: Vec<Class>,
    filled: [u64; WORDS],
    // Which words of `filled` are not zero.
    summary: u32,
    holes: usize,
}

impl Default for HoleIndex {
    fn default() -> Self {
        Self { classes: Vec::new(), filled: [0; WORDS], summary: 0, holes: 0 }
    }
}

#[inline]
const fn class_of(steps: u32) -> usize {
    // 0 for sizes that have a class each.
    let shift = (steps | 1).ilog2().saturating_sub(CLASS_BITS);
    ((shift as usize) << CLASS_BITS) + (steps >> shift) as usize
}

impl HoleIndex {
    /// Adds a hole.
    #[inline]
    pub fn insert(&mut self, hole: Hole) {
        if self.classes.is_empty() {
            self.classes.resize_with(CLASSES, Class::default);
        }
        self.insert_in(class_of(hole.steps()), hole);
    }

    #[inline]
    fn insert_in(&mut self, class: usize, hole: Hole) {
        let holes = &mut self.classes[class];
        if holes.is_empty() {
            self.filled[class / 64] |= 1 << (class % 64);
            self.summary |= 1 << (class / 64);
        }
        holes.insert(hole);
        self.holes += 1;
    }

    /// Takes a hole out.
    ///
    /// # Panics
    /// If it is not there: blocks and index are out of step.
    #[inline]
    pub fn remove(&mut self, hole: Hole) {
        self.take(self.find(hole));
    }

    /// Puts a hole in the place of another one.
    ///
    /// # Panics
    /// If that is not there.
    #[inline]
    pub fn replace(&mut self, old: Hole, new: Hole) {
        self.replace_at(self.find(old), new);
    }

    #[inline]
    fn find(&self, hole: Hole) -> Found {
        let class = class_of(hole.steps());
        let at = self.classes[class].find(hole).expect("every hole is in the index");
        Found { hole, class, at }
    }

    /// Puts a hole in the place of the one that [`HoleIndex::best`] found just now.
    #[inline(always)]
    pub fn replace_at(&mut self, found: Found, new: Hole) {
        self.take(found);
        self.insert_in(class_of(new.steps()), new);
    }

    /// Takes out the one that [`HoleIndex::best`] found just now.
    #[inline]
    pub fn take(&mut self, Found { class, at, .. }: Found) {
        let holes = &mut self.classes[class];
        holes.remove(at);
        if holes.is_empty() {
            let word = &mut self.filled[class / 64];
            *word &= !(1 << (class % 64));
            if *word == 0 {
                self.summary &= !(1 << (class / 64));
            }
        }
        self.holes -= 1;
    }

    /// Number of holes.
    pub fn len(&self) -> usize {
        self.holes
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.holes == 0
    }

    // The first class at or after `class` that has a hole.
    fn next_filled(&self, class: usize) -> Option<usize> {
        if class >= CLASSES {
            return None;
        }
        let word = class / 64;
        let here = self.filled[word] & (u64::MAX << (class % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        let later = u64::from(self.summary) & (u64::MAX << (word + 1));
        if later == 0 {
            return None;
        }
        let word = later.trailing_zeros() as usize;
        Some(word * 64 + self.filled[word].trailing_zeros() as usize)
    }

    // The first hole of at least so many steps in their own class.
    #[inline]
    fn best_of_class(&self, steps: u32) -> Option<Found> {
        let class = class_of(steps);
        let holes = self.classes.get(class)?;
        // Smaller sizes have a class each.
        let found = if steps < EXACT { holes.smallest() } else { holes.search(|hole| hole.steps() < steps) };
        found.map(|(at, hole)| Found { hole, class, at })
    }

    /// The best fit: the smallest hole of at least `steps`, at the lowest address.
    #[inline]
    pub fn best(&self, steps: u32) -> Option<Found> {
        self.best_of_class(steps).or_else(|| {
            let class = self.next_filled(class_of(steps) + 1)?;
            let (at, hole) = self.classes[class].smallest()?;
            Some(Found { hole, class, at })
        })
    }

    /// The largest hole.
    pub fn largest(&self) -> Option<Hole> {
        let word = self.filled.iter().rposition(|word| *word != 0)?;
        let class = word * 64 + 63 - self.filled[word].leading_zeros() as usize;
        self.classes[class].largest()
    }

    /// All holes of at least `steps`, the best fit first.
    pub fn from(&self, steps: u32) -> impl Iterator<Item = Hole> + '_ {
        let own = self.best_of_class(steps);
        let own = own.into_iter().flat_map(|found| self.classes[found.class].from(Some(found.at)));
        let larger = self.next_filled(class_of(steps) + 1);
        let larger = std::iter::successors(larger, |class| self.next_filled(class + 1));
        own.chain(larger.flat_map(|class| self.classes[class].from(None)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn classes_cover_all_sizes_in_order() {
        let mut sizes: Vec<u32> = (0..32)
            .flat_map(|bit| {
                let power = 1u32 << bit;
                [power.saturating_sub(1), power, power + 1, power + power / 2]
            })
            .collect();
        sizes.push(u32::MAX);
        sizes.sort_unstable();
        for pair in sizes.windows(2) {
            assert!(class_of(pair[0]) <= class_of(pair[1]), "{pair:?}");
        }
        assert_eq!(class_of(127), 127);
        assert_eq!(class_of(128), 128);
        assert_eq!(class_of(129), 128);
        assert_eq!(class_of(u32::MAX), CLASSES - 1);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Insert {
            steps: u32,
            start: u32,
        },
        Remove {
            nth: usize,
        },
        Find {
            steps: u32,
        },
        /// The best fit goes, or all of it but so many steps at its begin.
        Take {
            steps: u32,
            cut: u32,
        },
        Replace {
            nth: usize,
            steps: u32,
            start: u32,
        },
    }

    fn op() -> impl Strategy<Value = Op> {
        let steps = prop_oneof![1u32..300, 1u32..100_000, any::<u32>().prop_map(|s| s.max(1))];
        prop_oneof![
            (steps.clone(), any::<u32>()).prop_map(|(steps, start)| Op::Insert { steps, start }),
            any::<usize>().prop_map(|nth| Op::Remove { nth }),
            steps.clone().prop_map(|steps| Op::Find { steps }),
            (steps.clone(), prop_oneof![1u32..4, any::<u32>()])
                .prop_map(|(steps, cut)| Op::Take { steps, cut: cut.max(1) }),
            (any::<usize>(), steps, any::<u32>()).prop_map(|(nth, steps, start)| Op::Replace {
                nth,
                steps,
                start
            }),
        ]
    }

    proptest! {
        // The model is an ordered set: its range query is the definition of best fit.
        #[test]
        fn agrees_with_an_ordered_set(program in prop::collection::vec(op(), 1..200)) {
            let mut index = HoleIndex::default();
            let mut model = BTreeSet::new();
            for op in program {
                match op {
                    Op::Insert { steps, start } => {
                        let hole = Hole::new(steps, start % 3, start, start);
                        if model.insert(hole) {
                            index.insert(hole);
                        }
                    }
                    Op::Remove { nth } => {
                        if let Some(hole) = model.iter().nth(nth % model.len().max(1)).copied() {
                            model.remove(&hole);
                            index.remove(hole);
                        }
                    }
                    Op::Take { steps, cut } => {
                        let from = Hole::new(steps, 0, 0, 0);
                        let best = model.range(from..).next().copied();
                        let found = index.best(steps);
                        prop_assert_eq!(found.map(|found| found.hole), best);
                        let (Some(found), Some(hole)) = (found, best) else { continue };
                        model.remove(&hole);
                        let steps = hole.steps().saturating_sub(cut);
                        let rest = Hole::new(steps, 0, hole.start(), hole.block());
                        if steps > 0 && !model.contains(&rest) {
                            index.replace_at(found, rest);
                            model.insert(rest);
                        } else {
                            index.take(found);
                        }
                    }
                    Op::Replace { nth, steps, start } => {
                        let Some(old) = model.iter().nth(nth % model.len().max(1)).copied() else { continue };
                        let new = Hole::new(steps, start % 3, start, start);
                        if !model.contains(&new) {
                            model.remove(&old);
                            model.insert(new);
                            index.replace(old, new);
                        }
                    }
                    Op::Find { steps } => {
                        let from = Hole::new(steps, 0, 0, 0);
                        let expected: Vec<Hole> = model.range(from..).copied().collect();
                        prop_assert_eq!(index.best(steps).map(|found| found.hole), expected.first().copied());
                        prop_assert_eq!(index.from(steps).collect::<Vec<_>>(), expected);
                    }
                }
                prop_assert_eq!(index.len(), model.len());
                prop_assert_eq!(index.largest().map(|hole| hole.steps()), model.last().map(|hole| hole.steps()));
            }
        }
    }
}
