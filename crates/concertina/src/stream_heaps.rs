//! The heaps of registered streams, by the streams' numbers: for who knows a block and holds nothing of its stream.
//!
//! Main types: [`StreamHeaps`], [`StreamTable`]. Neighbours: `stream` enters and leaves; `allocator` looks here before it
//! asks the registry of all heaps.
//!
//! A place is the stream's number modulo [`PLACES`], and has a lock of its own. Whoever finds the lock taken goes to the
//! registry, so that nobody waits to free something; `docs/locking.md` has the rest.

use core::fmt;
use std::sync::{Arc, OnceLock};

use concertina_heap::{HeapCell, HeapKey, Kind};
use concertina_vmm::sync::Mutex;
use concertina_vmm::{Driver, StreamId};

/// Of two streams that are registered at once and whose numbers are a multiple of this apart, the later one is not here.
const PLACES: usize = 1024;

/// The heaps of one stream in the default pool.
pub(crate) struct StreamHeaps<D: Driver> {
    pub(crate) small: Arc<HeapCell<D>>,
    pub(crate) large: Arc<HeapCell<D>>,
}

impl<D: Driver> Clone for StreamHeaps<D> {
    fn clone(&self) -> Self {
        Self { small: Arc::clone(&self.small), large: Arc::clone(&self.large) }
    }
}

impl<D: Driver> StreamHeaps<D> {
    #[inline]
    pub(crate) fn cell(&self, kind: Kind) -> &Arc<HeapCell<D>> {
        match kind {
            Kind::Small => &self.small,
            Kind::Large => &self.large,
        }
    }
}

/// Two places share no cache line, as the heaps of two streams share none.
#[repr(align(128))]
struct Place<D: Driver>(Mutex<Option<StreamHeaps<D>>>);

/// Which heaps a registered stream has. It is here until it retires, and no longer: what is freed later is found in the
/// registry, as long as that has the heap.
pub(crate) struct StreamTable<D: Driver> {
    // A place that was used once stays, empty, for the next stream there.
    places: Box<[OnceLock<Box<Place<D>>>]>,
}

impl<D: Driver> fmt::Debug for StreamTable<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamTable").field("places", &self.places.len()).finish_non_exhaustive()
    }
}

impl<D: Driver> StreamTable<D> {
    /// No streams yet.
    pub(crate) fn new() -> Self {
        Self { places: (0..PLACES).map(|_| OnceLock::new()).collect() }
    }

    /// A stream is registered. It stays unknown here if an earlier one has its place.
    pub(crate) fn enter(&self, stream: StreamId, heaps: &StreamHeaps<D>) {
        let place = self.place(stream).get_or_init(|| Box::new(Place(Mutex::default())));
        place.0.lock().get_or_insert_with(|| heaps.clone());
    }

    /// A stream is about to retire. Waits for who found its heaps here to be done with them.
    pub(crate) fn leave(&self, stream: StreamId) {
        let Some(place) = self.place(stream).get() else { return };
        let left = place.0.lock().take_if(|heaps| heaps.large.key().stream == stream);
        // Without the lock: they may be the last of their stream.
        drop(left);
    }

    /// Does something in a heap, if it is found here and nobody else does so meanwhile.
    #[inline(always)]
    pub(crate) fn with<T>(&self, key: HeapKey, f: impl FnOnce(&HeapCell<D>) -> T) -> Option<T> {
        let heaps = self.place(key.stream).get()?.0.try_lock()?;
        let heap = heaps.as_ref()?.cell(key.kind);
        if heap.key() == key { Some(f(heap)) } else { None }
    }

    #[inline]
    fn place(&self, stream: StreamId) -> &OnceLock<Box<Place<D>>> {
        &self.places[stream.index() % PLACES]
    }
}
