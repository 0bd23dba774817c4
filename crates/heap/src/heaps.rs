//! All heaps of one allocator, and what they share.
//!
//! Main types: [`Heaps`], [`Stats`]. Neighbours: `cell` is one heap behind its lock; `ladder` allocates, `trim` gives
//! back; the face in the crate `concertina` wraps this in handles.
//!
//! Locks, from the outermost: one heap, then the frame store, then the fences. The registry stands apart: it is taken
//! to look up or add something, under a heap's lock or none, and no lock is taken while it is held. A thread holds one
//! heap's lock at a time: who wants frames of another heap lets go of its own first, takes them as owned values, and
//! comes back to place them. `docs/locking.md` has it in full.

use core::fmt;
use core::sync::atomic::AtomicUsize;
use std::collections::{BTreeMap, BTreeSet};

use concertina_vmm::sync::{Arc, AtomicBool, AtomicU64, Ordering, RwLock};
use concertina_vmm::{
    CrossStream, Device, Driver, DriverError, FenceCounts, Fences, Frame, FrameStore, ReleaseError,
    SegmentId, SegmentKind, StreamClock, StreamId, Unreturned, Use,
};

use crate::block_id::BlockId;
use crate::cell::{Freeing, HeapCell, see};
use crate::error::FreeError;
use crate::graph::GraphPool;
use crate::heap::{DEFAULT_POOL, Granted, Heap, HeapKey};
use crate::heap_lock::HeapGuard;
use crate::live::LiveBytes;
use crate::policy::{DEFERRED_FROM_BLOCKS, Settings, StaleRule};
use crate::step::Kind;

struct Registry<D: Driver> {
    heaps: BTreeMap<HeapKey, Arc<HeapCell<D>>>,
    // Which heap each segment is in; `None` once it is gone.
    segments: Vec<Option<Arc<HeapCell<D>>>>,
    // The pool that was made last, for a growable or for graphs.
    last_pool: u32,
    // Heaps that nobody has any more and that work in flight keeps.
    left: BTreeSet<HeapKey>,
}

impl<D: Driver> Registry<D> {
    fn between(&self, first: HeapKey, last: HeapKey) -> impl Iterator<Item = &Arc<HeapCell<D>>> {
        self.heaps.range(first..=last).map(|(_, cell)| cell)
    }

    fn in_pool(&self, pool: u32) -> impl Iterator<Item = &Arc<HeapCell<D>>> {
        let (first, last) = (StreamId::new(0), StreamId::new(u32::MAX));
        let key = |stream, kind| HeapKey { pool, stream, kind };
        self.between(key(first, Kind::Small), key(last, Kind::Large))
    }

    /// In the default pool first.
    fn of_stream(&self, stream: StreamId) -> impl Iterator<Item = &Arc<HeapCell<D>>> {
        let key = |pool, stream, kind| HeapKey { pool, stream, kind };
        let (small, large) = (key(DEFAULT_POOL, stream, Kind::Small), key(DEFAULT_POOL, stream, Kind::Large));
        let in_pools = key(DEFAULT_POOL + 1, StreamId::new(0), Kind::Small);
        let others = self.heaps.range(in_pools..).filter(move |(key, _)| key.stream == stream);
        self.between(small, large).chain(others.map(|(_, cell)| cell))
    }
}

/// Figures of an allocator. Bytes unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes as asked, allocated and not yet freed.
    pub live_bytes: u64,
    /// Most of them at once.
    pub live_peak_bytes: u64,
    /// Freed, and still used by work on another stream.
    pub pending_bytes: u64,
    /// In bins.
    pub binned_bytes: u64,
    /// Frames, or malloc segments, not yet given back to the driver.
    pub mapped_bytes: u64,
    /// Most of them at once.
    pub mapped_peak_bytes: u64,
    /// Free frames, in pages and in the store; of malloc segments, pages without live bytes.
    pub free_bytes: u64,
    /// Free bytes in partly used pages.
    pub stranded_bytes: u64,
    /// Addresses from the start of each reservation to the end of its last page ever used.
    pub address_bytes: u64,
    /// Most of them at once.
    pub address_peak_bytes: u64,
    /// Pinned: held by graph pools, live bytes and free ones.
    pub pinned_bytes: u64,
    /// Number of live blocks.
    pub live_blocks: u64,
    /// Frames taken from an idle page or the store to serve another page.
    pub stolen_frames: u64,
    /// Pages revived: their frame came back with no driver call.
    pub revived_pages: u64,
    /// Stale pages that had to be unmapped on the path of a request.
    pub replaced_pages: u64,
    /// Frames created.
    pub created_frames: u64,
    /// Malloc segments made. 0 where there is virtual memory.
    pub mallocs: u64,
    /// Malloc segments given back; each waited for the whole device.
    pub frees: u64,
    /// Malloc segments handed over from one heap to another.
    pub moved_segments: u64,
    /// What the fences asked of the driver.
    pub fences: FenceCounts,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) stolen: AtomicU64,
    pub(crate) revived: AtomicU64,
    pub(crate) replaced: AtomicU64,
    pub(crate) created: AtomicU64,
    pub(crate) moved: AtomicU64,
    pub(crate) address: AtomicU64,
    pub(crate) address_peak: AtomicU64,
}

// Of the whole process: of no scheduler's run.
static INSTANCES: AtomicUsize = AtomicUsize::new(0);

/// All heaps of one allocator on one device.
pub struct Heaps<D: Driver> {
    instance: u64,
    pub(crate) device: Arc<Device<D>>,
    pub(crate) store: Arc<FrameStore<D>>,
    pub(crate) fences: Arc<Fences<D>>,
    pub(crate) settings: Settings,
    pub(crate) counters: Counters,
    // Bytes of the whole device: what reservations are sized by.
    pub(crate) device_bytes: u64,
    pub(crate) live: Arc<LiveBytes>,
    // Whether a retired stream may still wait for work in flight, itself or with heaps.
    pub(crate) unfinished: AtomicBool,
    registry: RwLock<Registry<D>>,
}

impl<D: Driver> fmt::Debug for Heaps<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heaps")
            .field("settings", &self.settings)
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

impl<D: Driver> Heaps<D> {
    /// No heaps yet.
    ///
    /// # Errors
    /// If the driver would not say how large the device is.
    pub fn new(device: Arc<Device<D>>, settings: Settings) -> Result<Self, DriverError> {
        let device_bytes = device.memory_info()?.total_bytes;
        let store = Arc::new(FrameStore::new(&device, settings.limit_bytes));
        Ok(Self {
            instance: INSTANCES.fetch_add(1, Ordering::Relaxed) as u64,
            fences: Arc::new(Fences::new(&device)),
            device,
            store,
            settings,
            counters: Counters::default(),
            device_bytes,
            live: Arc::default(),
            unfinished: AtomicBool::new(false),
            registry: RwLock::new(Registry {
                heaps: BTreeMap::new(),
                segments: Vec::new(),
                last_pool: DEFAULT_POOL,
                left: BTreeSet::new(),
            }),
        })
    }

    /// A number that no other heaps in the process have.
    #[inline]
    pub fn instance(&self) -> u64 {
        self.instance
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device<D>> {
        &self.device
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The fences of the registered streams.
    pub fn fences(&self) -> &Fences<D> {
        &self.fences
    }

    /// Registers a stream; its heaps come with its first allocations. Without a rule of its own it follows the settings.
    pub fn register(&self, stream: D::Stream, rule: Option<CrossStream>) -> Arc<StreamClock> {
        self.fences.register(stream, rule.unwrap_or(self.settings.cross_stream))
    }

    /// The heap with this stream and kind in the default pool, made if it does not exist yet.
    pub fn heap(&self, clock: &Arc<StreamClock>, kind: Kind) -> Arc<HeapCell<D>> {
        self.find_or_make(HeapKey { pool: DEFAULT_POOL, stream: clock.stream(), kind }, clock, None)
    }

    fn find_or_make(
        &self,
        key: HeapKey,
        clock: &Arc<StreamClock>,
        graph_pool: Option<&Arc<GraphPool>>,
    ) -> Arc<HeapCell<D>> {
        if let Some(cell) = self.find(key) {
            return cell;
        }
        // Made without the registry's lock, and where another thread was quicker it goes without it.
        let made = self.new_cell(key, clock, graph_pool);
        let mut registry = self.registry.write();
        Arc::clone(registry.heaps.entry(key).or_insert_with(|| Arc::clone(&made)))
    }

    fn new_cell(
        &self,
        key: HeapKey,
        clock: &Arc<StreamClock>,
        graph_pool: Option<&Arc<GraphPool>>,
    ) -> Arc<HeapCell<D>> {
        let deferred_from = self.settings.deferred_from_blocks.unwrap_or(DEFERRED_FROM_BLOCKS);
        let mut heap = Heap::new(key, clock, &self.store, &self.live, deferred_from);
        if graph_pool.is_some() {
            heap.pin();
        }
        Arc::new(HeapCell::new(heap, clock, &self.fences, graph_pool))
    }

    /// The number of a pool that has no heaps yet.
    pub(crate) fn new_pool(&self) -> u32 {
        let mut registry = self.registry.write();
        loop {
            registry.last_pool = registry.last_pool.wrapping_add(1);
            let pool = registry.last_pool;
            if pool != DEFAULT_POOL && registry.in_pool(pool).next().is_none() {
                return pool;
            }
        }
    }

    /// The heap of a stream in a pool other than the default one, made if it does not exist yet.
    pub(crate) fn add_pool_heap(
        &self,
        pool: u32,
        clock: &Arc<StreamClock>,
        graph_pool: Option<&Arc<GraphPool>>,
    ) -> Arc<HeapCell<D>> {
        let key = HeapKey { pool, stream: clock.stream(), kind: Kind::Large };
        self.find_or_make(key, clock, graph_pool)
    }

    /// The heap with this key, if there is one.
    pub fn find(&self, key: HeapKey) -> Option<Arc<HeapCell<D>>> {
        self.registry.read().heaps.get(&key).map(Arc::clone)
    }

    /// All heaps, in the order of their keys.
    pub fn cells(&self) -> Vec<Arc<HeapCell<D>>> {
        self.registry.read().heaps.values().map(Arc::clone).collect()
    }

    /// The heap that a segment is in.
    pub(crate) fn cell_of(&self, segment: SegmentId) -> Option<Arc<HeapCell<D>>> {
        self.registry.read().segments.get(segment.index())?.clone()
    }

    pub(crate) fn new_segment_id(&self, cell: &Arc<HeapCell<D>>) -> SegmentId {
        let segments = &mut self.registry.write().segments;
        let number = u32::try_from(segments.len()).expect("fewer than 2^32 segments in an allocator");
        segments.push(Some(Arc::clone(cell)));
        SegmentId::new(number)
    }

    // A cell that is forgotten goes without the registry's lock, if it goes.

    pub(crate) fn forget_segment(&self, segment: SegmentId) {
        let cell = self.registry.write().segments[segment.index()].take();
        drop(cell);
    }

    pub(crate) fn forget_heap(&self, key: HeapKey) {
        let mut registry = self.registry.write();
        registry.left.remove(&key);
        let cell = registry.heaps.remove(&key);
        drop(registry);
        drop(cell);
    }

    /// Heaps that a thief should look into, by their keys: all others are not even locked.
    pub(crate) fn cells_that_may_give(&self) -> Vec<Arc<HeapCell<D>>> {
        let page_bytes = self.store.frame_bytes();
        let registry = self.registry.read();
        registry.heaps.values().filter(|cell| cell.may_give(page_bytes)).map(Arc::clone).collect()
    }

    /// The heaps of a stream.
    pub(crate) fn cells_of(&self, stream: StreamId) -> Vec<Arc<HeapCell<D>>> {
        self.registry.read().of_stream(stream).map(Arc::clone).collect()
    }

    /// The heaps of a pool.
    pub(crate) fn cells_in(&self, pool: u32) -> Vec<Arc<HeapCell<D>>> {
        self.registry.read().in_pool(pool).map(Arc::clone).collect()
    }

    /// Nobody has the heap any more, but work in flight keeps it.
    pub(crate) fn note_left(&self, key: HeapKey) {
        self.registry.write().left.insert(key);
    }

    /// The heaps that nobody has any more, but work in flight keeps.
    pub(crate) fn left(&self) -> Vec<Arc<HeapCell<D>>> {
        let registry = self.registry.read();
        registry.left.iter().filter_map(|key| registry.heaps.get(key)).map(Arc::clone).collect()
    }

    // --- freeing ----------------------------------------------------------------------------------------------------

    /// Frees a block in the order of its heap's stream. Does not wait for a thread that works on the heap: the free is
    /// queued then, and takes effect before anybody looks into the heap again.
    ///
    /// # Errors
    /// If the block is not live; nothing changes then. A free that was queued is not checked before it comes out of the
    /// queue: one that is refused there is logged, and changes nothing either.
    pub fn free(&self, cell: &HeapCell<D>, freeing: Freeing) -> Result<(), FreeError> {
        cell.keep(freeing).or_else(|entered| self.free_entered(cell, entered, freeing))
    }

    /// The same for a block that [`HeapCell::keep`] did not take.
    ///
    /// # Errors
    /// As [`Heaps::free`].
    #[inline]
    pub fn free_entered(
        &self,
        cell: &HeapCell<D>,
        entered: Option<HeapGuard<D>>,
        freeing: Freeing,
    ) -> Result<(), FreeError> {
        if cell.free(entered, freeing)? {
            self.finish_last_block(cell.key());
        }
        Ok(())
    }

    /// The other streams may have been given work on a block since they were recorded: up to now, it counts.
    pub(crate) fn bring_recorded_up(&self, heap: &mut Heap<D>, live: Granted) {
        for use_ in heap.recorded_mut(live.id).into_iter().flatten() {
            *use_ = self.fences.now(use_.stream).unwrap_or(*use_);
            self.see(*use_);
        }
    }

    /// Notes that work queued so far on the stream of `clock` uses the block.
    ///
    /// # Errors
    /// If the block is not live.
    pub fn record_stream(
        &self,
        cell: &HeapCell<D>,
        id: BlockId,
        clock: &StreamClock,
    ) -> Result<(), FreeError> {
        cell.record(id, clock.now())
    }

    /// Sees to it that an event covers the use, and looks whether it is done. A failure only means that nothing new is
    /// known; a later call tries again.
    pub(crate) fn see(&self, use_: Use) {
        see(&self.fences, use_);
    }

    // --- who may take what ------------------------------------------------------------------------------------------

    /// Whether `waiter` may take a frame with such a last use, waiting on the device if need be.
    pub(crate) fn may_take(&self, waiter: StreamId, use_: Use) -> bool {
        self.fences.with_order(waiter, |order| order.may_take(use_))
    }

    /// The same for a frame of the store.
    pub(crate) fn may_serve(&self, waiter: StreamId, frame: &Frame<D>) -> bool {
        frame.uses().iter().all(|&use_| self.may_take(waiter, use_))
    }

    // --- stale pages ------------------------------------------------------------------------------------------------

    /// With [`StaleRule::Eager`]: unmaps every stale page whose last use is seen done, in all heaps.
    pub(crate) fn unmap_eagerly(&self) {
        if self.settings.stale != StaleRule::Eager {
            return;
        }
        for cell in self.cells() {
            self.see(cell.clock().now());
            let mut heap = cell.lock();
            if let Err(error) = heap.unmap_all_done(|use_| self.fences.is_done(use_)) {
                tracing::warn!(%error, "could not unmap stale pages");
            }
        }
    }

    // --- figures ----------------------------------------------------------------------------------------------------

    pub(crate) fn note_address_bytes(&self, before: u64, after: u64) {
        if after > before {
            let grown = after - before;
            let now = self.counters.address.fetch_add(grown, Ordering::Relaxed) + grown;
            self.counters.address_peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// The figures now. Looks into each heap in turn, so that under use by other threads they may not add up.
    pub fn stats(&self) -> Stats {
        let counters = &self.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = Stats {
            mapped_bytes: self.store.mapped_bytes(),
            mapped_peak_bytes: self.store.mapped_peak_bytes(),
            free_bytes: self.store.free_frames() as u64 * self.store.frame_bytes(),
            address_bytes: count(&counters.address),
            address_peak_bytes: count(&counters.address_peak),
            stolen_frames: count(&counters.stolen),
            revived_pages: count(&counters.revived),
            replaced_pages: count(&counters.replaced),
            created_frames: count(&counters.created),
            mallocs: self.store.malloc_counts().mallocs,
            frees: self.store.malloc_counts().frees,
            moved_segments: count(&counters.moved),
            fences: self.fences.counts(),
            ..Stats::default()
        };
        for cell in self.cells() {
            let heap = cell.lock();
            stats.live_bytes += heap.live_bytes();
            stats.pending_bytes += heap.pending_bytes();
            stats.binned_bytes += heap.binned_bytes();
            stats.stranded_bytes += heap.stranded_bytes();
            stats.live_blocks += heap.live_blocks();
            stats.pinned_bytes += if heap.is_pinned() { heap.held_bytes() } else { 0 };
            stats.free_bytes += match self.device.segment_kind() {
                SegmentKind::Reserved => heap.takeable_frames(|_| true) * self.store.frame_bytes(),
                SegmentKind::Malloc => heap.idle_malloc_bytes(),
            };
        }
        stats.free_bytes += self.store.spare_mallocs(|_| true).iter().sum::<u64>();
        stats.live_peak_bytes = self.live.peak_bytes();
        stats
    }

    /// Checks every invariant that must hold between operations. Returns what is broken, one line each.
    pub fn audit(&self) -> Vec<String> {
        crate::audit::heaps(self)
    }

    // --- the end ----------------------------------------------------------------------------------------------------

    /// Gives everything back: waits for the streams, unmaps, releases, unreserves. No block may be live. Returns what
    /// the driver would not take, which stays on the retry list and is tried again when the device is dropped.
    pub fn close(&self) -> Unreturned {
        if self.device.is_lost() {
            return self.leak();
        }
        for stream in self.fences.streams() {
            // A failed wait is tried again: unmapping under work in flight is a fault, leaking is only a leak.
            let waited = (0..3).find_map(|_| self.fences.host_wait(stream).ok());
            if waited.is_none() {
                tracing::error!(stream = stream.get(), "could not wait for a stream: its memory is leaked");
                return self.leak();
            }
        }
        self.store.retry();
        let cells = self.cells();
        for cell in &cells {
            for arena in &mut cell.lock().arenas {
                // A failed unmap is tried once more when the mapping is dropped, and then goes on the retry list.
                if let Err(error) = arena.segment.clear() {
                    tracing::warn!(%error, "could not unmap a segment");
                }
            }
        }
        for cell in &cells {
            for mut arena in std::mem::take(&mut cell.lock().arenas) {
                let id = arena.segment.id();
                if let Some(malloc) = arena.segment.take_malloc() {
                    self.store.put_malloc(malloc);
                }
                drop(arena);
                self.store.forget_mappings(id);
            }
        }
        let mut frames = Vec::new();
        self.store.take(usize::MAX, |_| true, &mut frames);
        for frame in frames {
            if let Err(ReleaseError::Driver(error)) = self.store.release(frame) {
                tracing::warn!(%error, "could not release a frame");
            }
        }
        while let Some(malloc) = self.store.take_malloc(|_| true) {
            if let Err(error) = self.store.free(malloc) {
                tracing::warn!(%error, "could not give a malloc segment back");
            }
        }
        self.store.retry();
        self.device.retry();
        self.unreturned()
    }

    /// What the driver has refused to take back.
    fn unreturned(&self) -> Unreturned {
        let mut unreturned = self.device.unreturned();
        let frames = self.store.unreleased_frames() as u64;
        unreturned.frames += frames;
        unreturned.frame_bytes += frames * self.store.frame_bytes();
        let mallocs = self.store.unfreed_mallocs();
        unreturned.mallocs += mallocs.len() as u64;
        unreturned.malloc_bytes += mallocs.iter().sum::<u64>();
        unreturned
    }

    /// Lets go of every owner without giving it back. Returns what that was, and what was refused before.
    fn leak(&self) -> Unreturned {
        let mut unreturned = self.unreturned();
        let mut frames = Vec::new();
        self.store.take(usize::MAX, |_| true, &mut frames);
        let mut leaked = frames.len() as u64;
        std::mem::forget(frames);
        for cell in self.cells() {
            for mut arena in std::mem::take(&mut cell.lock().arenas) {
                if let Some(malloc) = arena.segment.take_malloc() {
                    self.store.put_malloc(malloc);
                }
                if self.device.segment_kind() == SegmentKind::Malloc || arena.is_vacant() {
                    continue;
                }
                leaked += u64::from(arena.segment.held_pages());
                unreturned.mappings += u64::from(arena.segment.mapped_pages());
                unreturned.reservations += 1;
                std::mem::forget(arena);
            }
        }
        while let Some(malloc) = self.store.take_malloc(|_| true) {
            unreturned.mallocs += 1;
            unreturned.malloc_bytes += malloc.bytes();
            std::mem::forget(malloc);
        }
        unreturned.frames += leaked;
        unreturned.frame_bytes += leaked * self.store.frame_bytes();
        unreturned
    }
}

impl<D: Driver> Drop for Heaps<D> {
    fn drop(&mut self) {
        let unreturned = self.close();
        if !unreturned.is_empty() {
            tracing::error!(%unreturned, "allocator dropped with memory not given back yet");
        }
        // The registry's cells point at one another's heaps through nothing but this map, but streams may outlive it.
        let mut registry = self.registry.write();
        let cells = (std::mem::take(&mut registry.heaps), std::mem::take(&mut registry.segments));
        drop(registry);
        drop(cells);
    }
}
