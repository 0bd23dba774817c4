//! Memory of captured graphs: pools that keep it as it is, and scopes in which a stream captures.
//!
//! Main types: [`GraphPool`], [`CaptureScope`]. Neighbours: `allocator` makes pools, `stream` opens scopes;
//! `concertina-heap` has what they do.

use core::fmt;
use std::sync::Arc;

use concertina_heap::Growth;
use concertina_vmm::{Driver, StreamId};

use crate::allocator::Shared;
use crate::error::Error;
use crate::stream::{CapturedInto, Stream};

struct Inner<D: Driver> {
    shared: Arc<Shared<D>>,
    pool: Arc<concertina_heap::GraphPool>,
}

impl<D: Driver> Drop for Inner<D> {
    fn drop(&mut self) {
        self.shared.heaps.end_graph_pool(&self.pool);
    }
}

/// A pool for the memory that captured graphs use. A clone is the same pool; keep one with each graph.
///
/// A graph that was captured works on the addresses that it was captured with, as often as it is launched. So what a
/// stream allocates while it captures ([`Stream::capture`]) comes from such a pool, and stays where it is, mapped to the
/// same frames, until the last clone is dropped: its free pages serve no other heap, and no trim takes them. A block that
/// lives on, an input or a result, keeps the pages of its stream's heap beyond that.
///
/// *Private*: a pool with one graph. *Shared*: a pool with several, so that one reuses what another has freed. Then what
/// a graph leaves in a block which was freed after its capture is overwritten by graphs that were captured later, and
/// their launches must not overlap: [`GraphPool::launch`] puts each behind those before, whichever streams they are on.
/// Launch them in the order of their captures, or know that none reads what another one has written.
///
/// ```
/// use concertina::{Allocator, Config, Growth, Layout};
/// use concertina_emulator::{Emulator, EmulatorConfig};
///
/// let device = Emulator::new(EmulatorConfig::default())?;
/// let allocator = Allocator::new(device.clone(), Config::default())?;
/// let stream = allocator.register_stream(device.stream());
///
/// let pool = allocator.graph_pool_with(Growth::Held);
/// pool.reserve(20 << 20, &stream)?; // before the capture: maps, and may wait
/// let calls = device.counts().memory_calls();
///
/// let scope = stream.capture(&pool)?;
/// // ... cuStreamBeginCapture ...
/// let result = allocator.allocate(Layout::new(8 << 20), &stream)?;
/// drop(allocator.allocate(Layout::new(12 << 20), &stream)?); // reused within the graph
/// // ... cuStreamEndCapture ...
/// drop(scope);
/// assert_eq!(device.counts().memory_calls(), calls);
///
/// pool.launch(&stream, || { /* cuGraphLaunch */ })?;
/// drop(result);
/// # drop(pool);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct GraphPool<D: Driver> {
    inner: Arc<Inner<D>>,
}

impl<D: Driver> Clone for GraphPool<D> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<D: Driver> fmt::Debug for GraphPool<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.pool.fmt(f)
    }
}

impl<D: Driver> GraphPool<D> {
    pub(crate) fn new(shared: &Arc<Shared<D>>, growth: Growth) -> Self {
        let pool = shared.heaps.add_graph_pool(growth);
        Self { inner: Arc::new(Inner { shared: Arc::clone(shared), pool }) }
    }

    fn check(&self, stream: &Stream<D>) -> Result<(), Error> {
        let same = Arc::ptr_eq(&self.inner.shared, &stream.core().shared);
        if same { Ok(()) } else { Err(Error::ForeignStream) }
    }

    /// Whether it may take more memory in a capture.
    pub fn growth(&self) -> Growth {
        self.inner.pool.growth()
    }

    /// Bytes of all pages that it holds, on all streams: used and free.
    pub fn held_bytes(&self) -> u64 {
        self.inner.shared.heaps.held_bytes(&self.inner.pool)
    }

    /// Sees to it that so many bytes are there in one piece for captures on a stream. Before a capture: this maps, and may
    /// wait as any allocation does.
    ///
    /// # Errors
    /// As [`Allocator::allocate`](crate::Allocator::allocate).
    pub fn reserve(&self, bytes: u64, stream: &Stream<D>) -> Result<(), Error> {
        self.check(stream)?;
        Ok(self.inner.shared.heaps.reserve_in(&self.inner.pool, stream.core().clock(), bytes)?)
    }

    /// Launches a graph of this pool: `launch` queues it on the stream (`cuGraphLaunch`) and nowhere else. Before that the
    /// stream is put behind launches of the pool on other streams, and behind what work outside of graphs did with blocks
    /// of the pool that are freed by now; by a wait on the device, where the streams' rules allow one, else of the host.
    /// Nothing is asked of the driver where they are on the same stream or seen done.
    ///
    /// Blocks that live are the program's to order, as with any other work on them.
    ///
    /// `launch` must not launch another graph of the same pool by this function: launches come one at a time.
    ///
    /// # Errors
    /// [`Error::ForeignStream`]; [`Error::Capture`] if the stream captures; [`Error::Driver`], also where something can't be
    /// waited for before another stream's capture has ended (`NotReady`). `launch` was not called then.
    pub fn launch<T>(&self, stream: &Stream<D>, launch: impl FnOnce() -> T) -> Result<T, Error> {
        self.check(stream)?;
        Ok(self.inner.shared.heaps.launch(&self.inner.pool, stream.core().clock(), launch)?)
    }
}

/// A stream captures into a graph pool, as long as this lives.
///
/// The program begins and ends the capture: open the scope before `cuStreamBeginCapture`, and drop it behind
/// `cuStreamEndCapture`. A stream that is drawn into the capture by a wait for one of its events has a scope of its own,
/// opened at the latest before memory is asked for on it. Opening a scope records an event, unless the stream captures
/// already; closing it puts the stream behind the last launch of the pool. While scopes are open:
///
/// - What is allocated on the stream, by any thread, is the pool's. What is freed is reused in the order of the stream,
///   and so of the graph. A block recorded for another stream is pending until the capture has ended.
/// - Nobody records an event on the stream or makes it wait: frames that it used last serve others only if they were seen
///   done, or are seen done by an event from before the capture.
/// - Nothing is waited for, and no page of the pool is unmapped or given back. With [`Growth::Held`] no driver call is made
///   for memory; with [`Growth::Create`] what is short is mapped, from frames that nobody may use any more.
///
/// Without a scope the allocator learns of a capture only where it would make driver calls, and refuses
/// ([`CaptureError::NoScope`](crate::CaptureError)); that a block was served from held pages in a capture it can't see,
/// and other work may then have this memory when the graph is launched.
#[must_use = "the capture's memory comes from the pool only while the scope lives"]
pub struct CaptureScope<D: Driver> {
    stream: Stream<D>,
    // The heap must not go while the stream captures into it.
    pool: GraphPool<D>,
    ended: bool,
}

impl<D: Driver> fmt::Debug for CaptureScope<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CaptureScope({:?} into {:?})", self.stream, self.pool)
    }
}

impl<D: Driver> CaptureScope<D> {
    pub(crate) fn new(stream: &Stream<D>, pool: &GraphPool<D>) -> Result<Self, Error> {
        pool.check(stream)?;
        let (core, heaps) = (stream.core(), &pool.inner.shared.heaps);
        heaps.begin_capture(stream.id())?;
        let heap = heaps.graph_heap(&pool.inner.pool, core.clock());
        let captured = CapturedInto { heaps: Arc::new(core.heaps.in_pool(&heap)), pool: pool.clone() };
        core.capture_into(Some(captured));
        Ok(Self { stream: stream.clone(), pool: pool.clone(), ended: false })
    }

    /// The stream.
    pub fn stream(&self) -> StreamId {
        self.stream.id()
    }

    /// The pool that memory comes from.
    pub fn pool(&self) -> &GraphPool<D> {
        &self.pool
    }

    /// Closes the scope, as dropping it does, and says whether the capture had ended.
    ///
    /// # Errors
    /// [`Error::Capture`]: it had not; memory on the stream comes from its own heaps again as soon as the driver says that
    /// it has. [`Error::Driver`]: the driver would not say, or not put the stream behind the last launch.
    pub fn end(mut self) -> Result<(), Error> {
        self.close()
    }

    fn close(&mut self) -> Result<(), Error> {
        self.ended = true;
        self.stream.core().capture_into(None);
        let Inner { shared, pool } = &*self.pool.inner;
        Ok(shared.heaps.end_capture(pool, self.stream.id())?)
    }
}

impl<D: Driver> Drop for CaptureScope<D> {
    fn drop(&mut self) {
        if !self.ended
            && let Err(error) = self.close()
        {
            tracing::error!(%error, "a capture's scope was dropped");
        }
    }
}
