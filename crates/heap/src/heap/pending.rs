//! Pending blocks of a heap: freed, and still used by work on other streams.
//!
//! Main types: [`PendingBlock`], [`PendingBlocks`]. Neighbours: a free puts a block here; `ladder` asks for what is done,
//! and `gather` takes blocks back early when frames are short.
//!
//! What is done, and what may be followed, is so up to some tick of each stream. So the blocks are found by the uses that
//! they wait for: a look costs what the blocks do that come back, however many stay.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use concertina_vmm::{Driver, StreamId, Use, Uses};

use super::Heap;

/// A freed block and the uses on other streams that it waits for.
pub(super) struct PendingBlock {
    pub(super) block: u32,
    pub(super) uses: Uses,
}

/// The pending blocks of a heap, in the order of their frees.
#[derive(Default)]
pub(super) struct PendingBlocks {
    // By number, oldest first.
    blocks: BTreeMap<u64, PendingBlock>,
    last: u64,
    // Every use that is waited for: the stream, its tick, and the number of the block.
    waits: BTreeSet<(StreamId, u64, u64)>,
}

impl PendingBlocks {
    pub(super) fn push(&mut self, pending: PendingBlock) {
        self.last += 1;
        self.waits.extend(pending.uses.iter().map(|use_| (use_.stream, use_.tick, self.last)));
        self.blocks.insert(self.last, pending);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The blocks, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &PendingBlock> {
        self.blocks.values()
    }

    fn remove(&mut self, number: u64) -> Option<PendingBlock> {
        let pending = self.blocks.remove(&number)?;
        for use_ in &pending.uses {
            self.waits.remove(&(use_.stream, use_.tick, number));
        }
        Some(pending)
    }

    /// Takes out those blocks that `wanted` agrees to, oldest first. Looks at all of them.
    pub(super) fn extract(&mut self, wanted: impl Fn(&PendingBlock) -> bool) -> Vec<PendingBlock> {
        let numbers: Vec<u64> =
            self.blocks.iter().filter(|(_, pending)| wanted(pending)).map(|(number, _)| *number).collect();
        numbers.into_iter().filter_map(|number| self.remove(number)).collect()
    }

    /// The last use that is waited for on each stream, by stream.
    fn last_uses(&self) -> impl Iterator<Item = Use> + '_ {
        let mut from = Bound::Unbounded;
        std::iter::from_fn(move || {
            let &(stream, ..) = self.waits.range((from, Bound::Unbounded)).next()?;
            let end = (stream, u64::MAX, u64::MAX);
            from = Bound::Excluded(end);
            self.waits.range(..=end).next_back().map(|&(stream, tick, _)| Use { stream, tick })
        })
    }

    /// Takes out the blocks whose uses are all done, oldest first. `done` is so of a use if it is of a later one.
    fn extract_done(&mut self, done: impl Fn(Use) -> bool) -> Vec<PendingBlock> {
        let mut over = BTreeSet::new();
        let streams: Vec<StreamId> = self.last_uses().map(|use_| use_.stream).collect();
        for stream in streams {
            while let Some(&wait) = self.waits.range((stream, 0, 0)..).next() {
                let (on, tick, number) = wait;
                if on != stream || !done(Use { stream, tick }) {
                    break;
                }
                self.waits.remove(&wait);
                if let Some(pending) = self.blocks.get_mut(&number) {
                    pending.uses.retain(|use_| (use_.stream, use_.tick) != (stream, tick));
                    if pending.uses.is_empty() {
                        over.insert(number);
                    }
                }
            }
        }
        over.into_iter().filter_map(|number| self.remove(number)).collect()
    }

    /// The number of the oldest block whose uses may all be followed; that is so of a use if it is of a later one.
    fn oldest(&self, may_follow: impl Fn(Use) -> bool) -> Option<u64> {
        let in_stream = |stream: StreamId| {
            self.waits
                .range((stream, 0, 0)..)
                .take_while(|&&(on, tick, _)| on == stream && may_follow(Use { stream, tick }))
                .map(|&(_, _, number)| number)
                .find(|number| self.blocks[number].uses.iter().all(|use_| may_follow(*use_)))
        };
        // Frees come in the order of their ticks: the first of a stream is the oldest one.
        self.last_uses().filter_map(|use_| in_stream(use_.stream)).min()
    }
}

impl<D: Driver> Heap<D> {
    /// Takes back the pending blocks whose uses on other streams are seen done.
    pub(crate) fn settle_pending(&mut self, done: impl Fn(Use) -> bool) {
        if self.pending.is_empty() {
            return;
        }
        for pending in self.pending.extract_done(done) {
            self.take_back(&pending);
        }
    }

    /// The oldest pending block whose uses the heap's stream may be put after, by its number among the pending ones.
    pub(crate) fn oldest_pending(&self, may_follow: impl Fn(Use) -> bool) -> Option<u64> {
        self.pending.oldest(may_follow)
    }

    /// Takes a pending block back if `order` manages to put the heap's stream after its uses. Returns whether it came
    /// back.
    pub(crate) fn take_back_early(&mut self, number: u64, order: impl FnOnce(&Uses) -> bool) -> bool {
        if !self.pending.blocks.get(&number).is_some_and(|pending| order(&pending.uses)) {
            return false;
        }
        let Some(pending) = self.pending.remove(number) else { return false };
        // The wait stands in the stream from here on: only what is ordered after it may use the block.
        self.last_tick = self.clock.now().tick;
        self.take_back(&pending);
        true
    }

    pub(super) fn take_back(&mut self, pending: &PendingBlock) {
        let block = self.blocks.get(pending.block);
        self.pending_bytes -= block.bytes();
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

    /// The last use on each stream that pending blocks wait for.
    pub(crate) fn last_pending_uses(&self) -> impl Iterator<Item = Use> + '_ {
        self.pending.last_uses()
    }
}

#[cfg(test)]
mod tests;
