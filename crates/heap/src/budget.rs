//! The mapping budget: how many mappings the driver holds, and how room is made for more.
//!
//! Main type: [`Heaps`], the part of it that removes mappings for their own sake. Neighbours: `ladder` asks for room; the
//! segments unmap.
//!
//! Stale pages are a cache, and go first. Then idle pages that are held give up their frames to the store and go as well.
//! Both only when their last use is seen done, and a batch at a time: a cache that is emptied at once is as good as none,
//! and one page at a time would cost a call for each.

use concertina_vmm::{Driver, Use};

use crate::heaps::Heaps;

/// The part of the budget that is made free at once.
const BATCH: u64 = 16;

impl<D: Driver> Heaps<D> {
    /// Mappings that the driver's budget leaves; `None` if there is none.
    pub(crate) fn room_for_mappings(&self) -> Option<u64> {
        let most = self.device.capabilities().max_mappings?;
        Some(most.saturating_sub(self.device.mappings()))
    }

    /// Removes mappings that no work uses any more: `needed` at least, if there are as many, and a batch if the budget is
    /// known. Returns how many went.
    pub(crate) fn make_room(&self, needed: u64) -> u64 {
        for cell in self.cells() {
            self.see(cell.clock().now());
        }
        let batch = self.device.capabilities().max_mappings.map_or(u64::MAX, |most| most / BATCH);
        let wanted = needed.max(batch);
        let before = self.device.mappings();
        // Other threads map and unmap meanwhile: two looks in a row may differ.
        let gone = || before.saturating_sub(self.device.mappings());
        self.unmap_some(wanted);
        let missing = needed.saturating_sub(gone());
        if missing > 0 {
            // Pages with nothing in them but what lies in bins, or is pending no more, are idle as well.
            self.reclaim();
            self.idle_pages_go_stale(missing);
            self.unmap_some(needed.saturating_sub(gone()));
        }
        tracing::debug!(needed, gone = gone(), "made room for mappings");
        gone()
    }

    /// Unmaps stale pages whose last use is seen done until at most so many mappings are left, or no such page is.
    /// Returns how many went.
    pub fn unmap_stale_to(&self, mappings: u64) -> u64 {
        for cell in self.cells() {
            self.see(cell.clock().now());
        }
        let before = self.device.mappings();
        self.unmap_some(before.saturating_sub(mappings));
        before.saturating_sub(self.device.mappings())
    }

    /// Unmaps up to `count` stale pages: of each heap its share, those not used for longest first.
    fn unmap_some(&self, count: u64) {
        let done = |use_: Use| self.fences.is_done(use_);
        let cells = self.cells();
        let stale: Vec<u64> = cells.iter().map(|cell| cell.lock().stale_done(done).len() as u64).collect();
        let all: u64 = stale.iter().sum();
        for (cell, stale) in cells.iter().zip(stale).filter(|(_, stale)| *stale > 0) {
            let share = if count >= all { stale } else { (count * stale).div_ceil(all) };
            let mut heap = cell.lock();
            let mut pages = heap.stale_done(done);
            pages.sort_unstable_by_key(|(tick, ..)| *tick);
            pages.truncate(usize::try_from(share).unwrap_or(usize::MAX));
            if let Err(error) = heap.unmap_pages(pages.iter().map(|(_, arena, page)| (*arena, *page)), done) {
                tracing::warn!(%error, "could not unmap stale pages");
            }
        }
    }

    /// Up to `count` idle pages whose last use is seen done give up their frames to the store.
    fn idle_pages_go_stale(&self, count: u64) {
        let mut missing = usize::try_from(count).unwrap_or(usize::MAX);
        for cell in self.cells() {
            let mut frames = Vec::new();
            cell.lock().take_idle(missing, |use_| self.fences.is_done(use_), &mut frames);
            missing -= frames.len();
            self.store.put(frames);
        }
    }
}
