//! The block of a growable: longer and shorter in place.
//!
//! Main type: [`Heap`], the half of it that deals in growth. Neighbours: `growable` decides and gets the frames. Such a
//! heap has one arena of its own, and at most one live block, at its start; behind that lie holes and pending blocks.

use concertina_vmm::{Driver, Use, Uses};

use super::{Granted, Heap};
use crate::block::BlockState;
use crate::error::FreeError;
use crate::plan::{Plan, Refusal, Rules, Spot};
use crate::step::{Request, STEP_BYTES};

impl<D: Driver> Heap<D> {
    /// The growable, or the graph pool, is no more: the heap goes when nothing is left in it.
    pub(crate) fn let_go(&mut self) {
        self.in_hand = false;
    }

    /// The stream's time at the last free.
    pub(crate) fn last_free(&self) -> Use {
        Use { stream: self.key.stream, tick: self.last_tick }
    }

    /// Where the live block ends, in steps.
    pub(crate) fn live_end(&self) -> u32 {
        let live = self.blocks.iter().find(|(_, block)| block.is(BlockState::Live));
        live.map_or(0, |(_, block)| block.end())
    }

    fn spot_at(&self, start: u32, steps: u32) -> Spot {
        let hole = self
            .blocks
            .iter()
            .find(|(_, block)| block.start == start && block.is(BlockState::Hole))
            .filter(|(_, block)| block.steps >= steps);
        hole.map_or(Spot::Tail, |(number, _)| Spot::Hole(self.hole(number)))
    }

    /// Plans for the steps at `start`, and no others. No pending block may lie there.
    pub(crate) fn plan_growth(
        &self,
        start: u32,
        request: &Request,
        rules: &Rules<'_, D>,
    ) -> Result<Plan, Refusal> {
        self.plan_at(0, self.spot_at(start, request.steps), start, request, rules)
    }

    /// Whether the steps at `start` are held and nothing is pending there: growth over them makes no driver call.
    pub(crate) fn is_held_at(&self, start: u32, steps: u32) -> bool {
        let pages = self.pages_touched(start, start + steps);
        !self.has_pending() && self.arenas.iter().all(|arena| arena.segment.all_held(pages))
    }

    /// Grows over steps that are held.
    pub(crate) fn grow_held(&mut self, start: u32, request: &Request) -> u32 {
        match self.spot_at(start, request.steps) {
            Spot::Hole(hole) => self.take_from_hole(hole, start, request.steps),
            Spot::Tail => self.take_from_tail(0, start, request.steps),
        }
    }

    /// Makes a claimed block the end of the live one before it, which has so many bytes then; or the live block, if
    /// there is none.
    pub(crate) fn join(&mut self, live: Option<Granted>, claimed: u32, bytes: u64) -> Granted {
        match live {
            Some(granted) if self.blocks.next(granted.id.number()) == Some(claimed) => {
                self.absorb_next(granted.id.number());
                self.set_bytes(granted, bytes);
                granted
            }
            _ => self.grant(claimed, &Request { bytes, steps: 0, alignment: STEP_BYTES }),
        }
    }

    /// Sets the bytes, as asked, of a live block: no fewer than it has.
    pub(crate) fn set_bytes(&mut self, granted: Granted, bytes: u64) {
        let block = self.blocks.get_mut(granted.id.number());
        let before = block.bytes();
        block.set(BlockState::Live, bytes);
        self.live.add(bytes - before);
    }

    /// The uses on other streams that a live block is recorded for.
    pub(crate) fn recorded(&self, number: u32) -> Uses {
        self.recorded.get(&number).cloned().unwrap_or_default()
    }

    /// Cuts the end off a live block, in the order of the heap's stream, down to `bytes`; all of it if they are 0. What
    /// is cut off is pending as long as there are `uses` on other streams.
    pub(crate) fn shorten(&mut self, live: Granted, bytes: u64, uses: Uses) -> Result<(), FreeError> {
        let number = live.id.number();
        self.check_live(live.id)?;
        let before = *self.blocks.get(number);
        let freed = before.bytes().saturating_sub(bytes);
        self.live.sub(freed);
        let steps = bytes.div_ceil(STEP_BYTES) as u32;
        self.last_tick = self.clock.now().tick;
        if bytes == 0 {
            let block = self.blocks.get_mut(number);
            block.generation = block.generation.wrapping_add(1);
            self.live_blocks -= 1;
            self.forget_recorded(number);
            self.give_up(number, uses);
            return Ok(());
        }
        self.blocks.get_mut(number).set(BlockState::Live, bytes);
        if steps < before.steps {
            let end = self.split(number, steps);
            self.blocks.get_mut(end).set(BlockState::Live, freed);
            self.give_up(end, uses);
        }
        Ok(())
    }

    /// The uses on other streams that pending blocks before this step wait for.
    pub(crate) fn pending_before(&self, end: u32) -> Uses {
        let pending = self.pending.iter().filter(|pending| self.blocks.get(pending.block).start < end);
        pending.flat_map(|pending| pending.uses.iter().copied()).collect()
    }

    /// Takes back the pending blocks before this step: the heap's stream has been put after their uses.
    pub(crate) fn take_back_before(&mut self, end: u32) {
        self.last_tick = self.clock.now().tick;
        let blocks = &self.blocks;
        for pending in self.pending.extract(|pending| blocks.get(pending.block).start < end) {
            self.take_back(&pending);
        }
    }
}
