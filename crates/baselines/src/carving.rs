//! Mallocs cut into blocks, free ones and live ones, and the free ones in order of their size.
//!
//! Main type: [`Carving`]. Neighbours: `bfc` and `fixed` place their blocks here; which free block is taken and how much of
//! it is kept is theirs to say.
//!
//! Free blocks are joined at once with free neighbours of the same malloc. The blocks of a malloc cover it without a gap.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Live,
    Free,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    bytes: u64,
    state: State,
    /// Whether it begins a malloc.
    leads: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Carving {
    /// By address.
    blocks: BTreeMap<u64, Block>,
    /// Bytes and addresses of the free ones.
    free: BTreeSet<(u64, u64)>,
}

/// Why an address has a block: it was handed out by this carving and not given back since.
const EXISTS: &str = "the address of a live block";

impl Carving {
    /// A malloc joins in, as one free block.
    pub(crate) fn add(&mut self, address: u64, bytes: u64) {
        self.blocks.insert(address, Block { bytes, state: State::Free, leads: true });
        self.free.insert((bytes, address));
    }

    /// The smallest free block of at least `bytes`, of equal ones the lowest: its address and its bytes.
    pub(crate) fn best_fit(&self, bytes: u64) -> Option<(u64, u64)> {
        self.free.range((bytes, 0)..).next().map(|&(bytes, address)| (address, bytes))
    }

    /// Makes the first `bytes` of a free block live; the rest of it stays free.
    pub(crate) fn take(&mut self, address: u64, bytes: u64) {
        let block = self.blocks.get_mut(&address).expect("the address of a free block");
        self.free.remove(&(block.bytes, address));
        let rest_bytes = block.bytes - bytes;
        block.bytes = bytes;
        block.state = State::Live;
        if rest_bytes > 0 {
            let rest = Block { bytes: rest_bytes, state: State::Free, leads: false };
            self.blocks.insert(address + bytes, rest);
            self.free.insert((rest_bytes, address + bytes));
        }
    }

    /// Bytes of a live block.
    pub(crate) fn bytes(&self, address: u64) -> u64 {
        self.blocks.get(&address).expect(EXISTS).bytes
    }

    /// Frees a live block and joins it with what is free beside it.
    pub(crate) fn give_back(&mut self, address: u64) {
        let mut block = *self.blocks.get(&address).expect(EXISTS);
        block.state = State::Free;
        let mut start = address;
        let next =
            self.blocks.get(&(address + block.bytes)).filter(|next| next.state == State::Free && !next.leads);
        if let Some(&Block { bytes, .. }) = next {
            self.blocks.remove(&(address + block.bytes));
            self.free.remove(&(bytes, address + block.bytes));
            block.bytes += bytes;
        }
        let before =
            self.blocks.range(..address).next_back().filter(|(_, before)| before.state == State::Free);
        if let Some((&at, &Block { bytes, leads, .. })) = before.filter(|_| !block.leads) {
            self.blocks.remove(&address);
            self.free.remove(&(bytes, at));
            start = at;
            block.bytes += bytes;
            block.leads = leads;
        }
        self.blocks.insert(start, block);
        self.free.insert((block.bytes, start));
    }

    /// The mallocs with no live block in them, by address: where they begin, and their bytes.
    pub(crate) fn free_mallocs(&self) -> Vec<(u64, u64)> {
        let whole = |bytes: u64, address: u64| {
            self.blocks.get(&address).is_some_and(|block| block.leads)
                && self.blocks.get(&(address + bytes)).is_none_or(|next| next.leads)
        };
        let mut found: Vec<_> = self
            .free
            .iter()
            .filter(|&&(bytes, address)| whole(bytes, address))
            .map(|&(bytes, address)| (address, bytes))
            .collect();
        found.sort_unstable();
        found
    }

    /// Takes a malloc out that is one free block.
    pub(crate) fn remove(&mut self, address: u64) {
        if let Some(block) = self.blocks.remove(&address) {
            self.free.remove(&(block.bytes, address));
        }
    }

    /// Where the mallocs begin.
    pub(crate) fn mallocs(&self) -> impl Iterator<Item = u64> {
        self.blocks.iter().filter(|(_, block)| block.leads).map(|(&address, _)| address)
    }
}

#[cfg(test)]
impl Carving {
    /// All blocks by address: bytes, and whether they are free.
    pub(crate) fn list(&self) -> Vec<(u64, u64, bool)> {
        let free: BTreeSet<(u64, u64)> = self
            .blocks
            .iter()
            .filter(|(_, block)| block.state == State::Free)
            .map(|(&address, block)| (block.bytes, address))
            .collect();
        assert_eq!(free, self.free, "the free blocks are listed by size");
        self.blocks
            .iter()
            .map(|(&address, block)| (address, block.bytes, block.state == State::Free))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Carving;

    #[test]
    fn the_smallest_block_is_taken_and_of_equal_ones_the_lowest() {
        let mut carving = Carving::default();
        carving.add(1000, 100);
        for (address, bytes) in [(1000, 30), (1030, 10), (1040, 20), (1060, 10), (1070, 20)] {
            carving.take(address, bytes);
        }
        for address in [1000, 1040, 1070] {
            carving.give_back(address);
        }
        // The last one joined the rest of 10.
        assert_eq!(carving.best_fit(20), Some((1040, 20)));
        assert_eq!(carving.best_fit(21), Some((1000, 30)));
        carving.take(1000, 30);
        assert_eq!(carving.best_fit(21), Some((1070, 30)));
        assert_eq!(carving.best_fit(31), None);
    }

    #[test]
    fn free_neighbours_join_inside_a_malloc_only() {
        let mut carving = Carving::default();
        // Two mallocs, one right behind the other.
        carving.add(0, 100);
        carving.add(100, 50);
        carving.take(0, 40);
        carving.take(100, 50);
        assert_eq!(carving.free_mallocs(), []);
        carving.give_back(0);
        assert_eq!(carving.free_mallocs(), [(0, 100)]);
        carving.give_back(100);
        assert_eq!(carving.list(), [(0, 100, true), (100, 50, true)]);
        assert_eq!(carving.free_mallocs(), [(0, 100), (100, 50)]);
        carving.remove(0);
        assert_eq!(carving.mallocs().collect::<Vec<_>>(), [100]);
        assert_eq!(carving.best_fit(1), Some((100, 50)));
    }
}
