//! The ladder: how a request gets its memory, from the cheapest step to the report that there is none.
//!
//! Main type: [`Heaps`], its `allocate`. Neighbours: `heap` serves hits, `plan` finds places, `gather` gets frames and
//! puts them there, `out_of_memory` is the report.
//!
//! - Step 1, a bin, and step 2, the best fit if all its pages are held, make no driver call.
//! - Step 3 backs the pages of the best fit: it revives what can be revived, then takes frames in the order that the
//!   policy gives, and creates the shortfall.
//! - Step 6 makes the host wait for work whose end would free something, as little as will do, and begins again.
//! - Step 7 is out of memory, with a report.
//!
//! Steps 4 and 5 of the design (hooks, loans) are not built yet; what there is of reclaiming, bins and pending blocks, is
//! part of step 3.
//!
//! A place is claimed before its frames are gathered, and no lock is held while they are. Whatever fails on the way,
//! the claimed block becomes a hole again and the frames go to the store, from where stale pages can be revived.

use concertina_vmm::sync::Arc;
use concertina_vmm::{
    Driver, DriverError, DriverErrorKind, Frame, Place, Reservation, Segment, SegmentKind, Use, Uses,
};

use crate::cell::HeapCell;
use crate::error::AllocateError;
use crate::gather::Shortage;
use crate::heap::{Arena, Granted, Heap};
use crate::heap_lock::HeapGuard;
use crate::heaps::Heaps;
use crate::out_of_memory::{OutOfMemory, Verdict};
use crate::plan::{Others, Plan, Rules};
use crate::policy::HostWait;
use crate::references::Take;
use crate::step::{Kind, LARGEST_BYTES, Request, SMALL_BYTES, STEP_BYTES};

/// Most times that a refused request is tried again because work has ended since. Once nearly always does: what is
/// seen done stays so. Beyond that, the driver refuses what it says it has, or other threads take what is freed.
pub(crate) const MOST_LOOKS: u32 = 8;

/// How one try at a request ended.
pub(crate) enum Try {
    Served(Granted),
    /// Something changed that a new plan may use.
    Again,
    /// Less is to be had than the plan needs.
    Short(Shortage),
}

/// What is learnt over the tries at one request.
pub(crate) struct Search {
    /// Stale pages whose frame turned out to be busy in another heap.
    blocked: Vec<Place>,
    /// Bound on the frames of a plan, once a first try came up short.
    frames: Option<u64>,
    /// Whether the driver had no room in its tables before: once more may be a matter of the budget that nobody knows,
    /// twice is not.
    tables_full: bool,
    /// Bound on the new mappings of a plan, once no mapping could be removed any more to make room for them.
    mappings: Option<u64>,
    others: Others,
}

impl Search {
    pub(crate) const fn new() -> Self {
        Self { blocked: Vec::new(), frames: None, tables_full: false, mappings: None, others: Others::Ask }
    }

    /// Whether a plan that comes up short is refused by a bound that an earlier try found.
    pub(crate) fn is_short_of_mappings(&self) -> bool {
        self.mappings.is_some()
    }
}

impl<D: Driver> Heaps<D> {
    /// Serves a request from this heap.
    ///
    /// # Errors
    /// Out of memory with a report, or a failed driver call. Either way all live blocks are as they were, every frame
    /// and mapping is where it is counted, and the same request may be made again.
    pub fn allocate(&self, cell: &Arc<HeapCell<D>>, request: &Request) -> Result<Granted, AllocateError> {
        let hit = cell.hit_entered(cell.lock(), request, Take::None);
        hit.map_or_else(|| self.allocate_missed(cell, request), |(granted, _)| Ok(granted))
    }

    /// Serves a request that [`HeapCell::hit_entered`](crate::HeapCell::hit_entered) did not, just now.
    ///
    /// # Errors
    /// As [`Heaps::allocate`].
    #[cold]
    pub fn allocate_missed(
        &self,
        cell: &Arc<HeapCell<D>>,
        request: &Request,
    ) -> Result<Granted, AllocateError> {
        self.check_capture(cell)?;
        if self.is_fixed(cell) {
            return Ok(self.allocate_held(cell, request)?);
        }
        match self.device.segment_kind() {
            SegmentKind::Malloc => self.allocate_by_malloc(cell, request),
            SegmentKind::Reserved => self.search(cell, request, |search| self.attempt(cell, request, search)),
        }
    }

    /// Tries until the request is served, or nothing is left to try.
    pub(crate) fn search(
        &self,
        cell: &Arc<HeapCell<D>>,
        request: &Request,
        mut attempt: impl FnMut(&mut Search) -> Result<Try, AllocateError>,
    ) -> Result<Granted, AllocateError> {
        let mut search = Search::new();
        // Whether the work that memory was missing for may have ended by itself since the try before.
        let mut may_have_ended = self.settings.host_wait == HostWait::LastResort;
        let mut looks = MOST_LOOKS;
        self.sweep_retired();
        loop {
            let shortage = match attempt(&mut search)? {
                Try::Served(granted) => {
                    self.unmap_eagerly();
                    return Ok(granted);
                }
                Try::Again => continue,
                Try::Short(shortage) => shortage,
            };
            // The best fit needed more frames than there are; another place may need fewer.
            self.reclaim();
            self.sweep_retired();
            let frames = self.frames_to_be_had(cell);
            if shortage != Shortage::Tables && search.frames.is_none_or(|before| frames < before) {
                search.frames = Some(frames);
                continue;
            }
            if self.never_fits(request).is_none() && self.wait_for_work(cell, shortage)? {
                search = Search::new();
                continue;
            }
            // The report is of this moment, the refusal of one before.
            let fits_now = looks > 0 && self.would_fit(cell, request, frames);
            if std::mem::take(&mut may_have_ended) || fits_now {
                looks = looks.saturating_sub(1);
                search = Search::new();
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
        self.carry_out(cell, heap, plan, request, search, |heap, block| heap.grant(block, request))
    }

    /// Backs the pages of a plan. `hand_out` makes of the claimed block what was asked for.
    pub(crate) fn carry_out(
        &self,
        cell: &HeapCell<D>,
        mut heap: HeapGuard<D>,
        plan: Plan,
        request: &Request,
        search: &mut Search,
        hand_out: impl FnOnce(&mut Heap<D>, u32) -> Granted,
    ) -> Result<Try, AllocateError> {
        if plan.frames() > 0 && heap.has_bins() {
            heap.empty_bins();
            return Ok(Try::Again);
        }
        if let Some(room) = self.room_for_mappings().filter(|room| plan.new_mappings() > *room) {
            drop(heap);
            if self.make_room(plan.new_mappings() - room) == 0 {
                // Another place may need fewer mappings.
                search.mappings = Some(room);
            }
            return Ok(Try::Again);
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
        let mappings = claim.mappings();
        match self.place(&mut heap, claim) {
            Ok(block) => Ok(Try::Served(hand_out(&mut heap, block))),
            Err(error) if error.is_out_of_memory() => {
                drop(heap);
                let again = !search.tables_full && self.make_room(mappings) > 0;
                search.tables_full = true;
                Ok(if again { Try::Again } else { Try::Short(Shortage::Tables) })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Takes back the heap's oldest pending block, by a wait on the device, if the plan needs more frames than the policy
    /// would create. Its hole may serve better than the plan, and its pages are held: to rob others of frames while
    /// pending blocks lie there leaves stale pages everywhere, which can't be used again before events are seen done.
    /// Returns whether a block came back.
    fn take_back_for(&self, heap: &mut Heap<D>, request: &Request, plan: &Plan) -> bool {
        let room = self.create_first_bytes(request).saturating_sub(self.store.mapped_bytes());
        heap.has_pending()
            && plan.frames() as u64 > room / self.store.frame_bytes()
            && self.take_back(heap, heap.key().stream)
    }

    fn plan(&self, heap: &Heap<D>, request: &Request, search: &Search) -> Option<Plan> {
        self.with_rules(heap, search, |rules| heap.plan(request, rules))
    }

    /// Has a plan made by the rules as they are for this heap at this moment.
    pub(crate) fn with_rules<T>(
        &self,
        heap: &Heap<D>,
        search: &Search,
        make: impl FnOnce(&Rules<'_, D>) -> T,
    ) -> T {
        let waiter = heap.key().stream;
        let directory = self.store.directory();
        self.fences.with_order(waiter, |order| {
            let may_serve = |frame: &Frame<D>| frame.uses().iter().all(|&use_| order.may_take(use_));
            let rules = Rules {
                done: &|use_| order.is_done(use_),
                may_serve: &may_serve,
                directory: &directory,
                blocked: &search.blocked,
                others: search.others,
                frames: search.frames,
                mappings: search.mappings,
            };
            make(&rules)
        })
    }

    /// Looks which work is done by now: of the heap's own stream, and of those that its pending blocks wait for.
    pub(crate) fn look_at_fences(&self, cell: &HeapCell<D>) {
        self.look_at_pending(cell);
        if let Err(error) = self.fences.poll(cell.key().stream) {
            tracing::warn!(%error, "could not look at a fence");
        }
    }

    /// Looks which of the work that a heap's pending blocks wait for is done: one look at each stream.
    pub(crate) fn look_at_pending(&self, cell: &HeapCell<D>) {
        // Each use has an event of its own, from its free. Where that failed, one for the last use covers all before.
        let uses: Uses = cell.lock().last_pending_uses().collect();
        let looked = uses
            .iter()
            .try_for_each(|use_| self.fences.cover(*use_))
            .and_then(|()| uses.iter().try_for_each(|use_| self.fences.poll(use_.stream)));
        if let Err(error) = looked {
            tracing::warn!(%error, "could not look at a fence");
        }
    }

    /// Makes the host wait for some work whose end may serve the request, if that is allowed and there is any: for the
    /// stream's own first, and for no more than one event. Not while the stream captures, nor for what is captured.
    /// Returns whether it waited.
    pub(crate) fn wait_for_work(&self, cell: &HeapCell<D>, shortage: Shortage) -> Result<bool, DriverError> {
        let waiter = cell.key().stream;
        if self.settings.host_wait == HostWait::Never || self.fences.captures(waiter) {
            return Ok(false);
        }
        let mut cells = self.cells();
        cells.sort_by_key(|other| other.key().stream != waiter);
        let unmaps = shortage == Shortage::Tables;
        let found = cells.iter().find_map(|other| {
            let stream = other.key().stream;
            let serves = self.fences.with_order(waiter, |order| order.may_ever_take_of(stream));
            if stream != waiter && !serves && !unmaps {
                return None;
            }
            let done = |use_| self.fences.is_done(use_) || !self.fences.can_wait_for(use_);
            let idle = |use_| unmaps || !self.may_take(waiter, use_);
            other.lock().unfinished(done, idle, |_| unmaps)
        });
        // Frames of the store come from pages that are stale now, and from streams that are gone.
        let found = found.or_else(|| {
            let directory = self.store.directory();
            self.fences.with_order(waiter, |order| {
                directory.free_uses().filter_map(|use_| order.awaited(use_)).min_by_key(|use_| use_.tick)
            })
        });
        let Some(use_) = found else { return Ok(false) };
        self.host_waits_for(use_)
    }

    /// Makes the host wait for a use; false if the driver would not have it, and is not lost: then the request is refused
    /// as it would have been without.
    pub(crate) fn host_waits_for(&self, use_: Use) -> Result<bool, DriverError> {
        tracing::debug!(stream = use_.stream.get(), "the host waits for work whose memory is needed");
        match self.fences.host_wait_for(use_) {
            Ok(()) => Ok(true),
            Err(error) if error.kind == DriverErrorKind::Lost => Err(error),
            Err(error) => {
                tracing::warn!(%error, stream = use_.stream.get(), "could not wait for a stream");
                Ok(false)
            }
        }
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
        let arenas = heap.arenas.iter().filter(|arena| !arena.is_vacant()).count();
        let needed = (u64::from(request.steps) * STEP_BYTES).next_multiple_of(granularity);
        // The first segment of a heap is a small part of the device and each further one twice the last: few segments
        // for a heap that grows, few addresses for one of many streams that don't.
        let part = match cell.key().kind {
            Kind::Large => 16,
            Kind::Small => 128,
        };
        let doubled = (self.device_bytes / part) << arenas.min(16);
        let wished = self.settings.reservation_bytes.unwrap_or(doubled.min(self.device_bytes));
        let mut bytes = wished.max(needed).min(LARGEST_BYTES).next_multiple_of(granularity);
        let alignment = request.alignment.max(granularity);
        let vacant = heap.vacant();
        let id = vacant.map_or_else(|| self.new_segment_id(cell), |arena| heap.arenas[arena].segment.id());
        loop {
            match Segment::new(id, &self.store, bytes, alignment) {
                Ok(segment) => {
                    tracing::debug!(?id, bytes, address = %segment.address(), "segment reserved");
                    match vacant {
                        Some(arena) => heap.arenas[arena] = Arena::new(segment),
                        None => heap.add_arena(segment),
                    }
                    return Ok(());
                }
                // A smaller one may find room where a generous one doesn't.
                Err(error) if error.is_out_of_memory() && bytes > needed => {
                    bytes = (bytes / 2).max(needed).next_multiple_of(granularity);
                }
                Err(error) => {
                    if vacant.is_none() {
                        self.forget_segment(id);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Whether a segment of so many pages could be reserved: tried, and given back. For reports only.
    fn has_addresses(&self, pages: u64, alignment: u64) -> bool {
        let granularity = self.device.granularity();
        Reservation::new(&self.device, pages * granularity, alignment.max(granularity)).is_ok()
    }

    // --- out of memory ----------------------------------------------------------------------------------------------

    /// Whether the request is larger than all that the device or the limit could ever give.
    pub(crate) fn never_fits(&self, request: &Request) -> Option<Shortage> {
        let bytes = u64::from(request.steps) * STEP_BYTES;
        if bytes > self.device_bytes {
            return Some(Shortage::Device);
        }
        self.settings.limit_bytes.filter(|limit| bytes > *limit).map(|_| Shortage::Limit)
    }

    /// Which of the two bounds on further frames is the nearer one.
    pub(crate) fn what_is_short(&self) -> Shortage {
        let on_device = self.device.memory_info().map_or(0, |info| info.free_bytes);
        match self.settings.limit_bytes {
            Some(limit) if limit.saturating_sub(self.store.mapped_bytes()) <= on_device => Shortage::Limit,
            _ => Shortage::Device,
        }
    }

    /// Frames that a request of this heap could have: free ones that it may take, and those that could be created.
    pub(crate) fn frames_to_be_had(&self, cell: &HeapCell<D>) -> u64 {
        let waiter = cell.key().stream;
        let in_store = self.store.count_free(|use_| self.may_take(waiter, use_)) as u64;
        let cells = self.cells();
        let in_pages =
            cells.iter().map(|cell| cell.lock().takeable_frames(|use_| self.may_take(waiter, use_)));
        let frame = self.store.frame_bytes();
        let below_limit =
            self.settings.limit_bytes.map(|limit| limit.saturating_sub(self.store.mapped_bytes()));
        let on_device = self.device.memory_info().map_or(0, |info| info.free_bytes);
        in_pages.sum::<u64>() + in_store + below_limit.map_or(on_device, |bytes| bytes.min(on_device)) / frame
    }

    pub(crate) fn report(
        &self,
        cell: &Arc<HeapCell<D>>,
        request: &Request,
        shortage: Shortage,
        frames: u64,
    ) -> OutOfMemory {
        let waiter = cell.key().stream;
        let frame_bytes = self.store.frame_bytes();
        let device_free_bytes = self.device.memory_info().ok().map(|info| info.free_bytes);
        let may_take = |use_| self.may_take(waiter, use_);
        let withheld_in_store =
            self.store.free_frames().saturating_sub(self.store.count_free(may_take)) as u64;
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
        report.verdict = report.verdict(shortage, frames * frame_bytes);
        report
    }

    /// The largest request of this stream that would succeed with so many frames to be had, in bytes.
    fn largest(&self, cell: &Arc<HeapCell<D>>, frames: u64) -> u64 {
        if cell.is_of_growable() {
            return self.largest_growth(cell, frames);
        }
        if cell.graph_pool().is_some() {
            return self.largest_in(cell, frames, 1, u64::MAX);
        }
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
        let search = self.bounded_search(frames);
        let fits = |steps: u64| {
            let request = Request::new(steps * STEP_BYTES, STEP_BYTES);
            request.is_ok_and(|request| self.fits(&heap, &request, &search))
        };
        let largest_hole = heap.holes.largest().map_or(0, |hole| u64::from(hole.steps()));
        let above = (largest_hole.max(frames * per_page) + 2 * per_page).min(most) + 1;
        largest_that_fits(least, above, fits) * STEP_BYTES
    }

    /// Whether a request would be served under the bounds of this search.
    fn fits(&self, heap: &Heap<D>, request: &Request, search: &Search) -> bool {
        let pages = u64::from(request.steps.div_ceil(heap.steps_per_page()));
        let most = [search.frames, search.mappings].into_iter().flatten().min();
        self.plan(heap, request, search).is_some()
            || (!heap.has_room(request)
                && most.is_none_or(|most| pages <= most)
                && self.has_addresses(pages, request.alignment))
    }

    /// Whether the request would be served at this moment, with so many frames to be had.
    fn would_fit(&self, cell: &HeapCell<D>, request: &Request, frames: u64) -> bool {
        if self.never_fits(request).is_some() {
            return false;
        }
        if cell.is_of_growable() {
            return self.largest_growth(cell, frames) >= u64::from(request.steps) * STEP_BYTES;
        }
        self.fits(&cell.lock(), request, &self.bounded_search(frames))
    }

    /// A search under the bounds of this moment: for reports.
    pub(crate) fn bounded_search(&self, frames: u64) -> Search {
        Search {
            frames: Some(frames),
            mappings: self.room_for_mappings(),
            others: Others::Leave,
            ..Search::new()
        }
    }
}

/// The largest number from `least` to `above`, exclusive, that fits; 0 if not even `least` does.
pub(crate) fn largest_that_fits(least: u64, mut above: u64, fits: impl Fn(u64) -> bool) -> u64 {
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
    known
}
