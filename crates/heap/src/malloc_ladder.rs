//! The ladder without virtual memory: how a request gets a malloc segment, from the cheapest step to the report.
//!
//! Main type: [`Heaps`], the half of it that deals in malloc segments. Neighbours: `heap` serves hits there as anywhere;
//! `ladder` is the way with virtual memory; `trim` gives segments back.
//!
//! 1. Bins and pending blocks that are done become holes, and the best fit serves.
//! 2. Where the policy creates first: a malloc.
//! 3. An empty segment of another heap, or of the store, is handed over: its memory can't be split between heaps, so only the
//!    whole of it serves, and only if it is at most [`MOST_OVERSIZE`] times what a malloc would take.
//! 4. Pending blocks are taken back behind a wait on the device.
//! 5. A malloc: of the usual size, or, if there is no room, of what is needed.
//! 6. Empty segments are given back, the largest first, until a malloc has room. Each waits for the whole device, so this is
//!    the last step before out of memory, and is left out where it would not be enough.
//!
//! A segment on its way is an owned value: no heap's lock is held while the driver is called, nor two at a time.

use concertina_vmm::sync::{Arc, MutexGuard, Ordering};
use concertina_vmm::{Address, CreateError, Driver, DriverError, DriverErrorKind, Malloc, Use};

use crate::error::AllocateError;
use crate::gather::Shortage;
use crate::heap::{Granted, Heap};
use crate::heaps::{HeapCell, Heaps};
use crate::out_of_memory::{OutOfMemory, Verdict};
use crate::policy::CrossStream;
use crate::step::{Kind, Request, SMALL_BYTES, STEP_BYTES};

/// Least bytes of a malloc segment for small blocks: 2 MiB, as in PyTorch's caching allocator (`kSmallBuffer` in
/// `c10/cuda/CUDACachingAllocator`).
const SMALL_MALLOC_BYTES: u64 = 2 << 20;

/// The same for large blocks: 20 MiB, as there (`kLargeBuffer`).
const LARGE_MALLOC_BYTES: u64 = 20 << 20;

/// How many times larger than a new malloc a segment may be that is handed over. One that is larger would stay with a heap
/// that has no use for most of it.
const MOST_OVERSIZE: u64 = 2;

/// What a malloc for a request takes, in bytes: whole pages.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// What the request needs, wherever the driver puts it.
    needed: u64,
    /// That, or what segments of this kind have at least.
    usual: u64,
}

/// Whether a segment at this address would serve the request.
fn fits(address: Address, bytes: u64, request: &Request) -> bool {
    let start = address.get().next_multiple_of(request.alignment);
    start - address.get() + u64::from(request.steps) * STEP_BYTES <= bytes
}

impl<D: Driver> Heaps<D> {
    /// Serves a request that was no hit.
    ///
    /// # Errors
    /// As [`Heaps::allocate`].
    pub(crate) fn allocate_by_malloc(
        &self,
        cell: &Arc<HeapCell<D>>,
        request: &Request,
    ) -> Result<Granted, AllocateError> {
        self.sweep_retired();
        self.look_at_fences(cell);
        {
            let mut heap = cell.lock();
            heap.settle_pending(|use_| self.fences.is_done(use_));
            if let Some(granted) = heap.hit(request) {
                return Ok(granted);
            }
            heap.empty_bins();
            if let Some(granted) = heap.hit(request) {
                return Ok(granted);
            }
        }
        let shortage = match self.never_fits(request) {
            Some(shortage) => shortage,
            None => match self.find_segment(cell, request)? {
                Ok(granted) => return Ok(granted),
                Err(shortage) => shortage,
            },
        };
        self.reclaim();
        let report = self.report_on_mallocs(cell, request, shortage);
        tracing::warn!(%report, "out of memory");
        Err(AllocateError::OutOfMemory(Box::new(report)))
    }

    fn find_segment(
        &self,
        cell: &Arc<HeapCell<D>>,
        request: &Request,
    ) -> Result<Result<Granted, Shortage>, AllocateError> {
        let size = self.malloc_size(request);
        let first = self.settings.policy.create_first_bytes(self.live_peak_with(request.bytes));
        if self.store.mapped_bytes().saturating_add(size.usual) <= first
            && let Ok(malloc) = self.malloc(size.usual)?
        {
            return Ok(Ok(self.move_in(cell, malloc, request)?));
        }
        let most_bytes = size.usual.saturating_mul(MOST_OVERSIZE);
        let serves = |address: Address, bytes: u64| bytes <= most_bytes && fits(address, bytes, request);
        if let Some(malloc) = self.take_from_others(cell, serves) {
            self.counters.moved.fetch_add(1, Ordering::Relaxed);
            return Ok(Ok(self.move_in(cell, malloc, request)?));
        }
        if let Some(granted) = self.take_back_until_hit(cell, request) {
            return Ok(Ok(granted));
        }
        if let Some(malloc) = self.take_from_others(cell, serves) {
            self.counters.moved.fetch_add(1, Ordering::Relaxed);
            return Ok(Ok(self.move_in(cell, malloc, request)?));
        }
        let shortage = match self.malloc_somehow(cell, size)? {
            Ok(malloc) => return Ok(Ok(self.move_in(cell, malloc, request)?)),
            Err(shortage) => shortage,
        };
        // Other threads may have freed something meanwhile; and holes of this heap may have joined.
        self.reclaim();
        Ok(cell.lock().hit(request).ok_or(shortage))
    }

    fn malloc_size(&self, request: &Request) -> Size {
        let page = self.store.frame_bytes();
        // Mallocs are aligned to a step.
        let needed = u64::from(request.steps) * STEP_BYTES + request.alignment - STEP_BYTES;
        let least = match request.kind() {
            Kind::Small => SMALL_MALLOC_BYTES,
            Kind::Large => LARGE_MALLOC_BYTES,
        };
        let needed = needed.next_multiple_of(page);
        Size { needed, usual: needed.max(least.next_multiple_of(page)) }
    }

    /// One malloc, and another try once what the driver would not take back earlier has gone.
    fn malloc(&self, bytes: u64) -> Result<Result<Malloc<D>, Shortage>, DriverError> {
        let mut retried = false;
        loop {
            let shortage = match self.store.malloc(bytes) {
                Ok(malloc) if malloc.address().is_aligned_to(STEP_BYTES) => {
                    tracing::debug!(bytes, address = %malloc.address(), "malloc segment made");
                    return Ok(Ok(malloc));
                }
                Ok(malloc) => return Err(self.misaligned(malloc)),
                Err(CreateError::OverLimit { .. }) => Shortage::Limit,
                Err(CreateError::Driver(error)) if error.is_out_of_memory() => Shortage::Device,
                Err(CreateError::Driver(error)) => return Err(error),
            };
            if retried || self.store.retry() + self.device.retry() == 0 {
                return Ok(Err(shortage));
            }
            retried = true;
        }
    }

    /// Blocks can't be cut from it: it goes back.
    fn misaligned(&self, malloc: Malloc<D>) -> DriverError {
        let (address, bytes) = (malloc.address(), malloc.bytes());
        if let Err(error) = self.store.free(malloc) {
            return error;
        }
        let why = format!("{bytes} bytes at {address}, which is no multiple of {STEP_BYTES}");
        DriverError::new(DriverErrorKind::NotSupported, concertina_vmm::Call::Malloc, why)
    }

    /// Makes a malloc of the usual size, or of what is needed; and if need be makes room for that.
    fn malloc_somehow(
        &self,
        cell: &HeapCell<D>,
        size: Size,
    ) -> Result<Result<Malloc<D>, Shortage>, DriverError> {
        let mut shortage = match self.malloc(size.usual)? {
            Ok(malloc) => return Ok(Ok(malloc)),
            Err(shortage) => shortage,
        };
        if size.needed < size.usual {
            match self.malloc(size.needed)? {
                Ok(malloc) => return Ok(Ok(malloc)),
                Err(short) => shortage = short,
            }
        }
        self.reclaim();
        if self.settings.cross_stream == CrossStream::Completed {
            // Nothing is waited for, so an event must be there to be seen done.
            self.cells().iter().for_each(|other| self.see(other.clock().now()));
        }
        let room = self.room().saturating_add(self.empty_bytes(cell));
        if room < size.needed {
            return Ok(Err(shortage));
        }
        let waiter = cell.key().stream;
        let larger = |known: u64, bytes: u64| bytes > known;
        while let Some(malloc) = self.take_empty(|use_| self.may_take(waiter, use_), larger) {
            match self.store.free(malloc) {
                Ok(_) => {}
                Err(error) if error.kind == DriverErrorKind::Lost => return Err(error),
                // It is tried again later.
                Err(error) => tracing::warn!(%error, "could not give a malloc segment back"),
            }
            match self.malloc(size.needed)? {
                Ok(malloc) => return Ok(Ok(malloc)),
                Err(short) => shortage = short,
            }
        }
        Ok(Err(shortage))
    }

    /// Puts the heap's stream behind the last uses of a malloc, makes it a segment of the heap, and serves the request
    /// from it.
    fn move_in(
        &self,
        cell: &Arc<HeapCell<D>>,
        malloc: Malloc<D>,
        request: &Request,
    ) -> Result<Granted, DriverError> {
        if let Err(error) = self.fences.wait(cell.key().stream, malloc.uses()) {
            self.store.put_malloc(malloc);
            return Err(error);
        }
        let mut heap = cell.lock();
        self.note_address_bytes(0, malloc.bytes());
        heap.add_malloc(malloc, || self.new_segment_id(cell));
        Ok(heap.hit(request).expect("the segment was made or chosen for the request"))
    }

    // --- empty segments ---------------------------------------------------------------------------------------------

    /// Takes the malloc of an arena out of a heap, if no block is in it.
    pub(crate) fn take_malloc(&self, heap: &mut MutexGuard<'_, Heap<D>>, arena: u32) -> Option<Malloc<D>> {
        let malloc = heap.take_malloc(arena)?;
        self.counters.address.fetch_sub(malloc.bytes(), Ordering::Relaxed);
        Some(malloc)
    }

    /// Takes an empty segment that serves out of another heap or the store: of the same stream first, then of those whose
    /// last use is over or comes before, then, where the rule allows it, of those that are waited for on the device.
    fn take_from_others(
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
        let rule = self.settings.cross_stream;
        let ordered = |use_: Use| self.fences.is_ordered(waiter, use_) && self.may_take(waiter, use_);
        if let Some(malloc) = from(&same_stream, &|_| true).or_else(|| in_store(&ordered)) {
            return Some(malloc);
        }
        if rule == CrossStream::Never {
            return in_store(&|use_| self.may_take(waiter, use_));
        }
        for other in &others {
            if rule == CrossStream::Completed {
                self.see(other.clock().now());
            } else if let Err(error) = self.fences.poll(other.key().stream) {
                tracing::warn!(%error, "could not look at a fence");
            }
        }
        from(&others, &ordered).or_else(|| {
            let any = |use_| self.may_take(waiter, use_);
            (rule == CrossStream::DeviceWait).then(|| in_store(&any).or_else(|| from(&others, &any)))?
        })
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

    /// Takes pending blocks back before their other streams are done, oldest first, by making their own stream wait for
    /// those on the device: of this heap until one makes the hole that serves, and then all others.
    fn take_back_until_hit(&self, cell: &HeapCell<D>, request: &Request) -> Option<Granted> {
        if self.settings.cross_stream != CrossStream::DeviceWait {
            return None;
        }
        let take_back = |other: &HeapCell<D>, heap: &mut Heap<D>| {
            heap.take_back_oldest(|uses| self.fences.wait(other.key().stream, uses).is_ok())
        };
        {
            let mut heap = cell.lock();
            while take_back(cell, &mut heap) {
                if let Some(granted) = heap.hit(request) {
                    return Some(granted);
                }
            }
        }
        for other in self.cells() {
            let mut heap = other.lock();
            while take_back(&other, &mut heap) {}
        }
        None
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
            let mut in_heap: Option<(Arc<HeapCell<D>>, u32)> = None;
            for cell in self.cells() {
                let heap = cell.lock();
                for empty in heap.empty_mallocs().filter(|empty| allowed(empty.last_use)) {
                    if is_better(best, empty.bytes) {
                        best = Some(empty.bytes);
                        in_heap = Some((Arc::clone(&cell), empty.arena));
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
    fn empty_bytes(&self, cell: &HeapCell<D>) -> u64 {
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

    // --- giving back ------------------------------------------------------------------------------------------------

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

    // --- out of memory ----------------------------------------------------------------------------------------------

    /// Bytes that mallocs could still take.
    fn room(&self) -> u64 {
        let on_device = self.device.memory_info().map_or(0, |info| info.free_bytes);
        let below_limit =
            self.settings.limit_bytes.map(|limit| limit.saturating_sub(self.store.mapped_bytes()));
        below_limit.map_or(on_device, |bytes| bytes.min(on_device))
    }

    fn report_on_mallocs(
        &self,
        cell: &Arc<HeapCell<D>>,
        request: &Request,
        shortage: Shortage,
    ) -> OutOfMemory {
        let spare: u64 = self.store.spare_mallocs(|_| true).iter().sum();
        let (room, takeable) = (self.room(), self.empty_bytes(cell));
        let empty = spare + self.empty_bytes_in_heaps(|_| true);
        let mut report = OutOfMemory {
            asked_bytes: request.bytes,
            alignment: request.alignment,
            live_bytes: self.live_bytes(),
            pending_bytes: 0,
            mapped_bytes: self.store.mapped_bytes(),
            free_frames: 0,
            free_bytes: spare,
            // Other threads may take some between the two looks.
            withheld_bytes: empty.saturating_sub(takeable),
            stranded_bytes: 0,
            pinned_bytes: 0,
            largest_bytes: self.largest_on_mallocs(cell, room.saturating_add(takeable)),
            limit_bytes: self.settings.limit_bytes,
            device_free_bytes: self.device.memory_info().ok().map(|info| info.free_bytes),
            verdict: Verdict::NotEnoughMemory,
        };
        for other in self.cells() {
            let heap = other.lock();
            report.pending_bytes += heap.pending_bytes();
            report.stranded_bytes += heap.stranded_bytes();
            report.free_bytes += heap.idle_malloc_bytes();
        }
        report.free_frames = report.free_bytes / self.store.frame_bytes();
        // With virtual memory these pages would serve.
        let in_pages = room.saturating_add(report.free_bytes.saturating_sub(report.withheld_bytes));
        report.verdict = if request.bytes <= in_pages {
            Verdict::FragmentedWithoutVirtualMemory
        } else {
            report.verdict(shortage, room.saturating_add(takeable))
        };
        report
    }

    /// The largest request of this stream that would succeed if mallocs can take so many bytes, in bytes.
    fn largest_on_mallocs(&self, cell: &Arc<HeapCell<D>>, room: u64) -> u64 {
        let by_malloc = room - room % self.store.frame_bytes();
        let largest_hole = |kind| {
            let heap = self.heap(cell.clock(), kind);
            heap.lock().holes.largest().map_or(0, |hole| u64::from(hole.steps) * STEP_BYTES)
        };
        let large = by_malloc.max(largest_hole(Kind::Large));
        if large > SMALL_BYTES {
            return large;
        }
        by_malloc.max(largest_hole(Kind::Small)).min(SMALL_BYTES)
    }
}
