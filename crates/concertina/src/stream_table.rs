//! The heaps of registered streams, by the streams' numbers: for a free that knows a block and holds nothing of its stream.
//!
//! Main type: [`StreamTable`]. Neighbours: `stream` enters and leaves; `allocator` looks here before it
//! asks the registry of all heaps, which has a lock for all and a tree.
//!
//! A stream's place is its number modulo [`PLACES`], and has a lock of its own. Whoever frees only tries it, and goes to the
//! registry if somebody else has it, so that no free waits. `docs/locking.md` has more; decision 017 what it costs.

use std::sync::{Arc, OnceLock};

use concertina_heap::{HeapCell, HeapKey, StreamHeaps};
use concertina_vmm::sync::{Mutex, MutexGuard};
use concertina_vmm::{Driver, StreamId};

/// Of streams that are registered at the same time with numbers a multiple of this apart, one is here: the first. The table
/// is 16 KiB, and 128 bytes for each place that was ever taken. Under a scheduler, programs of three streams are to meet.
const PLACES: usize = if cfg!(any(shuttle, loom)) { 2 } else { 1024 };

/// What is in a place: the heaps of a stream, or nothing.
pub(crate) struct Place<D: Driver>(Option<Arc<StreamHeaps<D>>>);

impl<D: Driver> Place<D> {
    /// The heap with this key, if it is the stream's that is here.
    #[inline]
    pub(crate) fn cell(&self, key: HeapKey) -> Option<&Arc<HeapCell<D>>> {
        let cell = self.0.as_ref()?.cell(key.kind);
        if cell.key() == key { Some(cell) } else { None }
    }
}

/// A place behind its lock.
// Two of them share no cache line, as the heaps of two streams share none.
#[repr(align(128))]
struct Locked<D: Driver>(Mutex<Place<D>>);

/// The heaps of the streams that are registered. A stream is here until just before it retires, so that the table keeps no
/// heap that is to go, and no free that comes this way has to see one off.
pub(crate) struct StreamTable<D: Driver> {
    // A place that was taken once stays, for the next stream there.
    places: Box<[OnceLock<Box<Locked<D>>>; PLACES]>,
}

impl<D: Driver> StreamTable<D> {
    /// No streams yet.
    pub(crate) fn new() -> Self {
        Self { places: Box::new([const { OnceLock::new() }; PLACES]) }
    }

    /// A stream is registered: its heaps are found from now on, unless another one has its place.
    pub(crate) fn enter(&self, stream: StreamId, heaps: &Arc<StreamHeaps<D>>) {
        let place = self.at(stream).get_or_init(|| Box::new(Locked(Mutex::new(Place(None)))));
        place.0.lock().0.get_or_insert_with(|| Arc::clone(heaps));
    }

    /// A stream is about to retire: its heaps are not found any more. Waits for who has just found them.
    pub(crate) fn leave(&self, stream: StreamId) {
        let Some(place) = self.at(stream).get() else { return };
        place.0.lock().0.take_if(|heaps| heaps.clock().stream() == stream);
    }

    /// Tries the place where a stream's heaps may be; `None` if somebody else has it, or nobody ever had.
    #[inline(always)]
    pub(crate) fn try_at(&self, stream: StreamId) -> Option<MutexGuard<'_, Place<D>>> {
        self.at(stream).get()?.0.try_lock()
    }

    #[inline]
    fn at(&self, stream: StreamId) -> &OnceLock<Box<Locked<D>>> {
        &self.places[stream.index() % PLACES]
    }
}

#[cfg(test)]
mod tests;
