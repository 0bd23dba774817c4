//! The holes of one class of sizes, in order.
//!
//! Main types: [`Class`], [`At`]. Neighbours: `hole_index` has a class for each part of a power of two.
//!
//! Most classes have one hole or none, so the smallest one has a place of its own: to see whether it serves, to take it out
//! and to put another one in its place are a few instructions, in line. The others lie in a sorted vector. Where
//! there are many, the vector is split, and so are its parts, so that nothing moves more than [`MOST`] holes, and the list
//! of parts only when one is split or empty. (As one vector, a class of 500,000 holes took 50 µs for each that left it:
//! half of it moved.)

use concertina_vmm::sync::CACHE_LINES_BYTES;

use crate::hole_index::Hole;

/// Most holes in one part: 512 bytes. Few in tests, so that these see parts.
const MOST: usize = if cfg!(test) { 4 } else { 32 };

/// Sorted holes. One cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Class {
    // Of no steps if there is none.
    smallest: Hole,
    others: Vec<Hole>,
    // What comes behind `others`, if that is not all; none of them is empty, nor is `others` then.
    more: Vec<Part>,
}

const _: () = assert!(size_of::<Class>() == 64, "a cache line");

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
    // 0 for `smallest`, 1 for `others`, then those of `more`.
    part: u32,
    at: u32,
}

/// Where the smallest one is.
const SMALLEST: At = At { part: 0, at: 0 };
/// The number of `others` among the parts.
const OTHERS: usize = 1;

impl At {
    #[inline]
    fn new(part: usize, at: usize) -> Self {
        Self { part: part as u32, at: at as u32 }
    }
}

impl Class {
    /// Whether there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.smallest.steps() == 0
    }

    /// The first hole that `before` does not hold for; it holds for none behind that, and for a hole of no steps.
    #[inline]
    pub(crate) fn search(&self, before: impl Fn(&Hole) -> bool) -> Option<(At, Hole)> {
        if !before(&self.smallest) {
            Some((SMALLEST, self.smallest))
        } else if self.others.is_empty() {
            None
        } else {
            self.search_others(before)
        }
    }

    #[inline(never)]
    fn search_others(&self, before: impl Fn(&Hole) -> bool) -> Option<(At, Hole)> {
        let part = if self.more.is_empty() { OTHERS } else { self.part_of(&before) };
        let holes = self.part(part)?;
        let at = holes.partition_point(before);
        holes.get(at).map(|&hole| (At::new(part, at), hole))
    }

    #[inline]
    fn part(&self, part: usize) -> Option<&Vec<Hole>> {
        if part == OTHERS {
            Some(&self.others)
        } else {
            self.more.get(part - OTHERS - 1).map(|part| &part.holes)
        }
    }

    // The first part whose last hole `before` does not hold for; one too many if it holds for all.
    #[cold]
    fn part_of(&self, before: impl Fn(&Hole) -> bool) -> usize {
        let in_more = self.others.last().is_some_and(&before);
        OTHERS + if in_more { 1 + self.more.partition_point(|part| before(&part.last)) } else { 0 }
    }

    /// The smallest one.
    #[inline]
    pub(crate) fn smallest(&self) -> Option<(At, Hole)> {
        (!self.is_empty()).then_some((SMALLEST, self.smallest))
    }

    /// The largest one.
    pub(crate) fn largest(&self) -> Option<Hole> {
        let others = || self.others.last().copied();
        self.more.last().map(|part| part.last).or_else(others).or(self.smallest().map(|(_, hole)| hole))
    }

    /// Where this very hole is.
    #[inline]
    pub(crate) fn find(&self, hole: Hole) -> Option<At> {
        if self.smallest == hole {
            return Some(SMALLEST);
        }
        self.search_others(|known| *known < hole).filter(|(_, found)| *found == hole).map(|(at, _)| at)
    }

    /// Adds a hole.
    #[inline]
    pub(crate) fn insert(&mut self, hole: Hole) {
        if self.is_empty() {
            self.smallest = hole;
        } else {
            self.insert_another(hole);
        }
    }

    #[inline(never)]
    fn insert_another(&mut self, mut hole: Hole) {
        if hole < self.smallest {
            std::mem::swap(&mut hole, &mut self.smallest);
        }
        if self.others.capacity() == 0 {
            self.others.reserve(CACHE_LINES_BYTES / size_of::<Hole>());
        }
        if !self.more.is_empty() || self.others.len() >= MOST {
            self.insert_into_parts(hole);
        } else {
            insert_into(&mut self.others, hole);
        }
    }

    #[cold]
    fn insert_into_parts(&mut self, hole: Hole) {
        let part = (self.part_of(|known| *known < hole) - OTHERS).min(self.more.len());
        let holes = match part.checked_sub(1) {
            None => &mut self.others,
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
    pub(crate) fn remove(&mut self, at: At) {
        if self.others.is_empty() {
            self.smallest = Hole::default();
        } else {
            self.remove_one(at);
        }
    }

    #[inline(never)]
    fn remove_one(&mut self, At { part, at }: At) {
        if part == 0 {
            self.smallest = self.others[0];
        }
        match (part as usize).checked_sub(OTHERS + 1) {
            Some(part) => self.remove_from_part(part, at as usize),
            None => {
                self.others.remove(at as usize);
                if self.others.is_empty() && !self.more.is_empty() {
                    self.others = self.more.remove(0).holes;
                }
            }
        }
    }

    #[cold]
    fn remove_from_part(&mut self, number: usize, at: usize) {
        let part = &mut self.more[number];
        part.holes.remove(at);
        match part.holes.last() {
            Some(&last) => part.last = last,
            None => drop(self.more.remove(number)),
        }
    }

    /// All of them from that one on, or from the first, in order.
    pub(crate) fn from(&self, at: Option<At>) -> impl Iterator<Item = Hole> + '_ {
        let At { part, at } = at.unwrap_or(SMALLEST);
        let (part, at) = (part as usize, at as usize);
        let smallest = self.smallest().filter(|_| part == 0).map(|(_, hole)| hole);
        let holes = self.part(part.max(OTHERS)).map_or(&[][..], |holes| &holes[at..]);
        let behind = self.more[part.saturating_sub(OTHERS).min(self.more.len())..].iter();
        smallest.into_iter().chain(holes.iter().chain(behind.flat_map(|part| &part.holes)).copied())
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
        (0..3u32, 0..40u32).prop_map(|(more, start)| Hole::new(200 + more, 0, start, start))
    }

    #[derive(Clone, Debug)]
    enum Op {
        Insert(Hole),
        Remove(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => hole().prop_map(Op::Insert),
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
                }
                prop_assert_eq!(class.from(None).collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(class.smallest().map(|(_, hole)| hole), model.first().copied());
                prop_assert_eq!(class.largest(), model.last().copied());
                prop_assert_eq!(class.is_empty(), model.is_empty());
                for start in [0, 13, 39, 40] {
                    let from = Hole::new(201, 0, start, start);
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
