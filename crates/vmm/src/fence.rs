//! Fences: what must be over before memory may serve another stream, or before a mapping may go.
//!
//! Main types: [`Fences`], [`StreamClock`], [`Use`], [`Uses`]. Neighbours: heaps stamp what they free with a
//! [`Use`]; thieves ask [`Fences::wait`] before they place a frame; whoever unmaps asks [`Fences::is_done`];
//! `fence/capture.rs` has the streams that capture a graph, `fence/order.rs` the questions about order.
//!
//! Time on a stream is counted in *ticks*. A tick ends when an event is recorded, and that event covers every use of
//! this tick and of all before it: so any number of frees costs one event, recorded only when somebody needs it, and
//! a free on a stream costs one load of its clock.
//!
//! Why a tick is ended *before* its event is recorded: a free that reads tick `t` from the clock happened before the
//! clock moved on, so the work it follows was queued before the event of `t`. A free that comes between the two steps
//! reads `t + 1`, which that event doesn't claim to cover.

mod capture;
mod known;
mod order;

use core::fmt;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use smallvec::SmallVec;

pub use self::capture::BeginCapture;
use self::capture::{Capture, in_capture};
use self::known::Known;

pub use self::order::Order;
use crate::cross_stream::CrossStream;
use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Call, DriverError};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};
use crate::units::StreamId;

/// A use on a stream, by the tick that it ended in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Use {
    /// The stream that the work was queued on.
    pub stream: StreamId,
    /// The stream's tick when the use ended.
    pub tick: u64,
}

/// The last uses of a frame that nothing has ordered yet, at most one a stream.
pub type Uses = SmallVec<[Use; 1]>;

/// The clock of one registered stream. Shared by its heaps, so that a free reads it without a lock.
// On a cache line of its own: every free reads it, and what would lie beside it is another thread's.
#[derive(Debug)]
#[repr(align(128))]
pub struct StreamClock {
    id: StreamId,
    tick: AtomicU64,
}

impl StreamClock {
    /// Whose clock it is.
    pub fn stream(&self) -> StreamId {
        self.id
    }

    /// A use that ends now.
    #[inline]
    pub fn now(&self) -> Use {
        Use { stream: self.id, tick: self.tick.load(Ordering::Acquire) }
    }

    /// Ends the running tick and returns it.
    fn end_tick(&self) -> u64 {
        self.tick.fetch_add(1, Ordering::AcqRel)
    }
}

/// Counts of what the fences asked of the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FenceCounts {
    /// Events recorded.
    pub records: u64,
    /// Waits queued on the device.
    pub waits: u64,
    /// Waits of the host.
    pub host_waits: u64,
}

/// Waits that were put into a stream for requests on others, as long as what they wait for is not seen done.
struct Unasked {
    // The tick before the first of them.
    before: u64,
    uses: Uses,
}

struct Timeline<D: Driver> {
    stream: D::Stream,
    clock: Arc<StreamClock>,
    rule: CrossStream,
    // Every tick up to this one is seen done.
    done: u64,
    // Recorded and not seen done, by ascending tick.
    // Shared with a thread that waits for one of them.
    events: VecDeque<(u64, Arc<D::Event>)>,
    // What work queued on this stream from now on comes after: the stream's row of the known-order table.
    known: Known,
    unasked: Option<Unasked>,
    // Once nothing is queued on it any more: the last tick that somebody may ask about.
    last: Option<u64>,
    // Once it is to be forgotten: its place among those.
    leaves: Option<u64>,
    capture: Option<Capture>,
}

impl<D: Driver> Timeline<D> {
    fn is_over(&self) -> bool {
        self.leaves.is_some() && self.last.is_some_and(|last| last <= self.done)
    }

    /// A use that ends now.
    fn now(&self) -> Use {
        let now = self.clock.now();
        Use { tick: self.last.unwrap_or(now.tick), ..now }
    }

    fn covered(&self) -> u64 {
        self.events.back().map_or(self.done, |(tick, _)| (*tick).max(self.done))
    }

    /// Whether an event may show that the use is done.
    fn can_show(&self, use_: Use) -> bool {
        self.capture.is_none() || use_.tick <= self.covered()
    }
}

struct Inner<D: Driver> {
    // By stream number; `None` once forgotten. Numbers are never given twice.
    timelines: Vec<Option<Box<Timeline<D>>>>,
    // The numbers of those that are there.
    streams: BTreeSet<StreamId>,
    // Those that are to be forgotten once they are over, in the order in which that was said.
    leaving: BTreeMap<u64, StreamId>,
    left: u64,
    // Events that nobody waits for any more.
    spare: Vec<D::Event>,
    counts: FenceCounts,
}

impl<D: Driver> Inner<D> {
    fn timeline(&self, stream: StreamId) -> Option<&Timeline<D>> {
        self.timelines.get(stream.index()).and_then(Option::as_deref)
    }

    fn timeline_mut(&mut self, stream: StreamId) -> Option<&mut Timeline<D>> {
        self.timelines.get_mut(stream.index()).and_then(Option::as_deref_mut)
    }

    // A timeline stays until all of its uses are seen done.
    fn is_done(&self, use_: Use) -> bool {
        self.timeline(use_.stream).is_none_or(|timeline| use_.tick <= timeline.done)
    }

    fn note_done(&mut self, stream: StreamId, done: u64) {
        let Some(timeline) = self.timelines.get_mut(stream.index()).and_then(Option::as_mut) else { return };
        timeline.done = timeline.done.max(done);
        while timeline.events.front().is_some_and(|(tick, _)| *tick <= timeline.done) {
            if let Some((_, event)) = timeline.events.pop_front() {
                // Whoever still waits for it drops it.
                self.spare.extend(Arc::into_inner(event));
            }
        }
        if timeline.is_over() {
            self.drop_timeline(stream);
        }
    }

    fn drop_timeline(&mut self, stream: StreamId) {
        let gone = self.timelines[stream.index()].take();
        self.streams.remove(&stream);
        if let Some(place) = gone.and_then(|timeline| timeline.leaves) {
            self.leaving.remove(&place);
        }
    }

    /// Work queued on the stream from now on comes after the use.
    fn learn(&mut self, stream: StreamId, use_: Use) {
        let (most, streams) = (2 * self.streams.len(), &self.streams);
        let Some(timeline) = self.timelines.get_mut(stream.index()).and_then(Option::as_deref_mut) else {
            return;
        };
        timeline.known.learn(use_);
        // All that was queued on a stream which has gone is done: nobody asks any more whether it comes before. To look
        // for such at each departure would cost as much as there are streams.
        timeline.known.forget_if_over(most, |known| !streams.contains(&known));
    }
}

/// The fences of one device: a timeline for each registered stream, and what each stream is known to come after.
///
/// Its lock is a leaf: it is taken under a heap's lock and takes no other.
pub struct Fences<D: Driver> {
    device: Arc<Device<D>>,
    inner: Mutex<Inner<D>>,
}

impl<D: Driver> fmt::Debug for Fences<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fences").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl<D: Driver> Fences<D> {
    /// No streams yet.
    pub fn new(device: &Arc<Device<D>>) -> Self {
        let inner = Inner {
            timelines: Vec::new(),
            streams: BTreeSet::new(),
            leaving: BTreeMap::new(),
            left: 0,
            spare: Vec::new(),
            counts: FenceCounts::default(),
        };
        Self { device: Arc::clone(device), inner: Mutex::new(inner) }
    }

    /// Registers a stream under a number of its own, and keeps it alive until [`Fences::forget`].
    /// Between it and another stream the stricter of their rules holds.
    pub fn register(&self, stream: D::Stream, rule: CrossStream) -> Arc<StreamClock> {
        let mut inner = self.inner.lock();
        let number = u32::try_from(inner.timelines.len()).expect("fewer than 2^32 streams in a process");
        let clock = Arc::new(StreamClock { id: StreamId::new(number), tick: AtomicU64::new(1) });
        inner.streams.insert(clock.id);
        inner.timelines.push(Some(Box::new(Timeline {
            stream,
            clock: Arc::clone(&clock),
            rule,
            done: 0,
            events: VecDeque::new(),
            known: Known::default(),
            unasked: None,
            last: None,
            leaves: None,
            capture: None,
        })));
        clock
    }

    /// Nothing is queued on the stream from now on: sees to it that one last event covers all of its uses, and looks
    /// whether it is done. Further calls look again.
    ///
    /// # Errors
    /// A failed creation, record or query; a later call tries again.
    pub fn leave(&self, stream: StreamId) -> Result<(), DriverError> {
        {
            let mut inner = self.inner.lock();
            let Some(timeline) = inner.timeline_mut(stream) else { return Ok(()) };
            let last = timeline.now();
            timeline.last = Some(last.tick);
            self.cover_locked(&mut inner, last)?;
        }
        self.poll(stream)
    }

    /// Lets go of a stream on which nothing is queued any more, and drops what kept it alive: at once if all of its uses
    /// are seen done, else when they are. (A block of another stream may still wait for one of them.) Returns whether it
    /// has gone.
    pub fn forget(&self, stream: StreamId) -> bool {
        let mut inner = self.inner.lock();
        let place = inner.left;
        let Some(timeline) = inner.timeline_mut(stream) else { return true };
        timeline.last = Some(timeline.now().tick);
        let new = timeline.leaves.is_none();
        timeline.leaves.get_or_insert(place);
        let over = timeline.is_over();
        if over {
            inner.drop_timeline(stream);
        } else if new {
            inner.left += 1;
            inner.leaving.insert(place, stream);
        }
        over
    }

    /// Looks at the streams that are to be forgotten. Returns whether all of them have gone.
    ///
    /// # Errors
    /// A failed query; a later call looks again.
    pub fn poll_leaving(&self) -> Result<bool, DriverError> {
        let leaving = self.inner.lock().leaving.clone();
        leaving.into_values().try_for_each(|stream| self.poll(stream))?;
        Ok(self.inner.lock().leaving.is_empty())
    }

    /// The rule that a stream was registered with; `None` if it was forgotten.
    pub fn rule(&self, stream: StreamId) -> Option<CrossStream> {
        self.inner.lock().timeline(stream).map(|timeline| timeline.rule)
    }

    /// What was asked of the driver so far.
    pub fn counts(&self) -> FenceCounts {
        self.inner.lock().counts
    }

    /// A use of the stream that ends now; `None` if the stream was forgotten.
    pub fn now(&self, stream: StreamId) -> Option<Use> {
        self.inner.lock().timeline(stream).map(Timeline::now)
    }

    /// The time of every registered stream.
    pub fn all_now(&self) -> Vec<Use> {
        let inner = self.inner.lock();
        inner.streams.iter().filter_map(|stream| inner.timeline(*stream)).map(Timeline::now).collect()
    }

    /// Whether the use is already seen done. Makes no driver call.
    pub fn is_done(&self, use_: Use) -> bool {
        self.inner.lock().is_done(use_)
    }

    /// The last tick of the stream that is seen done, with all before it; `None` if the stream was forgotten.
    pub fn done(&self, stream: StreamId) -> Option<u64> {
        self.inner.lock().timeline(stream).map(|timeline| timeline.done)
    }

    /// One lock for many questions: what is seen done, and what comes before work queued on `waiter` from now on.
    pub fn with_order<T>(&self, waiter: StreamId, ask: impl FnOnce(&Order<'_, D>) -> T) -> T {
        ask(&Order { inner: &self.inner.lock(), waiter })
    }

    /// Looks which of the stream's recorded events are done, oldest first, up to the first that is not.
    ///
    /// # Errors
    /// A failed query; what was seen before it is kept.
    pub fn poll(&self, stream: StreamId) -> Result<(), DriverError> {
        self.poll_locked(&mut self.inner.lock(), stream)
    }

    fn poll_locked(&self, inner: &mut Inner<D>, stream: StreamId) -> Result<(), DriverError> {
        loop {
            let Some((tick, event)) = inner.timeline(stream).and_then(|t| t.events.front()) else {
                return Ok(());
            };
            let tick = *tick;
            if !self.device.event_query(event)? {
                return Ok(());
            }
            inner.note_done(stream, tick);
        }
    }

    /// Sees to it that an event covers the use, and looks whether it is done.
    ///
    /// # Errors
    /// A failed creation, record or query; a later call tries again.
    pub fn look_at(&self, use_: Use) -> Result<(), DriverError> {
        if self.is_done(use_) {
            return Ok(());
        }
        self.cover(use_)?;
        self.poll(use_.stream)
    }

    /// Sees to it that an event covers the use: records one if none does. Nothing happens while its stream captures: a
    /// call after the end tries again.
    ///
    /// # Errors
    /// A failed creation or record; the use stays uncovered and a later call tries again.
    pub fn cover(&self, use_: Use) -> Result<(), DriverError> {
        self.cover_locked(&mut self.inner.lock(), use_)
    }

    fn cover_locked(&self, inner: &mut Inner<D>, use_: Use) -> Result<(), DriverError> {
        match inner.timeline(use_.stream) {
            Some(timeline) if timeline.covered() < use_.tick => {}
            _ => return Ok(()),
        }
        self.settle_left(inner, use_.stream)?;
        if inner.captures(use_.stream) {
            return Ok(());
        }
        let event = match inner.spare.pop() {
            Some(event) => event,
            None => self.device.event_create()?,
        };
        let Some(timeline) = inner.timeline_mut(use_.stream) else { return Ok(()) };
        let tick = timeline.clock.end_tick();
        match self.device.event_record(&event, &timeline.stream) {
            Ok(()) => {
                timeline.events.push_back((tick, Arc::new(event)));
                inner.counts.records += 1;
                Ok(())
            }
            Err(error) => {
                inner.spare.push(event);
                Err(error)
            }
        }
    }

    /// Orders work queued on `waiter` from now on after all of `uses`, by waits on the device. Nothing is asked of the
    /// driver for uses of its own, for those seen done, and for those that `waiter` is known to come after already.
    ///
    /// # Errors
    /// A failed record or wait; the order of the uses is then not promised, and the same call may be made again. `NotReady`
    /// while `waiter` captures, or the stream of a use does and no event from before covers it.
    pub fn wait(&self, waiter: StreamId, uses: &[Use]) -> Result<(), DriverError> {
        self.wait_locked(&mut self.inner.lock(), waiter, uses)
    }

    /// The same for a stream of which the program asked nothing just now: a request on another one needs it. The program
    /// may have waited for `waiter` before, and tell it only afterwards; what it tells then does not hold for
    /// uses of `waiter` that end from now on, unless `uses` are seen done.
    ///
    /// # Errors
    /// As [`Fences::wait`].
    pub fn wait_unasked(&self, waiter: StreamId, uses: &[Use]) -> Result<(), DriverError> {
        let mut inner = self.inner.lock();
        let order = Order { inner: &inner, waiter };
        let new: Uses = uses.iter().copied().filter(|use_| !order.is_before(*use_)).collect();
        let Some(timeline) = inner.timeline(waiter).filter(|_| !new.is_empty()) else { return Ok(()) };
        let before = timeline.clock.end_tick();
        let waited = self.wait_locked(&mut inner, waiter, &new);
        // A wait that failed holds nothing up, and no event may cover what it was for.
        if let Some(timeline) = inner.timeline_mut(waiter) {
            let put_in: Uses = new.into_iter().filter(|use_| timeline.known.covers(*use_)).collect();
            if !put_in.is_empty() {
                let unasked = timeline.unasked.get_or_insert_with(|| Unasked { before, uses: Uses::new() });
                unasked.uses.extend(put_in);
            }
        }
        waited
    }

    fn wait_locked(&self, inner: &mut Inner<D>, waiter: StreamId, uses: &[Use]) -> Result<(), DriverError> {
        for &use_ in uses {
            if use_.stream == waiter || inner.is_done(use_) {
                continue;
            }
            if inner.timeline(waiter).is_none_or(|timeline| timeline.known.covers(use_)) {
                continue;
            }
            self.settle_left(inner, waiter)?;
            if inner.captures(waiter) {
                return Err(in_capture(Call::StreamWait, waiter));
            }
            self.cover_locked(inner, use_)?;
            let (Some(waiting), Some(on)) = (inner.timeline(waiter), inner.timeline(use_.stream)) else {
                continue;
            };
            // The earliest event that covers the use: a later one would also wait for work that nobody asked about.
            let at = on.events.partition_point(|(tick, _)| *tick < use_.tick);
            let Some((tick, event)) = on.events.get(at) else {
                if on.can_show(use_) {
                    continue;
                }
                return Err(in_capture(Call::EventRecord, use_.stream));
            };
            let tick = *tick;
            self.device.stream_wait(&waiting.stream, event)?;
            inner.counts.waits += 1;
            inner.learn(waiter, Use { stream: use_.stream, tick });
            if let Some(waiting) = inner.timeline_mut(waiter) {
                // Something was queued after all.
                waiting.last = waiting.last.map(|_| waiting.clock.now().tick);
            }
        }
        Ok(())
    }

    /// Whether the host may wait for the use: not for one in a capture.
    pub fn can_wait_for(&self, use_: Use) -> bool {
        self.with_order(use_.stream, |order| order.can_wait_for(use_))
    }

    /// Whether work queued on `waiter` from now on comes after the use with no further wait.
    pub fn is_ordered(&self, waiter: StreamId, use_: Use) -> bool {
        self.with_order(waiter, |order| order.is_before(use_))
    }

    /// Makes the host wait until everything queued on the stream so far is done.
    ///
    /// # Errors
    /// A failed record or synchronisation.
    pub fn host_wait(&self, stream: StreamId) -> Result<(), DriverError> {
        self.now(stream).map_or(Ok(()), |now| self.host_wait_for(now))
    }

    /// Makes the host wait until the use is done, and for no more of what is queued behind it than must be. Other threads
    /// go on meanwhile.
    ///
    /// # Errors
    /// A failed record or synchronisation; `NotReady` for a use in a capture.
    pub fn host_wait_for(&self, use_: Use) -> Result<(), DriverError> {
        let (tick, event) = {
            let mut inner = self.inner.lock();
            if inner.is_done(use_) {
                return Ok(());
            }
            self.cover_locked(&mut inner, use_)?;
            let Some(timeline) = inner.timeline(use_.stream) else { return Ok(()) };
            if !timeline.can_show(use_) {
                return Err(in_capture(Call::EventSynchronize, use_.stream));
            }
            let at = timeline.events.partition_point(|(tick, _)| *tick < use_.tick);
            let Some((tick, event)) = timeline.events.get(at) else { return Ok(()) };
            (*tick, Arc::clone(event))
        };
        let waited = !self.device.event_query(&event)?;
        if waited {
            self.device.event_synchronize(&event)?;
        }
        // Nobody else has it, so that it can be recorded again.
        drop(event);
        let mut inner = self.inner.lock();
        inner.counts.host_waits += u64::from(waited);
        inner.note_done(use_.stream, tick);
        Ok(())
    }

    /// Ends the running tick because the program tells that it waited for the stream, and returns the last one that this is
    /// true of: none behind an unasked wait, unless what that waits for is seen done.
    fn told(&self, inner: &mut Inner<D>, stream: StreamId) -> Option<u64> {
        let timeline = inner.timeline_mut(stream)?;
        let tick = timeline.clock.end_tick();
        let Some(Unasked { before, mut uses }) = timeline.unasked.take() else { return Some(tick) };
        for use_ in &uses {
            // If it can't be asked for, it counts as not done.
            let _ = self.poll_locked(inner, use_.stream);
        }
        uses.retain(|use_| !inner.is_done(*use_));
        if uses.is_empty() {
            return Some(tick);
        }
        inner.timeline_mut(stream)?.unasked = Some(Unasked { before, uses });
        Some(before)
    }

    /// The program told its own wait: work queued on `waiter` from now on comes after all queued on `on` so far, up to an
    /// unasked wait there ([`Fences::wait_unasked`]). Between streams that capture it holds until the end of the capture, and
    /// between one that does and one that does not, not at all.
    pub fn note_wait(&self, waiter: StreamId, on: StreamId) {
        let mut inner = self.inner.lock();
        if inner.captures(waiter) != inner.captures(on) {
            return;
        }
        let Some(tick) = self.told(&mut inner, on) else { return };
        inner.learn(waiter, Use { stream: on, tick });
    }

    /// The program told that its host has waited for the stream: all queued there so far is done, up to an
    /// unasked wait there.
    pub fn note_synchronized(&self, stream: StreamId) {
        let mut inner = self.inner.lock();
        // What is captured does not run.
        if inner.timeline(stream).is_none_or(|timeline| timeline.capture.is_some()) {
            return;
        }
        let Some(tick) = self.told(&mut inner, stream) else { return };
        inner.note_done(stream, tick);
    }

    /// The registered streams.
    pub fn streams(&self) -> Vec<StreamId> {
        self.inner.lock().streams.iter().copied().collect()
    }
}
