//! The lock of a heap, which stays when its heap has gone.
//!
//! Main types: [`HeapLock`], [`HeapGuard`]. Neighbours: `cell` has the lock of its heap; `references` lies behind it, too.
//!
//! A handle that goes frees its block under this lock, and leaves its reference to the heaps there, for the next handle
//! (`references.rs`). From then on that thread has nothing that keeps the heap alive, and still has to let go of the lock. So the
//! lock is not the heap's: it is made once, is never given back to the host, and serves another heap when its own has gone.
//! A process has as many as it ever had heaps at the same time, of about a kilobyte each.

use core::any::{Any, TypeId};
use core::fmt;
use core::ops::{Deref, DerefMut};
use std::collections::BTreeMap;
use std::sync::PoisonError;

use concertina_vmm::Driver;
use concertina_vmm::sync::{Mutex, MutexGuard};

use crate::heap::Heap;
use crate::references::References;

/// Locks without a heap, by their type.
static VACANT: std::sync::Mutex<BTreeMap<TypeId, Vec<&'static (dyn Any + Send + Sync)>>> =
    std::sync::Mutex::new(BTreeMap::new());

/// Whether a vacant lock serves again. Not under a scheduler, whose locks are good for one run.
const SERVES_AGAIN: bool = cfg!(not(any(shuttle, loom)));

/// Why a lock has a heap.
const OCCUPIED: &str = "only the cell of a heap leads to its lock";

/// What is behind the lock.
struct Locked<D: Driver> {
    heap: Heap<D>,
    references: References<D>,
}

/// The lock of one heap at a time.
// Two heaps share no cache line: of two threads with a stream each, neither slows the other.
#[repr(align(128))]
pub(crate) struct HeapLock<D: Driver>(Mutex<Option<Locked<D>>>);

impl<D: Driver> fmt::Debug for HeapLock<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeapLock").finish_non_exhaustive()
    }
}

impl<D: Driver> HeapLock<D> {
    /// A lock around this heap: a vacant one, or a new one.
    pub(crate) fn around(heap: Heap<D>) -> &'static Self {
        let lock = Self::vacant().unwrap_or_else(|| Box::leak(Box::new(Self(Mutex::new(None)))));
        let references = References::new(heap.key());
        *lock.0.lock() = Some(Locked { heap, references });
        lock
    }

    fn vacant() -> Option<&'static Self> {
        let mut vacant = VACANT.lock().unwrap_or_else(PoisonError::into_inner);
        let lock: &'static dyn Any = vacant.get_mut(&TypeId::of::<Self>())?.pop()?;
        lock.downcast_ref()
    }

    /// The heap goes. Its cell is the only one that leads here, and goes as well.
    pub(crate) fn vacate(&'static self) {
        let locked = self.0.lock().take();
        if SERVES_AGAIN {
            let mut vacant = VACANT.lock().unwrap_or_else(PoisonError::into_inner);
            vacant.entry(TypeId::of::<Self>()).or_default().push(self);
        }
        // With no lock held: it may have memory to give back.
        drop(locked);
    }

    /// Waits for the lock and takes it.
    #[inline]
    pub(crate) fn lock(&'static self) -> HeapGuard<D> {
        HeapGuard(self.0.lock())
    }

    /// Takes the lock if nobody has it.
    #[inline]
    pub(crate) fn try_lock(&'static self) -> Option<HeapGuard<D>> {
        self.0.try_lock().map(HeapGuard)
    }
}

/// A heap whose lock the holder has.
#[must_use = "dropping it lets go of the heap"]
pub struct HeapGuard<D: Driver>(MutexGuard<'static, Option<Locked<D>>>);

impl<D: Driver> fmt::Debug for HeapGuard<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeapGuard").field(&**self).finish()
    }
}

impl<D: Driver> HeapGuard<D> {
    /// The heap, and the references for handles of its blocks. Never `None`.
    #[inline(always)]
    pub(crate) fn parts(&mut self) -> Option<(&mut Heap<D>, &mut References<D>)> {
        self.0.as_mut().map(|Locked { heap, references }| (heap, references))
    }
}

impl<D: Driver> Deref for HeapGuard<D> {
    type Target = Heap<D>;

    #[inline]
    fn deref(&self) -> &Heap<D> {
        &self.0.as_ref().expect(OCCUPIED).heap
    }
}

impl<D: Driver> DerefMut for HeapGuard<D> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Heap<D> {
        &mut self.0.as_mut().expect(OCCUPIED).heap
    }
}
