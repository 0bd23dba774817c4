//! Allocations: blocks in use, as their owners hold them.
//!
//! Main types: [`Allocation`], [`RawAllocation`]. Neighbours: `allocator` hands them out.

use core::fmt;
use std::sync::Arc;

use concertina_heap::{FreeError, Freeing, Granted, HeapCell, HeapKey};
use concertina_vmm::{Address, Driver, StreamId};

use crate::error::Error;
use crate::layout::Layout;
use crate::stream::{Stream, StreamCore};

/// A block in use. Dropping it frees the block in the order of its stream: work queued there before still has it, what
/// is queued after may not touch it. Keeps the allocator alive.
#[must_use = "dropping an allocation frees it"]
pub struct Allocation<D: Driver> {
    raw: RawAllocation,
    // `None` once the block was given up.
    core: Option<Arc<StreamCore<D>>>,
}

impl<D: Driver> fmt::Debug for Allocation<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Allocation").field(&self.raw).finish()
    }
}

impl<D: Driver> Allocation<D> {
    #[inline]
    pub(crate) fn new(core: &Arc<StreamCore<D>>, raw: RawAllocation) -> Self {
        Self { raw, core: Some(Arc::clone(core)) }
    }

    /// The first address. Only kernels and copies may follow it, and only in an order with this block's stream.
    pub fn address(&self) -> Address {
        self.raw.granted.address
    }

    /// Bytes as asked.
    pub fn bytes(&self) -> u64 {
        self.raw.layout.bytes()
    }

    /// What was asked for.
    pub fn layout(&self) -> Layout {
        self.raw.layout
    }

    /// The stream in whose order it is freed.
    pub fn stream(&self) -> StreamId {
        self.raw.key.stream
    }

    /// Says that work queued on `stream`, up to the free of this block, uses it as well. The block is then not used
    /// again before that work is done, or its own stream has been made to wait for it.
    ///
    /// # Errors
    /// [`Error::ForeignStream`].
    pub fn record_stream(&self, stream: &Stream<D>) -> Result<(), Error> {
        match &self.core {
            Some(core) => core.shared.record_stream(self.raw, stream),
            None => Ok(()),
        }
    }

    /// The same for a stream of the same allocator, by its clock.
    #[cfg(feature = "cuda")]
    pub(crate) fn record_clock(&self, clock: &concertina_vmm::StreamClock) {
        let Some(core) = &self.core else { return };
        let Granted { block, generation, .. } = self.raw.granted;
        let recorded =
            self.with_heap(core, |heap| core.shared.heaps.record_stream(heap, block, generation, clock));
        if let Err(error) = recorded {
            tracing::error!(%error, "an allocation was freed behind its handle");
        }
    }

    /// The block's heap: the stream's own, with no lookup, or that of a graph pool.
    #[inline(always)]
    fn with_heap<T>(
        &self,
        core: &StreamCore<D>,
        then: impl FnOnce(&HeapCell<D>) -> Result<T, FreeError>,
    ) -> Result<T, FreeError> {
        let own = core.cell(self.raw.key.kind);
        if own.key() == self.raw.key { then(own) } else { then(&*core.shared.cell_of(self.raw)?) }
    }

    /// Gives up the handle and keeps the block, to be freed with [`crate::Allocator::free_raw`].
    pub fn into_raw(mut self) -> RawAllocation {
        self.core = None;
        self.raw
    }
}

impl<D: Driver> Drop for Allocation<D> {
    #[inline]
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            let freed = self.with_heap(&core, |heap| core.shared.heaps.free(heap, self.raw.freeing()));
            if let Err(error) = freed {
                tracing::error!(%error, "an allocation was freed behind its handle");
            }
        }
    }
}

/// A block in use without a handle: for embedders that keep their own. It does not free itself, and does not keep the
/// allocator alive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawAllocation {
    pub(crate) allocator: u64,
    pub(crate) key: HeapKey,
    pub(crate) granted: Granted,
    pub(crate) layout: Layout,
}

impl fmt::Debug for RawAllocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {} on {:?}", self.layout.bytes(), self.granted.address, self.key.stream)
    }
}

impl RawAllocation {
    /// The first address.
    pub fn address(&self) -> Address {
        self.granted.address
    }

    /// Bytes as asked.
    pub fn bytes(&self) -> u64 {
        self.layout.bytes()
    }

    /// The stream in whose order it is freed.
    pub fn stream(&self) -> StreamId {
        self.key.stream
    }

    #[inline]
    pub(crate) fn freeing(&self) -> Freeing {
        let Granted { block, generation, .. } = self.granted;
        Freeing { block, generation, bytes: self.layout.bytes() }
    }
}
