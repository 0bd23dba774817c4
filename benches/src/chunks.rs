//! How long a pair of an allocation and its free takes, where a pair is shorter than a look at the clock: pairs are
//! timed in chunks, thousands of them, and loops that are to be compared take turns.
//!
//! Main types: [`Lane`], [`Turns`], [`Spread`]. Neighbours: `contender` and `churn` have the loops; `cargo xtask speed`
//! and the criterion benches run them.
//!
//! On a machine that others use, the sibling hyperthread and the caches are busy most of the time. The best 1 % of the
//! chunks are those that nobody disturbed: what the code needs. The median is what this machine gave that day.

use std::fmt;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Looks at the clock that one costs are taken from.
const LOOKS: usize = 10_001;

/// A loop that takes its turn among others.
pub struct Lane<'a> {
    name: String,
    run: Box<dyn FnMut(u64) + 'a>,
}

impl fmt::Debug for Lane<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<'a> Lane<'a> {
    /// A loop that is asked for so many pairs at a time.
    pub fn new(name: impl Into<String>, run: impl FnMut(u64) + 'a) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }

    /// What runs in it.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// How lanes take turns: round after round each lane runs some chunks. The first chunk of a turn is not timed, since
/// the lane before has left the caches its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// How often each lane has its turn.
    pub rounds: u64,
    /// Timed chunks of one turn.
    pub chunks: u64,
    /// Pairs of one chunk.
    pub pairs: u64,
}

impl Turns {
    /// The times of each lane, in the order of the lanes.
    pub fn run(&self, lanes: &mut [Lane<'_>]) -> Vec<Spread> {
        let clock = clock_cost();
        let mut times: Vec<Vec<f64>> =
            lanes.iter().map(|_| Vec::with_capacity((self.rounds * self.chunks) as usize)).collect();
        for round in 0..self.rounds as usize {
            for at in 0..lanes.len() {
                // Who comes first changes, so that nobody always runs behind the same other one.
                let at = (at + round) % lanes.len();
                let (lane, times) = (&mut lanes[at], &mut times[at]);
                (lane.run)(self.pairs);
                for _ in 0..self.chunks {
                    let begun = Instant::now();
                    (lane.run)(self.pairs);
                    let elapsed = begun.elapsed().saturating_sub(clock);
                    times.push(elapsed.as_nanos() as f64 / self.pairs as f64);
                }
            }
        }
        times.into_iter().map(Spread::of).collect()
    }
}

/// Times of many chunks, in ns a pair.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    /// From the shortest to the longest.
    ns: Vec<f64>,
}

impl Spread {
    /// Of these times, in any order.
    pub fn of(mut ns: Vec<f64>) -> Self {
        ns.sort_by(f64::total_cmp);
        Self { ns }
    }

    /// The shortest time that so many in a thousand do not exceed (the nearest rank); not a number where there is none.
    ///
    /// # Panics
    /// If `thousandths` is above 1,000.
    pub fn quantile(&self, thousandths: usize) -> f64 {
        assert!(thousandths <= 1_000, "{thousandths} in a thousand");
        let rank = (self.ns.len() * thousandths).div_ceil(1_000);
        self.ns.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }

    /// The best 1 %: one in a hundred took no longer.
    pub fn best(&self) -> f64 {
        self.quantile(10)
    }

    /// Half of them took no longer.
    pub fn median(&self) -> f64 {
        self.quantile(500)
    }

    /// Ninety-nine in a hundred took no longer.
    pub fn p99(&self) -> f64 {
        self.quantile(990)
    }

    /// The mean: interruptions count with all of their time.
    pub fn mean(&self) -> f64 {
        self.ns.iter().sum::<f64>() / self.ns.len() as f64
    }

    /// The times, from the shortest to the longest.
    pub fn times(&self) -> impl Iterator<Item = f64> + '_ {
        self.ns.iter().copied()
    }

    /// How many there are.
    pub const fn count(&self) -> usize {
        self.ns.len()
    }
}

/// What a look at the clock adds to a time: the median of the times of nothing.
pub fn clock_cost() -> Duration {
    let mut nothing: Vec<Duration> = (0..LOOKS).map(|_| black_box(Instant::now()).elapsed()).collect();
    nothing.sort_unstable();
    nothing[LOOKS / 2]
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::{Lane, Spread, Turns};

    #[test]
    fn ranks_are_the_nearest_and_order_does_not_matter() {
        // 1 to 1,000, backwards: the value of rank n is n.
        let spread = Spread::of((1..=1_000).rev().map(f64::from).collect());
        assert_eq!([spread.best(), spread.median(), spread.p99()], [10.0, 500.0, 990.0]);
        assert_eq!([spread.quantile(0), spread.quantile(1), spread.quantile(1_000)], [1.0, 1.0, 1_000.0]);
        assert_eq!((spread.count(), spread.mean()), (1_000, 500.5));
        // One of three: the first covers a third, the second two thirds.
        let spread = Spread::of(vec![7.0, 5.0, 6.0]);
        assert_eq!([spread.best(), spread.median(), spread.p99()], [5.0, 6.0, 7.0]);
        assert!(Spread::of(Vec::new()).median().is_nan());
    }

    #[test]
    fn lanes_take_turns_and_each_turn_begins_with_a_chunk_that_is_not_timed() {
        let ran = RefCell::new(Vec::new());
        let ran_in = &ran;
        let lane = |name: &'static str| Lane::new(name, move |pairs| ran_in.borrow_mut().push((name, pairs)));
        let mut lanes = [lane("a"), lane("b")];
        let spreads = Turns { rounds: 2, chunks: 2, pairs: 5 }.run(&mut lanes);
        // Two timed chunks in each of two rounds.
        assert_eq!(spreads.iter().map(Spread::count).collect::<Vec<_>>(), [4, 4]);
        drop(lanes);
        let (a, b) = (("a", 5), ("b", 5));
        assert_eq!(ran.into_inner(), [a, a, a, b, b, b, b, b, b, a, a, a]);
    }
}
