//! Free ranges of addresses, and the lowest one that is long enough.
//!
//! Main types: [`AddressGaps`]. Neighbours: `malloc_area` places its runs by them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Classes of lengths: of `1 << n` to `(2 << n) - 1` bytes.
const CLASSES: usize = u64::BITS as usize;

/// Disjoint ranges; no two touch.
#[derive(Debug)]
pub(crate) struct AddressGaps {
    /// Bytes of each, by its start.
    bytes: BTreeMap<u64, u64>,
    /// The starts of those of each class.
    starts: [BTreeSet<u64>; CLASSES],
}

impl AddressGaps {
    /// One range.
    pub(crate) fn of(range: Range<u64>) -> Self {
        let mut gaps = Self { bytes: BTreeMap::new(), starts: std::array::from_fn(|_| BTreeSet::new()) };
        gaps.insert(range.start, range.end - range.start);
        gaps
    }

    /// The start of the lowest range of at least so many bytes (1 or more).
    pub(crate) fn lowest(&self, bytes: u64) -> Option<u64> {
        let class = class_of(bytes);
        // Those of a higher class are all long enough.
        let higher = self.starts[class + 1..].iter().filter_map(|starts| starts.first().copied()).min();
        let lower = 0..higher.unwrap_or(u64::MAX);
        self.starts[class].range(lower).copied().find(|start| self.bytes[start] >= bytes).or(higher)
    }

    /// Cuts so many bytes off the front of the range that begins at `start`.
    pub(crate) fn take(&mut self, start: u64, bytes: u64) {
        let length = self.remove(start);
        self.insert(start + bytes, length - bytes);
    }

    /// Gives back a range that was taken, and joins it with its neighbours.
    pub(crate) fn give_back(&mut self, mut start: u64, mut bytes: u64) {
        if self.bytes.contains_key(&(start + bytes)) {
            bytes += self.remove(start + bytes);
        }
        let before = self.bytes.range(..start).next_back().map(|(&before, &length)| (before, length));
        if let Some((before, length)) = before.filter(|(before, length)| before + length == start) {
            self.remove(before);
            (start, bytes) = (before, length + bytes);
        }
        self.insert(start, bytes);
    }

    fn insert(&mut self, start: u64, bytes: u64) {
        if bytes > 0 {
            self.bytes.insert(start, bytes);
            self.starts[class_of(bytes)].insert(start);
        }
    }

    /// Its length.
    fn remove(&mut self, start: u64) -> u64 {
        let bytes = self.bytes.remove(&start).expect("a gap begins here");
        self.starts[class_of(bytes)].remove(&start);
        bytes
    }
}

fn class_of(bytes: u64) -> usize {
    bytes.ilog2() as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::AddressGaps;

    #[test]
    fn the_lowest_that_is_long_enough() {
        let mut gaps = AddressGaps::of(100..200);
        for start in [100, 110, 120, 130] {
            assert_eq!(gaps.lowest(10), Some(start));
            gaps.take(start, 10);
        }
        gaps.give_back(120, 10);
        gaps.give_back(100, 10);
        // 10 at 100, 10 at 120, 60 at 140.
        assert_eq!(
            [1, 10, 11, 60, 61].map(|bytes| gaps.lowest(bytes)),
            [Some(100), Some(100), Some(140), Some(140), None]
        );
        gaps.give_back(110, 10);
        // The first three are one.
        assert_eq!([30, 31].map(|bytes| gaps.lowest(bytes)), [Some(100), Some(140)]);
        gaps.give_back(130, 10);
        assert_eq!([100, 101].map(|bytes| gaps.lowest(bytes)), [Some(100), None]);
        gaps.take(100, 100);
        assert_eq!(gaps.lowest(1), None);
    }

    const LENGTH: usize = 64;

    proptest! {
        /// Against a list of free places.
        #[test]
        fn as_a_list_of_places(steps in prop::collection::vec((any::<bool>(), 1_u64..20, any::<usize>()), 1..200)) {
            let mut gaps = AddressGaps::of(0..LENGTH as u64);
            let mut free = [true; LENGTH];
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (take, bytes, which) in steps {
                if take {
                    let wanted = (0..LENGTH)
                        .find(|&start| free.get(start..start + bytes as usize).is_some_and(|all| all.iter().all(|&free| free)));
                    prop_assert_eq!(gaps.lowest(bytes), wanted.map(|start| start as u64));
                    if let Some(start) = wanted {
                        gaps.take(start as u64, bytes);
                        free[start..start + bytes as usize].fill(false);
                        taken.push((start as u64, bytes));
                    }
                } else if !taken.is_empty() {
                    let (start, bytes) = taken.swap_remove(which % taken.len());
                    gaps.give_back(start, bytes);
                    free[start as usize..(start + bytes) as usize].fill(true);
                }
            }
        }
    }
}
