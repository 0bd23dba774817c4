//! Blocks: ranges of a segment, in use or free, in the order of their addresses.
//!
//! Main types: [`BlockTable`], [`Block`], [`BlockState`]. Neighbours: `heap` splits and coalesces them; `hole_index`
//! finds the free ones. Pure bookkeeping: steps in, steps out.

use concertina_vmm::sync::CACHE_LINES_BYTES;
use prefetch_index::prefetch_index;

/// No block.
pub(crate) const NONE: u32 = u32::MAX;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockState {
    /// The number is not in use.
    Vacant,
    /// A hole: free, coalesced with its neighbours, in the index of holes.
    Hole,
    /// Claimed for a request whose pages are being backed.
    Claimed,
    /// In use.
    Live,
    /// Freed into a bin: free, not coalesced.
    Binned,
    /// Freed, and still used by work on another stream.
    Pending,
}

/// By number.
const STATES: [BlockState; 8] = {
    use BlockState::{Binned, Claimed, Hole, Live, Pending, Vacant};
    [Vacant, Hole, Claimed, Live, Binned, Pending, Vacant, Vacant]
};

/// One block. Positions and sizes in steps, positions from the start of its arena's segment.
// Half a cache line, and never in two: in a large heap each block that a free looks at is a miss.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub struct Block {
    /// Which arena of the heap it is in.
    pub arena: u32,
    /// Where it begins.
    pub start: u32,
    /// How long it is.
    pub steps: u32,
    /// How often the number was given out: tells a stale handle.
    pub generation: u32,
    /// The block before it in its arena, or [`NONE`].
    pub(crate) prev: u32,
    /// The block after it in its arena, or [`NONE`].
    pub(crate) next: u32,
    // The state, and above it the bytes.
    state_and_bytes: u64,
}

const _: () = assert!(size_of::<Block>() == 32, "two blocks a cache line");

/// Bits of the state.
const STATE_BITS: u32 = 8;

impl Block {
    /// What it is.
    #[inline]
    pub fn state(&self) -> BlockState {
        STATES[(self.state_and_bytes % STATES.len() as u64) as usize]
    }

    /// Bytes as asked, while live or pending.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.state_and_bytes >> STATE_BITS
    }

    /// Changes what it is.
    #[inline]
    pub fn set_state(&mut self, state: BlockState) {
        self.set(state, self.bytes());
    }

    /// Changes what it is, and its bytes: fewer than 2^56.
    #[inline]
    pub fn set(&mut self, state: BlockState, bytes: u64) {
        self.state_and_bytes = bytes << STATE_BITS | state as u64;
    }

    /// Whether it is in this state: one comparison.
    #[inline]
    pub fn is(&self, state: BlockState) -> bool {
        self.state_and_bytes as u8 == state as u8
    }

    /// Where it ends, in steps.
    #[inline]
    pub fn end(&self) -> u32 {
        self.start + self.steps
    }
}

/// All blocks of a heap, by number.
#[derive(Debug, Default)]
pub struct BlockTable {
    blocks: Vec<Block>,
    vacant: Vec<u32>,
}

impl BlockTable {
    /// The block with this number.
    #[inline]
    pub fn get(&self, number: u32) -> &Block {
        &self.blocks[number as usize]
    }

    /// The same, to change it.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> &mut Block {
        &mut self.blocks[number as usize]
    }

    /// The block with this number, if there ever was one.
    #[inline]
    pub fn find(&self, number: u32) -> Option<&Block> {
        self.blocks.get(number as usize)
    }

    /// The block before it in its arena.
    #[inline]
    pub fn prev(&self, number: u32) -> Option<u32> {
        Some(self.blocks[number as usize].prev).filter(|&prev| prev != NONE)
    }

    /// The block after it in its arena.
    #[inline]
    pub fn next(&self, number: u32) -> Option<u32> {
        Some(self.blocks[number as usize].next).filter(|&next| next != NONE)
    }

    /// Asks for a record, without a wait: it is looked at soon. Nothing, if there is none.
    #[inline]
    pub(crate) fn prefetch(&self, number: u32) {
        prefetch_index(&self.blocks, number as usize);
    }

    /// A number for a new block. What else is in it is the caller's to write, but for the generation.
    #[inline]
    fn take_number(&mut self) -> u32 {
        self.vacant.pop().unwrap_or_else(|| self.add_number())
    }

    #[cold]
    fn add_number(&mut self) -> u32 {
        let number = u32::try_from(self.blocks.len()).expect("fewer than 2^32 blocks in a heap");
        if self.blocks.capacity() == 0 {
            self.blocks.reserve(16);
            self.vacant.reserve(CACHE_LINES_BYTES / size_of::<u32>());
        }
        let vacant = BlockState::Vacant as u64;
        let (arena, start, steps, generation) = (0, 0, 0, 0);
        self.blocks.push(Block {
            arena,
            start,
            steps,
            generation,
            prev: NONE,
            next: NONE,
            state_and_bytes: vacant,
        });
        number
    }

    /// A new block behind `last`, the arena's last block so far ([`NONE`] if it has none).
    pub(crate) fn append(&mut self, arena: u32, last: u32, start: u32, steps: u32, state: BlockState) -> u32 {
        let number = self.take_number();
        let generation = self.blocks[number as usize].generation;
        let state_and_bytes = state as u64;
        self.blocks[number as usize] =
            Block { arena, start, steps, generation, prev: last, next: NONE, state_and_bytes };
        if last != NONE {
            self.blocks[last as usize].next = number;
        }
        number
    }

    /// Cuts the block after `steps`; the rest becomes a block of its own, in the same state. Returns the rest.
    #[inline(always)]
    pub fn split(&mut self, number: u32, steps: u32) -> u32 {
        let rest = self.take_number();
        let first = &mut self.blocks[number as usize];
        let whole = *first;
        debug_assert!(steps > 0 && steps < whole.steps, "a split leaves two parts");
        first.steps = steps;
        first.next = rest;
        let block = &mut self.blocks[rest as usize];
        block.arena = whole.arena;
        block.start = whole.start + steps;
        block.steps = whole.steps - steps;
        block.prev = number;
        block.next = whole.next;
        block.state_and_bytes = whole.state_and_bytes % (1 << STATE_BITS);
        if whole.next != NONE {
            self.blocks[whole.next as usize].prev = rest;
        }
        rest
    }

    /// Joins a block with the one after it, whose number becomes vacant.
    #[inline]
    pub fn absorb_next(&mut self, number: u32) {
        let next = self.blocks[number as usize].next;
        let gone = self.blocks[next as usize];
        let block = &mut self.blocks[number as usize];
        block.steps += gone.steps;
        block.next = gone.next;
        if gone.next != NONE {
            self.blocks[gone.next as usize].prev = number;
        }
        let gone = &mut self.blocks[next as usize];
        gone.set(BlockState::Vacant, 0);
        gone.generation = gone.generation.wrapping_add(1);
        self.vacant.push(next);
    }

    /// Takes out a block that is alone in its arena; its number becomes vacant.
    pub fn remove(&mut self, number: u32) {
        let gone = &mut self.blocks[number as usize];
        debug_assert!(gone.prev == NONE && gone.next == NONE, "block {number} has neighbours");
        gone.set(BlockState::Vacant, 0);
        gone.generation = gone.generation.wrapping_add(1);
        self.vacant.push(number);
    }

    /// All blocks that are not vacant, by number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Block)> {
        (0..).zip(&self.blocks).filter(|(_, block)| !block.is(BlockState::Vacant))
    }
}

#[cfg(test)]
mod tests;
