//! Arenas with no block in them: how their addresses go back, and who takes their place.
//!
//! Main type: [`Heap`], the half of it that deals in vacant arenas. Neighbours: `trim` gives addresses back, `ladder`
//! reserves others; `mallocs` has the segments that come and go whole. Blocks know their arena by its number, so one
//! that is left stays, without pages, until another segment takes its place.

use concertina_vmm::{Driver, DriverError};

use super::{Arena, DEFAULT_POOL, Heap};
use crate::block::{BlockState, NONE};

impl<D: Driver> Heap<D> {
    /// An arena whose place another segment may take.
    pub(crate) fn vacant(&self) -> Option<usize> {
        self.arenas.iter().position(Arena::is_vacant)
    }

    /// Whether no block is in the arena, but for one hole.
    pub(super) fn is_empty(&self, arena: &Arena<D>) -> bool {
        arena.last == NONE || {
            let last = self.blocks.get(arena.last);
            last.is(BlockState::Hole) && last.start == 0
        }
    }

    /// Gives back the addresses of reserved segments with no block in them and nothing mapped. Not those of growables and
    /// graph pools, which are in somebody's hands.
    ///
    /// # Errors
    /// The first refusal of the driver. What it has refused stays, and serves as before.
    pub(crate) fn give_up_addresses(&mut self) -> Result<(), DriverError> {
        let mut outcome = Ok(());
        if self.key.pool != DEFAULT_POOL {
            return outcome;
        }
        for number in 0..self.arenas.len() {
            let arena = &self.arenas[number];
            if arena.is_vacant() || arena.segment.mapped_pages() > 0 || !self.is_empty(arena) {
                continue;
            }
            match self.arenas[number].segment.unreserve() {
                Ok(()) => self.restart(number as u32),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    /// Forgets the hole of an empty arena, and since when its pages are idle.
    pub(super) fn restart(&mut self, number: u32) {
        let hole = self.arenas[number as usize].last;
        if hole != NONE {
            self.holes.remove(self.hole(hole));
            self.blocks.remove(hole);
        }
        self.idle.forget(number);
        let arena = &mut self.arenas[number as usize];
        arena.idle.restart();
        (arena.last, arena.extent) = (NONE, 0);
    }
}
