//! A heap behind its lock, and what lies there beside it.
//!
//! Main types: [`HeapLock`], [`HeapGuard`]. Neighbours: `cell` leads to it; `references` are what lies beside the heap.
//!
//! A handle that goes frees its block under this lock, and leaves its reference to the heaps there, for the next handle. From then
//! on its thread has nothing that keeps the heap alive, and still has to let go of the lock: so that is one which lasts.

use core::fmt;
use core::ops::{Deref, DerefMut};

use concertina_vmm::Driver;
use concertina_vmm::sync::{LastingGuard, LastingMutex};

use crate::heap::Heap;
use crate::references::References;

/// Why there is a heap behind the lock.
const OCCUPIED: &str = "the lock is left to another heap when its cell goes, and nothing else leads to it";

/// The lock of a heap.
pub(crate) type HeapLock<D> = LastingMutex<Locked<D>>;

/// What is behind the lock.
pub(crate) struct Locked<D: Driver> {
    heap: Heap<D>,
    references: References<D>,
}

impl<D: Driver> Locked<D> {
    pub(crate) fn new(heap: Heap<D>) -> Self {
        let references = References::new(heap.key());
        Self { heap, references }
    }
}

/// A heap whose lock the holder has.
#[must_use = "dropping it lets go of the heap"]
pub struct HeapGuard<D: Driver>(LastingGuard<Locked<D>>);

impl<D: Driver> fmt::Debug for HeapGuard<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeapGuard").field(&**self).finish()
    }
}

impl<D: Driver> HeapGuard<D> {
    /// Waits for the lock and takes it.
    #[inline]
    pub(crate) fn lock(lock: &'static HeapLock<D>) -> Self {
        Self(lock.lock())
    }

    /// Takes the lock if nobody has it.
    #[inline]
    pub(crate) fn try_lock(lock: &'static HeapLock<D>) -> Option<Self> {
        lock.try_lock().map(Self)
    }

    /// The heap, and the references for handles of its blocks. `None` is never the case: it spares the way of a hit a panic,
    /// and what would have to be cleaned up after one.
    #[inline(always)]
    pub(crate) fn parts(&mut self) -> Option<(&mut Heap<D>, &mut References<D>)> {
        self.0.value_mut().map(|Locked { heap, references }| (heap, references))
    }
}

impl<D: Driver> Deref for HeapGuard<D> {
    type Target = Heap<D>;

    #[inline]
    fn deref(&self) -> &Heap<D> {
        &self.0.value().expect(OCCUPIED).heap
    }
}

impl<D: Driver> DerefMut for HeapGuard<D> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Heap<D> {
        &mut self.0.value_mut().expect(OCCUPIED).heap
    }
}
