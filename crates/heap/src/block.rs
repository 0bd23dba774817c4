//! Blocks: ranges of a segment, in use or free, in the order of their addresses.
//!
//! Main types: [`BlockTable`], [`Block`], [`BlockState`]. Neighbours: `heap` splits and coalesces them; `hole_index`
//! finds the free ones. Pure bookkeeping: steps in, steps out.

use concertina_vmm::sync::CACHE_LINES_BYTES;

/// No block.
pub(crate) const NONE: u32 = u32::MAX;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// One block. Positions and sizes in steps, positions from the start of its arena's segment.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Which arena of the heap it is in.
    pub arena: u32,
    /// Where it begins.
    pub start: u32,
    /// How long it is.
    pub steps: u32,
    /// What it is.
    pub state: BlockState,
    /// How often the number was given out: tells a stale handle.
    pub generation: u32,
    /// Bytes as asked, while live or pending.
    pub bytes: u64,
    /// The block before it in its arena, or [`NONE`].
    pub(crate) prev: u32,
    /// The block after it in its arena, or [`NONE`].
    pub(crate) next: u32,
}

impl Block {
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

    #[inline]
    fn insert(&mut self, block: Block) -> u32 {
        match self.vacant.pop() {
            Some(number) => {
                let generation = self.blocks[number as usize].generation;
                self.blocks[number as usize] = Block { generation, ..block };
                number
            }
            None => {
                let number = u32::try_from(self.blocks.len()).expect("fewer than 2^32 blocks in a heap");
                if self.blocks.capacity() == 0 {
                    self.blocks.reserve(16);
                    self.vacant.reserve(CACHE_LINES_BYTES / size_of::<u32>());
                }
                self.blocks.push(block);
                number
            }
        }
    }

    /// A new block behind `last`, the arena's last block so far ([`NONE`] if it has none).
    pub(crate) fn append(&mut self, arena: u32, last: u32, start: u32, steps: u32, state: BlockState) -> u32 {
        let block = Block { arena, start, steps, state, generation: 0, bytes: 0, prev: last, next: NONE };
        let number = self.insert(block);
        if last != NONE {
            self.blocks[last as usize].next = number;
        }
        number
    }

    /// Cuts the block after `steps`; the rest becomes a block of its own, in the same state. Returns the rest.
    #[inline]
    pub fn split(&mut self, number: u32, steps: u32) -> u32 {
        let whole = self.blocks[number as usize];
        debug_assert!(steps > 0 && steps < whole.steps, "a split leaves two parts");
        let rest = self.insert(Block {
            start: whole.start + steps,
            steps: whole.steps - steps,
            prev: number,
            generation: 0,
            bytes: 0,
            ..whole
        });
        if whole.next != NONE {
            self.blocks[whole.next as usize].prev = rest;
        }
        let first = &mut self.blocks[number as usize];
        first.steps = steps;
        first.next = rest;
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
        gone.state = BlockState::Vacant;
        gone.generation = gone.generation.wrapping_add(1);
        self.vacant.push(next);
    }

    /// Takes out a block that is alone in its arena; its number becomes vacant.
    pub fn remove(&mut self, number: u32) {
        let gone = &mut self.blocks[number as usize];
        debug_assert!(gone.prev == NONE && gone.next == NONE, "block {number} has neighbours");
        gone.state = BlockState::Vacant;
        gone.generation = gone.generation.wrapping_add(1);
        self.vacant.push(number);
    }

    /// All blocks that are not vacant, by number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Block)> {
        (0..).zip(&self.blocks).filter(|(_, block)| block.state != BlockState::Vacant)
    }
}

#[cfg(test)]
mod tests;
