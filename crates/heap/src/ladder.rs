//! The ladder: how a request gets its memory, from the cheapest step to the report that there is none.
//!
//! Main type: [`Heaps`], its `allocate`. Neighbours: `heap` serves hits, `plan` finds places, `gather` gets frames and
//! puts them there, `out_of_memory` is the report.
//!
//! - Step 1, a bin, and step 2, the best fit if all its pages are held, make no driver call.
//! - Step 3 backs the pages of the best fit: it revives what can be revived, then takes frames in the order that the
//!   policy gives, and creates the shortfall.
//! - Step 7 is out of memory, with a report.
//!
//! Steps 4 to 6 of the design (hooks, loans, waits of the host) are not built yet; what there is of reclaiming, bins
//! and pending blocks, is part of step 3.
//!
//! A place is claimed before its frames are gathered, and no lock is held while they are. Whatever fails on the way,
//! the claimed block becomes a hole again and the frames go to the store, from where stale pages can be revived.

use concertina_vmm::sync::Arc;
use concertina_vmm::{Driver, DriverError, Frame, Place, Reservation, Segment, Uses};

use crate::cell::HeapCell;
use crate::error::AllocateError;
use crate::gather::Shortage;
use crate::heap::{Granted, Heap};
use crate::heaps::Heaps;
use crate::out_of_memory::{OutOfMemory, Verdict};
use crate::plan::{Others, Plan, Rules};
use crate::policy::CrossStream;
use crate::step::{Kind, LARGEST_BYTES, Request, SMALL_BYTES, STEP_BYTES};

/// How one try at a request ended.
enum Try {
    Served(Granted),
    /// Something changed that a new plan may use.
    Again,
    /// Less is to be had than the plan needs.
    Short(Shortage),
}

/// What is learnt over the tries at one request.
struct Search {
    /// Stale pages whose frame turned out to be busy in another heap.
    blocked: Vec<Place>,
    /// Bound on the frames of a plan, once a first try came up short.
    frames: Option<u64>,
    /// Whether stale pages were already removed to make room in the driver's tables.
    swept: bool,
    /// Bound on the new mappings of a plan, once that did not make enough.
    mappings: Option<u64>,
    others: Others,
}

impl<D: Driver> Heaps<D> {
    /// Serves a request from this heap.
    ///
    /// # Errors
    /// Out of memory with a report, or a failed driver call. Either way all live blocks are as they were, every frame
    /// and mapping is where it is counted, and the same request may be made again.
    pub fn allocate(&self, cell: &Arc<HeapCell<D>>, request: &Request) -> Result<Granted, AllocateError> {
        let hit = cell.lock().hit(request);
        match hit {
            Some(granted) => Ok(granted),
            None => self.allocate_slowly(cell, request),
        }
    }

    #[cold]
    fn allocate_slowly(&self, cell: &Arc<HeapCell<D>>, request: &Request) -> Result<Granted, AllocateError> {
        let mut search =
            Search { blocked: Vec::new(), frames: None, swept: false, mappings: None, others: Others::Ask };
        self.sweep_retired();
        loop {
            let shortage = match self.attempt(cell, request, &mut search)? {
                Try::Served(granted) => {
                    self.unmap_eagerly();
                    return Ok(granted);
                }
                Try::Again => continue,
                Try::Short(shortage) => shortage,
            };
            // The best fit needed more frames than there are; another place may need fewer.
            self.reclaim();
            let frames = self.frames_to_be_had(cell);
            if shortage != Shortage::Tables && search.frames.is_none_or(|before| frames < before) {
                search.frames = Some(frames);
                continue;
            }
            let report = self.report(cell, request, shortage, frames);
            tracing::warn!(%report, "out of memory");
            return Err(AllocateError::OutOfMemory(Box::new(report)));
        }
    }

    fn attempt(
        &self,
        cell: &Arc<HeapCell<D>>,
        request: &Request,
        search: &mut Search,
    ) -> Result<Try, AllocateError> {
        self.look_at_fences(cell);
        let mut heap = cell.lock();
        heap.settle_pending(|use_| self.fences.is_done(use_));
        if let Some(granted) = heap.hit(request) {
            return Ok(Try::Served(granted));
        }
        let Some(plan) = self.plan(&heap, request, search) else {
            if let Some(shortage) = self.never_fits(request) {
                return Ok(Try::Short(shortage));
            }
            if heap.has_room(request) {
                if search.mappings.is_some() {
                    return Ok(Try::Short(Shortage::Tables));
                }
                if search.frames.is_some() {
                    return Ok(Try::Short(self.what_is_short()));
                }
            }
            return match self.grow(cell, &mut heap, request) {
                Ok(()) => Ok(Try::Again),
                Err(error) if error.is_out_of_memory() && heap.has_bins() => {
                    heap.empty_bins();
                    Ok(Try::Again)
                }
                Err(error) if error.is_out_of_memory() => Ok(Try::Short(Shortage::Tables)),
                Err(error) => Err(error.into()),
            };
        };
        if plan.frames() > 0 && heap.has_bins() {
            heap.empty_bins();
            return Ok(Try::Again);
        }
        if let Some(room) = self.room_for_mappings().filter(|room| plan.new_mappings() > *room) {
            drop(heap);
            // Without stale pages there may be room; if not, another place may need fewer mappings.
            if search.swept {
                search.mappings = Some(room);
                return Ok(Try::Again);
            }
            return Ok(self.sweep(search));
        }
        if plan.frames() > 0 {
            if self.take_back_for(&mut heap, request, &plan) {
                return Ok(Try::Again);
            }
            // Frames will move. An event now covers all that was freed so far: the sooner it is recorded, the sooner
            // the mappings that stay behind are seen to be unused. A failure only means that it comes later.
            if let Err(error) = self.fences.cover(cell.clock().now()) {
                tracing::warn!(%error, "could not record an event");
            }
        }
        let before = heap.address_bytes();
        let mut claim = heap.claim(plan, request);
        self.note_address_bytes(before, heap.address_bytes());

        if claim.asks_others() {
            drop(heap);
            let refused = self.revive_from_others(cell, &mut claim);
            heap = cell.lock();
            if let Some(place) = refused {
                // Each refusal costs a search, and a frame that is busy tends to be one of many: ask no more.
                search.blocked.push(place);
                search.others = Others::Leave;
                self.abandon(&mut heap, claim);
                return Ok(Try::Again);
            }
        }
        if !heap.revive_own(&mut claim) {
            self.abandon(&mut heap, claim);
            return Ok(Try::Again);
        }
        let (mut heap, gathered) = self.gather(cell, heap, request, &mut claim);
        match gathered {
            Ok(None) => {}
            Ok(Some(shortage)) => {
                self.release_created(&mut claim);
                self.abandon(&mut heap, claim);
                return Ok(Try::Short(shortage));
            }
            Err(error) => {
                self.abandon(&mut heap, claim);
                return Err(error.into());
            }
        }
        match self.place(&mut heap, claim) {
            Ok(block) => Ok(Try::Served(heap.grant(block, request))),
            Err(error) if error.is_out_of_memory() => {
                drop(heap);
                Ok(self.sweep(search))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Takes back the heap's oldest pending block, by a wait on the device, if the plan needs more frames than the heap
    /// has and the policy would create. Its hole may serve better than the plan. Returns whether a block came back.
    fn take_back_for(&self, heap: &mut Heap<D>, request: &Request, plan: &Plan) -> bool {
        if !heap.has_pending() || self.settings.cross_stream != CrossStream::DeviceWait {
            return false;
        }
        let most = self.settings.policy.create_first_bytes(self.live.peak_with(request.bytes));
        let to_create = most.saturating_sub(self.store.mapped_bytes()) / self.store.frame_bytes();
        let home = heap.key().stream;
        plan.frames() as u64 > to_create + heap.idle_frames()
            && heap.take_back_oldest(|uses| self.fences.wait(home, uses).is_ok())
    }

    fn plan(&self, heap: &Heap<D>, request: &Request, search: &Search) -> Option<Plan> {
        let waiter = heap.key().stream;
        let rule = self.settings.cross_stream;
        let directory = self.store.directory();
        self.fences.with_order(waiter, |order| {
            let may_serve = |frame: &Frame<D>| frame.uses().iter().all(|&use_| rule.allows(order, use_));
            let rules = Rules {
                done: &|use_| order.is_done(use_),
                may_serve: &may_serve,
                directory: &directory,
                blocked: &search.blocked,
                others: search.others,
                frames: search.frames,
                mappings: search.mappings,
            };
            heap.plan(request, &rules)
        })
    }

    /// Looks which work is done by now: of the heap's own stream, and of those that its pending blocks wait for.
    fn look_at_fences(&self, cell: &HeapCell<D>) {
        self.look_at_pending(cell);
        if let Err(error) = self.fences.poll(cell.key().stream) {
            tracing::warn!(%error, "could not look at a fence");
        }
    }

    /// Looks which of the work that a heap's pending blocks wait for is done.
    pub(crate) fn look_at_pending(&self, cell: &HeapCell<D>) {
        let uses: Uses = cell.lock().pending_uses().collect();
        for use_ in uses {
            self.see(use_);
        }
    }

    /// The driver's tables are full: removes stale pages, once for a request.
    fn sweep(&self, search: &mut Search) -> Try {
        if search.swept {
            return Try::Short(Shortage::Tables);
        }
        search.swept = true;
        self.unmap_stale();
        Try::Again
    }

    /// Mappings that the driver's budget leaves; `None` if there is none.
    fn room_for_mappings(&self) -> Option<u64> {
        let most = self.device.capabilities().max_mappings?;
        Some(most.saturating_sub(self.device.mappings()))
    }

    /// Makes holes of all that is free for certain: blocks in bins, and pending ones whose other streams are done.
    pub(crate) fn reclaim(&self) {
        for cell in self.cells() {
            self.look_at_pending(&cell);
            let mut heap = cell.lock();
            heap.empty_bins();
            heap.settle_pending(|use_| self.fences.is_done(use_));
        }
    }

    // --- addresses --------------------------------------------------------------------------------------------------

    /// Adds a segment to the heap that has room for the request.
    fn grow(
        &self,
        cell: &Arc<HeapCell<D>>,
        heap: &mut Heap<D>,
        request: &Request,
    ) -> Result<(), DriverError> {
        let granularity = self.device.granularity();
        let needed = (u64::from(request.steps) * STEP_BYTES).next_multiple_of(granularity);
        // The first segment of a heap is a small part of the device and each further one twice the last: few segments
        // for a heap that grows, few addresses for one of many streams that don't.
        let part = match cell.key().kind {
            Kind::Large => 16,
            Kind::Small => 128,
        };
        let doubled = (self.device_bytes / part) << heap.arenas.len().min(16);
        let wished = self.settings.reservation_bytes.unwrap_or(doubled.min(self.device_bytes));
        let mut bytes = wished.max(needed).min(LARGEST_BYTES).next_multiple_of(granularity);
        let alignment = request.alignment.max(granularity);
        let id = self.new_segment_id(cell);
        loop {
            match Segment::new(id, &self.store, bytes, alignment) {
                Ok(segment) => {
                    tracing::debug!(?id, bytes, address = %segment.address(), "segment reserved");
                    heap.add_arena(segment);
                    return Ok(());
                }
                // A smaller one may find room where a generous one doesn't.
                Err(error) if error.is_out_of_memory() && bytes > needed => {
                    bytes = (bytes / 2).max(needed).next_multiple_of(granularity);
                }
                Err(error) => {
                    self.forget_segment(id);
                    return Err(error);
                }
            }
        }
    }

    /// Whether a segment of so many pages could be reserved: tried, and given back. For reports only.
    fn has_addresses(&self, pages: u64) -> bool {
        let granularity = self.device.granularity();
        Reservation::new(&self.device, pages * granularity, granularity).is_ok()
    }

    // --- out of memory ----------------------------------------------------------------------------------------------

    /// Whether the request is larger than all that the device or the limit could ever give.
    fn never_fits(&self, request: &Request) -> Option<Shortage> {
        let bytes = u64::from(request.steps) * STEP_BYTES;
        if bytes > self.device_bytes {
            return Some(Shortage::Device);
        }
        self.settings.limit_bytes.filter(|limit| bytes > *limit).map(|_| Shortage::Limit)
    }

    /// Which of the two bounds on further frames is the nearer one.
    fn what_is_short(&self) -> Shortage {
        let on_device = self.device.memory_info().map_or(0, |info| info.free_bytes);
        match self.settings.limit_bytes {
            Some(limit) if limit.saturating_sub(self.store.mapped_bytes()) <= on_device => Shortage::Limit,
            _ => Shortage::Device,
        }
    }

    /// Frames that a request of this heap could have: free ones that it may take, and those that could be created.
    fn frames_to_be_had(&self, cell: &HeapCell<D>) -> u64 {
        let waiter = cell.key().stream;
        let in_store = self.store.count_free(|frame| self.may_serve(waiter, frame)) as u64;
        let cells = self.cells();
        let in_pages =
            cells.iter().map(|cell| cell.lock().takeable_frames(|use_| self.may_take(waiter, use_)));
        let frame = self.store.frame_bytes();
        let below_limit =
            self.settings.limit_bytes.map(|limit| limit.saturating_sub(self.store.mapped_bytes()));
        let on_device = self.device.memory_info().map_or(0, |info| info.free_bytes);
        in_pages.sum::<u64>() + in_store + below_limit.map_or(on_device, |bytes| bytes.min(on_device)) / frame
    }

    fn report(
        &self,
        cell: &Arc<HeapCell<D>>,
        request: &Request,
        shortage: Shortage,
        frames: u64,
    ) -> OutOfMemory {
        let waiter = cell.key().stream;
        let frame_bytes = self.store.frame_bytes();
        let device_free_bytes = self.device.memory_info().ok().map(|info| info.free_bytes);
        let withheld_in_store = self.store.count_free(|frame| !self.may_serve(waiter, frame)) as u64;
        let mut report = OutOfMemory {
            asked_bytes: request.bytes,
            alignment: request.alignment,
            live_bytes: 0,
            pending_bytes: 0,
            mapped_bytes: self.store.mapped_bytes(),
            free_frames: self.store.free_frames() as u64,
            free_bytes: 0,
            withheld_bytes: withheld_in_store * frame_bytes,
            stranded_bytes: 0,
            pinned_bytes: 0,
            largest_bytes: self.largest(cell, frames),
            limit_bytes: self.settings.limit_bytes,
            device_free_bytes,
            verdict: Verdict::NotEnoughMemory,
        };
        for other in self.cells() {
            let heap = other.lock();
            let takeable = heap.takeable_frames(|_| true);
            let allowed = heap.takeable_frames(|use_| self.may_take(waiter, use_));
            report.live_bytes += heap.live_bytes();
            report.free_frames += takeable;
            report.withheld_bytes += (takeable - allowed) * frame_bytes;
            report.pending_bytes += heap.pending_bytes();
            report.stranded_bytes += heap.stranded_bytes();
            report.pinned_bytes += heap.pinned_frames() * frame_bytes;
        }
        report.free_bytes = report.free_frames * frame_bytes;
        report.verdict = verdict(&report, shortage, frames * frame_bytes);
        report
    }

    /// The largest request of this stream that would succeed with so many frames to be had, in bytes.
    fn largest(&self, cell: &Arc<HeapCell<D>>, frames: u64) -> u64 {
        let large = self.heap(cell.clock(), Kind::Large);
        let found = self.largest_in(&large, frames, SMALL_BYTES / STEP_BYTES + 1, u64::MAX);
        if found > 0 {
            return found;
        }
        let small = self.heap(cell.clock(), Kind::Small);
        self.largest_in(&small, frames, 1, SMALL_BYTES / STEP_BYTES)
    }

    /// The largest fitting number of steps between `least` and `most`, in bytes; 0 if not even `least` fits. The tail
    /// makes what fits an interval but for holes that need fewer frames, so halving finds a size that does fit.
    fn largest_in(&self, cell: &HeapCell<D>, frames: u64, least: u64, most: u64) -> u64 {
        let heap = cell.lock();
        let per_page = u64::from(heap.steps_per_page());
        let search = Search {
            blocked: Vec::new(),
            frames: Some(frames),
            swept: true,
            mappings: self.room_for_mappings(),
            others: Others::Leave,
        };
        let fits = |steps: u64| {
            let Ok(request) = Request::new(steps * STEP_BYTES, STEP_BYTES) else { return false };
            let pages = steps.div_ceil(per_page);
            self.plan(&heap, &request, &search).is_some()
                || (!heap.has_room(&request)
                    && pages <= search.mappings.map_or(frames, |room| room.min(frames))
                    && self.has_addresses(pages))
        };
        let largest_hole = heap.holes.largest().map_or(0, |hole| u64::from(hole.steps));
        let mut above = (largest_hole.max(frames * per_page) + 2 * per_page).min(most) + 1;
        if least >= above || !fits(least) {
            return 0;
        }
        let mut known = least;
        while above - known > 1 {
            let middle = known.midpoint(above);
            if fits(middle) {
                known = middle;
            } else {
                above = middle;
            }
        }
        known * STEP_BYTES
    }
}

fn verdict(report: &OutOfMemory, shortage: Shortage, to_be_had: u64) -> Verdict {
    if shortage == Shortage::Tables {
        return Verdict::AddressSpace;
    }
    let missing = report.asked_bytes.saturating_sub(to_be_had);
    if report.withheld_bytes >= missing && report.withheld_bytes > 0 {
        return Verdict::HeldByOtherStreams;
    }
    if report.pending_bytes >= missing && report.pending_bytes > 0 {
        return Verdict::HeldByPendingStreams;
    }
    let over_limit = shortage == Shortage::Limit;
    let enough_on_device =
        report.device_free_bytes.is_none_or(|free| report.free_bytes + free >= report.asked_bytes);
    if over_limit && enough_on_device {
        return Verdict::OverLimit;
    }
    if report.stranded_bytes >= missing {
        return Verdict::StrandedInPartlyUsedPages;
    }
    if over_limit { Verdict::OverLimit } else { Verdict::NotEnoughMemory }
}
