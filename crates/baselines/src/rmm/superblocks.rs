//! The superblocks of one arena, and the holes in them.
//!
//! Main types: [`Superblocks`], [`Superblock`]. Neighbours: `hole_tree` finds holes; `arena` has one of these for each
//! stream, `global_arena` one for itself.
//!
//! Source: RMM 25.4, `detail/arena.hpp`: `superblock`, and what `arena` does with a set of them. RMM asks each superblock
//! from the lowest address on for its first hole that fits. Superblocks do not overlap, so that is the first hole that
//! fits of all, and one tree has the holes of an arena's superblocks. Holes are joined inside a superblock only.

use std::collections::BTreeMap;

use super::hole_tree::HoleTree;

/// A superblock that is with no arena, with its holes: where each begins, and its bytes.
#[derive(Debug)]
pub(crate) struct Superblock {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) holes: Vec<(u64, u64)>,
}

impl Superblock {
    /// One that is a hole as a whole.
    pub(crate) fn empty(start: u64, bytes: u64) -> Self {
        Self { start, bytes, holes: vec![(start, bytes)] }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Superblocks {
    /// Bytes by address.
    all: BTreeMap<u64, u64>,
    holes: HoleTree,
}

impl Superblocks {
    pub(crate) fn insert(&mut self, superblock: Superblock) {
        self.all.insert(superblock.start, superblock.bytes);
        for (start, bytes) in superblock.holes {
            self.holes.insert(start, bytes);
        }
    }

    /// Takes out the superblock that begins there.
    pub(crate) fn extract(&mut self, start: u64) -> Option<Superblock> {
        let bytes = self.all.remove(&start)?;
        let mut holes = Vec::new();
        while let Some((hole, length)) =
            self.holes.first_from(start).filter(|(hole, _)| *hole < start + bytes)
        {
            self.holes.remove(hole);
            holes.push((hole, length));
        }
        Some(Superblock { start, bytes, holes })
    }

    /// Takes out the superblock with the lowest address.
    pub(crate) fn extract_first(&mut self) -> Option<Superblock> {
        let start = *self.all.first_key_value()?.0;
        self.extract(start)
    }

    /// The first superblock with a hole of so many bytes.
    pub(crate) fn first_fit(&self, bytes: u64) -> Option<(u64, u64)> {
        let (hole, _) = self.holes.first_fit(bytes)?;
        self.around(hole)
    }

    /// Takes `bytes` of the first hole that has them: where they begin. The rest stays.
    pub(crate) fn place(&mut self, bytes: u64) -> Option<u64> {
        let (start, found) = self.holes.first_fit(bytes)?;
        self.holes.remove(start);
        if found > bytes {
            self.holes.insert(start + bytes, found - bytes);
        }
        Some(start)
    }

    /// Makes a hole of a block, joined with those that it touches in its superblock. Where the superblock begins; none if
    /// the block lies in none of these.
    pub(crate) fn give_back(&mut self, block: u64, bytes: u64) -> Option<u64> {
        let (superblock, length) = self.around(block)?;
        let (mut start, mut end) = (block, block + bytes);
        if end > superblock + length {
            return None;
        }
        let previous = self.holes.last_before(start);
        if let Some((hole, _)) =
            previous.filter(|&(hole, length)| hole >= superblock && hole + length == start)
        {
            self.holes.remove(hole);
            start = hole;
        }
        if end < superblock + length
            && let Some(length) = self.holes.remove(end)
        {
            end += length;
        }
        self.holes.insert(start, end - start);
        Some(superblock)
    }

    /// Whether a superblock is a hole as a whole.
    pub(crate) fn is_empty(&self, start: u64) -> bool {
        let bytes = self.all.get(&start).copied();
        bytes.is_some() && self.holes.first_from(start) == bytes.map(|bytes| (start, bytes))
    }

    /// The superblocks before and behind the one that begins there: where they begin, and their bytes.
    pub(crate) fn neighbours(&self, start: u64) -> [Option<(u64, u64)>; 2] {
        let of = |(&start, &bytes): (&u64, &u64)| (start, bytes);
        [self.all.range(..start).next_back().map(of), self.all.range(start + 1..).next().map(of)]
    }

    /// The superblock that an address lies in.
    fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, &bytes) = self.all.range(..=address).next_back()?;
        (address < start + bytes).then_some((start, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::{Superblock, Superblocks};

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_first_hole_that_fits_is_taken_from_its_front() {
        let mut arena = Superblocks::default();
        arena.insert(Superblock::empty(4 * MIB, MIB));
        arena.insert(Superblock::empty(MIB, MIB));
        assert_eq!(arena.place(600 << 10), Some(MIB));
        // 424 KiB are left there: too few.
        assert_eq!(arena.place(512 << 10), Some(4 * MIB));
        assert_eq!(arena.place(256), Some(MIB + (600 << 10)));
        assert_eq!(arena.place(MIB), None);
        assert_eq!(arena.first_fit(512 << 10), Some((4 * MIB, MIB)));
        assert_eq!(arena.first_fit(513 << 10), None);
    }

    #[test]
    fn holes_are_joined_inside_their_superblock_only() {
        let mut arena = Superblocks::default();
        arena.insert(Superblock::empty(MIB, MIB));
        arena.insert(Superblock::empty(2 * MIB, MIB));
        for at in 0..4 {
            assert_eq!(arena.place(512 << 10), Some(MIB + at * (512 << 10)));
        }
        assert_eq!(arena.give_back(MIB + (512 << 10), 512 << 10), Some(MIB));
        assert_eq!(arena.give_back(2 * MIB, 512 << 10), Some(2 * MIB));
        assert_eq!(arena.first_fit(513 << 10), None);
        assert!(!arena.is_empty(MIB) && !arena.is_empty(2 * MIB));
        assert_eq!(arena.give_back(MIB, 512 << 10), Some(MIB));
        assert!(arena.is_empty(MIB) && !arena.is_empty(2 * MIB));
        assert_eq!(arena.first_fit(513 << 10), Some((MIB, MIB)));
        // What is in none of them is not taken.
        assert_eq!(arena.give_back(3 * MIB, 256), None);
        assert_eq!(arena.give_back(MIB - 256, 256), None);
        let second = arena.extract(2 * MIB).expect("it is there");
        assert_eq!(second.holes, [(2 * MIB, 512 << 10)]);
        assert_eq!(arena.extract_first().expect("the other").holes, [(MIB, MIB)]);
        assert!(arena.extract_first().is_none());
    }
}
