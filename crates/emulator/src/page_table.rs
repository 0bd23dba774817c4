//! Which mapping lies behind each page of one reservation.
//!
//! Main types: [`PageTable`]. Neighbours: `address_space` has one a reservation.
//!
//! Two levels, since a reservation may be far larger than what is ever mapped in it: a leaf of 1,024 pages is taken
//! when something is mapped there first, and kept until the reservation goes.

const LEAF_PAGES: u64 = 1024;
const NO_LEAF: u32 = 0;
/// In a leaf: nothing is mapped. Else one more than the mapping's slot.
const UNMAPPED: u32 = 0;

type Leaf = Box<[u32; LEAF_PAGES as usize]>;

#[derive(Debug)]
pub(crate) struct PageTable {
    /// One more than the leaf's index, for each 1,024 pages.
    root: Vec<u32>,
    leaves: Vec<Leaf>,
}

impl PageTable {
    pub(crate) fn new(pages: u64) -> Self {
        let roots = pages.div_ceil(LEAF_PAGES) as usize;
        Self { root: vec![NO_LEAF; roots], leaves: Vec::new() }
    }

    fn leaf(&self, page: u64) -> Option<&Leaf> {
        match self.root[(page / LEAF_PAGES) as usize] {
            NO_LEAF => None,
            leaf => Some(&self.leaves[leaf as usize - 1]),
        }
    }

    /// The slot of the mapping behind a page.
    pub(crate) fn get(&self, page: u64) -> Option<u32> {
        self.leaf(page)?[(page % LEAF_PAGES) as usize].checked_sub(1)
    }

    /// The first page of `first..end` with a mapping behind it.
    pub(crate) fn first_mapped(&self, first: u64, end: u64) -> Option<u64> {
        let mut page = first;
        while page < end {
            let leaf_end = (page / LEAF_PAGES + 1) * LEAF_PAGES;
            let stop = leaf_end.min(end);
            if let Some(leaf) = self.leaf(page) {
                let begin = (page % LEAF_PAGES) as usize;
                let entries = &leaf[begin..begin + (stop - page) as usize];
                if let Some(offset) = entries.iter().position(|&entry| entry != UNMAPPED) {
                    return Some(page + offset as u64);
                }
            }
            page = stop;
        }
        None
    }

    /// Puts a mapping behind the pages `first..end`.
    pub(crate) fn set(&mut self, first: u64, end: u64, mapping: u32) {
        self.fill(first, end, mapping + 1);
    }

    /// Takes whatever is behind the pages `first..end` away.
    pub(crate) fn clear(&mut self, first: u64, end: u64) {
        self.fill(first, end, UNMAPPED);
    }

    fn fill(&mut self, first: u64, end: u64, entry: u32) {
        let mut page = first;
        while page < end {
            let stop = ((page / LEAF_PAGES + 1) * LEAF_PAGES).min(end);
            let root = (page / LEAF_PAGES) as usize;
            if self.root[root] == NO_LEAF {
                self.leaves.push(Box::new([UNMAPPED; LEAF_PAGES as usize]));
                self.root[root] = self.leaves.len() as u32;
            }
            let begin = (page % LEAF_PAGES) as usize;
            let leaf = &mut self.leaves[self.root[root] as usize - 1];
            leaf[begin..begin + (stop - page) as usize].fill(entry);
            page = stop;
        }
    }
}

#[cfg(test)]
mod tests;
