//! References to a stream's heaps that handles have left, for handles to come.
//!
//! Main types: [`References`], [`Take`]. Neighbours: `heap_lock` has them beside the heap; `stream_heaps` is what they refer to.
//!
//! Each handle of a block owns a reference to what it frees the block in. To count one up and down again takes two atomic
//! operations. A free has the heap's lock anyway: so the handle that goes leaves its reference behind that lock, and the
//! next one that comes finds it there. Nothing is counted while blocks come and go.
//!
//! What lies here keeps the heap that it lies in. That circle is broken when the stream retires: then all of them go, and none
//! is kept from there on.

use core::fmt;

use concertina_vmm::Driver;
use concertina_vmm::sync::{Arc, CACHE_LINES_BYTES};

use crate::heap::{DEFAULT_POOL, HeapKey};
use crate::stream_heaps::StreamHeaps;

/// Most references that are kept: 8 KiB. A program that frees so many blocks in a row, and then allocates as many, counts
/// nothing.
const MOST: usize = 1024;

/// Whether the owner of a block takes a reference with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// Yes, if there is one: a handle that owns it.
    One,
    /// No: it has the block without a handle, or borrows the heaps.
    None,
}

/// References to the stream's heaps of a heap, to be had under its lock.
pub(crate) struct References<D: Driver> {
    kept: Vec<Arc<StreamHeaps<D>>>,
    // 0 where nobody would break the circle, or somebody has.
    most: usize,
}

impl<D: Driver> fmt::Debug for References<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "References({} of {})", self.kept.len(), self.most)
    }
}

impl<D: Driver> References<D> {
    /// None yet, for a heap with this key. Only in the default pool some will be kept: those heaps retire with their stream.
    pub(crate) fn new(key: HeapKey) -> Self {
        Self { kept: Vec::new(), most: if key.pool == DEFAULT_POOL { MOST } else { 0 } }
    }

    /// Takes one, if there is one and it is wanted.
    #[inline(always)]
    pub(crate) fn take(&mut self, take: Take) -> Option<Arc<StreamHeaps<D>>> {
        match take {
            Take::One => self.kept.pop(),
            Take::None => None,
        }
    }

    /// Whether there is room for one more.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.kept.len() < self.kept.capacity()
    }

    /// Keeps a reference. The caller has seen that there is room.
    #[inline]
    pub(crate) fn put(&mut self, reference: Arc<StreamHeaps<D>>) {
        self.kept.push(reference);
    }

    /// Sees to it that there is room for one more, if more are kept. Returns whether there is.
    #[inline]
    pub(crate) fn make_room(&mut self) -> bool {
        self.has_room() || self.grow()
    }

    #[cold]
    fn grow(&mut self) -> bool {
        let len = self.kept.len();
        // On cache lines of its own from the first one on. The capacity is the limit: no more than what is asked for.
        let more = len.max(CACHE_LINES_BYTES / size_of::<usize>()).min(self.most.saturating_sub(len));
        self.kept.reserve_exact(more);
        more > 0
    }

    /// From now on none is kept. Returns those that were, to be dropped without the lock.
    pub(crate) fn close(&mut self) -> Vec<Arc<StreamHeaps<D>>> {
        self.most = 0;
        std::mem::take(&mut self.kept)
    }
}
