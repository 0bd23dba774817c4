//! One heap behind its lock, and the queue of frees that came while somebody else had it.
//!
//! Main types: [`HeapCell`]. Neighbours: `heaps` has all cells; whoever wants to see or change a heap takes its
//! lock here.
//!
//! A free never waits for the lock. If another thread has it, the free is queued, stamped with the time of each stream
//! that it must come after, and **whoever takes the lock next empties the queue first**. So nobody who looks into a heap
//! can miss a free that had returned before: figures, thieves, trims and the search before out of memory need no care
//! of their own. `docs/locking.md` has the cases.

use concertina_vmm::sync::{Arc, AtomicBool, AtomicU64, Ordering, Queue, fence};
use concertina_vmm::{Driver, Fences, StreamClock, Use};

use crate::block_id::BlockId;
use crate::error::FreeError;
use crate::graph::GraphPool;
use crate::heap::{DEFAULT_POOL, Granted, Heap, HeapKey};
use crate::heap_lock::{HeapGuard, HeapLock, Locked};
use crate::live::LiveCount;
use crate::references::Take;
use crate::step::{Kind, Request};
use crate::stream_heaps::StreamHeaps;

/// A block to be freed, as its handle knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freeing {
    /// Its name in the heap.
    pub id: BlockId,
    /// Bytes as asked.
    pub bytes: u64,
}

/// A free that could not have the lock.
#[derive(Debug)]
struct Queued {
    freeing: Freeing,
    // The tick of the heap's stream at the free.
    tick: u64,
    // The time of all streams at the free, if blocks of the heap were used on others.
    others: Vec<Use>,
}

/// One heap behind its lock.
// Two heaps share no cache line: of two threads with a stream each, neither slows the other.
#[derive(Debug)]
#[repr(align(128))]
pub struct HeapCell<D: Driver> {
    key: HeapKey,
    clock: Arc<StreamClock>,
    graph_pool: Option<Arc<GraphPool>>,
    fences: Arc<Fences<D>>,
    live: Arc<LiveCount>,
    lock: &'static HeapLock<D>,
    // Bytes of the pages that the heap holds; written under its lock.
    held_bytes: Arc<AtomicU64>,
    // Number of live blocks that are used on other streams.
    recorded_blocks: AtomicU64,
    // Set before the heap is retired: the last free of a block then has to see the heap off.
    retiring: AtomicBool,
    queue: Queue<Queued>,
}

impl<D: Driver> HeapCell<D> {
    pub(crate) fn new(
        heap: Heap<D>,
        clock: &Arc<StreamClock>,
        fences: &Arc<Fences<D>>,
        graph_pool: Option<&Arc<GraphPool>>,
    ) -> Self {
        Self {
            key: heap.key(),
            clock: Arc::clone(clock),
            graph_pool: graph_pool.map(Arc::clone),
            fences: Arc::clone(fences),
            live: Arc::clone(heap.live_count()),
            held_bytes: Arc::clone(heap.held_count()),
            lock: HeapLock::around(Locked::new(heap)),
            recorded_blocks: AtomicU64::new(0),
            retiring: AtomicBool::new(false),
            queue: Queue::new(),
        }
    }

    /// The heap's key.
    #[inline]
    pub fn key(&self) -> HeapKey {
        self.key
    }

    /// Whether it is the heap of one growable.
    pub(crate) fn is_of_growable(&self) -> bool {
        self.key.pool != DEFAULT_POOL && self.graph_pool.is_none()
    }

    /// The graph pool that it is in.
    pub(crate) fn graph_pool(&self) -> Option<&GraphPool> {
        self.graph_pool.as_deref()
    }

    /// The graph pool that it is in ends: the last free of a block then has to see the heap off.
    pub(crate) fn end_pool(&self) {
        self.retiring.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether a thief should look into the heap: not if its live bytes fill all but less than one of the pages that it
    /// holds. Takes no lock, for whoever has many heaps to choose from. What is free by now is counted; what others free
    /// meanwhile may be missed. A heap of small blocks is worth a look in any case, which empties its bins.
    pub(crate) fn may_give(&self, page_bytes: u64) -> bool {
        let held_bytes = self.held_bytes.load(Ordering::Relaxed);
        let may_be_idle = || held_bytes >= self.live.bytes_of(self.key.kind) + page_bytes;
        held_bytes > 0 && (self.key.kind == Kind::Small || !self.queue.is_empty() || may_be_idle())
    }

    /// The clock of the heap's stream.
    pub(crate) fn clock(&self) -> &Arc<StreamClock> {
        &self.clock
    }

    /// Waits for the lock, frees what was queued, and does what the last hit and frees have left to do: who looks finds the heap
    /// as it is.
    pub(crate) fn lock(&self) -> HeapGuard<D> {
        let mut heap = HeapGuard::lock(self.lock);
        self.drain(&mut heap);
        heap.forget_last_hit();
        heap.finish_deferred();
        heap
    }

    /// The lock itself: what is queued for whoever takes it is behind [`HeapCell::lock`].
    pub(crate) fn lock_itself(&self) -> &'static HeapLock<D> {
        self.lock
    }

    /// Serves a request that is the last one once more, in the heap, entered: same size, and its block was freed with nothing in
    /// between.
    #[inline(always)]
    pub(crate) fn hit_again_in_entered(&self, heap: &mut Heap<D>, request: &Request) -> Option<Granted> {
        debug_assert_eq!(heap.key(), self.key, "the heap that was entered is this one");
        if self.queue.is_empty() { heap.hit_again(request) } else { None }
    }

    /// Serves a request if that takes no driver call, and lets go of the heap, which was entered: what was queued there may
    /// still be there. Returns the block with a reference for its handle, if one is wanted and there is one.
    #[inline]
    pub fn hit_entered(
        &self,
        mut entered: HeapGuard<D>,
        request: &Request,
        take: Take,
    ) -> Option<(Granted, Option<Arc<StreamHeaps<D>>>)> {
        let (heap, references) = entered.parts()?;
        self.drain(heap);
        let granted = heap.hit_anew(request)?;
        Some((granted, references.take(take)))
    }

    #[inline]
    fn drain(&self, heap: &mut Heap<D>) {
        if !self.queue.is_empty() {
            self.drain_queue(heap);
        }
    }

    #[cold]
    fn drain_queue(&self, heap: &mut Heap<D>) {
        heap.forget_last_hit();
        while let Some(Queued { freeing, tick, others }) = self.queue.pop() {
            // A stream that is not there any more has been forgotten, and its uses are done.
            let stamp =
                |use_: Use| others.iter().find(|now| now.stream == use_.stream).copied().unwrap_or(use_);
            if let Err(error) = self.free_in(heap, freeing, tick, stamp) {
                tracing::error!(%error, key = ?self.key, "a queued free was refused");
            }
            self.live.note_drained(freeing.bytes);
        }
    }

    #[inline]
    fn free_in(
        &self,
        heap: &mut Heap<D>,
        freeing: Freeing,
        tick: u64,
        stamp: impl Fn(Use) -> Use,
    ) -> Result<(), FreeError> {
        let id = freeing.id;
        if !heap.has_recorded() {
            return heap.free(id, tick, |_| true);
        }
        for use_ in heap.recorded_mut(id).into_iter().flatten() {
            *use_ = stamp(*use_);
            see(&self.fences, *use_);
        }
        let freed = heap.free(id, tick, |use_| self.fences.is_done(use_));
        self.note_recorded(heap);
        freed
    }

    fn note_recorded(&self, heap: &Heap<D>) {
        self.recorded_blocks.store(heap.recorded_blocks(), Ordering::Relaxed);
    }

    /// Frees the block of the last hit, and keeps it for a request like that one. Any other block is left to
    /// [`Heaps::free_entered`](crate::Heaps::free_entered): with the heap entered, or not if another thread has the lock.
    ///
    /// # Errors
    /// The heap, entered if that did not take a wait.
    #[inline(always)]
    pub fn keep(&self, freeing: Freeing) -> Result<(), Option<HeapGuard<D>>> {
        let Some(mut entered) = HeapGuard::try_lock(self.lock) else { return Err(None) };
        if self.keep_in_entered(&mut entered, freeing) { Ok(()) } else { Err(Some(entered)) }
    }

    /// As [`HeapCell::keep`] in the heap, entered. Returns whether it was that block.
    #[inline(always)]
    pub(crate) fn keep_in_entered(&self, heap: &mut Heap<D>, freeing: Freeing) -> bool {
        debug_assert_eq!(heap.key(), self.key, "the heap that was entered is this one");
        // A heap with a last hit does not retire: whoever retires it forgets that.
        self.queue.is_empty() && heap.keep_last_hit(freeing.id, self.clock.now().tick)
    }

    /// Frees a block, or queues the free if another thread has the lock. Returns whether it was the last block of a
    /// heap that is retired.
    #[inline]
    pub(crate) fn free(&self, entered: Option<HeapGuard<D>>, freeing: Freeing) -> Result<bool, FreeError> {
        match entered {
            Some(mut entered) => self.free_in_entered(&mut entered, freeing),
            None => Ok(self.queue_free(freeing)),
        }
    }

    /// The same in the heap, entered.
    #[inline]
    pub(crate) fn free_in_entered(&self, heap: &mut Heap<D>, freeing: Freeing) -> Result<bool, FreeError> {
        self.make_ready(heap);
        self.free_in_ready(heap, freeing)
    }

    /// The same of a block that nobody else has a name for.
    #[inline]
    pub(crate) fn free_owned_in_entered(
        &self,
        heap: &mut Heap<D>,
        freeing: Freeing,
    ) -> Result<bool, FreeError> {
        self.make_ready(heap);
        if !heap.may_defer() {
            return self.free_in_ready(heap, freeing);
        }
        heap.free_later(freeing, self.clock.now().tick);
        Ok(heap.is_finished())
    }

    #[inline]
    fn make_ready(&self, heap: &mut Heap<D>) {
        debug_assert_eq!(heap.key(), self.key, "the heap that was entered is the one to free in");
        self.drain(heap);
        heap.forget_last_hit();
    }

    #[inline]
    fn free_in_ready(&self, heap: &mut Heap<D>, freeing: Freeing) -> Result<bool, FreeError> {
        // The other streams may have been given work on the block since they were recorded: up to now, it counts.
        let stamp = |use_: Use| self.fences.now(use_.stream).unwrap_or(use_);
        self.free_in(heap, freeing, self.clock.now().tick, stamp)?;
        Ok(heap.is_finished())
    }

    #[cold]
    fn queue_free(&self, freeing: Freeing) -> bool {
        // Whoever recorded a use of this very block did so before its free.
        let any_recorded = self.recorded_blocks.load(Ordering::Relaxed) > 0;
        let others = if any_recorded { self.fences.all_now() } else { Vec::new() };
        self.live.note_queued(freeing.bytes);
        self.queue.push(Queued { freeing, tick: self.clock.now().tick, others });
        // Either this sees that the heap retires, or who retires it sees the block in the queue: both first write and
        // then read, with a fence in between.
        fence(Ordering::SeqCst);
        self.retiring.load(Ordering::Relaxed) && self.lock().is_finished()
    }

    /// Notes that work on another stream uses a live block up to `use_`.
    pub(crate) fn record(&self, id: BlockId, use_: Use) -> Result<(), FreeError> {
        let mut heap = self.lock();
        heap.record(id, use_)?;
        self.note_recorded(&heap);
        Ok(())
    }

    /// Retires the heap. Returns whether no block of it is live.
    pub(crate) fn retire(&self) -> bool {
        self.retiring.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut entered = self.lock();
        let left = entered.parts().map(|(_, references)| references.close());
        let unused = entered.retire();
        // Without the lock: who retires the stream has one more, but that is not known here.
        drop(entered);
        drop(left);
        unused
    }
}

impl<D: Driver> Drop for HeapCell<D> {
    fn drop(&mut self) {
        // The heap goes without its lock: it may have memory to give back.
        match self.lock.vacate() {
            Some(locked) => drop(locked),
            None => tracing::error!(key = ?self.key, "a heap went while somebody had its lock: it is leaked"),
        }
    }
}

/// Sees to it that an event covers the use, and looks whether it is done. A failure only means that nothing new is
/// known; a later call tries again.
pub(crate) fn see<D: Driver>(fences: &Fences<D>, use_: Use) {
    if let Err(error) = fences.look_at(use_) {
        tracing::warn!(%error, stream = use_.stream.get(), "could not look at a fence");
    }
}
