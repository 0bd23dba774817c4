//! The holes of one class of sizes, in order.
//!
//! Main types: [`Class`], [`At`]. Neighbours: `hole_index` has a class for each part of a power of two.
//!
//! They lie in a sorted vector, which is short in most programs: a few of one cache line. Where there are more, the vector is
//! split, and so are its parts, so that nothing moves more than [`MOST`] holes. (One vector each was 5 times as slow
//! with 1,000,000 live blocks as with 1,000: half of a class moved at each change.)

use concertina_vmm::sync::CACHE_LINES_BYTES;

use crate::hole_index::Hole;

/// Most holes in one part: 2 KiB. Few in tests, so that these see parts.
const MOST: usize = if cfg!(test) { 4 } else { 128 };

/// Sorted holes.
#[derive(Debug, Default)]
pub(crate) struct Class {
    first: Vec<Hole>,
    // What comes behind `first`, if that is not all; none of them is empty, nor is `first` then.
    more: Vec<Vec<Hole>>,
}

/// Where a hole is, until the class changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    // 0 for `first`.
    part: usize,
    at: usize,
}

impl Class {
    /// Whether there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// Whether there is one.
    #[inline]
    pub(crate) fn is_single(&self) -> bool {
        self.first.len() == 1 && self.more.is_empty()
    }

    #[inline]
    fn part(&self, part: usize) -> &[Hole] {
        if part == 0 { &self.first } else { &self.more[part - 1] }
    }

    #[inline]
    fn part_mut(&mut self, part: usize) -> &mut Vec<Hole> {
        if part == 0 { &mut self.first } else { &mut self.more[part - 1] }
    }

    /// The first hole that `before` does not hold for; it holds for none behind that.
    #[inline]
    pub(crate) fn search(&self, before: impl Fn(&Hole) -> bool) -> Option<(At, Hole)> {
        let part = if self.more.is_empty() {
            0
        } else {
            // Its last one is the first of those that it does not hold for, or it is the last part.
            let ends = |part: &Vec<Hole>| part.last().is_some_and(&before);
            if ends(&self.first) { 1 + self.more.partition_point(ends) } else { 0 }
        };
        if part > self.more.len() {
            return None;
        }
        let holes = self.part(part);
        let at = holes.partition_point(before);
        holes.get(at).map(|&hole| (At { part, at }, hole))
    }

    /// The smallest one.
    #[inline]
    pub(crate) fn smallest(&self) -> Option<(At, Hole)> {
        self.first.first().map(|&hole| (At { part: 0, at: 0 }, hole))
    }

    /// The largest one.
    pub(crate) fn largest(&self) -> Option<Hole> {
        self.more.last().unwrap_or(&self.first).last().copied()
    }

    /// Where this very hole is.
    #[inline]
    pub(crate) fn find(&self, hole: Hole) -> Option<At> {
        // Most classes have one hole, or few.
        if self.first.first() == Some(&hole) {
            return Some(At { part: 0, at: 0 });
        }
        self.search(|known| *known < hole).filter(|(_, found)| *found == hole).map(|(at, _)| at)
    }

    /// Adds a hole.
    #[inline]
    pub(crate) fn insert(&mut self, hole: Hole) {
        if self.first.capacity() == 0 {
            self.first.reserve(CACHE_LINES_BYTES / size_of::<Hole>());
        }
        let part = if self.more.is_empty() {
            0
        } else {
            self.more.partition_point(|part| part.first().is_some_and(|known| *known < hole))
        };
        let holes = self.part_mut(part);
        let at = holes.partition_point(|known| *known < hole);
        holes.insert(at, hole);
        if holes.len() > MOST {
            self.halve(part);
        }
    }

    #[cold]
    fn halve(&mut self, part: usize) {
        let rest = self.part_mut(part).split_off(MOST / 2);
        self.more.insert(part, rest);
    }

    /// Takes a hole out.
    #[inline]
    pub(crate) fn remove(&mut self, At { part, at }: At) {
        let holes = self.part_mut(part);
        holes.remove(at);
        if holes.is_empty() && !self.more.is_empty() {
            self.close_up(part);
        }
    }

    #[cold]
    fn close_up(&mut self, part: usize) {
        let gone = self.more.remove(part.saturating_sub(1));
        if part == 0 {
            self.first = gone;
        }
    }

    /// Puts a hole in the place of another one.
    #[inline]
    pub(crate) fn replace(&mut self, At { part, mut at }: At, new: Hole) {
        if !self.more.is_empty() {
            self.remove(At { part, at });
            self.insert(new);
            return;
        }
        let holes = &mut self.first;
        while at > 0 && new < holes[at - 1] {
            holes[at] = holes[at - 1];
            at -= 1;
        }
        while at + 1 < holes.len() && holes[at + 1] < new {
            holes[at] = holes[at + 1];
            at += 1;
        }
        holes[at] = new;
    }

    /// All of them from that one on, or from the first, in order.
    pub(crate) fn from(&self, at: Option<At>) -> impl Iterator<Item = Hole> + '_ {
        let At { part, at } = at.unwrap_or(At { part: 0, at: 0 });
        let behind = self.more[part.min(self.more.len())..].iter().flatten();
        self.part(part)[at..].iter().chain(behind).copied()
    }
}
