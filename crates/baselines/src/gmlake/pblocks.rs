//! The pBlocks: what the segments of frames are cut into.
//!
//! Main types: [`PBlocks`], [`PBlock`], [`PState`]. Neighbours: `request` searches, `stitch` cuts pieces out.
//!
//! Source: GMLake, `CUDACachingAllocator.cpp`: `BlockPool`, `BlockComparator`, `try_merge_blocks`, and the splitting in
//! `malloc` and `get_free_block`. There each block lists its frames; here that is a matter of addresses.

use std::collections::{BTreeMap, BTreeSet};

/// What a pBlock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PState {
    Free,
    /// The program has it, or other streams do after its free.
    Live,
    /// A stitched block has its frames.
    Lent,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PBlock {
    /// Where its segment begins.
    pub(crate) segment: u64,
    pub(crate) stream: u32,
    pub(crate) bytes: u64,
    pub(crate) state: PState,
}

/// All of them, by address.
#[derive(Debug, Default)]
pub(crate) struct PBlocks {
    blocks: BTreeMap<u64, PBlock>,
    /// Stream, bytes, address.
    free: BTreeSet<(u32, u64, u64)>,
}

impl PBlocks {
    pub(crate) fn at(&self, address: u64) -> Option<&PBlock> {
        self.blocks.get(&address)
    }

    pub(crate) fn insert(&mut self, address: u64, block: PBlock) {
        if block.state == PState::Free {
            self.free.insert((block.stream, block.bytes, address));
        }
        self.blocks.insert(address, block);
    }

    pub(crate) fn remove(&mut self, address: u64) -> Option<PBlock> {
        let block = self.blocks.remove(&address)?;
        if block.state == PState::Free {
            self.free.remove(&(block.stream, block.bytes, address));
        }
        Some(block)
    }

    /// The smallest free block of the stream with `bytes`; of equal ones the lowest.
    pub(crate) fn best_fit(&self, stream: u32, bytes: u64) -> Option<u64> {
        let range = (stream, bytes, 0)..=(stream, u64::MAX, u64::MAX);
        self.free.range(range).next().map(|&(_, _, address)| address)
    }

    /// The free blocks of the stream, bytes and address, from the largest on.
    pub(crate) fn largest_first(&self, stream: u32) -> impl Iterator<Item = (u64, u64)> + '_ {
        let range = (stream, 0, 0)..=(stream, u64::MAX, u64::MAX);
        self.free.range(range).rev().map(|&(_, bytes, address)| (bytes, address))
    }

    /// All free blocks, by stream, bytes and address.
    pub(crate) fn free(&self) -> Vec<u64> {
        self.free.iter().map(|&(_, _, address)| address).collect()
    }

    /// Cuts these addresses, which are free, out of their blocks: blocks of this state now.
    pub(crate) fn cut(&mut self, address: u64, bytes: u64, state: PState) {
        let end = address + bytes;
        let mut at = address;
        while at < end {
            let Some((&start, _)) = self.blocks.range(..=at).next_back() else { return };
            let Some(block) = self.remove(start) else { return };
            let block_end = start + block.bytes;
            let cut_end = end.min(block_end);
            for (start, end, state) in
                [(start, at, PState::Free), (at, cut_end, state), (cut_end, block_end, PState::Free)]
            {
                if start < end {
                    self.insert(start, PBlock { bytes: end - start, state, ..block });
                }
            }
            at = cut_end;
        }
    }

    /// Frees all blocks that begin in these addresses, joined to what is free beside them in their segment.
    pub(crate) fn free_all_in(&mut self, address: u64, bytes: u64) {
        let inside: Vec<u64> = self.blocks.range(address..address + bytes).map(|(&at, _)| at).collect();
        inside.into_iter().for_each(|at| self.free_block(at));
    }

    fn free_block(&mut self, mut address: u64) {
        let Some(mut block) = self.remove(address) else { return };
        block.state = PState::Free;
        let joins = |other: &PBlock| other.state == PState::Free && other.segment == block.segment;
        let before = self.blocks.range(..address).next_back();
        let before = before.filter(|(_, before)| joins(before)).map(|(&at, _)| at);
        let after = address + block.bytes;
        let after = self.at(after).filter(|after| joins(after)).map(|_| after);
        for neighbour in [before, after].into_iter().flatten() {
            if let Some(gone) = self.remove(neighbour) {
                address = address.min(neighbour);
                block.bytes += gone.bytes;
            }
        }
        self.insert(address, block);
    }
}

#[cfg(test)]
impl PBlocks {
    /// Each with its address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &PBlock)> {
        self.blocks.iter().map(|(&address, block)| (address, block))
    }

    /// The free ones, as they are found.
    pub(crate) fn index(&self) -> &BTreeSet<(u32, u64, u64)> {
        &self.free
    }
}
