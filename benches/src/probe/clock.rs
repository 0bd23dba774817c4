//! Times of calls, as they come, and what is said of them.
//!
//! Main types: [`Times`], [`Spread`]. Neighbours: every part measures with them.

use std::time::Instant;

/// Times of one kind of call, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Times(Vec<u64>);

/// What is said of a number of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spread {
    pub(super) calls: usize,
    pub(super) median_ns: u64,
    pub(super) p10_ns: u64,
    pub(super) p90_ns: u64,
    pub(super) least_ns: u64,
}

impl Times {
    /// So many empty ones.
    pub(super) fn none<const COUNT: usize>() -> [Self; COUNT] {
        [(); COUNT].map(|()| Self::default())
    }

    /// Makes the call and notes what it took, whether or not it succeeds.
    pub(super) fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = call();
        self.0.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        result
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets the first: it pays for what the driver sets up once.
    pub(super) fn without_first(mut self) -> Self {
        if !self.0.is_empty() {
            self.0.remove(0);
        }
        self
    }

    /// Forgets the last: it was disturbed.
    pub(super) fn forget_last(&mut self) {
        self.0.pop();
    }

    /// Nothing of no times. The q-th quantile of n sorted times is the one at place q (n - 1), rounded.
    pub(super) fn spread(self) -> Option<Spread> {
        let Self(mut times) = self;
        times.sort_unstable();
        let last = times.len().checked_sub(1)?;
        let tenth = |tenths: usize| times[(2 * tenths * last + 10) / 20];
        Some(Spread {
            calls: times.len(),
            median_ns: tenth(5),
            p10_ns: tenth(1),
            p90_ns: tenth(9),
            least_ns: times[0],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Spread, Times};

    #[test]
    fn quantiles_are_times_that_were_measured() {
        let hundreds = (0..=10).rev().map(|n| n * 100).collect();
        let spread = Times(hundreds).spread().expect("there are times");
        let expected = Spread { calls: 11, median_ns: 500, p10_ns: 100, p90_ns: 900, least_ns: 0 };
        assert_eq!(spread, expected);
        let one = Times(vec![7]).spread().expect("there is a time");
        assert_eq!((one.p10_ns, one.median_ns, one.p90_ns), (7, 7, 7));
        // Places 0.1, 0.5 and 0.9: to the nearest, a half up.
        let two = Times(vec![9, 4]).spread().expect("there are times");
        assert_eq!((two.p10_ns, two.median_ns, two.p90_ns), (4, 9, 9));
        assert_eq!(Times::default().spread(), None);
    }

    #[test]
    fn the_first_and_the_last_can_be_forgotten() {
        let mut times = Times(vec![1_000, 2, 3, 500]);
        times.forget_last();
        assert_eq!(
            times.without_first().spread().map(|spread| (spread.calls, spread.least_ns)),
            Some((2, 2))
        );
        assert_eq!(Times::default().without_first().len(), 0);
    }
}
