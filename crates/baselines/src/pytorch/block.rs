//! Blocks, and how those of one segment hang together.
//!
//! Main types: [`Block`], [`BlockId`], [`Blocks`]. Neighbours: `pool` has the free ones in order; `grow`, `request` and
//! `give_back` split and join them.
//!
//! Source: PyTorch 2.11, `CUDACachingAllocator.cpp`, struct `Block`.

use super::rounding::PoolKind;

/// A number of a block, given again after the block is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockId(u32);

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockState {
    /// The program has it.
    Live,
    /// Freed, and events on other streams are outstanding.
    Pending,
    /// In the pool.
    Free,
    /// Addresses of an expandable segment with nothing behind them.
    Unmapped,
}

/// A range of addresses of one segment.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) stream: u32,
    pub(crate) pool: PoolKind,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) state: BlockState,
    /// As asked; of live and pending blocks.
    pub(crate) requested_bytes: u64,
    /// Other streams that used it and have no event yet.
    pub(crate) used_on: Vec<u32>,
    pub(crate) outstanding_events: u32,
    /// Searches of the pool when it went there.
    pub(crate) age_base: u64,
    /// The expandable segment that it lies in; none if its segment is a `cudaMalloc`.
    pub(crate) expandable: Option<u32>,
    pub(crate) prev: Option<BlockId>,
    pub(crate) next: Option<BlockId>,
}

impl Block {
    /// A block that is alone in its segment.
    pub(crate) fn new(stream: u32, pool: PoolKind, address: u64, bytes: u64, state: BlockState) -> Self {
        Self {
            stream,
            pool,
            address,
            bytes,
            state,
            requested_bytes: 0,
            used_on: Vec::new(),
            outstanding_events: 0,
            age_base: 0,
            expandable: None,
            prev: None,
            next: None,
        }
    }

    /// Whether it is a part of its segment only.
    pub(crate) const fn is_split(&self) -> bool {
        self.prev.is_some() || self.next.is_some()
    }

    /// Whether nobody has it: in the pool or unmapped.
    pub(crate) const fn is_allocatable(&self) -> bool {
        matches!(self.state, BlockState::Free | BlockState::Unmapped)
    }
}

/// All blocks.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    slots: Vec<Option<Block>>,
    vacant: Vec<BlockId>,
}

/// Why a slot holds a block: nobody keeps the number of a block that is gone.
const EXISTS: &str = "the number of a block that exists";

impl Blocks {
    pub(crate) fn insert(&mut self, block: Block) -> BlockId {
        if let Some(id) = self.vacant.pop() {
            self.slots[id.0 as usize] = Some(block);
            return id;
        }
        self.slots.push(Some(block));
        BlockId(u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 blocks"))
    }

    pub(crate) fn remove(&mut self, id: BlockId) -> Block {
        let block = self.slots[id.0 as usize].take().expect(EXISTS);
        self.vacant.push(id);
        block
    }

    pub(crate) fn at(&self, id: BlockId) -> &Block {
        self.slots[id.0 as usize].as_ref().expect(EXISTS)
    }

    pub(crate) fn at_mut(&mut self, id: BlockId) -> &mut Block {
        self.slots[id.0 as usize].as_mut().expect(EXISTS)
    }

    /// Cuts the first `bytes` off; the block keeps them, the rest is a new block behind it, of the same state.
    pub(crate) fn split_off_rest(&mut self, id: BlockId, bytes: u64) -> BlockId {
        let block = self.at_mut(id);
        let mut rest =
            Block::new(block.stream, block.pool, block.address + bytes, block.bytes - bytes, block.state);
        rest.expandable = block.expandable;
        rest.prev = Some(id);
        rest.next = block.next;
        block.bytes = bytes;
        let next = block.next;
        let rest = self.insert(rest);
        self.at_mut(id).next = Some(rest);
        if let Some(next) = next {
            self.at_mut(next).prev = Some(rest);
        }
        rest
    }

    /// Joins `neighbour`, which is next to `id`, to it: `neighbour` is gone.
    pub(crate) fn absorb(&mut self, id: BlockId, neighbour: BlockId) -> Block {
        let gone = self.remove(neighbour);
        let block = self.at_mut(id);
        block.bytes += gone.bytes;
        if block.prev == Some(neighbour) {
            block.address = gone.address;
            block.prev = gone.prev;
            if let Some(prev) = gone.prev {
                self.at_mut(prev).next = Some(id);
            }
        } else {
            block.next = gone.next;
            if let Some(next) = gone.next {
                self.at_mut(next).prev = Some(id);
            }
        }
        gone
    }

    /// Each block.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        self.slots.iter().enumerate().filter_map(|(at, slot)| Some((BlockId(at as u32), slot.as_ref()?)))
    }
}
