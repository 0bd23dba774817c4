//! Ranges of bytes that do not overlap, each with an owner.
//!
//! Main types: [`Intervals`], [`Clash`]. Neighbours: `checker` has one for addresses and one for each piece of
//! memory.

use std::collections::BTreeMap;

/// Ranges with their owners.
#[derive(Debug, Default)]
pub(crate) struct Intervals {
    /// End and owner by start.
    ranges: BTreeMap<u64, (u64, u32)>,
}

/// Why a range can't be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clash {
    /// Who has some of it.
    pub(crate) owner: u32,
    /// The first byte that both want.
    pub(crate) at: u64,
}

impl Intervals {
    /// Takes `start..end`, which is not empty.
    pub(crate) fn insert(&mut self, start: u64, end: u64, owner: u32) -> Result<(), Clash> {
        // Ranges do not overlap, so the last one that begins before `end` ends last.
        if let Some((&other_start, &(other_end, other))) = self.ranges.range(..end).next_back()
            && other_end > start
        {
            // The first of those in the way may be another one.
            let first = self.ranges.range(..=start).next_back().filter(|(_, (end, _))| *end > start);
            let (at, owner) = match first {
                Some((_, (_, owner))) => (start, *owner),
                None => self
                    .ranges
                    .range(start..end)
                    .next()
                    .map_or((other_start, other), |(at, (_, owner))| (*at, *owner)),
            };
            return Err(Clash { owner, at });
        }
        self.ranges.insert(start, (end, owner));
        Ok(())
    }

    /// Gives back the range that begins at `start`.
    pub(crate) fn remove(&mut self, start: u64) {
        self.ranges.remove(&start);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Clash, Intervals};

    proptest! {
        /// Against one cell a byte.
        #[test]
        fn a_clash_is_the_first_byte_that_is_taken(
            ops in prop::collection::vec((0_usize..60, 1_usize..12, any::<bool>()), 1..60)
        ) {
            let mut cells: [Option<u32>; 80] = [None; 80];
            let mut starts: Vec<(usize, u32)> = Vec::new();
            let mut intervals = Intervals::default();
            for (owner, (start, length, remove)) in (0_u32..).zip(ops) {
                if remove && !starts.is_empty() {
                    let (start, owner) = starts.swap_remove(length % starts.len());
                    intervals.remove(start as u64);
                    cells.iter_mut().filter(|cell| **cell == Some(owner)).for_each(|cell| *cell = None);
                    continue;
                }
                let taken = (start..start + length).find_map(|at| cells[at].map(|owner| Clash { owner, at: at as u64 }));
                let result = intervals.insert(start as u64, (start + length) as u64, owner);
                prop_assert_eq!(result.err(), taken);
                if taken.is_none() {
                    cells[start..start + length].fill(Some(owner));
                    starts.push((start, owner));
                }
            }
        }
    }
}
