//! The sBlocks: stitched blocks, second addresses of frames that pBlocks have.
//!
//! Main types: [`SBlocks`], [`SBlock`], [`SBlockId`], [`Piece`]. Neighbours: `stitch` makes them, `request` uses them
//! again, `give_back` drops them.
//!
//! Source: GMLake, `CUDACachingAllocator.cpp`: `free_fused_blocks`, `free_fused_blocks_in_release_order`,
//! `fragmented_free_fused_blocks`, `active_fused_blocks`.

use std::collections::BTreeSet;

/// A number of an sBlock, given again after it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SBlockId(u32);

/// A run of frames, by the addresses that they have in their segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// Where the segment begins.
    pub(crate) segment: u64,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug)]
pub(crate) struct SBlock<E> {
    pub(crate) stream: u32,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) pieces: Vec<Piece>,
    /// Bytes from the start on that the program has; 0 if it has none.
    pub(crate) used_bytes: u64,
    /// Frames of it that anybody uses, through whatever addresses.
    pub(crate) busy_frames: u64,
    /// Recorded when it was freed last.
    pub(crate) event: Option<E>,
    /// How many blocks of the stream were freed before.
    pub(crate) freed: u64,
}

impl<E> SBlock<E> {
    /// The pieces under its first `bytes`.
    pub(crate) fn pieces_of(&self, mut bytes: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for &piece in &self.pieces {
            if bytes == 0 {
                break;
            }
            pieces.push(Piece { bytes: piece.bytes.min(bytes), ..piece });
            bytes -= piece.bytes.min(bytes);
        }
        pieces
    }
}

#[derive(Debug)]
pub(crate) struct SBlocks<E> {
    slots: Vec<Option<SBlock<E>>>,
    vacant: Vec<SBlockId>,
    /// Nobody has them, nor any of their frames: stream, bytes, address.
    free: BTreeSet<(u32, u64, u64, SBlockId)>,
    /// The same: stream, and in the order in which they were freed.
    free_order: BTreeSet<(u32, u64, SBlockId)>,
    /// Nobody has them, but somebody some of their frames: likewise.
    fragmented: BTreeSet<(u32, u64, SBlockId)>,
}

/// Why a slot holds a block: nobody keeps the number of a block that is gone.
const EXISTS: &str = "the number of an sBlock that exists";

impl<E> SBlocks<E> {
    pub(crate) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            vacant: Vec::new(),
            free: BTreeSet::new(),
            free_order: BTreeSet::new(),
            fragmented: BTreeSet::new(),
        }
    }

    pub(crate) fn at(&self, id: SBlockId) -> &SBlock<E> {
        self.slots[id.0 as usize].as_ref().expect(EXISTS)
    }

    fn at_mut(&mut self, id: SBlockId) -> &mut SBlock<E> {
        self.slots[id.0 as usize].as_mut().expect(EXISTS)
    }

    /// A new one, which the program has.
    pub(crate) fn insert(&mut self, block: SBlock<E>) -> SBlockId {
        if let Some(id) = self.vacant.pop() {
            self.slots[id.0 as usize] = Some(block);
            return id;
        }
        self.slots.push(Some(block));
        SBlockId(u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 sBlocks"))
    }

    /// Takes out one that nobody has.
    pub(crate) fn remove(&mut self, id: SBlockId) -> SBlock<E> {
        self.unlist(id);
        self.vacant.push(id);
        self.slots[id.0 as usize].take().expect(EXISTS)
    }

    /// The smallest free one of the stream with `bytes`; of equal ones the lowest.
    pub(crate) fn best_fit(&self, stream: u32, bytes: u64) -> Option<SBlockId> {
        let range = (stream, bytes, 0, SBlockId(0))..=(stream, u64::MAX, u64::MAX, SBlockId(u32::MAX));
        self.free.range(range).next().map(|&(_, _, _, id)| id)
    }

    /// The program has its first `bytes` from now on.
    pub(crate) fn take(&mut self, id: SBlockId, bytes: u64) {
        self.unlist(id);
        self.at_mut(id).used_bytes = bytes;
    }

    pub(crate) fn take_event(&mut self, id: SBlockId) -> Option<E> {
        self.at_mut(id).event.take()
    }

    /// Nobody has it any more.
    pub(crate) fn free(&mut self, id: SBlockId, event: Option<E>, freed: u64) {
        let block = self.at_mut(id);
        (block.used_bytes, block.event, block.freed) = (0, event, freed);
        self.list(id);
    }

    /// One more of its frames is used, or one less.
    pub(crate) fn count(&mut self, id: SBlockId, busy: bool) {
        let block = self.at_mut(id);
        let was = block.busy_frames > 0;
        block.busy_frames = if busy { block.busy_frames + 1 } else { block.busy_frames - 1 };
        if block.used_bytes == 0 && was != (block.busy_frames > 0) {
            let (stream, freed) = (block.stream, block.freed);
            let key = (block.stream, block.bytes, block.address, id);
            if busy {
                self.free.remove(&key);
                self.free_order.remove(&(stream, freed, id));
                self.fragmented.insert((stream, freed, id));
            } else {
                self.fragmented.remove(&(stream, freed, id));
                self.free.insert(key);
                self.free_order.insert((stream, freed, id));
            }
        }
    }

    fn list(&mut self, id: SBlockId) {
        let block = self.at(id);
        let order = (block.stream, block.freed, id);
        if block.busy_frames > 0 {
            self.fragmented.insert(order);
        } else {
            self.free.insert((block.stream, block.bytes, block.address, id));
            self.free_order.insert(order);
        }
    }

    fn unlist(&mut self, id: SBlockId) {
        let block = self.at(id);
        let order = (block.stream, block.freed, id);
        self.free.remove(&(block.stream, block.bytes, block.address, id));
        self.free_order.remove(&order);
        self.fragmented.remove(&order);
    }

    /// Those of the stream that nobody has: with frames that somebody has, or without; the first freed first.
    pub(crate) fn idle(&self, stream: u32, fragmented: bool) -> Vec<SBlockId> {
        let range = (stream, 0, SBlockId(0))..=(stream, u64::MAX, SBlockId(u32::MAX));
        let order = if fragmented { &self.fragmented } else { &self.free_order };
        order.range(range).map(|&(_, _, id)| id).collect()
    }

    /// Bytes of addresses of those of the stream that nobody has.
    pub(crate) fn idle_bytes(&self, stream: u32) -> u64 {
        let ids = self.idle(stream, true).into_iter().chain(self.idle(stream, false));
        ids.map(|id| self.at(id).bytes).sum()
    }

    /// All there are.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SBlockId, &SBlock<E>)> {
        self.slots.iter().enumerate().filter_map(|(at, slot)| Some((SBlockId(at as u32), slot.as_ref()?)))
    }
}

#[cfg(test)]
impl<E> SBlocks<E> {
    /// How many are free, and how many fragmented.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        assert_eq!(self.free.len(), self.free_order.len());
        (self.free.len(), self.fragmented.len())
    }
}
