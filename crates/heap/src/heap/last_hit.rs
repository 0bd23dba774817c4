//! The block of the last hit: allocated, freed and allocated again with nothing in between, it stays where it is.
//!
//! Main type: [`LastHit`]. Neighbours: `cell` calls it on the way of a hit, and forgets it for everybody else who takes
//! the lock, so that nobody ever sees a heap that keeps a block.
//!
//! Freeing the block of the last hit takes back what that hit did: the hole that it was cut from is whole again, or the
//! block is back in its bin. And an equal request would do the same once more: best fit and bins depend on the holes,
//! the bins and the held pages alone, and all of them are as they were. So the free may keep the block instead, and the
//! next request may have it if it is equal, else the block is released first. What it would have been otherwise:
//!
//! - The addresses are the same, and so are the block's number and its generations.
//! - The pages would have become idle at the tick of each free and busy with the next hit. Only the last time counts: the
//!   note of a free takes the place of the one before (`idle`).
//! - Live bytes and blocks are counted at once, and the tick of the free is noted.
//!
//! Where frees are deferred (`deferred`), such a free would be, too, and the request would have gone elsewhere: it gains the
//! better place.
//!
//! The hit itself must have been one: after the slow path a block need not lie where best fit puts it.
//!
//! While the block goes to and fro, only this record changes. The table of blocks learns of it when the record is
//! forgotten, which is before anybody looks there.

use concertina_vmm::{Address, Driver};

use super::{DEFAULT_POOL, Granted, Heap};
use crate::block::BlockState;
use crate::block_id::BlockId;
use crate::step::{Request, STEP_BYTES};

/// The block of the last hit, if nothing else has happened in the heap since: live, or freed and kept for an equal request.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastHit {
    // The block, if it is live.
    live: Option<BlockId>,
    // Its steps, if it is kept; else 0, which no request has.
    kept_steps: u32,
    steps: u32,
    // That of the live block, or of the next one in its place.
    id: BlockId,
    address: Address,
    // As asked, while live.
    bytes: u64,
}

impl Default for LastHit {
    fn default() -> Self {
        let (id, address) = (BlockId::new(0, 0), Address::default());
        Self { live: None, kept_steps: 0, steps: 0, id, address, bytes: 0 }
    }
}

impl<D: Driver> Heap<D> {
    /// Serves a request that equals the last one, if that one's block was freed and nothing else happened.
    #[inline(always)]
    pub(crate) fn hit_again(&mut self, request: &Request) -> Option<Granted> {
        let last = &mut self.last_hit;
        if last.kept_steps != request.steps || request.alignment != STEP_BYTES {
            return None;
        }
        last.kept_steps = 0;
        last.live = Some(last.id);
        last.bytes = request.bytes;
        let LastHit { id, address, .. } = *last;
        self.count(request.bytes);
        Some(Granted { id, address })
    }

    /// The same for a request that does not equal the last one.
    pub(crate) fn hit_anew(&mut self, request: &Request) -> Option<Granted> {
        self.forget_last_hit();
        let granted = self.hit(request).or_else(|| self.hit_after_deferred(request))?;
        // In a heap that is about to go the free must see it off.
        if request.alignment == STEP_BYTES && !self.retired && self.in_hand == (self.key.pool != DEFAULT_POOL)
        {
            let Granted { id, address } = granted;
            let Request { steps, bytes, .. } = *request;
            self.last_hit = LastHit { live: Some(id), kept_steps: 0, steps, id, address, bytes };
        }
        Some(granted)
    }

    /// Frees the block of the last hit at the stream's tick `tick`, and keeps it. Returns whether it was that block, live.
    /// No other stream uses it: recording that forgets the last hit.
    #[inline(always)]
    pub(crate) fn keep_last_hit(&mut self, id: BlockId, tick: u64) -> bool {
        let last = &mut self.last_hit;
        if last.live != Some(id) {
            return false;
        }
        if tick > self.last_tick {
            // What was deferred is to be done first, elsewhere.
            if !self.deferred.is_empty() {
                return false;
            }
            self.last_tick = tick;
        }
        last.live = None;
        last.kept_steps = last.steps;
        last.id = id.next();
        let bytes = last.bytes;
        self.count_off(bytes);
        true
    }

    /// Something else is about to happen: a block that is kept is released.
    #[inline]
    pub(crate) fn forget_last_hit(&mut self) {
        let LastHit { live, kept_steps, id, bytes, .. } = self.last_hit;
        if live.is_some() {
            self.last_hit.live = None;
            let block = self.blocks.get_mut(id.number());
            block.generation = id.generation();
            block.set(BlockState::Live, bytes);
        } else if kept_steps > 0 {
            self.last_hit.kept_steps = 0;
            let block = self.blocks.get_mut(id.number());
            block.generation = id.generation();
            // As for a request that was not made yet.
            block.set_state(BlockState::Claimed);
            self.put_back(id.number(), kept_steps);
        }
    }
}
