//! The free blocks of one kind, in the order in which they are searched.
//!
//! Main type: [`Pool`]. Neighbours: `block` has the blocks themselves; `request` searches, `grow` and `give_back` too.
//!
//! Source: PyTorch 2.11, `CUDACachingAllocator.cpp`: struct `BlockPool`, `get_free_block`, `find_expandable_block`.

use std::collections::BTreeMap;

use super::block::{BlockId, BlockState, Blocks};
use super::conf::PytorchConf;

/// Blocks of one kind that nobody has.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// By stream, bytes and address.
    free: BTreeMap<(u32, u64, u64), BlockId>,
    /// By stream and address.
    unmapped: BTreeMap<(u32, u64), BlockId>,
    /// How often it was searched while garbage collection was on.
    searches: u64,
}

impl Pool {
    /// Puts a free or unmapped block where it belongs.
    pub(crate) fn insert(&mut self, blocks: &mut Blocks, id: BlockId) {
        let block = blocks.at_mut(id);
        if block.state == BlockState::Unmapped {
            self.unmapped.insert((block.stream, block.address), id);
        } else {
            block.age_base = self.searches;
            self.free.insert((block.stream, block.bytes, block.address), id);
        }
    }

    /// Takes a block of this place, size and state out.
    pub(crate) fn remove(&mut self, stream: u32, bytes: u64, address: u64, state: BlockState) {
        if state == BlockState::Unmapped {
            self.unmapped.remove(&(stream, address));
        } else {
            self.free.remove(&(stream, bytes, address));
        }
    }

    /// Counts a search: what ages blocks.
    pub(crate) fn count_search(&mut self) {
        self.searches += 1;
    }

    /// How many searches ago the block came here.
    pub(crate) fn age(&self, blocks: &Blocks, id: BlockId) -> u64 {
        self.searches - blocks.at(id).age_base
    }

    /// The free blocks, by stream, bytes and address.
    pub(crate) fn free(&self) -> Vec<BlockId> {
        self.free.values().copied().collect()
    }

    /// The smallest free block of the stream with room for `bytes`, of several the lowest; the block stays here.
    ///
    /// A block at the end of what an expandable segment has mapped counts with what it could grow to, so that holes are
    /// filled before the end is eaten into. With a limit on splitting, a block from the limit on serves only requests
    /// from the limit on, and those only if not too much of it is left over. Otherwise the search ends without a block.
    pub(crate) fn best_fit(
        &self,
        blocks: &Blocks,
        conf: &PytorchConf,
        stream: u32,
        bytes: u64,
    ) -> Option<BlockId> {
        let mut fits = self.free.range((stream, bytes, 0)..=(stream, u64::MAX, u64::MAX)).map(|(_, &id)| id);
        let mut found = fits.next()?;
        if conf.expandable_segments {
            for next in fits {
                if room(blocks, next) >= room(blocks, found) {
                    break;
                }
                found = next;
            }
        }
        let found_bytes = blocks.at(found).bytes;
        let oversize = found_bytes >= conf.max_split_bytes;
        let fits = if bytes < conf.max_split_bytes {
            !oversize
        } else {
            found_bytes < bytes.saturating_add(conf.max_non_split_rounding_bytes)
        };
        fits.then_some(found)
    }

    /// The first place, by address, where free and unmapped blocks of the stream in a row have room for `bytes`: the
    /// first of them, which is unmapped or has an unmapped one right behind it.
    pub(crate) fn growable(&self, blocks: &Blocks, stream: u32, bytes: u64) -> Option<BlockId> {
        self.unmapped.range((stream, 0)..=(stream, u64::MAX)).map(|(_, &id)| id).find_map(|id| {
            let before = blocks.at(id).prev.filter(|&prev| blocks.at(prev).is_allocatable());
            let first = before.unwrap_or(id);
            let mut room = 0;
            let mut next = Some(first);
            while let Some(id) = next.filter(|&id| room < bytes && blocks.at(id).is_allocatable()) {
                room += blocks.at(id).bytes;
                next = blocks.at(id).next;
            }
            (room >= bytes).then_some(first)
        })
    }

    /// The smallest free block of the stream of at least `bytes`, split or not.
    pub(crate) fn at_least(&self, stream: u32, bytes: u64) -> Option<BlockId> {
        self.free.range((stream, bytes, 0)..=(stream, u64::MAX, u64::MAX)).map(|(_, &id)| id).next()
    }

    /// The largest free block of the stream, of several the highest.
    pub(crate) fn largest(&self, stream: u32) -> Option<BlockId> {
        self.free.range((stream, 0, 0)..=(stream, u64::MAX, u64::MAX)).map(|(_, &id)| id).next_back()
    }
}

#[cfg(test)]
impl Pool {
    /// Number of free and of unmapped blocks.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.free.len(), self.unmapped.len())
    }

    /// Blocks that are not what their keys say.
    pub(crate) fn misplaced(&self, blocks: &Blocks) -> Vec<String> {
        let free = self.free.iter().filter(|&(&key, &id)| {
            let block = blocks.at(id);
            key != (block.stream, block.bytes, block.address) || block.state != BlockState::Free
        });
        let unmapped = self.unmapped.iter().filter(|&(&key, &id)| {
            let block = blocks.at(id);
            key != (block.stream, block.address) || block.state != BlockState::Unmapped
        });
        free.map(|(key, _)| format!("{key:?}")).chain(unmapped.map(|(key, _)| format!("{key:?}"))).collect()
    }
}

/// Bytes of a block and of the unmapped block right behind it.
fn room(blocks: &Blocks, id: BlockId) -> u64 {
    let block = blocks.at(id);
    let behind = block.next.map(|next| blocks.at(next)).filter(|next| next.state == BlockState::Unmapped);
    block.bytes + behind.map_or(0, |next| next.bytes)
}
