//! Streams as the allocator knows them: numbers of its own, registered once and retired at the end.
//!
//! Main type: [`Stream`]. Neighbours: `allocator` registers; allocations keep what they need of a stream, so that a
//! handle may be dropped before them.

use core::fmt;
use std::sync::Arc;

use concertina_heap::{HeapCell, Kind, StreamHeaps};
use concertina_vmm::sync::{AtomicBool, Mutex, Ordering};
use concertina_vmm::{CrossStream, Driver, StreamClock, StreamId};

use crate::allocator::Shared;
use crate::error::Error;
use crate::graph::{CaptureScope, GraphPool};

/// A stream as whoever allocates on it has it.
// Read by every allocation: nothing that other threads write lies beside it.
#[repr(align(128))]
pub(crate) struct StreamCore<D: Driver> {
    pub(crate) shared: Arc<Shared<D>>,
    /// What the blocks keep.
    pub(crate) heaps: Arc<StreamHeaps<D>>,
    // Whether `captured_into` is there: all that a hit outside of captures looks at.
    is_captured: AtomicBool,
    captured_into: Mutex<Option<CapturedInto<D>>>,
}

/// Where memory comes from while a stream captures. Whoever asks for some keeps the pool meanwhile: another thread may end
/// the capture, and drop the pool.
pub(crate) struct CapturedInto<D: Driver> {
    /// The stream with the pool's heap in place of its own: what the blocks keep.
    pub(crate) heaps: Arc<StreamHeaps<D>>,
    pub(crate) pool: GraphPool<D>,
}

impl<D: Driver> Clone for CapturedInto<D> {
    fn clone(&self) -> Self {
        Self { heaps: Arc::clone(&self.heaps), pool: self.pool.clone() }
    }
}

impl<D: Driver> StreamCore<D> {
    fn new(shared: &Arc<Shared<D>>, clock: &Arc<StreamClock>) -> Self {
        Self {
            shared: Arc::clone(shared),
            heaps: Arc::new(StreamHeaps::new(&shared.heaps, clock)),
            is_captured: AtomicBool::new(false),
            captured_into: Mutex::default(),
        }
    }

    #[inline]
    pub(crate) fn clock(&self) -> &Arc<StreamClock> {
        self.heaps.clock()
    }

    #[inline]
    pub(crate) fn cell(&self, kind: Kind) -> &Arc<HeapCell<D>> {
        self.heaps.cell(kind)
    }

    /// Whether the stream's memory comes from a graph pool.
    #[inline]
    pub(crate) fn is_captured(&self) -> bool {
        self.is_captured.load(Ordering::Relaxed)
    }

    /// While the stream captures: the graph pool that its memory comes from.
    pub(crate) fn captured_into(&self) -> Option<CapturedInto<D>> {
        if self.is_captured() { self.captured_into.lock().clone() } else { None }
    }

    /// From now on memory comes from a graph pool, or no longer.
    pub(crate) fn capture_into(&self, pool: Option<CapturedInto<D>>) {
        let is_captured = pool.is_some();
        // What was there goes without the lock: it may be the last of its pool.
        let before = std::mem::replace(&mut *self.captured_into.lock(), pool);
        self.is_captured.store(is_captured, Ordering::Relaxed);
        drop(before);
    }
}

/// Retires the stream when the last handle goes.
struct Registration<D: Driver> {
    core: Arc<StreamCore<D>>,
}

impl<D: Driver> Drop for Registration<D> {
    fn drop(&mut self) {
        let (shared, stream) = (&self.core.shared, self.core.clock().stream());
        // Who finds the heaps in the table finds none that has to be seen off.
        shared.streams.leave(stream);
        shared.heaps.retire(stream);
    }
}

/// A stream registered with an allocator. Clones are the same stream.
///
/// When the last clone is dropped the stream is *retired*: its free frames serve other streams from then on, its last
/// event is recorded, and once its last block is freed its heaps go. Blocks that are still live stay valid; the
/// driver's stream is kept alive for them.
pub struct Stream<D: Driver> {
    // As the registration has it: at hand.
    core: Arc<StreamCore<D>>,
    registration: Arc<Registration<D>>,
}

impl<D: Driver> Clone for Stream<D> {
    fn clone(&self) -> Self {
        Self { core: Arc::clone(&self.core), registration: Arc::clone(&self.registration) }
    }
}

impl<D: Driver> fmt::Debug for Stream<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.id()).finish()
    }
}

impl<D: Driver> Stream<D> {
    pub(crate) fn new(shared: &Arc<Shared<D>>, stream: D::Stream, rule: Option<CrossStream>) -> Self {
        let clock = shared.heaps.register(stream, rule);
        let core = Arc::new(StreamCore::new(shared, &clock));
        shared.streams.enter(clock.stream(), &core.heaps);
        Self { registration: Arc::new(Registration { core: Arc::clone(&core) }), core }
    }

    pub(crate) fn core(&self) -> &Arc<StreamCore<D>> {
        &self.core
    }

    /// Opens a scope: while it lives, memory that is allocated on this stream comes from the graph pool, and the allocator
    /// records no event on the stream and makes it wait for nothing. See [`CaptureScope`].
    ///
    /// # Errors
    /// [`Error::ForeignStream`] for a pool of another allocator, [`Error::Capture`].
    pub fn capture(&self, pool: &GraphPool<D>) -> Result<CaptureScope<D>, Error> {
        CaptureScope::new(self, pool)
    }

    /// The allocator's number for it.
    pub fn id(&self) -> StreamId {
        self.core().clock().stream()
    }

    /// Tells the allocator of a wait of the program's own: work queued on this stream from here on comes after all work
    /// queued on `on` up to here (`cuStreamWaitEvent` on an event recorded there just now). Frames that `on` used last
    /// then need no further wait here. Telling it is optional; telling what is not so is a race. Where several threads ask or
    /// free something on the two streams, or queue work there, that takes a lock of the program's around wait and telling.
    /// In a capture it counts between streams that have a scope, and until the capture ends.
    pub fn note_wait(&self, on: &Self) {
        self.core().shared.heaps.fences().note_wait(self.id(), on.id());
    }

    /// Tells the allocator that the host has waited for this stream (`cuStreamSynchronize`). Optional, as above.
    pub fn note_synchronized(&self) {
        self.core().shared.heaps.fences().note_synchronized(self.id());
    }
}
