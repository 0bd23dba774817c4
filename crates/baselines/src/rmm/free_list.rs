//! The holes of one stream: best fit, joined with their neighbours at once.
//!
//! Main types: [`FreeList`], [`Hole`]. Neighbours: `pool` has one for each stream.
//!
//! Source: RMM 25.4, `detail/coalescing_free_list.hpp`. Of holes of the same size the one with the lowest address is
//! taken. Two neighbours are joined unless the second is the start of a segment: what the driver gave separately is never
//! put together, though its addresses may touch.

use std::collections::{BTreeMap, BTreeSet};

/// A free range of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hole {
    pub(crate) bytes: u64,
    /// Whether it begins where its segment begins. (RMM: `is_head`.)
    pub(crate) starts_segment: bool,
}

#[derive(Debug, Default)]
pub(crate) struct FreeList {
    by_address: BTreeMap<u64, Hole>,
    /// Bytes and address.
    by_size: BTreeSet<(u64, u64)>,
}

impl FreeList {
    /// Adds a hole; it becomes one with those that it touches.
    pub(crate) fn insert(&mut self, mut address: u64, mut hole: Hole) {
        if let Some((&previous, &before)) = self.by_address.range(..address).next_back()
            && previous + before.bytes == address
            && !hole.starts_segment
        {
            self.remove(previous, before.bytes);
            address = previous;
            hole = Hole { bytes: before.bytes + hole.bytes, ..before };
        }
        let end = address + hole.bytes;
        if let Some(&next) = self.by_address.get(&end).filter(|next| !next.starts_segment) {
            self.remove(end, next.bytes);
            hole.bytes += next.bytes;
        }
        self.put(address, hole);
    }

    /// Adds all holes of another list.
    pub(crate) fn absorb(&mut self, mut other: Self) {
        // Which is put into which makes no difference: what touches is joined.
        if other.by_address.len() > self.by_address.len() {
            std::mem::swap(self, &mut other);
        }
        for (address, hole) in other.by_address {
            self.insert(address, hole);
        }
    }

    fn best_fit(&self, bytes: u64) -> Option<(u64, u64)> {
        self.by_size.range((bytes, 0)..).next().copied()
    }

    /// Whether [`take`](Self::take) would find something.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        self.best_fit(bytes).is_some()
    }

    /// Takes the first `bytes` of the best fit: where they begin. The rest stays.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let (found, address) = self.best_fit(bytes)?;
        self.remove(address, found);
        if found > bytes {
            self.put(address + bytes, Hole { bytes: found - bytes, starts_segment: false });
        }
        Some(address)
    }

    fn put(&mut self, address: u64, hole: Hole) {
        self.by_address.insert(address, hole);
        self.by_size.insert((hole.bytes, address));
    }

    fn remove(&mut self, address: u64, bytes: u64) {
        self.by_address.remove(&address);
        self.by_size.remove(&(bytes, address));
    }
}

#[cfg(test)]
mod tests {
    use super::{FreeList, Hole};

    const PART: fn(u64) -> Hole = |bytes| Hole { bytes, starts_segment: false };
    const START: fn(u64) -> Hole = |bytes| Hole { bytes, starts_segment: true };

    fn holes(list: &FreeList) -> Vec<(u64, Hole)> {
        assert_eq!(list.by_size.len(), list.by_address.len());
        list.by_address.iter().map(|(&address, &hole)| (address, hole)).collect()
    }

    #[test]
    fn the_smallest_hole_that_fits_is_taken_and_of_equal_ones_the_lowest() {
        let mut list = FreeList::default();
        for (address, bytes) in [(0x9000, 1024), (0x1000, 2048), (0x5000, 1024), (0x7000, 512)] {
            list.insert(address, PART(bytes));
        }
        assert_eq!(list.take(4096), None);
        assert_eq!(list.take(768), Some(0x5000));
        // 256 bytes of it are left.
        assert_eq!(list.take(256), Some(0x5300));
        assert_eq!(list.take(768), Some(0x9000));
        assert_eq!(list.take(768), Some(0x1000));
        let left = [(0x1300, PART(1280)), (0x7000, PART(512)), (0x9300, PART(256))];
        assert_eq!(holes(&list), left);
    }

    #[test]
    fn neighbours_are_joined_but_not_across_the_start_of_a_segment() {
        let mut list = FreeList::default();
        list.insert(0x2000, START(0x1000));
        list.insert(0x1000, START(0x1000));
        assert_eq!(holes(&list), [(0x1000, START(0x1000)), (0x2000, START(0x1000))]);
        list.insert(0x4000, PART(0x1000));
        list.insert(0x3000, PART(0x1000));
        assert_eq!(holes(&list), [(0x1000, START(0x1000)), (0x2000, START(0x3000))]);
        // What is cut off is the start no more.
        assert_eq!(list.take(0x800), Some(0x1000));
        list.insert(0x1000, START(0x400));
        assert_eq!(holes(&list)[..2], [(0x1000, START(0x400)), (0x1800, PART(0x800))]);
        list.insert(0x1400, PART(0x400));
        assert_eq!(holes(&list)[0], (0x1000, START(0x1000)));
    }

    #[test]
    fn lists_are_joined_alike_in_either_order() {
        let make = |pieces: &[(u64, u64)]| {
            let mut list = FreeList::default();
            for &(address, bytes) in pieces {
                list.insert(address, PART(bytes));
            }
            list
        };
        let odd: &[(u64, u64)] = &[(0x1000, 0x1000), (0x3000, 0x1000), (0x5000, 0x1000)];
        let even: &[(u64, u64)] = &[(0x2000, 0x1000), (0x6000, 0x1000)];
        for (one, other) in [(odd, even), (even, odd)] {
            let mut list = make(one);
            list.absorb(make(other));
            assert_eq!(holes(&list), [(0x1000, PART(0x3000)), (0x5000, PART(0x2000))]);
        }
    }
}
