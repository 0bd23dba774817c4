//! The ladder without virtual memory: how a request gets a malloc segment, from the cheapest step to the report.
//!
//! Main type: [`Heaps`], the half of it that deals in malloc segments. Neighbours: `heap` serves hits there as anywhere;
//! `ladder` is the way with virtual memory; `empty` finds segments with no block in them.
//!
//! 1. Bins and pending blocks that are done become holes, and the best fit serves.
//! 2. Where the policy creates first: a malloc.
//! 3. An empty segment of another heap, or of the store, is handed over: its memory can't be split between heaps, so only the
//!    whole of it serves, and only if it is at most [`MOST_OVERSIZE`] times what a malloc would take.
//! 4. Pending blocks are taken back behind a wait on the device.
//! 5. A malloc: of the usual size, or, if there is no room, of what is needed.
//! 6. Empty segments are given back, the largest first, until a malloc has room. Each waits for the whole device, so this is
//!    the last step but one before out of memory, and is left out where it would not be enough.
//! 7. The host waits for work whose end would free something, and all begins again.
//!
//! A segment on its way is an owned value: no heap's lock is held while the driver is called, nor two at a time.

use concertina_vmm::sync::{Arc, Ordering};
use concertina_vmm::{Address, Call, CreateError, Driver, DriverError, DriverErrorKind, Malloc};

use crate::cell::HeapCell;
use crate::error::AllocateError;
use crate::gather::Shortage;
use crate::heap::Granted;
use crate::heaps::Heaps;
use crate::ladder::MOST_LOOKS;
use crate::out_of_memory::{OutOfMemory, Verdict};
use crate::policy::HostWait;
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
        let mut looks = MOST_LOOKS;
        let shortage = loop {
            if let Some(granted) = self.hit_what_is_done(cell, request) {
                return Ok(granted);
            }
            if let Some(shortage) = self.never_fits(request) {
                self.reclaim();
                break shortage;
            }
            let shortage = match self.find_segment(cell, request)? {
                Ok(granted) => return Ok(granted),
                Err(shortage) => shortage,
            };
            self.sweep_retired();
            if self.wait_for_mallocs(cell)? {
                continue;
            }
            self.reclaim();
            // The report is of this moment, the refusal of one before.
            if looks == 0 || !self.malloc_would_fit(cell, request) {
                break shortage;
            }
            looks -= 1;
        };
        let report = self.report_on_mallocs(cell, request, shortage);
        tracing::warn!(%report, "out of memory");
        Err(AllocateError::OutOfMemory(Box::new(report)))
    }

    /// Serves the request from what this heap has, once bins and what is pending no more have become holes.
    fn hit_what_is_done(&self, cell: &HeapCell<D>, request: &Request) -> Option<Granted> {
        self.look_at_fences(cell);
        let mut heap = cell.lock();
        heap.settle_pending(|use_| self.fences.is_done(use_));
        if let Some(granted) = heap.hit(request) {
            return Some(granted);
        }
        heap.empty_bins();
        heap.hit(request)
    }

    fn find_segment(
        &self,
        cell: &Arc<HeapCell<D>>,
        request: &Request,
    ) -> Result<Result<Granted, Shortage>, AllocateError> {
        let size = self.malloc_size(request);
        let first = self.create_first_bytes(request);
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
        DriverError::new(DriverErrorKind::NotSupported, Call::Malloc, why)
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
        if self.fences.captures(cell.key().stream) {
            // The driver would wait for the device.
            return Ok(Err(shortage));
        }
        self.reclaim();
        self.look_at_streams(cell.key().stream, &self.cells());
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

    /// Takes pending blocks back before their other streams are done, oldest first, by making their own stream wait for
    /// those on the device: of this heap until one makes the hole that serves, and then all others.
    fn take_back_until_hit(&self, cell: &HeapCell<D>, request: &Request) -> Option<Granted> {
        let waiter = cell.key().stream;
        {
            let mut heap = cell.lock();
            while self.take_back(&mut heap, waiter) {
                if let Some(granted) = heap.hit(request) {
                    return Some(granted);
                }
            }
        }
        for other in self.cells() {
            let mut heap = other.lock();
            // What comes back that way was used just now: this stream will have to wait for that one.
            while heap.has_pending()
                && self.may_take(waiter, other.clock().now())
                && self.take_back(&mut heap, waiter)
            {}
        }
        None
    }

    /// Makes the host wait for work whose end may serve the request, as [`Heaps::wait_for_work`] does.
    fn wait_for_mallocs(&self, cell: &HeapCell<D>) -> Result<bool, DriverError> {
        let waiter = cell.key().stream;
        if self.settings.host_wait == HostWait::Never || self.fences.captures(waiter) {
            return Ok(false);
        }
        if self.wait_for_work(cell, Shortage::Device)? {
            return Ok(true);
        }
        let awaited = |use_| self.fences.with_order(waiter, |order| order.awaited(use_));
        let in_heaps = self.cells().into_iter().find_map(|other| {
            let heap = other.lock();
            heap.empty_mallocs().map(|empty| empty.last_use).find_map(awaited)
        });
        let Some(use_) = in_heaps.or_else(|| self.store.spare_uses().into_iter().find_map(awaited)) else {
            return Ok(false);
        };
        self.host_waits_for(use_)
    }

    // --- out of memory ----------------------------------------------------------------------------------------------

    /// Bytes that mallocs could still take.
    fn room(&self) -> u64 {
        let on_device = self.device.memory_info().map_or(0, |info| info.free_bytes);
        let below_limit =
            self.settings.limit_bytes.map(|limit| limit.saturating_sub(self.store.mapped_bytes()));
        below_limit.map_or(on_device, |bytes| bytes.min(on_device))
    }

    /// Whether the request would be served at this moment.
    fn malloc_would_fit(&self, cell: &HeapCell<D>, request: &Request) -> bool {
        let in_a_hole = cell.lock().best_fit(request).is_some();
        // In a capture nothing is given back for it.
        let captures = self.fences.captures(cell.key().stream);
        let takeable = if captures { 0 } else { self.empty_bytes(cell) };
        in_a_hole || self.room().saturating_add(takeable) >= self.malloc_size(request).needed
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
            live_bytes: self.live.bytes(),
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
            heap.lock().holes.largest().map_or(0, |hole| u64::from(hole.steps()) * STEP_BYTES)
        };
        let large = by_malloc.max(largest_hole(Kind::Large));
        if large > SMALL_BYTES {
            return large;
        }
        by_malloc.max(largest_hole(Kind::Small)).min(SMALL_BYTES)
    }
}
