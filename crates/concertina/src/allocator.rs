//! The allocator of one device.
//!
//! Main type: [`Allocator`]. Neighbours: `config` sets it up, `stream` registers with it, `allocation` is what it hands
//! out; all the work is done by `concertina-heap`.

use core::fmt;
use std::sync::Arc;

use concertina_heap::{FreeError, Freeing, Growth, HeapCell, HeapGuard, Heaps, Stats, Trimmed};
use concertina_vmm::sync::MutexGuard;
use concertina_vmm::{CrossStream, Device, Driver, SegmentKind, StreamClock};

use crate::allocation::{Allocation, RawAllocation};
use crate::by_address::ByAddress;
use crate::config::Config;
use crate::error::Error;
use crate::graph::GraphPool;
use crate::growable::Growable;
use crate::layout::Layout;
use crate::on_stream::OnStream;
use crate::stream::{Stream, StreamCore};
use crate::stream_table::{Place, StreamTable};

// Read by every allocation: nothing that threads write lies beside it.
#[repr(align(128))]
pub(crate) struct Shared<D: Driver> {
    // As the heaps have it: tells this allocator's raw blocks from those of others in the process.
    instance: u64,
    name: String,
    pub(crate) heaps: Arc<Heaps<D>>,
    pub(crate) streams: StreamTable<D>,
}

/// The device with segments as configured, or as it can.
fn device<D: Driver>(driver: D, config: &Config) -> Result<Arc<Device<D>>, Error> {
    let properties = config.properties.clone();
    let missing = || match driver.granularity(&properties) {
        Err(error) => error.detail.into_owned(),
        Ok(_) => "the driver says so".to_owned(),
    };
    let there = driver.capabilities().virtual_memory;
    Ok(match config.segments {
        Some(SegmentKind::Reserved) if !there => {
            return Err(Error::NeedsVirtualMemory { what: "a reserved segment", why: missing() });
        }
        Some(SegmentKind::Malloc) => Device::with_mallocs(driver, properties)?,
        None if !there => {
            tracing::warn!(
                reason = missing(),
                "no virtual memory: the allocator uses malloc segments, which fragment"
            );
            Device::with_mallocs(driver, properties)?
        }
        _ => Device::new(driver, properties)?,
    })
}

impl<D: Driver> Shared<D> {
    pub(crate) fn record_stream(
        self: &Arc<Self>,
        raw: RawAllocation,
        stream: &Stream<D>,
    ) -> Result<(), Error> {
        if !Arc::ptr_eq(self, &stream.core().shared) {
            return Err(Error::ForeignStream);
        }
        Ok(self.record(raw, stream.core().clock())?)
    }

    /// The same for a stream of this allocator, by its clock.
    pub(crate) fn record(&self, raw: RawAllocation, clock: &StreamClock) -> Result<(), FreeError> {
        self.heaps.record_stream(&*self.cell_of(raw)?, raw.granted.id, clock)
    }

    #[inline]
    pub(crate) fn core_of<'a>(
        self: &Arc<Self>,
        stream: &'a Stream<D>,
    ) -> Result<&'a Arc<StreamCore<D>>, Error> {
        let core = stream.core();
        if Arc::ptr_eq(&core.shared, self) { Ok(core) } else { Err(Error::ForeignStream) }
    }

    /// Frees a block of any heap of the allocator.
    #[inline]
    pub(crate) fn free_raw(&self, raw: RawAllocation) -> Result<(), Error> {
        let freeing = raw.freeing();
        if let Some(place) = self.place_of(raw)
            && let Some(heap) = place.cell(raw.key)
        {
            return match heap.keep(freeing) {
                Ok(()) => Ok(()),
                Err(entered) => self.free_entered(heap, entered, freeing),
            };
        }
        self.free_registered(raw)
    }

    // Apart from the way above, which is short.
    #[inline(never)]
    fn free_entered(
        &self,
        heap: &HeapCell<D>,
        entered: Option<HeapGuard<D>>,
        freeing: Freeing,
    ) -> Result<(), Error> {
        Ok(self.heaps.free_entered(heap, entered, freeing)?)
    }

    #[cold]
    fn free_registered(&self, raw: RawAllocation) -> Result<(), Error> {
        Ok(self.heaps.free(&*self.registered(raw)?, raw.freeing())?)
    }

    /// The heap that a raw block is in.
    fn cell_of(&self, raw: RawAllocation) -> Result<Arc<HeapCell<D>>, FreeError> {
        if let Some(place) = self.place_of(raw)
            && let Some(cell) = place.cell(raw.key)
        {
            return Ok(Arc::clone(cell));
        }
        self.registered(raw)
    }

    /// Where the heap of a raw block may be found without a search; `None` also if somebody else looks there.
    #[inline(always)]
    fn place_of(&self, raw: RawAllocation) -> Option<MutexGuard<'_, Place<D>>> {
        if raw.allocator == self.instance { self.streams.try_at(raw.key.stream) } else { None }
    }

    /// The heap of a raw block in the registry: of any pool, and of streams that have retired.
    #[cold]
    fn registered(&self, raw: RawAllocation) -> Result<Arc<HeapCell<D>>, FreeError> {
        let is_own = raw.allocator == self.instance;
        is_own.then(|| self.heaps.find(raw.key)).flatten().ok_or_else(|| FreeError::not_live(raw.granted.id))
    }
}

/// Device memory that does not fragment. Clones are the same allocator; any thread may use it.
///
/// ```
/// use concertina::{Allocator, Config, Layout};
/// use concertina_emulator::{Emulator, EmulatorConfig};
///
/// // An emulated device of 80 GiB. On a machine with a GPU, its driver goes here.
/// let device = Emulator::new(EmulatorConfig::default())?;
/// let allocator = Allocator::new(device.clone(), Config::default())?;
/// let stream = allocator.register_stream(device.stream());
///
/// let weights = allocator.allocate(Layout::new(100 << 20), &stream)?;
/// assert_eq!(allocator.stats().live_bytes, 100 << 20);
/// drop(weights);
/// assert_eq!(allocator.trim().released_bytes, 100 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Allocator<D: Driver> {
    shared: Arc<Shared<D>>,
}

impl<D: Driver> Clone for Allocator<D> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<D: Driver> fmt::Debug for Allocator<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocator")
            .field("name", &self.shared.name)
            .field("heaps", &self.shared.heaps)
            .finish()
    }
}

impl<D: Driver> Allocator<D> {
    /// An allocator on this device. Takes no memory yet.
    ///
    /// # Errors
    /// [`Error::Config`] for a setting that can't be on this device; [`Error::NeedsVirtualMemory`] if reserved segments were
    /// asked for and it has no virtual memory. Without that wish it then works on malloc segments, and the log warns.
    pub fn new(driver: D, config: Config) -> Result<Self, Error> {
        let device = device(driver, &config)?;
        config.check(device.granularity())?;
        let Config { name, settings, .. } = config;
        let heaps = Heaps::new(device, settings)?;
        tracing::debug!(name, settings = ?heaps.settings(), "allocator made");
        let shared =
            Shared { instance: heaps.instance(), name, heaps: Arc::new(heaps), streams: StreamTable::new() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The driver that it allocates from.
    pub fn driver(&self) -> &D {
        self.shared.heaps.device().driver()
    }

    /// Where its segments get their memory: [`SegmentKind::Malloc`] on a device without virtual memory.
    pub fn segment_kind(&self) -> SegmentKind {
        self.shared.heaps.device().segment_kind()
    }

    /// Bytes of a page and of a frame.
    pub fn granularity_bytes(&self) -> u64 {
        self.shared.heaps.device().granularity()
    }

    /// Registers a stream. The driver's stream is kept alive until the last block allocated on it is freed.
    pub fn register_stream(&self, stream: D::Stream) -> Stream<D> {
        Stream::new(&self.shared, stream, None)
    }

    /// The same for a stream with a rule of its own instead of the allocator's. Between two streams the stricter rule
    /// holds: one whose work may wait for other streams or for the host, such as that of collectives, is registered
    /// with [`CrossStream::Completed`], and then no other stream is made to wait for it either.
    pub fn register_stream_with(&self, stream: D::Stream, rule: CrossStream) -> Stream<D> {
        Stream::new(&self.shared, stream, Some(rule))
    }

    /// The allocator on one stream of its own.
    ///
    /// # Errors
    /// [`Error::ForeignStream`].
    pub fn on(&self, stream: &Stream<D>) -> Result<OnStream<D>, Error> {
        self.core_of(stream)?;
        Ok(OnStream::new(stream.clone()))
    }

    /// The rule that a stream was registered with.
    #[cfg(feature = "cuda")]
    pub(crate) fn rule_of(&self, stream: &Stream<D>) -> CrossStream {
        // A handle keeps the registration.
        self.shared.heaps.fences().rule(stream.id()).unwrap_or_default()
    }

    /// The allocator for a program that frees by address: behind a C interface, or as a pluggable allocator. Each value knows
    /// its own blocks only, so that a program makes one and keeps it.
    pub fn by_address(&self) -> ByAddress<D> {
        ByAddress::new(&self.shared)
    }

    /// Allocates a block on a stream. Its content is undefined.
    ///
    /// # Errors
    /// [`Error::Request`], [`Error::OutOfMemory`] with a report, [`Error::Driver`], [`Error::ForeignStream`];
    /// [`Error::Capture`] on a stream that captures a graph, unless the block is free and held already: see
    /// [`Stream::capture`].
    #[inline(always)]
    pub fn allocate(&self, layout: Layout, stream: &Stream<D>) -> Result<Allocation<D>, Error> {
        self.core_of(stream)?.allocate(layout)
    }

    /// The same without a handle: the caller frees it.
    ///
    /// # Errors
    /// As [`Allocator::allocate`].
    #[inline(always)]
    pub fn allocate_raw(&self, layout: Layout, stream: &Stream<D>) -> Result<RawAllocation, Error> {
        self.core_of(stream)?.allocate_raw(layout)
    }

    /// Frees a block in the order of the stream that it was allocated on. Does not wait for a thread that is using the
    /// stream's memory: the free is queued then, and counts for whoever looks next.
    ///
    /// # Errors
    /// [`Error::NotLive`] if it was freed before, or is another allocator's; nothing changes then. Whether a queued free
    /// is the second one of its block is seen only later: it is logged then, and changes nothing.
    #[inline]
    pub fn free_raw(&self, raw: RawAllocation) -> Result<(), Error> {
        self.shared.free_raw(raw)
    }

    /// Says that work queued on `stream`, up to the free of the block, uses it as well.
    ///
    /// # Errors
    /// [`Error::NotLive`], [`Error::ForeignStream`].
    pub fn record_stream_raw(&self, raw: RawAllocation, stream: &Stream<D>) -> Result<(), Error> {
        self.shared.record_stream(raw, stream)
    }

    /// Reserves addresses for memory that grows to up to `max_bytes` on a stream, in place. It has no bytes yet.
    ///
    /// # Errors
    /// [`Error::Request`] for a maximum of 0 bytes, or beyond what can be addressed; [`Error::OutOfMemory`] when the driver
    /// has no such range of addresses; [`Error::NeedsVirtualMemory`]; [`Error::Driver`], [`Error::ForeignStream`].
    pub fn reserve_growable(&self, max_bytes: u64, stream: &Stream<D>) -> Result<Growable<D>, Error> {
        Growable::new(&self.core_of(stream)?.heaps, max_bytes)
    }

    /// A pool for memory that graphs use, with none yet. A capture may make it grow ([`Growth::Create`]).
    pub fn graph_pool(&self) -> GraphPool<D> {
        self.graph_pool_with(Growth::default())
    }

    /// The same; `growth` says whether it may take more memory in a capture.
    pub fn graph_pool_with(&self, growth: Growth) -> GraphPool<D> {
        GraphPool::new(&self.shared, growth)
    }

    /// Gives back to the driver every free frame that no work may use any more, and with them all that is cached: stale
    /// mappings, and the addresses of segments in which nothing is left. Does not wait. Of malloc segments it gives back
    /// those with no block in them, and the driver waits for the whole device at each (`cudaFree`).
    pub fn trim(&self) -> Trimmed {
        self.shared.heaps.trim()
    }

    /// Gives back free frames until at most `bytes` are mapped, or none can go any more. Only mappings of frames that go are
    /// removed, so that what stays is used again as before; with 0 bytes it is [`Allocator::trim`]. Does not wait, but for
    /// malloc segments.
    pub fn trim_to(&self, bytes: u64) -> Trimmed {
        self.shared.heaps.trim_to(bytes)
    }

    /// As [`Allocator::trim`], and the host waits first for all work that was queued on streams whose memory is free.
    ///
    /// # Errors
    /// A failed record or synchronisation; nothing was given back then.
    pub fn trim_wait(&self) -> Result<Trimmed, Error> {
        Ok(self.shared.heaps.trim_wait()?)
    }

    /// Unmaps stale pages that no work uses any more until at most so many mappings are left, and returns how many went.
    /// For a quiet moment, where the driver's number of mappings is limited: stale pages are otherwise kept for reuse, and
    /// removed in batches when the limit nears. Nothing else does it when streams are idle: a program that goes on as before
    /// would map all of it again.
    pub fn unmap_stale_to(&self, mappings: u64) -> u64 {
        self.shared.heaps.unmap_stale_to(mappings)
    }

    /// The figures now.
    pub fn stats(&self) -> Stats {
        self.shared.heaps.stats()
    }

    /// Counts everything again from the ground and returns what does not agree, one line each: for tests and bug
    /// reports. Slow; no other thread may use the allocator meanwhile.
    pub fn audit(&self) -> Vec<String> {
        self.shared.heaps.audit()
    }

    /// Tells the allocator that the host has waited for the whole device. Optional; frames used by other streams then
    /// need no wait.
    pub fn note_device_synchronized(&self) {
        let fences = self.shared.heaps.fences();
        for stream in fences.streams() {
            fences.note_synchronized(stream);
        }
    }

    /// Gives everything back to the driver and says whether it took it. Dropping the last clone does the same and can
    /// only log what went wrong.
    ///
    /// # Errors
    /// [`Error::InUse`] while a clone, a stream, an allocation, a growable, a graph pool or a [`ByAddress`] exists;
    /// [`Error::Unreturned`] with what the driver would not take.
    pub fn close(self) -> Result<(), Error> {
        let shared =
            Arc::try_unwrap(self.shared).map_err(|shared| Error::InUse(Arc::strong_count(&shared) - 1))?;
        // Handles of blocks, and growables, keep no more than the heaps.
        let heaps =
            Arc::try_unwrap(shared.heaps).map_err(|heaps| Error::InUse(Arc::strong_count(&heaps) - 1))?;
        let unreturned = heaps.close();
        if unreturned.is_empty() { Ok(()) } else { Err(Error::Unreturned(unreturned)) }
    }

    #[inline]
    fn core_of<'a>(&self, stream: &'a Stream<D>) -> Result<&'a Arc<StreamCore<D>>, Error> {
        self.shared.core_of(stream)
    }
}
