//! The free frames of a store: oldest first, and found by the uses that they wait for.
//!
//! Main types: [`FreeFrames`], [`FreeKey`]. Neighbours: the `FrameStore` has one under its lock.
//!
//! Who may have a frame depends on its last uses, and what is allowed of a use is allowed of every earlier one on its
//! stream. So a stream of which nothing may be taken costs one question, however many of its frames lie here, and
//! the frames of others are not gone through.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Bound;

use crate::driver::Driver;
use crate::fence::Use;
use crate::frame::Frame;
use crate::units::StreamId;

/// Frames with the same stream of their first use; those with no use are together.
type Group = Option<StreamId>;

/// Where a frame lies among the free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FreeKey {
    arrival: u64,
    group: Group,
}

pub(crate) struct FreeFrames<D: Driver> {
    // By the order in which they came, oldest first.
    groups: BTreeMap<Group, BTreeMap<u64, Frame<D>>>,
    // The oldest of each group.
    oldest: BTreeSet<FreeKey>,
    // How many frames have a use, by stream and tick.
    uses: BTreeMap<(StreamId, u64), usize>,
    arrivals: u64,
    count: usize,
}

impl<D: Driver> Default for FreeFrames<D> {
    fn default() -> Self {
        Self {
            groups: BTreeMap::new(),
            oldest: BTreeSet::new(),
            uses: BTreeMap::new(),
            arrivals: 0,
            count: 0,
        }
    }
}

/// What was answered so far about the uses of each stream.
struct Answers<F> {
    allowed: F,
    // The latest tick that is allowed, and the earliest one that is not, as far as asked.
    known: BTreeMap<StreamId, (Option<u64>, Option<u64>)>,
}

impl<F: Fn(Use) -> bool> Answers<F> {
    fn of(allowed: F) -> Self {
        Self { allowed, known: BTreeMap::new() }
    }

    fn allows(&mut self, use_: Use) -> bool {
        let (yes, no) = self.known.entry(use_.stream).or_default();
        if yes.is_some_and(|yes| use_.tick <= yes) {
            return true;
        }
        if no.is_some_and(|no| no <= use_.tick) {
            return false;
        }
        let allowed = (self.allowed)(use_);
        *(if allowed { yes } else { no }) = Some(use_.tick);
        allowed
    }

    fn allows_frame<D: Driver>(&mut self, frame: &Frame<D>) -> bool {
        frame.pins() == 0 && frame.uses().iter().all(|use_| self.allows(*use_))
    }
}

impl<D: Driver> FreeFrames<D> {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn insert(&mut self, frame: Frame<D>) -> FreeKey {
        for use_ in frame.uses() {
            *self.uses.entry((use_.stream, use_.tick)).or_default() += 1;
        }
        let group = frame.uses().first().map(|use_| use_.stream);
        let key = FreeKey { arrival: self.arrivals, group };
        self.arrivals += 1;
        let frames = self.groups.entry(group).or_default();
        if frames.is_empty() {
            self.oldest.insert(key);
        }
        frames.insert(key.arrival, frame);
        self.count += 1;
        key
    }

    pub(crate) fn get(&self, key: FreeKey) -> Option<&Frame<D>> {
        self.groups.get(&key.group)?.get(&key.arrival)
    }

    pub(crate) fn remove(&mut self, key: FreeKey) -> Option<Frame<D>> {
        let frames = self.groups.get_mut(&key.group)?;
        let frame = frames.remove(&key.arrival)?;
        self.count -= 1;
        if self.oldest.remove(&key) {
            match frames.first_key_value() {
                Some((&arrival, _)) => {
                    self.oldest.insert(FreeKey { arrival, ..key });
                }
                None => {
                    self.groups.remove(&key.group);
                }
            }
        }
        for use_ in frame.uses() {
            let known = (use_.stream, use_.tick);
            if let Some(count) = self.uses.get_mut(&known) {
                *count -= 1;
                if *count == 0 {
                    self.uses.remove(&known);
                }
            }
        }
        Some(frame)
    }

    /// The uses of all frames, each once, by stream and tick.
    pub(crate) fn uses(&self) -> impl Iterator<Item = Use> + '_ {
        self.uses.keys().map(|&(stream, tick)| Use { stream, tick })
    }

    /// The last use on each stream, by stream.
    pub(crate) fn last_uses(&self) -> Vec<Use> {
        let mut last = Vec::new();
        let mut from = Bound::Unbounded;
        while let Some((&(stream, _), _)) = self.uses.range((from, Bound::Unbounded)).next() {
            let end = (stream, u64::MAX);
            let use_ = self.uses.range(..=end).next_back();
            last.extend(use_.map(|(&(stream, tick), _)| Use { stream, tick }));
            from = Bound::Excluded(end);
        }
        last
    }

    /// Whether a frame of the group may be allowed: only if the earliest use of its stream is.
    fn may_give(&self, group: Group, answers: &mut Answers<impl Fn(Use) -> bool>) -> bool {
        let Some(stream) = group else { return true };
        let first = self.uses.range((stream, 0)..=(stream, u64::MAX)).next();
        first.is_some_and(|(&(stream, tick), _)| answers.allows(Use { stream, tick }))
    }

    /// Takes out up to `count` unpinned frames of which every use is allowed, oldest first, and shows each to `taken`.
    pub(crate) fn take(
        &mut self,
        count: usize,
        allowed: impl Fn(Use) -> bool,
        mut taken: impl FnMut(Frame<D>),
    ) {
        let mut answers = Answers::of(allowed);
        // The next frame of each group that was begun, and the oldest frame of the groups that were not.
        let mut next: BinaryHeap<Reverse<FreeKey>> = BinaryHeap::new();
        let mut begun: BTreeSet<Group> = BTreeSet::new();
        let mut unbegun = self.oldest.first().copied();
        let mut missing = count;
        while missing > 0 {
            let begins = match (next.peek(), unbegun) {
                (None, None) => return,
                (Some(Reverse(known)), Some(other)) => other < *known,
                (known, _) => known.is_none(),
            };
            let key = match (begins, unbegun) {
                (true, Some(key)) => {
                    begun.insert(key.group);
                    unbegun = self
                        .oldest
                        .range((Bound::Excluded(key), Bound::Unbounded))
                        .find(|other| !begun.contains(&other.group))
                        .copied();
                    if !self.may_give(key.group, &mut answers) {
                        continue;
                    }
                    key
                }
                _ => match next.pop() {
                    Some(Reverse(key)) => key,
                    None => return,
                },
            };
            if self.get(key).is_some_and(|frame| answers.allows_frame(frame)) {
                self.remove(key).into_iter().for_each(&mut taken);
                missing -= 1;
                if !self.may_give(key.group, &mut answers) {
                    continue;
                }
            }
            let behind = (Bound::Excluded(key.arrival), Bound::Unbounded);
            let following = self.groups.get(&key.group).and_then(|frames| frames.range(behind).next());
            next.extend(following.map(|(&arrival, _)| Reverse(FreeKey { arrival, ..key })));
        }
    }

    /// Number of unpinned frames of which every use is allowed.
    pub(crate) fn count(&self, allowed: impl Fn(Use) -> bool) -> usize {
        let mut answers = Answers::of(allowed);
        let mut count = 0;
        for (group, frames) in &self.groups {
            if self.may_give(*group, &mut answers) {
                count += frames.values().filter(|frame| answers.allows_frame(frame)).count();
            }
        }
        count
    }
}
