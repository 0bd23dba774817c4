//! The pool's addresses, cut into ranges: live blocks, free ones with the uses that they must come after, and those with
//! nothing behind them.
//!
//! Main types: [`Ranges`], [`State`], [`Home`]. Neighbours: `reuse` chooses among the free ones, `grow` puts frames under
//! the empty ones.
//!
//! How the driver keeps its free memory is not public. Here free neighbours are joined at once if they are for the same
//! streams: both free for everyone, or both freed on one stream. A run of others is put together when it is needed.

use std::collections::{BTreeMap, BTreeSet};

use concertina_vmm::{StreamId, Use, Uses};

/// What a range is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// A block that the program has.
    Live,
    /// Frames are behind it. For whoever comes after these uses; for everyone if there are none.
    Free(Uses),
    /// Nothing is behind it.
    Empty,
}

/// Where a range is looked for that is not live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Home(u64);

impl Home {
    /// Nothing is behind it.
    pub(crate) const EMPTY: Self = Self(0);
    /// Free for everyone.
    pub(crate) const DONE: Self = Self(1);
    /// Freed where several streams come together.
    pub(crate) const SEVERAL: Self = Self(2);

    /// Freed on this stream.
    pub(crate) const fn of(stream: StreamId) -> Self {
        Self(3 + stream.get() as u64)
    }
}

impl State {
    fn home(&self) -> Option<Home> {
        match self {
            Self::Live => None,
            Self::Empty => Some(Home::EMPTY),
            Self::Free(uses) => Some(match uses.as_slice() {
                [] => Home::DONE,
                [only] => Home::of(only.stream),
                _ => Home::SEVERAL,
            }),
        }
    }

    /// What two neighbours are together, if they are to be joined.
    fn joined(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Empty, Self::Empty) => Some(Self::Empty),
            (Self::Free(ours), Self::Free(theirs)) => match (ours.as_slice(), theirs.as_slice()) {
                ([], []) => Some(self.clone()),
                ([our], [their]) if our.stream == their.stream => {
                    Some(if our.tick > their.tick { self.clone() } else { other.clone() })
                }
                _ => None,
            },
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
struct Range {
    bytes: u64,
    state: State,
    /// Whether it begins a reservation.
    leads: bool,
}

/// All ranges.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    /// By address.
    ranges: BTreeMap<u64, Range>,
    /// Those that are not live: where they are looked for, bytes, address.
    index: BTreeSet<(Home, u64, u64)>,
}

/// Why an address has a range: reservations are covered without a gap.
const COVERED: &str = "an address of a reservation";

impl Ranges {
    /// A reservation with nothing in it.
    pub(crate) fn add(&mut self, address: u64, bytes: u64) {
        self.insert(address, Range { bytes, state: State::Empty, leads: true });
    }

    /// Bytes of the range that begins here.
    pub(crate) fn bytes(&self, address: u64) -> u64 {
        self.ranges.get(&address).expect(COVERED).bytes
    }

    /// The smallest range of `home` with at least `bytes`, of equal ones the lowest: its bytes and its address.
    pub(crate) fn best_fit(&self, home: Home, bytes: u64) -> Option<(u64, u64)> {
        self.of(home, bytes).next()
    }

    /// All ranges of `home` with at least `bytes`, by bytes and address.
    pub(crate) fn of(&self, home: Home, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        self.index
            .range((home, bytes, 0)..=(home, u64::MAX, u64::MAX))
            .map(|&(_, bytes, address)| (bytes, address))
    }

    /// The smallest run of free neighbours with at least `bytes` whose uses `usable` agrees to, of equal ones the lowest:
    /// where it begins. Looks at all ranges.
    pub(crate) fn best_run(&self, bytes: u64, usable: impl Fn(&[Use]) -> bool) -> Option<u64> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut goes_on = false;
        for (&address, range) in &self.ranges {
            let is_usable = matches!(&range.state, State::Free(uses) if usable(uses));
            match runs.last_mut() {
                Some((length, _)) if is_usable && goes_on && !range.leads => *length += range.bytes,
                _ if is_usable => runs.push((range.bytes, address)),
                _ => {}
            }
            goes_on = is_usable;
        }
        runs.into_iter().filter(|&(length, _)| length >= bytes).min().map(|(_, start)| start)
    }

    /// The free ranges that `bytes` from the start of one on reach into: where they begin, and their bytes.
    pub(crate) fn reached(&self, address: u64, bytes: u64) -> Vec<(u64, u64)> {
        self.ranges.range(address..address + bytes).map(|(&at, range)| (at, range.bytes)).collect()
    }

    /// The uses of a free range.
    pub(crate) fn uses(&self, address: u64) -> &[Use] {
        match &self.ranges.get(&address).expect(COVERED).state {
            State::Free(uses) => uses,
            State::Live | State::Empty => &[],
        }
    }

    /// Makes `bytes` from `address` on, a part of one range, what `state` says; what is left of the range stays what it is.
    pub(crate) fn recast(&mut self, address: u64, bytes: u64, state: State) {
        let (&start, range) = self.ranges.range_mut(..=address).next_back().expect(COVERED);
        let (rest_bytes, leads) = (start + range.bytes - address - bytes, range.leads && start == address);
        let joins = state != State::Live;
        if let Some(home) = range.state.home() {
            self.index.remove(&(home, range.bytes, start));
        }
        let before = if start == address {
            let before = std::mem::replace(&mut range.state, state);
            range.bytes = bytes;
            self.index.extend(range.state.home().map(|home| (home, bytes, address)));
            before
        } else {
            let before = range.state.clone();
            range.bytes = address - start;
            self.index.extend(before.home().map(|home| (home, address - start, start)));
            self.insert(address, Range { bytes, state, leads });
            before
        };
        if rest_bytes > 0 {
            self.insert(address + bytes, Range { bytes: rest_bytes, state: before, leads: false });
        }
        if joins {
            self.join_next(address);
            if !leads && let Some((&before, _)) = self.ranges.range(..address).next_back() {
                self.join_next(before);
            }
        }
    }

    /// Joins a range with the one behind it, if they belong together.
    fn join_next(&mut self, address: u64) {
        let range = &self.ranges[&address];
        let next_address = address + range.bytes;
        let Some(next) = self.ranges.get(&next_address).filter(|next| !next.leads) else { return };
        let Some(state) = range.state.joined(&next.state) else { return };
        let (range, next) = (self.remove(address), self.remove(next_address));
        self.insert(address, Range { bytes: range.bytes + next.bytes, state, leads: range.leads });
    }

    fn insert(&mut self, address: u64, range: Range) {
        if let Some(home) = range.state.home() {
            self.index.insert((home, range.bytes, address));
        }
        self.ranges.insert(address, range);
    }

    fn remove(&mut self, address: u64) -> Range {
        let range = self.ranges.remove(&address).expect(COVERED);
        if let Some(home) = range.state.home() {
            self.index.remove(&(home, range.bytes, address));
        }
        range
    }
}

#[cfg(test)]
impl Ranges {
    /// All ranges by address: bytes and state.
    pub(crate) fn list(&self) -> Vec<(u64, u64, State)> {
        self.ranges.iter().map(|(&address, range)| (address, range.bytes, range.state.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use concertina_vmm::{StreamId, Use, Uses};

    use super::{Home, Ranges, State};

    fn free(uses: &[(u32, u64)]) -> State {
        let uses = uses.iter().map(|&(stream, tick)| Use { stream: StreamId::new(stream), tick });
        State::Free(uses.collect::<Uses>())
    }

    #[test]
    fn neighbours_join_if_they_are_for_the_same_streams() {
        // Two ranges of 10 each, and what they are together.
        let (done, early, late) = (free(&[]), free(&[(1, 3)]), free(&[(1, 5)]));
        for (left, right, joined) in [
            (done.clone(), done.clone(), Some(done.clone())),
            (early.clone(), late.clone(), Some(late.clone())),
            (late.clone(), early, Some(late.clone())),
            (late.clone(), done.clone(), None),
            (late.clone(), free(&[(2, 5)]), None),
            (free(&[(1, 5), (2, 5)]), late, None),
            (free(&[(1, 5), (2, 5)]), done.clone(), None),
            (done, State::Empty, None),
        ] {
            let mut ranges = Ranges::default();
            ranges.add(0, 20);
            ranges.recast(0, 20, State::Live);
            ranges.recast(0, 10, left.clone());
            ranges.recast(10, 10, right.clone());
            let wanted = match joined {
                Some(state) => vec![(0, 20, state)],
                None => vec![(0, 10, left), (10, 10, right)],
            };
            assert_eq!(ranges.list(), wanted);
        }
    }

    #[test]
    fn a_run_is_of_neighbours_that_are_usable() {
        // 10 done, 10 of stream 1, 10 live, 10 of stream 2, 5 done, and 15 of stream 1 in another reservation.
        let mut ranges = Ranges::default();
        ranges.add(0, 45);
        ranges.add(45, 15);
        ranges.recast(0, 45, State::Live);
        for (address, bytes, uses) in
            [(0, 10, &[][..]), (10, 10, &[(1, 1)]), (30, 10, &[(2, 1)]), (40, 5, &[]), (45, 15, &[(1, 2)])]
        {
            ranges.recast(address, bytes, free(uses));
        }
        let of_one = |uses: &[Use]| uses.iter().all(|use_| use_.stream == StreamId::new(1));
        assert_eq!(ranges.best_run(5, of_one), Some(40));
        assert_eq!(ranges.best_run(6, of_one), Some(45), "15 are less than 20");
        assert_eq!(ranges.best_run(16, of_one), Some(0));
        assert_eq!(ranges.best_run(21, of_one), None);
        assert_eq!(ranges.best_run(6, |_| true), Some(30));
        assert_eq!(ranges.best_run(21, |_| true), None);
        assert_eq!(ranges.reached(0, 10), [(0, 10)]);
        assert_eq!(ranges.reached(0, 11), [(0, 10), (10, 10)]);
    }

    #[test]
    fn reservations_do_not_join() {
        let mut ranges = Ranges::default();
        ranges.add(0, 10);
        ranges.add(10, 10);
        ranges.recast(0, 10, State::Live);
        ranges.recast(0, 10, State::Empty);
        assert_eq!(ranges.list(), [(0, 10, State::Empty), (10, 10, State::Empty)]);
        assert_eq!(ranges.best_fit(Home::EMPTY, 11), None);
    }

    #[test]
    fn a_middle_part_is_recast_and_the_smallest_of_a_home_is_found() {
        let stream = StreamId::new(1);
        let mut ranges = Ranges::default();
        ranges.add(0, 100);
        ranges.recast(0, 100, State::Live);
        ranges.recast(20, 10, free(&[(1, 7)]));
        ranges.recast(40, 20, free(&[(1, 3)]));
        ranges.recast(70, 5, free(&[]));
        assert_eq!(ranges.best_fit(Home::of(stream), 1), Some((10, 20)));
        assert_eq!(ranges.best_fit(Home::of(stream), 11), Some((20, 40)));
        assert_eq!(ranges.best_fit(Home::DONE, 5), Some((5, 70)));
        // Part of the second one is taken; the rest still waits.
        ranges.recast(40, 15, State::Live);
        assert_eq!(ranges.uses(55), [Use { stream, tick: 3 }]);
        assert_eq!(ranges.best_fit(Home::of(stream), 1), Some((5, 55)));
        assert_eq!(ranges.bytes(60), 10);
    }
}
