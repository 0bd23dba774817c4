//! Where the device may do less than read and write.
//!
//! Main types: [`Restrictions`]. Neighbours: `memory` keeps one; a program that only ever gives full access has none.

use std::collections::BTreeMap;

use crate::host_pages::Protection;

/// Ranges of addresses with less than full access, none over another.
#[derive(Debug, Default)]
pub(crate) struct Restrictions {
    /// End and protection, by start.
    ranges: BTreeMap<u64, (u64, Protection)>,
}

impl Restrictions {
    /// From now on this is what may be done from `start` to `end`.
    pub(crate) fn set(&mut self, start: u64, end: u64, protection: Protection) {
        let over = |&(_, stop, _): &(u64, u64, Protection)| stop > start;
        let known = self.ranges.range(..end).map(|(&from, &(to, kept))| (from, to, kept));
        let known: Vec<_> = known.filter(over).collect();
        for (from, to, kept) in known {
            self.ranges.remove(&from);
            for (from, to) in [(from, to.min(start)), (from.max(end), to)] {
                if from < to {
                    self.ranges.insert(from, (to, kept));
                }
            }
        }
        if protection != Protection::ReadWrite && start < end {
            self.ranges.insert(start, (end, protection));
        }
    }

    /// Nothing is known of these addresses any more.
    pub(crate) fn forget(&mut self, start: u64, end: u64) {
        self.set(start, end, Protection::ReadWrite);
    }

    /// The least that may be done anywhere from `start` to `end`.
    pub(crate) fn least(&self, start: u64, end: u64) -> Protection {
        let over = self.ranges.range(..end).filter(|&(_, &(stop, _))| stop > start);
        over.map(|(_, &(_, protection))| protection).min().unwrap_or(Protection::ReadWrite)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ADDRESSES: u64 = 16;

    proptest! {
        #[test]
        fn every_address_has_what_was_set_last(
            sets in prop::collection::vec((0..ADDRESSES, 1..6_u64, 0..3_usize), 0..20),
            asked in (0..ADDRESSES, 1..6_u64),
        ) {
            const ALL: [Protection; 3] = [Protection::None, Protection::Read, Protection::ReadWrite];
            let mut model = [Protection::ReadWrite; ADDRESSES as usize + 8];
            let mut restrictions = Restrictions::default();
            for (start, count, protection) in sets {
                restrictions.set(start, start + count, ALL[protection]);
                model[start as usize..(start + count) as usize].fill(ALL[protection]);
            }
            let range = asked.0 as usize..(asked.0 + asked.1) as usize;
            let least = model[range].iter().min().copied();
            prop_assert_eq!(Some(restrictions.least(asked.0, asked.0 + asked.1)), least);
        }
    }
}
