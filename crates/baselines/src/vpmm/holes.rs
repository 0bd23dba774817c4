//! Addresses that are reserved and have nothing mapped.
//!
//! Main type: [`Holes`]. Neighbours: `defragment` maps pages into holes; what zombies leave behind comes back here.
//!
//! Source: stark-backend, `vm_pool.rs`: `unmapped_regions`, `take_unmapped_region`, `insert_unmapped_region`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// No hole touches another.
#[derive(Debug, Default)]
pub(crate) struct Holes {
    /// Bytes by address.
    by_address: BTreeMap<u64, u64>,
    /// Bytes and address.
    by_size: BTreeSet<(u64, u64)>,
}

impl Holes {
    fn add(&mut self, address: u64, bytes: u64) {
        self.by_address.insert(address, bytes);
        self.by_size.insert((bytes, address));
    }

    fn drop_at(&mut self, address: u64) -> u64 {
        let bytes = self.by_address.remove(&address).unwrap_or(0);
        self.by_size.remove(&(bytes, address));
        bytes
    }

    /// Takes the first `bytes` of the smallest hole that has as many; of equal ones the lowest.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let &(found_bytes, address) = self.by_size.range((bytes, 0)..).next()?;
        self.drop_at(address);
        if found_bytes > bytes {
            self.add(address + bytes, found_bytes - bytes);
        }
        Some(address)
    }

    /// Puts addresses back, joined to the holes beside them in their chunk. 0 bytes are nothing.
    pub(crate) fn insert(&mut self, mut address: u64, mut bytes: u64, chunk: Range<u64>) {
        if bytes == 0 {
            return;
        }
        if let Some((&before, &before_bytes)) = self.by_address.range(chunk.start..address).next_back()
            && before + before_bytes == address
        {
            bytes += self.drop_at(before);
            address = before;
        }
        if address + bytes < chunk.end && self.by_address.contains_key(&(address + bytes)) {
            bytes += self.drop_at(address + bytes);
        }
        self.add(address, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::Holes;

    #[test]
    fn the_smallest_that_fits_is_taken_from_its_start_and_neighbours_join() {
        let mut holes = Holes::default();
        holes.insert(0, 100, 0..1000);
        holes.insert(200, 10, 0..1000);
        holes.insert(300, 10, 0..1000);
        assert_eq!(holes.take(11), Some(0), "10 are too few");
        assert_eq!(holes.take(8), Some(200), "of two of 10 the lower one");
        assert_eq!(holes.take(200), None);
        // What was taken comes back: 208 and 2 bytes are joined from the left.
        holes.insert(200, 8, 0..1000);
        assert_eq!(holes.take(10), Some(200));
        // 11 to 100 are left of the first; 0 to 11 join it from the right.
        holes.insert(0, 11, 0..1000);
        assert_eq!(holes.take(100), Some(0));
        assert_eq!(holes.take(10), Some(300));
        holes.insert(5, 0, 0..1000);
        assert_eq!(holes.take(1), None);
        // Two chunks never join.
        holes.insert(0, 1000, 0..1000);
        holes.insert(1000, 1000, 1000..2000);
        assert_eq!(holes.take(1001), None);
    }
}
