//! Malloc segments with no block in them: who may have them, and how they go back to the driver.
//!
//! Main type: [`Heaps`], the half of it that deals in empty segments. Neighbours: `malloc_ladder` wants them for requests,
//! `trim` gives them back; each heap knows its own, and the store has those of no heap.

use concertina_vmm::sync::{Arc, Ordering};
use concertina_vmm::{Address, CrossStream, Driver, DriverError, Malloc, StreamId, Use};

use crate::cell::HeapCell;
use crate::heap_lock::HeapGuard;
use crate::heaps::Heaps;

impl<D: Driver> Heaps<D> {
    /// Takes the malloc of an arena out of a heap, if no block is in it.
    pub(crate) fn take_malloc(&self, heap: &mut HeapGuard<D>, arena: u32) -> Option<Malloc<D>> {
        let malloc = heap.take_malloc(arena)?;
        self.counters.address.fetch_sub(malloc.bytes(), Ordering::Relaxed);
        Some(malloc)
    }

    /// Takes an empty segment that serves out of another heap or the store: of the same stream first, then of those whose
    /// last use is over or comes before, then, where the rule allows it, of those that are waited for on the device.
    pub(crate) fn take_from_others(
        &self,
        cell: &HeapCell<D>,
        serves: impl Fn(Address, u64) -> bool,
    ) -> Option<Malloc<D>> {
        let waiter = cell.key().stream;
        let (same_stream, others): (Vec<_>, Vec<_>) = self
            .cells()
            .into_iter()
            .filter(|other| other.key() != cell.key())
            .partition(|other| other.key().stream == waiter);
        let from = |others: &[Arc<HeapCell<D>>], allowed: &dyn Fn(Use) -> bool| {
            others.iter().find_map(|other| self.take_serving(other, &serves, allowed))
        };
        let in_store = |allowed: &dyn Fn(Use) -> bool| {
            self.store.take_malloc(|malloc| {
                serves(malloc.address(), malloc.bytes()) && malloc.uses().iter().all(|&use_| allowed(use_))
            })
        };
        let ordered = |use_: Use| self.fences.is_ordered(waiter, use_) && self.may_take(waiter, use_);
        let any = |use_| self.may_take(waiter, use_);
        if let Some(malloc) = from(&same_stream, &any).or_else(|| in_store(&ordered)) {
            return Some(malloc);
        }
        self.look_at_streams(waiter, &others);
        from(&others, &ordered).or_else(|| in_store(&any)).or_else(|| from(&others, &any))
    }

    /// Looks what is done on the streams of other heaps that a stream may take something of.
    pub(crate) fn look_at_streams(&self, waiter: StreamId, others: &[Arc<HeapCell<D>>]) {
        for other in others {
            self.look_at_use(waiter, other.clock().now());
        }
    }

    /// Looks whether the last use of something that a stream may take is done.
    pub(crate) fn look_at_use(&self, waiter: StreamId, use_: Use) {
        match self.fences.with_order(waiter, |order| order.rule(use_.stream)) {
            CrossStream::Never => {}
            // Nothing is waited for, so an event must be there to be seen done.
            CrossStream::Completed => self.see(use_),
            CrossStream::DeviceWait => {
                if let Err(error) = self.fences.poll(use_.stream) {
                    tracing::warn!(%error, "could not look at a fence");
                }
            }
        }
    }

    /// Takes the smallest empty segment of a heap that serves, if `allowed` agrees to its last use.
    fn take_serving(
        &self,
        other: &HeapCell<D>,
        serves: impl Fn(Address, u64) -> bool,
        allowed: impl Fn(Use) -> bool,
    ) -> Option<Malloc<D>> {
        self.look_at_pending(other);
        let mut heap = other.lock();
        heap.empty_bins();
        heap.settle_pending(|use_| self.fences.is_done(use_));
        let empty = heap
            .empty_mallocs()
            .filter(|empty| serves(empty.address, empty.bytes) && allowed(empty.last_use))
            .min_by_key(|empty| empty.bytes)?;
        self.take_malloc(&mut heap, empty.arena)
    }

    /// Takes the best of all empty segments, in heaps and in the store, to whose last use `allowed` agrees. `better` says
    /// whether a size in bytes is to be preferred to one known.
    pub(crate) fn take_empty(
        &self,
        allowed: impl Fn(Use) -> bool,
        better: impl Fn(u64, u64) -> bool,
    ) -> Option<Malloc<D>> {
        // The best one may be used by the time that it is taken. Then the others are looked at again.
        loop {
            let all_allowed = |malloc: &Malloc<D>| malloc.uses().iter().all(|&use_| allowed(use_));
            let mut best: Option<u64> = None;
            let is_better = |best: Option<u64>, bytes| best.is_none_or(|known| better(known, bytes));
            for bytes in self.store.spare_mallocs(all_allowed) {
                best = if is_better(best, bytes) { Some(bytes) } else { best };
            }
            let cells = self.cells();
            let mut in_heap: Option<(&Arc<HeapCell<D>>, u32)> = None;
            for cell in &cells {
                let heap = cell.lock();
                for empty in heap.empty_mallocs().filter(|empty| allowed(empty.last_use)) {
                    if is_better(best, empty.bytes) {
                        best = Some(empty.bytes);
                        in_heap = Some((cell, empty.arena));
                    }
                }
            }
            let bytes = best?;
            let taken = match in_heap {
                None => self.store.take_malloc(|malloc| malloc.bytes() == bytes && all_allowed(malloc)),
                Some((cell, arena)) => {
                    let mut heap = cell.lock();
                    let there = heap.empty_mallocs().find(|empty| empty.arena == arena);
                    let there = there.filter(|empty| allowed(empty.last_use));
                    there.and_then(|empty| self.take_malloc(&mut heap, empty.arena))
                }
            };
            if taken.is_some() {
                return taken;
            }
        }
    }

    /// Bytes of all empty segments that a request of this heap may have.
    pub(crate) fn empty_bytes(&self, cell: &HeapCell<D>) -> u64 {
        let waiter = cell.key().stream;
        let may_take = |use_| self.may_take(waiter, use_);
        let in_store = self.store.spare_mallocs(|malloc| malloc.uses().iter().all(|&use_| may_take(use_)));
        in_store.iter().sum::<u64>() + self.empty_bytes_in_heaps(may_take)
    }

    /// Bytes of the empty segments of heaps to whose last use `allowed` agrees.
    pub(crate) fn empty_bytes_in_heaps(&self, allowed: impl Fn(Use) -> bool) -> u64 {
        let cells = self.cells();
        let of_heap = |cell: &Arc<HeapCell<D>>| {
            let heap = cell.lock();
            heap.empty_mallocs().filter(|empty| allowed(empty.last_use)).map(|empty| empty.bytes).sum::<u64>()
        };
        cells.iter().map(of_heap).sum()
    }

    /// Gives back empty segments whose last use is seen done until at most `bytes` are mapped: the largest that is not more
    /// than that, else the smallest. Returns the bytes given back, those that wait, and the first refusal.
    pub(crate) fn trim_mallocs(&self, bytes: u64) -> (u64, u64, Option<DriverError>) {
        let excess = || self.store.mapped_bytes().saturating_sub(bytes);
        let (mut released, mut failed) = (0, None);
        while excess() > 0 {
            let most = excess();
            let better = |known: u64, bytes: u64| match (known <= most, bytes <= most) {
                (true, true) => bytes > known,
                (false, false) => bytes < known,
                (known_fits, _) => !known_fits,
            };
            let Some(malloc) = self.take_empty(|use_| self.fences.is_done(use_), better) else { break };
            match self.store.free(malloc) {
                Ok(bytes) => released += bytes,
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        let spare = self.store.spare_mallocs(|_| true).iter().sum::<u64>();
        let waiting = (spare + self.empty_bytes_in_heaps(|_| true)).min(excess());
        (released, waiting, failed)
    }
}
