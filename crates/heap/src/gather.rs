//! Gathering frames for a claimed block, and putting them under its pages.
//!
//! Main types: [`Claim`], [`Shortage`]. Neighbours: `ladder` decides when; `heap` and the frame store give frames up as
//! owned values; the fences put the block's stream after their last uses.

use std::collections::HashSet;

use concertina_vmm::sync::Ordering;
use concertina_vmm::{
    Access, CreateError, Driver, DriverError, Frame, FrameId, PageRange, Place, ReleaseError, Segment,
    StreamId, Use, Uses,
};

use crate::cell::HeapCell;
use crate::heap::Heap;
use crate::heap_lock::HeapGuard;
use crate::heaps::Heaps;
use crate::plan::{Backing, Plan};
use crate::step::Request;

/// What ended the search for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The allocator's limit.
    Limit,
    /// Physical memory of the device.
    Device,
    /// Addresses or mappings of the driver.
    Tables,
}

/// A claimed block, its plan, and the frames gathered for it so far.
pub(crate) struct Claim<D: Driver> {
    block: u32,
    plan: Plan,
    /// Frames that pages of the plan are still mapped to, by page.
    revived: Vec<(u32, Frame<D>)>,
    /// Frames for the other pages.
    frames: Vec<Frame<D>>,
    /// Which of them were created for it.
    created: HashSet<FrameId>,
}

impl<D: Driver> Claim<D> {
    pub(crate) fn new(block: u32, plan: Plan) -> Self {
        let frames = plan.frames();
        let revived = Vec::with_capacity(plan.backing.len() - frames);
        Self { block, plan, revived, frames: Vec::with_capacity(frames), created: HashSet::new() }
    }

    fn missing(&self) -> usize {
        self.plan.frames() - self.frames.len()
    }

    /// Whether frames that are not in the block's own heap are to revive pages.
    pub(crate) fn asks_others(&self) -> bool {
        self.plan
            .backing
            .iter()
            .any(|(_, backing)| matches!(backing, Backing::ReviveOther(..) | Backing::ReviveStore(_)))
    }

    /// Number of mappings by which there will be more.
    pub(crate) fn mappings(&self) -> u64 {
        self.plan.new_mappings()
    }

    /// The last uses of all frames, one a stream.
    fn uses(&self) -> Uses {
        let mut uses = Uses::new();
        for use_ in self.revived.iter().map(|(_, frame)| frame).chain(&self.frames).flat_map(Frame::uses) {
            match uses.iter_mut().find(|known: &&mut Use| known.stream == use_.stream) {
                Some(known) => known.tick = known.tick.max(use_.tick),
                None => uses.push(*use_),
            }
        }
        uses
    }
}

impl<D: Driver> Heap<D> {
    /// Takes the frames out of the heap's own idle pages that the plan revives. Returns whether all were still there.
    pub(crate) fn revive_own(&mut self, claim: &mut Claim<D>) -> bool {
        for &(page, backing) in &claim.plan.backing {
            if let Backing::ReviveOwn { frame, arena, page: from } = backing {
                // The heap's lock may have been let go of since the plan was made: the page may hold another frame.
                let holds =
                    self.arenas[arena as usize].segment.frame(from).is_some_and(|held| held.id() == frame);
                let Some(frame) = holds.then(|| self.take_page(arena, from)).flatten() else { return false };
                claim.revived.push((page, frame));
            }
        }
        true
    }
}

impl<D: Driver> Heaps<D> {
    /// Releases the frames that were created for a request which can't be served: its refusal leaves none behind.
    pub(crate) fn release_created(&self, claim: &mut Claim<D>) {
        let created = std::mem::take(&mut claim.created);
        for frame in claim.frames.extract_if(.., |frame| created.contains(&frame.id())) {
            match self.store.release(frame) {
                Ok(_) => {}
                Err(ReleaseError::Mapped(frame)) => self.store.put([frame]),
                // It stays on the retry list.
                Err(ReleaseError::Driver(error)) => tracing::warn!(%error, "could not release a frame"),
            }
        }
    }

    /// Gives a claimed block up: it becomes a hole again, and its frames free ones of the store.
    pub(crate) fn abandon(&self, heap: &mut Heap<D>, claim: Claim<D>) {
        self.store.put(claim.revived.into_iter().map(|(_, frame)| frame).chain(claim.frames));
        heap.abandon(claim.block);
    }

    /// Asks the store and other heaps for the frames that the plan revives from there. Returns the first page whose
    /// frame turned out to be busy. No heap's lock is held on entry.
    pub(crate) fn revive_from_others(&self, cell: &HeapCell<D>, claim: &mut Claim<D>) -> Option<Place> {
        let waiter = cell.key().stream;
        let segment = cell.lock().arenas[claim.plan.arena as usize].segment.id();
        for &(page, backing) in &claim.plan.backing {
            let frame = match backing {
                Backing::ReviveStore(id) => self.store.take_frame(id, |frame| self.may_serve(waiter, frame)),
                Backing::ReviveOther(id, place) => self.take_from_place(waiter, id, place),
                _ => continue,
            };
            match frame {
                Some(frame) => claim.revived.push((page, frame)),
                None => return Some(Place { segment, page }),
            }
        }
        None
    }

    /// Takes this very frame from an idle page of another heap.
    fn take_from_place(&self, waiter: StreamId, id: FrameId, place: Place) -> Option<Frame<D>> {
        let cell = self.cell_of(place.segment)?;
        let mut heap = cell.lock();
        let arena = heap.arena_of(place.segment)?;
        let holds =
            heap.arenas[arena as usize].segment.frame(place.page).is_some_and(|frame| frame.id() == id);
        if !holds {
            return None;
        }
        if cell.key().stream != waiter && !heap.is_takeable(arena, place.page) {
            // What lies in the bins of another stream may keep the frame from this one for good. (The stream's own other
            // heap is left alone, which fills its bins again at once: on the trace s6 that is 1.0079 against 1.0087.)
            heap.empty_bins();
        }
        if !self.may_take(waiter, heap.last_use(arena, place.page)) {
            return None;
        }
        heap.take_page(arena, place.page)
    }

    /// Gets the frames that the plan needs beside those it revives, in the order that the policy gives, and puts the
    /// block's stream after the last uses of all of them.
    ///
    /// Takes the heap's lock and gives it back; in between it may be let go of. A shortage is no error: the claim keeps
    /// what was gathered.
    pub(crate) fn gather(
        &self,
        cell: &HeapCell<D>,
        mut heap: HeapGuard<D>,
        request: &Request,
        claim: &mut Claim<D>,
    ) -> (HeapGuard<D>, Result<Option<Shortage>, DriverError>) {
        let mut outcome = Ok(None);
        if claim.missing() > 0 {
            let first = self.create_first_bytes(request);
            if self.store.mapped_bytes() + self.store.frame_bytes() <= first {
                drop(heap);
                outcome = self.create(claim, first);
                heap = cell.lock();
            }
            if outcome.is_ok() && claim.missing() > 0 {
                (heap, outcome) = self.steal_or_create(cell, heap, claim);
            }
        }
        let outcome = match outcome {
            Ok(_) if claim.missing() == 0 => {
                self.fences.wait(cell.key().stream, &claim.uses()).map(|()| None)
            }
            other => other,
        };
        (heap, outcome)
    }

    /// Most mapped bytes up to which frames are created rather than stolen for the request.
    pub(crate) fn create_first_bytes(&self, request: &Request) -> u64 {
        let wished = self.settings.policy.create_first_bytes(self.live.peak_with(request.bytes));
        wished.min(self.store.expected_most_bytes())
    }

    fn steal_or_create(
        &self,
        cell: &HeapCell<D>,
        mut heap: HeapGuard<D>,
        claim: &mut Claim<D>,
    ) -> (HeapGuard<D>, Result<Option<Shortage>, DriverError>) {
        let before = claim.frames.len();
        let waiter = cell.key().stream;
        self.take_from_store(claim, |use_| {
            self.fences.with_order(waiter, |order| order.is_before(use_) && order.may_take(use_))
        });
        heap.take_idle(claim.missing(), |_| true, &mut claim.frames);
        if claim.missing() > 0 {
            drop(heap);
            self.steal_from_others(cell, claim);
            if claim.missing() > 0 {
                self.take_back_pending(cell, claim);
            }
            heap = cell.lock();
        }
        let stolen = (claim.frames.len() - before) as u64;
        self.counters.stolen.fetch_add(stolen, Ordering::Relaxed);
        if claim.missing() == 0 {
            return (heap, Ok(None));
        }
        drop(heap);
        let outcome = self.create(claim, u64::MAX);
        (cell.lock(), outcome)
    }

    fn take_from_store(&self, claim: &mut Claim<D>, allowed: impl Fn(Use) -> bool) {
        let missing = claim.missing();
        self.store.take(missing, allowed, &mut claim.frames);
    }

    /// Takes idle frames from the other heaps: of the same stream first, then those whose last use is over, then, where
    /// the rule allows it, those that the block's stream will wait for on the device.
    fn steal_from_others(&self, cell: &HeapCell<D>, claim: &mut Claim<D>) {
        let waiter = cell.key().stream;
        let (same_stream, others): (Vec<_>, Vec<_>) = self
            .cells_that_may_give()
            .into_iter()
            .filter(|other| other.key() != cell.key())
            .partition(|other| other.key().stream == waiter);
        for other in &same_stream {
            self.steal_from(other, claim, |use_| self.may_take(waiter, use_));
        }
        for other in &others {
            if claim.missing() == 0 {
                return;
            }
            self.look_at_streams(waiter, core::slice::from_ref(other));
            let ordered = |use_| self.fences.is_ordered(waiter, use_) && self.may_take(waiter, use_);
            self.steal_from(other, claim, ordered);
        }
        if claim.missing() > 0 {
            // Frames of the store may be of streams whose heaps hold nothing.
            for use_ in self.store.last_free_uses() {
                self.look_at_use(waiter, use_);
            }
        }
        self.take_from_store(claim, |use_| self.may_take(waiter, use_));
        for other in &others {
            self.steal_from(other, claim, |use_| self.may_take(waiter, use_));
        }
    }

    fn steal_from(&self, other: &HeapCell<D>, claim: &mut Claim<D>, allowed: impl Fn(Use) -> bool) {
        let missing = claim.missing();
        if missing == 0 {
            return;
        }
        self.look_at_pending(other);
        let mut heap = other.lock();
        heap.empty_bins();
        heap.settle_pending(|use_| self.fences.is_done(use_));
        heap.take_idle(missing, allowed, &mut claim.frames);
    }

    /// Takes pending blocks back before their other streams are done, oldest first, by making their own stream wait for
    /// those on the device; and then the frames that this frees. As few as will do.
    fn take_back_pending(&self, cell: &HeapCell<D>, claim: &mut Claim<D>) {
        let waiter = cell.key().stream;
        // No others have a page that would come free.
        let mut cells = self.cells_that_may_give();
        // The block's own stream first: its frames need no further wait.
        cells.sort_by_key(|other| other.key().stream != waiter);
        for other in cells {
            let mut heap = other.lock();
            // Frames that come back that way were used just now: this stream will have to wait for that one.
            if !heap.has_pending() || !self.may_take(waiter, other.clock().now()) {
                continue;
            }
            while claim.missing() > 0 {
                if !self.take_back(&mut heap, waiter) {
                    break;
                }
                let missing = claim.missing();
                heap.take_idle(missing, |_| true, &mut claim.frames);
            }
        }
    }

    /// Takes the heap's oldest pending block back whose uses its stream may wait for on the device, and puts it behind
    /// them, for a request on the stream `asked`. Returns whether a block came back.
    pub(crate) fn take_back(&self, heap: &mut Heap<D>, asked: StreamId) -> bool {
        let home = heap.key().stream;
        let oldest = self.fences.with_order(home, |order| heap.oldest_pending(|use_| order.may_follow(use_)));
        let order = |uses: &Uses| match home == asked {
            true => self.fences.wait(home, uses),
            false => self.fences.wait_unasked(home, uses),
        };
        oldest.is_some_and(|oldest| heap.take_back_early(oldest, |uses| order(uses).is_ok()))
    }

    /// Creates frames for the claim while mapped bytes stay within `most`.
    fn create(&self, claim: &mut Claim<D>, most: u64) -> Result<Option<Shortage>, DriverError> {
        let mut retried = false;
        while claim.missing() > 0 && self.store.mapped_bytes() + self.store.frame_bytes() <= most {
            let shortage = match self.store.create() {
                Ok(frame) => {
                    self.counters.created.fetch_add(1, Ordering::Relaxed);
                    claim.created.insert(frame.id());
                    claim.frames.push(frame);
                    continue;
                }
                Err(CreateError::OverLimit { .. }) => Shortage::Limit,
                Err(CreateError::Driver(error)) if error.is_out_of_memory() => Shortage::Device,
                Err(CreateError::Driver(error)) => return Err(error),
            };
            // Frames that the driver would not take back earlier may go now.
            if retried || self.store.retry() + self.device.retry() == 0 {
                return Ok(Some(shortage));
            }
            retried = true;
        }
        Ok(None)
    }

    /// Puts the gathered frames under the pages of the claimed block. Returns the block.
    ///
    /// # Errors
    /// What the driver says. The block is given up then; frames that were mapped already are in the store, and their
    /// pages can be revived later.
    pub(crate) fn place(&self, heap: &mut Heap<D>, claim: Claim<D>) -> Result<u32, DriverError> {
        let segment = &mut heap.arenas[claim.plan.arena as usize].segment;
        let pages = match self.back(segment, &claim) {
            Ok(pages) => pages,
            Err(error) => {
                self.abandon(heap, claim);
                return Err(error);
            }
        };
        self.counters.revived.fetch_add(claim.revived.len() as u64, Ordering::Relaxed);
        let frames = claim.revived.into_iter().map(|(_, frame)| frame).chain(claim.frames);
        let held = pages.len();
        for (page, frame) in pages.into_iter().zip(frames) {
            segment.hold(page, frame);
        }
        heap.note_held(held);
        Ok(claim.block)
    }

    /// Unmaps what is stale under the claim's pages and no longer used, maps, and grants access with one call over all
    /// new pages. Returns the page of each frame: those revived, then the others.
    fn back(&self, segment: &mut Segment<D>, claim: &Claim<D>) -> Result<Vec<u32>, DriverError> {
        let fresh = || {
            claim
                .plan
                .backing
                .iter()
                .filter(|(_, backing)| matches!(backing, Backing::Map | Backing::Replace))
                .map(|(page, _)| *page)
        };
        // A page may have been unmapped since the plan was made, by a trim of another thread.
        let stale: Vec<u32> = fresh().filter(|&page| segment.stale(page).is_some()).collect();
        segment.unmap_stale(&stale)?;
        self.counters.replaced.fetch_add(stale.len() as u64, Ordering::Relaxed);

        let revived = claim.revived.iter().map(|(page, frame)| (*page, frame));
        let placed: Vec<(u32, &Frame<D>)> = revived.chain(fresh().zip(&claim.frames)).collect();
        let (mut first, mut end) = (u32::MAX, 0);
        for &(page, frame) in &placed {
            if segment.mapping(page).is_none() {
                segment.map(page, frame)?;
            }
            if segment.mapping(page).is_some_and(|mapping| mapping.access() == Access::None) {
                (first, end) = (first.min(page), end.max(page + 1));
            }
        }
        segment.grant(PageRange::between(first, end))?;
        Ok(placed.into_iter().map(|(page, _)| page).collect())
    }
}
