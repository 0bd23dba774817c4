//! Heaps that nobody has any more: of retired streams, of growables and graph pools that are no more.
//!
//! Main type: [`Heaps`], the half of it that sees heaps off. Neighbours: `cell` tells the last free of such a heap; the
//! fences keep a stream until its work is done.
//!
//! Their free frames serve others at once. Mappings and addresses go when the work that may use them is seen done: then,
//! or in the slow path of a later request, or in a trim.

use concertina_vmm::sync::{Arc, Ordering};
use concertina_vmm::{Driver, StreamId};

use crate::cell::HeapCell;
use crate::heap::{DEFAULT_POOL, Heap, HeapKey, SeenDone};
use crate::heaps::Heaps;

impl<D: Driver> Heaps<D> {
    /// Retires a stream: its free frames serve others from now on, and its heaps go once their last block is freed.
    pub fn retire(&self, stream: StreamId) {
        let mut unused = true;
        for cell in self.cells_of(stream) {
            unused &= cell.retire();
        }
        if unused {
            self.finish_retired(stream);
        }
    }

    /// Moves the frames of a retired stream into the store and drops what can go of its heaps.
    pub(crate) fn finish_retired(&self, stream: StreamId) {
        let cells = self.cells_of(stream);
        if cells.iter().any(|cell| cell.lock().is_in_use()) {
            return;
        }
        // The stream's last event: it covers everything that was ever freed on it.
        if let Err(error) = self.fences.leave(stream) {
            tracing::warn!(%error, stream = stream.get(), "could not look at a retired stream");
        }
        let mut left = false;
        for cell in &cells {
            left |= !self.dismantle(cell);
        }
        // What is left asks about the stream's uses, which count as done once it is forgotten.
        if left || !self.fences.forget(stream) {
            self.unfinished.store(true, Ordering::Relaxed);
        }
    }

    /// The last block of a heap that nobody has any more was freed.
    #[cold]
    pub(crate) fn finish_last_block(&self, key: HeapKey) {
        let Some(cell) = self.find(key) else { return };
        let retired = cell.lock().is_retired();
        if key.pool != DEFAULT_POOL {
            self.finish_pool_heap(&cell);
        }
        if retired {
            self.finish_retired(key.stream);
        }
    }

    /// Drops what can go of the heap of a growable, or of a graph pool, that is no more.
    pub(crate) fn finish_pool_heap(&self, cell: &Arc<HeapCell<D>>) {
        let (last_free, launched) = {
            let heap = cell.lock();
            (heap.last_free(), heap.launched())
        };
        // Only events seen done let the mappings go.
        self.see(last_free);
        launched.into_iter().for_each(|use_| self.see(use_));
        self.dismantle(cell);
    }

    /// Empties a heap that nobody has any more as far as fences allow, and drops it if nothing is left. Returns whether
    /// it is gone.
    fn dismantle(&self, cell: &Arc<HeapCell<D>>) -> bool {
        let empty = self.is_emptied(cell);
        if empty {
            self.forget_heap(cell.key());
        } else {
            self.note_left(cell.key());
            self.unfinished.store(true, Ordering::Relaxed);
        }
        empty
    }

    fn is_emptied(&self, cell: &Arc<HeapCell<D>>) -> bool {
        let mut heap = cell.lock();
        for use_ in heap.last_pending_uses().collect::<Vec<_>>() {
            self.see(use_);
        }
        heap.settle_pending(|use_| self.fences.is_done(use_));
        // Each page is looked at only when one may be unmapped that could not be the last time.
        let seen = SeenDone {
            tick: self.fences.done(cell.key().stream),
            launch: heap.launched().is_none_or(|use_| self.fences.is_done(use_)),
        };
        let is_mapped = |heap: &Heap<D>| heap.arenas.iter().any(|arena| arena.segment.mapped_pages() > 0);
        if heap.seen_done() == Some(seen) && is_mapped(&heap) {
            return false;
        }
        self.store.put(heap.give_up_idle());
        for malloc in heap.give_up_empty() {
            self.counters.address.fetch_sub(malloc.bytes(), Ordering::Relaxed);
            self.store.put_malloc(malloc);
        }
        if !heap.is_unused() || heap.unmap_all_done(|use_| self.fences.is_done(use_)).is_err() {
            return false;
        }
        let address_bytes = heap.address_bytes();
        if is_mapped(&heap) {
            heap.set_seen_done(seen);
            return false;
        }
        for mut arena in std::mem::take(&mut heap.arenas) {
            let id = arena.segment.id();
            if let Err(error) = arena.segment.unreserve() {
                // Dropped here, it is tried once more, and then goes on the retry list of the device.
                tracing::warn!(%error, "could not give addresses back");
            }
            self.forget_segment(id);
        }
        drop(heap);
        self.counters.address.fetch_sub(address_bytes, Ordering::Relaxed);
        true
    }

    /// Tries again to finish heaps whose work was still in flight.
    pub(crate) fn sweep_retired(&self) {
        if !self.unfinished.swap(false, Ordering::Relaxed) {
            return;
        }
        let (in_pools, others): (Vec<_>, Vec<_>) =
            self.left().into_iter().partition(|cell| cell.key().pool != DEFAULT_POOL);
        for cell in &in_pools {
            self.finish_pool_heap(cell);
        }
        let mut streams: Vec<StreamId> = others.iter().map(|cell| cell.key().stream).collect();
        streams.dedup();
        for stream in streams {
            self.finish_retired(stream);
        }
        match self.fences.poll_leaving() {
            Ok(true) => {}
            Ok(false) => self.unfinished.store(true, Ordering::Relaxed),
            Err(error) => {
                self.unfinished.store(true, Ordering::Relaxed);
                tracing::warn!(%error, "could not look at the fences of a retired stream");
            }
        }
    }
}
