//! The holes of one class of sizes, in order.
//!
//! Main types: [`Class`], [`At`]. Neighbours: `hole_index` has a class for each part of a power of two.
//!
//! They lie in a sorted vector, which is short in most programs: a few of one cache line. Where there are more, the vector is
//! split, and so are its parts, so that nothing moves more than [`MOST`] holes, and the list of parts only when one is
//! split or empty. (As one vector, a class
//! of 500,000 holes took 50 µs for each that left it: half of it moved.)

use concertina_vmm::sync::CACHE_LINES_BYTES;

use crate::hole_index::Hole;

/// Most holes in one part: 512 bytes. Few in tests, so that these see parts.
const MOST: usize = if cfg!(test) { 4 } else { 32 };

/// Sorted holes.
#[derive(Debug, Default)]
pub(crate) struct Class {
    first: Vec<Hole>,
    // What comes behind `first`, if that is not all; none of them is empty, nor is `first` then.
    more: Vec<Part>,
}

/// Holes of a class that has many.
#[derive(Debug)]
struct Part {
    // The last one, at hand for the search for a part.
    last: Hole,
    holes: Vec<Hole>,
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
    fn part(&self, part: usize) -> Option<&Vec<Hole>> {
        if part == 0 { Some(&self.first) } else { self.more.get(part - 1).map(|part| &part.holes) }
    }

    /// The first hole that `before` does not hold for; it holds for none behind that.
    #[inline]
    pub(crate) fn search(&self, before: impl Fn(&Hole) -> bool) -> Option<(At, Hole)> {
        let part = if self.more.is_empty() { 0 } else { self.part_of(&before) };
        let at = self.part(part)?.partition_point(before);
        self.part(part)?.get(at).map(|&hole| (At { part, at }, hole))
    }

    // The first part whose last hole `before` does not hold for; one too many if it holds for all.
    #[cold]
    fn part_of(&self, before: impl Fn(&Hole) -> bool) -> usize {
        let in_more = self.first.last().is_some_and(&before);
        if in_more { 1 + self.more.partition_point(|part| before(&part.last)) } else { 0 }
    }

    /// The smallest one.
    #[inline]
    pub(crate) fn smallest(&self) -> Option<(At, Hole)> {
        self.first.first().map(|&hole| (At { part: 0, at: 0 }, hole))
    }

    /// The largest one.
    pub(crate) fn largest(&self) -> Option<Hole> {
        self.more.last().map_or_else(|| self.first.last().copied(), |part| Some(part.last))
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
        if !self.more.is_empty() || self.first.len() >= MOST {
            self.insert_into_parts(hole);
        } else {
            insert_into(&mut self.first, hole);
        }
    }

    #[cold]
    fn insert_into_parts(&mut self, hole: Hole) {
        let part = self.part_of(|known| *known < hole).min(self.more.len());
        let holes = match part.checked_sub(1) {
            None => &mut self.first,
            Some(at) => {
                let part = &mut self.more[at];
                part.last = part.last.max(hole);
                &mut part.holes
            }
        };
        insert_into(holes, hole);
        if holes.len() > MOST {
            let rest = holes.split_off(MOST / 2);
            let (end, last) = (holes[MOST / 2 - 1], rest[rest.len() - 1]);
            if let Some(at) = part.checked_sub(1) {
                self.more[at].last = end;
            }
            self.more.insert(part, Part { last, holes: rest });
        }
    }

    /// Takes a hole out.
    #[inline]
    pub(crate) fn remove(&mut self, At { part, at }: At) {
        if !self.more.is_empty() {
            self.remove_from_parts(part, at);
        } else if at + 1 == self.first.len() {
            self.first.pop();
        } else {
            self.first.remove(at);
        }
    }

    #[cold]
    fn remove_from_parts(&mut self, part: usize, at: usize) {
        let Some(number) = part.checked_sub(1) else {
            self.first.remove(at);
            if self.first.is_empty() {
                self.first = self.more.remove(0).holes;
            }
            return;
        };
        let part = &mut self.more[number];
        part.holes.remove(at);
        match part.holes.last() {
            Some(&last) => part.last = last,
            None => drop(self.more.remove(number)),
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
        let behind = self.more[part.min(self.more.len())..].iter().flat_map(|part| &part.holes);
        self.part(part).map_or(&[][..], |holes| &holes[at..]).iter().chain(behind).copied()
    }
}

#[inline]
fn insert_into(holes: &mut Vec<Hole>, hole: Hole) {
    let at = holes.partition_point(|known| *known < hole);
    if at == holes.len() {
        holes.push(hole);
    } else {
        holes.insert(at, hole);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Of one class, so that it has parts: numbers are few, and so are the holes that they give.
    fn hole() -> impl Strategy<Value = Hole> {
        (0..3u32, 0..40u32).prop_map(|(more, start)| Hole {
            steps: 200 + more,
            arena: 0,
            start,
            block: start,
        })
    }

    #[derive(Clone, Debug)]
    enum Op {
        Insert(Hole),
        /// Puts this one in the place of the nth.
        Replace(usize, Hole),
        Remove(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => hole().prop_map(Op::Insert),
            2 => (any::<usize>(), hole()).prop_map(|(nth, hole)| Op::Replace(nth, hole)),
            2 => any::<usize>().prop_map(Op::Remove),
        ]
    }

    proptest! {
        /// An ordered set is the model.
        #[test]
        fn agrees_with_an_ordered_set(program in prop::collection::vec(op(), 1..300)) {
            let (mut class, mut model) = (Class::default(), BTreeSet::new());
            let nth = |model: &BTreeSet<Hole>, nth: usize| model.iter().nth(nth % model.len().max(1)).copied();
            for op in program {
                match op {
                    Op::Insert(hole) => {
                        if model.insert(hole) {
                            class.insert(hole);
                        }
                    }
                    Op::Remove(at) => {
                        let Some(hole) = nth(&model, at) else { continue };
                        model.remove(&hole);
                        class.remove(class.find(hole).expect("it is there"));
                    }
                    Op::Replace(at, new) => {
                        let Some(old) = nth(&model, at).filter(|_| !model.contains(&new)) else { continue };
                        model.remove(&old);
                        model.insert(new);
                        class.replace(class.find(old).expect("it is there"), new);
                    }
                }
                prop_assert_eq!(class.from(None).collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(class.smallest().map(|(_, hole)| hole), model.first().copied());
                prop_assert_eq!(class.largest(), model.last().copied());
                prop_assert_eq!((class.is_empty(), class.is_single()), (model.is_empty(), model.len() == 1));
                for start in [0, 13, 39, 40] {
                    let from = Hole { steps: 201, arena: 0, start, block: start };
                    let behind: Vec<Hole> = model.range(from..).copied().collect();
                    let found = class.search(|hole| *hole < from);
                    prop_assert_eq!(found.map(|(_, hole)| hole), behind.first().copied());
                    prop_assert_eq!(class.find(from).is_some(), model.contains(&from));
                    if let Some((at, _)) = found {
                        prop_assert_eq!(class.from(Some(at)).collect::<Vec<_>>(), behind);
                    }
                }
            }
        }
    }
}
