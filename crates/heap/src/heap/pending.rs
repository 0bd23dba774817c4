//! Pending blocks of a heap: freed, and still used by work on other streams.
//!
//! Main type: [`PendingBlock`]. Neighbours: a free puts a block here; `ladder` asks for what is done, and `gather`
//! takes blocks back early when frames are short.

use concertina_vmm::{Driver, Use, Uses};

use super::Heap;

/// A freed block and the uses on other streams that it waits for.
pub(super) struct PendingBlock {
    pub(super) block: u32,
    pub(super) uses: Uses,
}

impl<D: Driver> Heap<D> {
    /// Takes back the pending blocks whose uses on other streams are seen done.
    pub(crate) fn settle_pending(&mut self, done: impl Fn(Use) -> bool) {
        for mut pending in std::mem::take(&mut self.pending) {
            pending.uses.retain(|use_| !done(*use_));
            if pending.uses.is_empty() {
                self.take_back(&pending);
            } else {
                self.pending.push_back(pending);
            }
        }
    }

    /// Takes back the oldest pending block whose uses the heap's stream may be put after, if `order` manages to do that.
    /// Returns whether a block came back.
    pub(crate) fn take_back_oldest(
        &mut self,
        may_follow: impl Fn(&Uses) -> bool,
        order: impl FnOnce(&Uses) -> bool,
    ) -> bool {
        let Some(at) = self.pending.iter().position(|pending| may_follow(&pending.uses)) else {
            return false;
        };
        if !order(&self.pending[at].uses) {
            return false;
        }
        let Some(pending) = self.pending.remove(at) else { return false };
        // The wait stands in the stream from here on: only what is ordered after it may use the block.
        self.last_tick = self.clock.now().tick;
        self.take_back(&pending);
        true
    }

    pub(super) fn take_back(&mut self, pending: &PendingBlock) {
        let block = self.blocks.get(pending.block);
        self.pending_bytes -= block.bytes;
        self.release(pending.block);
    }

    /// Whether a block is pending.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The uses that pending blocks wait for.
    pub(crate) fn pending_uses(&self) -> impl Iterator<Item = Use> + '_ {
        self.pending.iter().flat_map(|pending| pending.uses.iter().copied())
    }
}
