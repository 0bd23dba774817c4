//! Trimming: giving free frames back to the driver.
//!
//! Main type: [`Trimmed`]. Neighbours: heaps give up their idle pages; the frame store releases, and refuses while a
//! frame is mapped anywhere.
//!
//! A frame can go when the last use through each of its mappings is seen done. A trim of everything removes all stale
//! mappings, too, a run of neighbours with one call. A trim to some bytes removes only those of frames that go: what
//! stays is meant to be used again, and the others are the cache for that. Either way the addresses of segments go back
//! in which nothing is left.

use std::collections::BTreeMap;

use concertina_vmm::sync::Ordering;
use concertina_vmm::{Driver, DriverError, Frame, ReleaseError, SegmentId, SegmentKind, Use};

use crate::heap::Heap;
use crate::heaps::Heaps;

/// What a trim did. Bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Given back to the driver.
    pub released_bytes: u64,
    /// Free and wanted, and mapped somewhere that work may still use: another trim, later, can give them back. Of malloc
    /// segments only those that are empty count: the others can't go.
    pub waiting_bytes: u64,
    /// The first driver call that failed, if one did; what it was about is kept and tried again by the next trim.
    pub failed: Option<DriverError>,
}

impl<D: Driver> Heaps<D> {
    /// Gives back every frame, or malloc segment, that can go, and removes every stale mapping that no work uses any more.
    pub fn trim(&self) -> Trimmed {
        self.trim_to(0)
    }

    /// Gives back frames until at most `bytes` are mapped, or none can go any more; with them go their mappings, and with
    /// 0 bytes all stale ones. Never waits for the device, but
    /// for malloc segments: the driver does, for each that it takes back.
    pub fn trim_to(&self, bytes: u64) -> Trimmed {
        let mut trimmed =
            Trimmed { released_bytes: self.store.retry() + self.device.retry(), ..Trimmed::default() };
        self.sweep_retired();
        for cell in self.cells() {
            if let Err(error) = self.fences.look_at(cell.clock().now()) {
                trimmed.failed.get_or_insert(error);
            }
        }
        self.reclaim();
        match self.device.segment_kind() {
            SegmentKind::Reserved => self.trim_frames(bytes, &mut trimmed),
            SegmentKind::Malloc => {
                let (released, waiting, failed) = self.trim_mallocs(bytes);
                trimmed.released_bytes += released;
                trimmed.waiting_bytes = waiting;
                trimmed.failed = trimmed.failed.or(failed);
            }
        }
        tracing::debug!(?trimmed, "trimmed");
        trimmed
    }

    fn trim_frames(&self, bytes: u64, trimmed: &mut Trimmed) {
        let mut waiting = Vec::new();
        let everything = bytes == 0;
        loop {
            let count = usize::try_from(self.frames_over(bytes)).unwrap_or(usize::MAX);
            let frames = self.take_for_release(count);
            // Frames that can't go are made up for by others, if there are any.
            let last = everything || frames.is_empty();
            if everything {
                self.unmap_all_stale(trimmed);
            } else {
                self.unmap_everywhere(&frames, trimmed);
            }
            for frame in frames {
                match self.store.release(frame) {
                    Ok(bytes) => trimmed.released_bytes += bytes,
                    Err(ReleaseError::Mapped(frame)) => waiting.push(frame),
                    Err(ReleaseError::Driver(error)) => {
                        trimmed.failed.get_or_insert(error);
                    }
                }
            }
            if last {
                break;
            }
        }
        self.store.put(waiting);
        self.give_up_addresses(trimmed);
        let over = self.frames_over(bytes);
        if over > 0 {
            let in_pages = self.cells().iter().map(|cell| cell.lock().takeable_frames(|_| true)).sum::<u64>();
            let free = self.store.free_frames() as u64 + in_pages;
            trimmed.waiting_bytes = free.min(over) * self.store.frame_bytes();
        }
    }

    /// Gives back every frame, after the host has waited for all that was queued on streams with free memory.
    ///
    /// # Errors
    /// A failed record or synchronisation.
    pub fn trim_wait(&self) -> Result<Trimmed, DriverError> {
        // What is captured is waited for by nobody.
        let over = |use_| self.fences.is_done(use_) || !self.fences.can_wait_for(use_);
        // What lies in bins is free, too.
        self.reclaim();
        for cell in self.cells() {
            let waits = {
                let heap = cell.lock();
                heap.unfinished(over, |_| true, |_| true).is_some() || self.has_busy_mallocs(&heap, over)
            };
            if waits && !self.fences.captures(cell.key().stream) {
                self.fences.host_wait(cell.key().stream)?;
            }
        }
        // Pending blocks wait for other streams; malloc segments of the store, for whichever had them.
        let pending: Vec<Use> =
            self.cells().iter().flat_map(|cell| cell.lock().pending_uses().collect::<Vec<_>>()).collect();
        pending
            .into_iter()
            .chain(self.store.spare_uses())
            .filter(|use_| !over(*use_))
            .try_for_each(|use_| self.fences.host_wait_for(use_))?;
        Ok(self.trim())
    }

    /// Whether an empty malloc segment of the heap may still be used.
    fn has_busy_mallocs(&self, heap: &Heap<D>, over: impl Fn(Use) -> bool) -> bool {
        self.device.segment_kind() == SegmentKind::Malloc
            && heap.empty_mallocs().any(|empty| !over(empty.last_use))
    }

    /// Number of frames by which mapped bytes exceed `bytes`.
    fn frames_over(&self, bytes: u64) -> u64 {
        self.store.mapped_bytes().saturating_sub(bytes).div_ceil(self.store.frame_bytes())
    }

    /// Frames that nobody uses: of the store, then of the pages idle for longest whose last use is over.
    fn take_for_release(&self, count: usize) -> Vec<Frame<D>> {
        let mut frames = Vec::new();
        self.store.take(count, |_| true, &mut frames);
        for cell in self.cells() {
            let missing = count - frames.len();
            cell.lock().take_idle(missing, |use_| self.fences.is_done(use_), &mut frames);
        }
        frames
    }

    /// Unmaps every stale page whose last use is seen done.
    fn unmap_all_stale(&self, trimmed: &mut Trimmed) {
        for cell in self.cells() {
            if let Err(error) = cell.lock().unmap_all_done(|use_| self.fences.is_done(use_)) {
                trimmed.failed.get_or_insert(error);
            }
        }
    }

    /// Gives back the addresses of segments in which nothing is left.
    fn give_up_addresses(&self, trimmed: &mut Trimmed) {
        for cell in self.cells() {
            let mut heap = cell.lock();
            let before = heap.address_bytes();
            let outcome = heap.give_up_addresses();
            self.counters.address.fetch_sub(before - heap.address_bytes(), Ordering::Relaxed);
            if let Err(error) = outcome {
                trimmed.failed.get_or_insert(error);
            }
        }
    }

    /// Unmaps every mapping of these frames whose last use is over.
    fn unmap_everywhere(&self, frames: &[Frame<D>], trimmed: &mut Trimmed) {
        let mut pages: BTreeMap<SegmentId, Vec<u32>> = BTreeMap::new();
        {
            let directory = self.store.directory();
            for place in frames.iter().flat_map(|frame| directory.mappings(frame.id())) {
                pages.entry(place.segment).or_default().push(place.page);
            }
        }
        for (segment, pages) in pages {
            let Some(cell) = self.cell_of(segment) else { continue };
            let mut heap = cell.lock();
            let Some(arena) = heap.arena_of(segment) else { continue };
            if let Err(error) = heap.unmap_done(arena, pages, |use_| self.fences.is_done(use_)) {
                trimmed.failed.get_or_insert(error);
            }
        }
    }
}
