//! How long allocations take, exactly: every time that occurred, and how often.
//!
//! Main types: [`Latencies`]. Neighbours: `replay` adds one an allocation, `report` has them.

use std::collections::BTreeMap;

/// Times in nanoseconds. Most allocations of a warm allocator take none, so that there are few different ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Of 0 ns.
    none: u64,
    /// How often each other time occurred.
    others: BTreeMap<u64, u64>,
}

impl Latencies {
    /// One more.
    pub(crate) fn add(&mut self, ns: u64) {
        if ns == 0 {
            self.none += 1;
        } else {
            *self.others.entry(ns).or_default() += 1;
        }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.none + self.others.values().sum::<u64>()
    }

    /// The shortest time that so many in a hundred did not exceed (the nearest rank); 0 if there are none.
    ///
    /// # Panics
    /// If `percent` is above 100.
    pub fn percentile(&self, percent: u64) -> u64 {
        assert!(percent <= 100, "{percent} in a hundred");
        let rank = (u128::from(self.count()) * u128::from(percent)).div_ceil(100);
        let mut seen = u128::from(self.none);
        for (&ns, &count) in &self.others {
            if seen >= rank {
                break;
            }
            seen += u128::from(count);
            if seen >= rank {
                return ns;
            }
        }
        0
    }

    /// The longest; 0 if there are none.
    pub fn longest(&self) -> u64 {
        self.others.last_key_value().map_or(0, |(&ns, _)| ns)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Latencies;

    fn of(times: &[u64]) -> Latencies {
        let mut latencies = Latencies::default();
        times.iter().for_each(|&ns| latencies.add(ns));
        latencies
    }

    #[test]
    fn nearest_ranks() {
        // 98 of a hundred take nothing, one 5 ns, one 7.
        let mut times = [0; 100];
        (times[3], times[50]) = (7, 5);
        let latencies = of(&times);
        assert_eq!([0, 50, 98, 99, 100].map(|percent| latencies.percentile(percent)), [0, 0, 0, 5, 7]);
        assert_eq!((latencies.count(), latencies.longest()), (100, 7));
        // Half of three are two.
        assert_eq!(
            [33, 34, 50, 66, 67].map(|percent| of(&[30, 10, 20]).percentile(percent)),
            [10, 20, 20, 20, 30]
        );
        assert_eq!((of(&[]).percentile(99), of(&[]).longest(), of(&[]).count()), (0, 0, 0));
    }

    proptest! {
        /// Against a sorted list.
        #[test]
        fn as_in_a_sorted_list(mut times in prop::collection::vec(0_u64..10, 1..300), percent in 1_usize..=100) {
            let latencies = of(&times);
            times.sort_unstable();
            let rank = (times.len() * percent).div_ceil(100);
            prop_assert_eq!(latencies.percentile(percent as u64), times[rank - 1]);
            prop_assert_eq!(latencies.longest(), times[times.len() - 1]);
        }
    }
}
