//! Allocations: blocks in use, as their owners hold them.
//!
//! Main types: [`Allocation`], [`RawAllocation`]. Neighbours: `allocator` hands them out.

use core::fmt;
use std::sync::Arc;

use concertina_heap::{DEFAULT_POOL, FreeError, Freeing, Granted, HeapGuard, HeapKey, Kind, StreamHeaps};
use concertina_vmm::{Address, Driver, StreamClock, StreamId};

use crate::error::Error;
use crate::layout::{GrantedLayout, Layout};
use crate::stream::Stream;

/// A block in use. Dropping it frees the block in the order of its stream: work queued there before still has it, what
/// is queued after may not touch it. Keeps the allocator alive.
#[must_use = "dropping an allocation frees it"]
// Half a cache line, and never in two: of a million handles in a program's hands each is a miss.
#[repr(align(32))]
pub struct Allocation<D: Driver> {
    // `None` once the handle has given its block up.
    heaps: Option<Arc<StreamHeaps<D>>>,
    granted: Granted,
    layout: GrantedLayout,
}

/// Why a handle has its heaps.
const IN_USE: &str = "a handle that gave its block up is not asked any more";

/// Where a block is.
pub(crate) struct Placed<D: Driver> {
    pub(crate) granted: Granted,
    /// The stream in the graph pool that it captures into, if the block is from there; else what a handle found of the stream,
    /// if it found anything.
    pub(crate) heaps: Option<Arc<StreamHeaps<D>>>,
}

impl<D: Driver> Placed<D> {
    /// The block without a handle; `stream` is the one that it was asked of.
    pub(crate) fn raw(&self, stream: &StreamHeaps<D>, layout: Layout) -> RawAllocation {
        RawAllocation::new(self.heaps.as_deref().unwrap_or(stream), self.granted, layout)
    }
}

impl<D: Driver> fmt::Debug for Allocation<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Allocation").field(&self.raw()).finish()
    }
}

impl<D: Driver> Allocation<D> {
    #[inline(always)]
    pub(crate) fn new(heaps: Arc<StreamHeaps<D>>, granted: Granted, layout: Layout) -> Self {
        Self { heaps: Some(heaps), granted, layout: GrantedLayout::new(layout) }
    }

    fn heaps(&self) -> &StreamHeaps<D> {
        self.heaps.as_ref().expect(IN_USE)
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
        self.layout.layout()
    }

    /// The stream in whose order it is freed.
    pub fn stream(&self) -> StreamId {
        self.heaps().clock().stream()
    }

    fn raw(&self) -> RawAllocation {
        RawAllocation::new(self.heaps(), self.granted, self.layout())
    }

    /// Says that work queued on `stream`, up to the free of this block, uses it as well. The block is then not used
    /// again before that work is done, or its own stream has been made to wait for it.
    ///
    /// # Errors
    /// [`Error::ForeignStream`].
    pub fn record_stream(&self, stream: &Stream<D>) -> Result<(), Error> {
        if !Arc::ptr_eq(self.heaps().heaps(), stream.core().heaps.heaps()) {
            return Err(Error::ForeignStream);
        }
        Ok(self.record(stream.core().clock())?)
    }

    #[inline(always)]
    fn freeing(&self) -> Freeing {
        Freeing { id: self.granted.id, bytes: self.layout.bytes() }
    }

    // Apart from the way of a drop, which is short.
    #[inline(never)]
    fn free_entered(&self, heaps: Arc<StreamHeaps<D>>, entered: Option<HeapGuard<D>>) {
        log_refused(heaps.free_entered_and_leave(entered, self.freeing()));
    }

    fn record(&self, clock: &StreamClock) -> Result<(), FreeError> {
        let cell = self.heaps().cell(Kind::of(self.bytes()));
        self.heaps().heaps().record_stream(cell, self.granted.id, clock)
    }

    /// The same for a stream of the same allocator, by its clock.
    #[cfg(feature = "cuda")]
    pub(crate) fn record_clock(&self, clock: &StreamClock) {
        log_refused(self.record(clock));
    }

    /// Gives up the handle and keeps the block, to be freed with [`crate::Allocator::free_raw`].
    pub fn into_raw(mut self) -> RawAllocation {
        let raw = self.raw();
        self.heaps = None;
        raw
    }
}

impl<D: Driver> Drop for Allocation<D> {
    #[inline]
    fn drop(&mut self) {
        if let Some(heaps) = self.heaps.take()
            && let Err((heaps, entered)) = heaps.keep_and_leave(self.freeing())
        {
            self.free_entered(heaps, entered);
        }
    }
}

pub(crate) fn log_refused(freed: Result<(), impl fmt::Display>) {
    if let Err(error) = freed {
        tracing::error!(%error, "an allocation was freed behind its handle");
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

    /// A block in one of the stream's own heaps: its key is known without a look there.
    #[inline(always)]
    pub(crate) fn own<D: Driver>(heaps: &StreamHeaps<D>, granted: Granted, layout: Layout) -> Self {
        let kind = Kind::of(layout.bytes());
        let key = HeapKey { pool: DEFAULT_POOL, stream: heaps.clock().stream(), kind };
        Self { allocator: heaps.instance(), key, granted, layout }
    }

    /// A block in a heap of the stream's, or of the graph pool that `heaps` is in.
    pub(crate) fn new<D: Driver>(heaps: &StreamHeaps<D>, granted: Granted, layout: Layout) -> Self {
        let key = heaps.cell(Kind::of(layout.bytes())).key();
        Self { allocator: heaps.instance(), key, granted, layout }
    }

    #[inline(always)]
    pub(crate) fn freeing(&self) -> Freeing {
        Freeing { id: self.granted.id, bytes: self.layout.bytes() }
    }
}

#[cfg(test)]
mod tests;
