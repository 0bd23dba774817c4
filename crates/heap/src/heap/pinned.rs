//! The heap of a graph pool: its frames are pinned, the free ones too, until the pool has ended.
//!
//! Main type: [`Heap`], the half of it that deals in pins. Neighbours: `graph` has the pools; `frames` and `mallocs` give
//! nothing of a pinned heap away.

use concertina_vmm::{Driver, Frame, Use};

use super::Heap;
use crate::graph::merged;

impl<D: Driver> Heap<D> {
    /// Pins all that the heap holds, now and later.
    pub(crate) fn pin(&mut self) {
        self.pinned = true;
    }

    /// Whether all that the heap holds is pinned.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// No graph needs the heap any more: it goes when no block is left in it, and its memory behind the last launch.
    pub(crate) fn let_go_behind(&mut self, launched: Option<Use>) {
        self.let_go();
        self.launched = launched;
    }

    /// The last launch that used the memory, beside the work that its free blocks tell of.
    pub(crate) fn launched(&self) -> Option<Use> {
        self.launched
    }

    /// Takes the frames of all idle pages. Of a pinned heap, too: nobody else gets any of it in between.
    pub(crate) fn give_up_idle(&mut self) -> Vec<Frame<D>> {
        let pinned = std::mem::take(&mut self.pinned);
        let mut frames = Vec::new();
        self.take_idle(usize::MAX, |_| true, &mut frames);
        self.pinned = pinned;
        for frame in &mut frames {
            let uses = merged(frame.uses().clone(), self.launched.as_slice());
            frame.set_uses(uses);
        }
        frames
    }

    /// Bytes of the pages that the heap holds.
    pub(crate) fn held_bytes(&self) -> u64 {
        let pages = self.arenas.iter().map(|arena| u64::from(arena.segment.held_pages()));
        pages.sum::<u64>() * self.store.frame_bytes()
    }
}
