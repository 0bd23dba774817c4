//! Growables: memory that reserves its maximum once and then grows and shrinks in place.
//!
//! Main type: [`Growable`]. Neighbours: `heap/growth.rs` has the block, `ladder` the search for frames; the face wraps
//! this in a handle.
//!
//! Each has a heap of its own, in a pool of its own, with one arena as long as the maximum. So its idle pages serve
//! others after a shrink as those of any heap do, and nobody else's blocks stand in the way of its growth. What is
//! different is that a growth can't go elsewhere: where a page is still mapped to a frame that is busy, and work may
//! use that mapping, the host waits for this work. And what is pending, after a shrink, is waited for.

use core::fmt;

use concertina_vmm::sync::Arc;
use concertina_vmm::{Address, Driver, DriverError, Segment, StreamClock, StreamId, Use, Uses};

use crate::cell::HeapCell;
use crate::error::{AllocateError, FreeError, GrowError, RequestError};
use crate::gather::Shortage;
use crate::heap::Granted;
use crate::heaps::Heaps;
use crate::ladder::{Search, Try, largest_that_fits};
use crate::plan::{Refusal, Rules};
use crate::step::{Kind, Request, STEP_BYTES};

/// Memory that grows and shrinks in place. Not a handle: [`Heaps::discard`] gives it back.
pub struct Growable<D: Driver> {
    cell: Arc<HeapCell<D>>,
    address: Address,
    max_bytes: u64,
    bytes: u64,
    // None while there are no bytes.
    block: Option<Granted>,
    // What the block was recorded for when it was shrunk to nothing: the next one is as well.
    recorded: Uses,
    // Uses elsewhere of the bytes that a shrink left in the last step, which no block is pending for.
    left_in_step: Uses,
}

impl<D: Driver> fmt::Debug for Growable<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Growable({} of {} bytes at {})", self.bytes, self.max_bytes, self.address)
    }
}

impl<D: Driver> Growable<D> {
    /// The first address; always the same.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Bytes that it has.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Most bytes that it can have.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// The stream in whose order it grows and shrinks.
    pub fn stream(&self) -> StreamId {
        self.cell.key().stream
    }

    /// Where its steps end.
    fn end(&self) -> u32 {
        self.bytes.div_ceil(STEP_BYTES) as u32
    }
}

pub(crate) fn merge(uses: &mut Uses, more: &[Use]) {
    for use_ in more {
        match uses.iter_mut().find(|known| known.stream == use_.stream) {
            Some(known) => known.tick = known.tick.max(use_.tick),
            None => uses.push(*use_),
        }
    }
}

impl<D: Driver> Heaps<D> {
    /// Reserves addresses for a growable of up to `max_bytes`, which has none yet, and takes no memory.
    ///
    /// # Errors
    /// A maximum of 0 bytes, or beyond what can be addressed; out of memory with a report when the driver has no such
    /// range of addresses; a failed driver call.
    pub fn reserve_growable(
        &self,
        clock: &Arc<StreamClock>,
        max_bytes: u64,
    ) -> Result<Growable<D>, AllocateError> {
        let request = Request::new(max_bytes, STEP_BYTES)?;
        self.sweep_retired();
        let granularity = self.device.granularity();
        let bytes = max_bytes.next_multiple_of(granularity);
        let cell = self.add_pool_heap(self.new_pool(), clock, None);
        let id = self.new_segment_id(&cell);
        // Addresses that the driver would not take back earlier may go now.
        let segment = Segment::new(id, &self.store, bytes, granularity).or_else(|error| {
            if !error.is_out_of_memory() {
                return Err(error);
            }
            self.device.retry();
            Segment::new(id, &self.store, bytes, granularity)
        });
        match segment {
            Ok(segment) => {
                let address = segment.address();
                tracing::debug!(?id, bytes, %address, "growable reserved");
                cell.lock().add_arena(segment);
                Ok(Growable {
                    cell,
                    address,
                    max_bytes,
                    bytes: 0,
                    block: None,
                    recorded: Uses::new(),
                    left_in_step: Uses::new(),
                })
            }
            Err(error) => {
                self.forget_segment(id);
                self.forget_heap(cell.key());
                if !error.is_out_of_memory() {
                    return Err(error.into());
                }
                let large = self.heap(clock, Kind::Large);
                let frames = self.frames_to_be_had(&large);
                let report = self.report(&large, &request, Shortage::Tables, frames);
                tracing::warn!(%report, "no addresses for a growable");
                Err(AllocateError::OutOfMemory(Box::new(report)))
            }
        }
    }

    /// Makes a growable longer, in place. The content of the new bytes is undefined. Work that is queued on its stream
    /// from now on may use them, after all that others did with the memory, and with these addresses before a shrink.
    /// Nothing happens if it has as many bytes already.
    ///
    /// No call is made if the pages are held: in the rest of a page, say, and after a shrink that nobody took advantage
    /// of.
    ///
    /// The host waits where addresses can't be used yet, and no others will do: a page that was taken after a shrink,
    /// is not to be had back, and whose old mapping work on the growable's stream may still use; and, unless the
    /// streams may wait for each other on the device, uses elsewhere of what a shrink cut off.
    ///
    /// # Errors
    /// Growth over the maximum; out of memory with a report; a failed driver call. It is as long as before then.
    pub fn grow_to(&self, growable: &mut Growable<D>, bytes: u64) -> Result<(), GrowError> {
        let Growable { max_bytes, bytes: before, .. } = *growable;
        if bytes > max_bytes {
            return Err(GrowError::OverMax { bytes, max_bytes });
        }
        if bytes <= before {
            return Ok(());
        }
        if !growable.left_in_step.is_empty() {
            self.check_capture(&growable.cell).map_err(AllocateError::from)?;
            self.put_after(growable.stream(), &growable.left_in_step).map_err(AllocateError::Driver)?;
            growable.left_in_step.clear();
        }

        let start = growable.end();
        let end = bytes.div_ceil(STEP_BYTES) as u32;
        let (cell, block) = (Arc::clone(&growable.cell), growable.block);
        let request = Request { bytes: bytes - before, steps: end - start, alignment: STEP_BYTES };
        let mut heap = cell.lock();
        let granted = match block {
            Some(granted) if start == end => {
                heap.set_bytes(granted, bytes);
                granted
            }
            _ if heap.is_held_at(start, request.steps) => {
                let claimed = heap.grow_held(start, &request);
                heap.join(block, claimed, bytes)
            }
            _ => {
                drop(heap);
                self.check_capture(&cell).map_err(AllocateError::from)?;
                let granted = self.search(&cell, &request, |search| {
                    self.attempt_growth(&cell, block, bytes, start, &request, search)
                })?;
                heap = cell.lock();
                granted
            }
        };
        for use_ in std::mem::take(&mut growable.recorded) {
            // It is live: it was granted just now.
            let _ = heap.record(granted.id, use_);
        }
        drop(heap);
        (growable.block, growable.bytes) = (Some(granted), bytes);
        Ok(())
    }

    fn attempt_growth(
        &self,
        cell: &Arc<HeapCell<D>>,
        block: Option<Granted>,
        bytes: u64,
        start: u32,
        request: &Request,
        search: &mut Search,
    ) -> Result<Try, AllocateError> {
        let home = cell.key().stream;
        self.look_at_fences(cell);
        let mut heap = cell.lock();
        heap.settle_pending(|use_| self.fences.is_done(use_));
        let pending = heap.pending_before(start + request.steps);
        if !pending.is_empty() {
            let may_follow =
                self.fences.with_order(home, |order| pending.iter().all(|use_| order.may_follow(*use_)));
            if !may_follow {
                drop(heap);
                self.put_after(home, &pending)?;
                return Ok(Try::Again);
            }
            self.put_after(home, &pending)?;
            heap.take_back_before(start + request.steps);
        }
        let plan = self.with_rules(&heap, search, |rules| heap.plan_growth(start, request, rules));
        match plan {
            Ok(plan) => self.carry_out(cell, heap, plan, request, search, |heap, claimed| {
                heap.join(block, claimed, bytes)
            }),
            Err(Refusal::Short) if search.is_short_of_mappings() => Ok(Try::Short(Shortage::Tables)),
            Err(Refusal::Short) => Ok(Try::Short(self.what_is_short())),
            Err(Refusal::Page(page)) => {
                let stale = heap.arenas.first().and_then(|arena| arena.segment.stale(page));
                drop(heap);
                match stale.and_then(|(_, last_use)| last_use) {
                    Some(last_use) => {
                        self.fences.host_wait_for(last_use)?;
                        Ok(Try::Again)
                    }
                    // Nobody else backs pages of this heap.
                    None => Ok(Try::Short(self.what_is_short())),
                }
            }
        }
    }

    /// Puts what is queued on `waiter` from now on after the uses: by waits on the device where the streams' rules
    /// allow that, else by a wait of the host. No heap's lock is held in the second case.
    pub(crate) fn put_after(&self, waiter: StreamId, uses: &[Use]) -> Result<(), DriverError> {
        let (on_device, on_host): (Vec<Use>, Vec<Use>) =
            self.fences.with_order(waiter, |order| uses.iter().partition(|use_| order.may_follow(**use_)));
        on_host.into_iter().try_for_each(|use_| self.fences.host_wait_for(use_))?;
        self.fences.wait(waiter, &on_device)
    }

    /// Makes a growable shorter, in place, in the order of its stream: what is cut off is free. Pages with nothing left
    /// in them serve others. Nothing happens if it has as few bytes already.
    ///
    /// What was cut off is pending as long as a stream that the growable is recorded for, or one of `uses`, may still
    /// use it. (Its own stream is not made to wait for them: it may have nothing to do with the end that is gone.)
    ///
    /// # Errors
    /// If its block is not live any more: freed behind its back.
    pub fn shrink_to(&self, growable: &mut Growable<D>, bytes: u64, uses: &[Use]) -> Result<(), FreeError> {
        let Some(block) = growable.block.filter(|_| bytes < growable.bytes) else { return Ok(()) };
        let home = growable.stream();
        let mut heap = growable.cell.lock();
        self.bring_recorded_up(&mut heap, block);
        let recorded = heap.recorded(block.id.number());
        let mut waited_for = recorded.clone();
        merge(&mut waited_for, uses);
        merge(&mut waited_for, &growable.left_in_step);
        waited_for.retain(|use_| !self.fences.is_ordered(home, *use_));
        heap.shorten(block, bytes, waited_for.clone())?;
        drop(heap);
        if bytes == 0 {
            growable.block = None;
            growable.recorded = recorded;
        }
        let in_step = !bytes.is_multiple_of(STEP_BYTES);
        growable.left_in_step = if in_step { waited_for } else { Uses::new() };
        growable.bytes = bytes;
        Ok(())
    }

    /// Notes that work queued on the stream of `clock`, up to each shrink and to the end, uses the growable.
    pub fn record_growable(&self, growable: &mut Growable<D>, clock: &StreamClock) -> Result<(), FreeError> {
        let now = clock.now();
        match growable.block {
            Some(granted) => growable.cell.record(granted.id, now),
            None if now.stream == growable.stream() => Ok(()),
            None => {
                merge(&mut growable.recorded, &[now]);
                Ok(())
            }
        }
    }

    /// Gives a growable back, in the order of its stream. Its frames serve others at once; its addresses go when no
    /// work can use them any more.
    pub fn discard(&self, mut growable: Growable<D>) {
        if let Err(error) = self.shrink_to(&mut growable, 0, &[]) {
            tracing::error!(%error, "a growable was freed behind its handle");
        }
        let cell = growable.cell;
        let retired = {
            let mut heap = cell.lock();
            heap.let_go();
            heap.is_retired()
        };
        if retired {
            self.finish_retired(cell.key().stream);
        }
        self.finish_pool_heap(&cell);
    }

    /// The most bytes that a growable would grow by, with so many frames to be had.
    pub(crate) fn largest_growth(&self, cell: &HeapCell<D>, frames: u64) -> u64 {
        let heap = cell.lock();
        let search = self.bounded_search(frames);
        let start = heap.live_end();
        let room = heap.arenas.first().map_or(0, |arena| arena.segment.pages() * heap.steps_per_page());
        let fits = |steps: u64| {
            let Ok(request) = Request::new(steps * STEP_BYTES, STEP_BYTES) else { return false };
            self.with_rules(&heap, &search, |rules| {
                // What is not done is waited for.
                let rules = Rules { done: &|_| true, ..*rules };
                heap.plan_growth(start, &request, &rules).is_ok()
            })
        };
        largest_that_fits(1, u64::from(room.saturating_sub(start)) + 1, fits) * STEP_BYTES
    }
}

impl From<RequestError> for GrowError {
    fn from(error: RequestError) -> Self {
        Self::Allocate(error.into())
    }
}
