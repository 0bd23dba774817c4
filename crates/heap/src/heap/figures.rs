//! Figures of a heap: counted when asked for, never on the way of a hit.
//!
//! Main type: [`Heap`], the half of it that counts. Neighbours: `heaps` adds them up, `out_of_memory` reports them.

use concertina_vmm::Driver;
use concertina_vmm::sync::{Arc, AtomicU64, Ordering};

use super::{DEFAULT_POOL, Heap};
use crate::live::LiveCount;
use crate::step::STEP_BYTES;

/// What was seen done when the mappings of a heap that nobody has any more were last looked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeenDone {
    /// The last tick of its stream.
    pub(crate) tick: Option<u64>,
    /// Whether the last launch of its pool was.
    pub(crate) launch: bool,
}

impl<D: Driver> Heap<D> {
    /// The stream goes. Returns whether nothing keeps the heap.
    pub(crate) fn retire(&mut self) -> bool {
        self.retired = true;
        self.empty_bins();
        !self.is_in_use()
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired
    }

    /// What was seen done when its mappings were last looked through, since nobody has it any more.
    pub(crate) fn seen_done(&self) -> Option<SeenDone> {
        self.seen_done
    }

    /// Its mappings were looked through, and those that are left wait for more to be done.
    pub(crate) fn set_seen_done(&mut self, seen: SeenDone) {
        self.seen_done = Some(seen);
    }

    /// Whether a block is live, or a growable or a graph pool has the heap.
    pub(crate) fn is_in_use(&self) -> bool {
        self.live_blocks > 0 || self.in_hand
    }

    /// Whether it is retired and its last block is freed.
    pub(crate) fn is_finished(&self) -> bool {
        let nobodys = self.retired || (self.key.pool != DEFAULT_POOL && !self.in_hand);
        nobodys && !self.is_in_use()
    }

    /// Number of live blocks that are used on other streams.
    pub(crate) fn recorded_blocks(&self) -> u64 {
        self.recorded.len() as u64
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.live.bytes()
    }

    /// The count of live bytes, for those without the lock.
    pub(crate) fn live_count(&self) -> &Arc<LiveCount> {
        self.live.count()
    }

    /// The count of bytes that the heap holds, for those without the lock.
    pub(crate) fn held_count(&self) -> &Arc<AtomicU64> {
        &self.held_bytes
    }

    /// So many pages more are held.
    pub(crate) fn note_held(&self, pages: usize) {
        self.held_bytes.fetch_add(pages as u64 * self.store.frame_bytes(), Ordering::Relaxed);
    }

    /// So many pages are held no longer.
    pub(crate) fn note_given_up(&self, pages: usize) {
        self.held_bytes.fetch_sub(pages as u64 * self.store.frame_bytes(), Ordering::Relaxed);
    }

    /// Whether no block is in use.
    pub(crate) fn is_unused(&self) -> bool {
        self.live_blocks == 0 && self.pending.is_empty()
    }

    pub(crate) fn live_blocks(&self) -> u64 {
        self.live_blocks
    }

    pub(crate) fn used_steps(&self) -> u64 {
        self.used_steps
    }

    pub(crate) fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }

    pub(crate) fn binned_bytes(&self) -> u64 {
        self.bins.bytes()
    }

    /// Bytes of addresses up to the extent of each arena, in whole pages.
    pub(crate) fn address_bytes(&self) -> u64 {
        let pages: u64 =
            self.arenas.iter().map(|arena| u64::from(self.pages_touched(0, arena.extent).count)).sum();
        pages * self.store.frame_bytes()
    }

    /// Free bytes in pages that are partly used.
    pub(crate) fn stranded_bytes(&self) -> u64 {
        let busy: u64 = self.arenas.iter().map(|arena| arena.idle.busy_pages()).sum();
        (busy * u64::from(self.steps_per_page())).saturating_sub(self.used_steps) * STEP_BYTES
    }

    /// Pinned frames.
    pub(crate) fn pinned_frames(&self) -> u64 {
        if self.is_pinned() {
            return self.held_bytes() / self.store.frame_bytes();
        }
        let pages = self.arenas.iter().flat_map(|arena| {
            (0..arena.segment.pages()).map_while(move |page| {
                (page < self.pages_touched(0, arena.extent).end()).then(|| arena.segment.frame(page))
            })
        });
        pages.flatten().filter(|frame| frame.pins() > 0).count() as u64
    }

    /// Checks everything that must hold between operations: the invariants of this file, as a list of what is broken.
    pub fn audit(&self) -> Vec<String> {
        crate::audit::heap(self)
    }
}
