//! The arena that the others have their superblocks of, and that serves large requests itself.
//!
//! Main type: [`GlobalArena`]. Neighbours: `superblocks` has the holes; `arena` asks.
//!
//! Source: RMM 25.4, `detail/arena.hpp`: `global_arena`. Its superblocks need not be empty: those that it places large
//! blocks in stay with it, and so do those that come back from other arenas with live blocks in them. Either may be handed
//! to an arena that asks, if it is the first with a hole that fits.

use super::superblocks::{Superblock, Superblocks};

/// Requests above this many bytes are placed by the global arena; superblocks have as many at least.
pub(crate) const SUPERBLOCK_BYTES: u64 = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct GlobalArena {
    superblocks: Superblocks,
}

impl GlobalArena {
    /// An arena of one superblock.
    pub(crate) fn new(start: u64, bytes: u64) -> Self {
        let mut arena = Self::default();
        arena.superblocks.insert(Superblock::empty(start, bytes));
        arena
    }

    /// Whether requests of so many bytes are placed here.
    pub(crate) const fn places(bytes: u64) -> bool {
        bytes > SUPERBLOCK_BYTES
    }

    /// Takes out the first superblock with a hole of so many bytes: only its front, if it is empty and the rest is large
    /// enough to be a superblock.
    fn take(&mut self, bytes: u64) -> Option<Superblock> {
        let (start, found) = self.superblocks.first_fit(bytes)?;
        let front = bytes.max(SUPERBLOCK_BYTES);
        let splits = self.superblocks.is_empty(start) && found >= front + SUPERBLOCK_BYTES;
        let superblock = self.superblocks.extract(start)?;
        if !splits {
            return Some(superblock);
        }
        self.superblocks.insert(Superblock::empty(start + front, found - front));
        Some(Superblock::empty(start, front))
    }

    /// A superblock with a hole of so many bytes, for another arena.
    pub(crate) fn acquire(&mut self, bytes: u64) -> Option<Superblock> {
        self.take(bytes)
    }

    /// Where a large block is placed.
    pub(crate) fn place(&mut self, bytes: u64) -> Option<u64> {
        let superblock = self.take(bytes)?;
        self.superblocks.insert(superblock);
        // No hole before it fits, so this is in that superblock.
        self.superblocks.place(bytes)
    }

    /// Takes a block back; none if it lies in no superblock of this arena.
    pub(crate) fn give_back(&mut self, block: u64, bytes: u64) -> Option<()> {
        let superblock = self.superblocks.give_back(block, bytes)?;
        self.join(superblock);
        Some(())
    }

    /// Takes a superblock back from another arena.
    pub(crate) fn release(&mut self, superblock: Superblock) {
        let start = superblock.start;
        self.superblocks.insert(superblock);
        self.join(start);
    }

    /// Makes one superblock of this one and its neighbours, of those that are empty and touch it, if it is empty itself.
    fn join(&mut self, start: u64) {
        if !self.superblocks.is_empty(start) {
            return;
        }
        let [before, behind] = self.superblocks.neighbours(start);
        let Some(mut joined) = self.superblocks.extract(start) else { return };
        if let Some((next, bytes)) = behind
            && next == joined.start + joined.bytes
            && self.superblocks.is_empty(next)
        {
            self.superblocks.extract(next);
            joined = Superblock::empty(joined.start, joined.bytes + bytes);
        }
        if let Some((previous, bytes)) = before
            && previous + bytes == joined.start
            && self.superblocks.is_empty(previous)
        {
            self.superblocks.extract(previous);
            joined = Superblock::empty(previous, bytes + joined.bytes);
        }
        self.superblocks.insert(joined);
    }
}
