//! Allocations that live no longer than the pool handle that they are from.
//!
//! Main type: [`ScopedAllocation`]. Neighbours: `on_stream` hands them out; `allocation` has those that any owner may keep, and
//! frees both.

use core::fmt;

use concertina_heap::{DEFAULT_POOL, Freeing, Granted, HeapGuard, HeapKey, Kind};
use concertina_vmm::{Address, Driver, StreamId};

use crate::allocation::{Placed, RawAllocation, log_refused};
use crate::error::Error;
use crate::layout::Layout;
use crate::stream::{Stream, StreamCore};

/// A block in use that an [`OnStream`](crate::OnStream) outlives. Like an [`Allocation`](crate::Allocation), dropping it
/// frees the block in the order of its stream; it may be sent to another thread as long as its scope ends before that of the
/// pool handle.
#[must_use = "dropping an allocation frees it"]
pub struct ScopedAllocation<'a, D: Driver> {
    core: &'a StreamCore<D>,
    granted: Granted,
    layout: Layout,
    // The pool of its heap.
    pool: u32,
}

impl<D: Driver> fmt::Debug for ScopedAllocation<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ScopedAllocation").field(&self.raw()).finish()
    }
}

impl<'a, D: Driver> ScopedAllocation<'a, D> {
    #[inline(always)]
    pub(crate) fn own(core: &'a StreamCore<D>, granted: Granted, layout: Layout) -> Self {
        Self { core, granted, layout, pool: DEFAULT_POOL }
    }

    pub(crate) fn new(core: &'a StreamCore<D>, placed: &Placed<D>, layout: Layout) -> Self {
        let RawAllocation { key, granted, .. } = placed.raw(&core.heaps, layout);
        Self { core, granted, layout, pool: key.pool }
    }

    /// The first address. Only kernels and copies may follow it, and only in an order with this block's stream.
    pub fn address(&self) -> Address {
        self.granted.address
    }

    /// Bytes as asked.
    pub fn bytes(&self) -> u64 {
        self.layout.bytes()
    }

    /// What was asked for.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The stream in whose order it is freed.
    pub fn stream(&self) -> StreamId {
        self.core.clock().stream()
    }

    #[inline(always)]
    fn freeing(&self) -> Freeing {
        Freeing { id: self.granted.id, bytes: self.layout.bytes() }
    }

    // Apart from the way of a drop, which is short.
    #[inline(never)]
    fn free_entered(&self, entered: Option<HeapGuard<D>>) {
        log_refused(self.core.heaps.free_owned_entered(entered, self.freeing()));
    }

    fn raw(&self) -> RawAllocation {
        let own = RawAllocation::own(&self.core.heaps, self.granted, self.layout);
        match self.pool {
            DEFAULT_POOL => own,
            // A graph pool has one heap a stream.
            pool => RawAllocation { key: HeapKey { pool, kind: Kind::Large, ..own.key }, ..own },
        }
    }

    /// Says that work queued on `stream`, up to the free of this block, uses it as well. The block is then not used
    /// again before that work is done, or its own stream has been made to wait for it.
    ///
    /// # Errors
    /// [`Error::ForeignStream`].
    pub fn record_stream(&self, stream: &Stream<D>) -> Result<(), Error> {
        self.core.shared.record_stream(self.raw(), stream)
    }

    /// Gives up the handle and keeps the block, to be freed with [`crate::Allocator::free_raw`].
    pub fn into_raw(self) -> RawAllocation {
        let raw = self.raw();
        // It owns nothing but the duty to free the block.
        core::mem::forget(self);
        raw
    }
}

impl<D: Driver> Drop for ScopedAllocation<'_, D> {
    #[inline]
    fn drop(&mut self) {
        if self.pool == DEFAULT_POOL {
            if let Err(entered) = self.core.heaps.keep(self.freeing()) {
                self.free_entered(entered);
            }
        } else {
            // No heap of its stream: found as any raw block is.
            log_refused(self.core.shared.free_raw(self.raw()));
        }
    }
}
