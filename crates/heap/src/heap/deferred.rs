//! Frees that are done one after the other while the next ones come: in a heap whose records lie far from the processor.
//!
//! Main type: [`Deferred`]. Neighbours: a free ends here if the heap has many blocks; `cell` sees to it that all is done for
//! everybody else who takes the lock, so that nobody ever sees a heap with a free that is deferred.
//!
//! A free reads the record of its block, and then those of the neighbours, whose numbers stand in it. Where a heap has more
//! records than a cache holds, each of the two reads waits for memory, some 150 ns, and what follows goes by what was read. So such a
//! free asks for what it will read next, and leaves the rest to the frees that follow (coalescing that is deferred, as in Wilson et
//! al., "Dynamic Storage Allocation", IWMM 1995, but by two blocks at most):
//!
//! - *unread*: a handle gave the block up, and its record was asked for. A handle's block is live by itself: nobody else has
//!   a name for it. (A raw block may be freed twice, so its record is read at once.)
//! - *unreleased*: its record was read and has another generation; those of its neighbours were asked for.
//!
//! A block that another one follows in its place goes on to the next place. All of it is done before a free at a later tick: pages
//! become idle at the tick of the free. Bytes and blocks that are live are counted at once; a block
//! is neither a hole nor in a bin before it is out of here, so that a hit may find another place than without. A request that
//! finds none has all of it done, and looks again.

use concertina_vmm::Driver;

use super::{Granted, Heap};
use crate::block::Block;
use crate::cell::Freeing;
use crate::step::Request;

/// The blocks whose free is deferred.
#[derive(Debug)]
pub(super) struct Deferred {
    from_blocks: u64,
    unread: Option<Freeing>,
    unreleased: Option<u32>,
}

impl Deferred {
    /// None yet, in a heap that defers from so many live blocks on.
    pub(super) fn from_blocks(blocks: u64) -> Self {
        Self { from_blocks: blocks, unread: None, unreleased: None }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.unread.is_none() && self.unreleased.is_none()
    }
}

impl<D: Driver> Heap<D> {
    /// Whether the free of a handle's block may be left to others. Not if it may have to wait for other streams.
    #[inline]
    pub(crate) fn may_defer(&self) -> bool {
        self.live_blocks > self.deferred.from_blocks && self.recorded.is_empty()
    }

    /// Frees a block that its handle gave up, at the stream's tick `tick`: in a heap that may defer.
    #[inline(never)]
    pub(crate) fn free_later(&mut self, freeing: Freeing, tick: u64) {
        self.blocks.prefetch(freeing.id.number());
        self.note_tick(tick);
        self.count_off(freeing.bytes);
        let before = self.deferred.unread.replace(freeing);
        if let Some((number, steps)) = before.and_then(|before| self.read(before)) {
            self.put_back_later(number, steps);
        }
    }

    /// Reads the record of a block that a handle gave up: from then on its id is stale. Returns its number and steps.
    #[inline]
    fn read(&mut self, Freeing { id, bytes }: Freeing) -> Option<(u32, u32)> {
        if let Err(error) = self.check_live(id) {
            tracing::error!(%error, "an allocation was freed behind its handle");
            self.count(bytes);
            return None;
        }
        let number = id.number();
        let block = self.blocks.get_mut(number);
        debug_assert_eq!(block.bytes(), bytes, "the handle of {id:?} knows its bytes");
        block.generation = block.generation.wrapping_add(1);
        Some((number, block.steps))
    }

    /// As [`Heap::put_back`], of a block that was freed just now. In a heap of many blocks it is a hole only when the next one is
    /// freed.
    #[inline]
    pub(super) fn put_back_later(&mut self, number: u32, steps: u32) {
        if self.live_blocks < self.deferred.from_blocks {
            self.finish_deferred();
            self.put_back(number, steps);
        } else if !self.put_in_bin(number, steps) {
            let &Block { prev, next, .. } = self.blocks.get(number);
            self.blocks.prefetch(prev);
            self.blocks.prefetch(next);
            if let Some(before) = self.deferred.unreleased.replace(number) {
                self.release(before);
            }
        }
    }

    /// Serves a request that found no place, if something was deferred, with that done: no call is made for memory that was
    /// freed.
    #[cold]
    pub(super) fn hit_after_deferred(&mut self, request: &Request) -> Option<Granted> {
        if self.deferred.is_empty() {
            return None;
        }
        self.finish_deferred();
        self.hit(request)
    }

    /// Does all that was deferred.
    #[inline]
    pub(crate) fn finish_deferred(&mut self) {
        if !self.deferred.is_empty() {
            self.finish_some();
        }
    }

    #[cold]
    fn finish_some(&mut self) {
        if let Some(number) = self.deferred.unreleased.take() {
            self.release(number);
        }
        let unread = self.deferred.unread.take();
        if let Some((number, steps)) = unread.and_then(|unread| self.read(unread)) {
            self.put_back(number, steps);
        }
    }
}

#[cfg(test)]
mod tests;
