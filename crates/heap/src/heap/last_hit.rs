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
//!   run of a free covers and drops that of the one before (`idle`).
//! - Live bytes and blocks are counted at once, and the tick of the free is noted.
//!
//! The hit itself must have been one: after the slow path a block need not lie where best fit puts it.
//!
//! While the block goes to and fro, only this record changes. The table of blocks learns of it when the record is
//! forgotten, which is before anybody looks there.

use concertina_vmm::{Address, Driver};

use super::{DEFAULT_POOL, Granted, Heap};
use crate::block::BlockState;
use crate::step::{Request, STEP_BYTES};

/// What became of the block of the last hit, if nothing else has happened in the heap since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Something has: the rest of the record means nothing.
    #[default]
    Past,
    /// It is live.
    Live,
    /// It was freed, and is kept for an equal request.
    Kept,
}

/// The block of the last hit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastHit {
    state: State,
    block: u32,
    generation: u32,
    steps: u32,
    address: Address,
    // As asked, while live.
    bytes: u64,
}

impl<D: Driver> Heap<D> {
    /// Serves a request that equals the last one, if that one's block was freed and nothing else happened.
    #[inline(always)]
    pub(crate) fn hit_again(&mut self, request: &Request) -> Option<Granted> {
        let last = &mut self.last_hit;
        if last.state != State::Kept || last.steps != request.steps || request.alignment != STEP_BYTES {
            return None;
        }
        last.state = State::Live;
        last.bytes = request.bytes;
        let LastHit { block, generation, address, .. } = *last;
        self.live_blocks += 1;
        self.live.add(request.bytes);
        Some(Granted { block, generation, address })
    }

    /// The same for a request that does not equal the last one.
    pub(crate) fn hit_anew(&mut self, request: &Request) -> Option<Granted> {
        self.forget_last_hit();
        let granted = self.hit(request)?;
        // In a heap that is about to go the free must see it off.
        if request.alignment == STEP_BYTES && !self.retired && self.in_hand == (self.key.pool != DEFAULT_POOL)
        {
            let Granted { block, generation, address } = granted;
            let steps = self.blocks.get(block).steps;
            self.last_hit =
                LastHit { state: State::Live, block, generation, steps, address, bytes: request.bytes };
        }
        Some(granted)
    }

    /// Frees the block of the last hit at the stream's tick `tick`, and keeps it. Returns whether it was that block, live.
    /// No other stream uses it: recording that forgets the last hit.
    #[inline(always)]
    pub(crate) fn keep_last_hit(&mut self, number: u32, generation: u32, tick: u64) -> bool {
        let last = &mut self.last_hit;
        if last.block != number || last.generation != generation || last.state != State::Live {
            return false;
        }
        last.state = State::Kept;
        last.generation = generation.wrapping_add(1);
        let bytes = last.bytes;
        self.last_tick = self.last_tick.max(tick);
        self.live_blocks -= 1;
        self.live.sub(bytes);
        true
    }

    /// Something else is about to happen: a block that is kept is released.
    #[inline]
    pub(crate) fn forget_last_hit(&mut self) {
        let LastHit { state, block: number, generation, steps, bytes, .. } = self.last_hit;
        if state == State::Past {
            return;
        }
        self.last_hit.state = State::Past;
        let block = self.blocks.get_mut(number);
        block.generation = generation;
        if state == State::Live {
            block.bytes = bytes;
        } else {
            // As for a request that was not made yet.
            block.state = BlockState::Claimed;
            self.put_back(number, steps);
        }
    }
}
