//! Allocations on one stream: the way of a hit, and the handle that has all it needs at hand.
//!
//! Main type: [`OnStream`]. Neighbours: `allocator` hands it out and goes the same way; `stream` has the heaps; the heaps
//! themselves are in `concertina-heap`.
//!
//! What is a repetition of the last hit is served here, in line: one lock, no lookup. Everything else goes through functions
//! of their own, with the lock that was taken for it.

use core::fmt;
use std::sync::Arc;

use concertina_heap::{Granted, HeapGuard, Request, StreamHeaps, Take};
use concertina_vmm::{Driver, StreamId};

use crate::allocation::{Allocation, Placed, RawAllocation};
use crate::error::Error;
use crate::layout::Layout;
use crate::scoped::ScopedAllocation;
use crate::stream::{Stream, StreamCore};

impl<D: Driver> StreamCore<D> {
    /// Allocates a block with a handle.
    #[inline(always)]
    pub(crate) fn allocate(&self, layout: Layout) -> Result<Allocation<D>, Error> {
        let own = || Arc::clone(&self.heaps);
        self.allocate_as(
            layout,
            Take::One,
            |granted, left| Allocation::new(left.unwrap_or_else(own), granted, layout),
            |Placed { granted, heaps }| Allocation::new(heaps.unwrap_or_else(own), granted, layout),
        )
    }

    /// The same without a handle.
    #[inline(always)]
    pub(crate) fn allocate_raw(&self, layout: Layout) -> Result<RawAllocation, Error> {
        self.allocate_as(
            layout,
            Take::None,
            |granted, _| RawAllocation::own(&self.heaps, granted, layout),
            |placed| placed.raw(&self.heaps, layout),
        )
    }

    /// Allocates a block, which is handed out as what `own` makes of it if it is the stream's, and `placed` of any. `take`
    /// says whether a hit takes a reference with it.
    #[inline(always)]
    pub(crate) fn allocate_as<T>(
        &self,
        layout: Layout,
        take: Take,
        own: impl FnOnce(Granted, Option<Arc<StreamHeaps<D>>>) -> T,
        placed: impl FnOnce(Placed<D>) -> T,
    ) -> Result<T, Error> {
        let request = request(layout)?;
        let entered = if self.is_captured() {
            None
        } else {
            match self.heaps.hit_again(&request, take) {
                Ok((granted, taken)) => return Ok(own(granted, taken)),
                Err(entered) => Some(entered),
            }
        };
        // In parts: as a whole it would lie in memory on the way above.
        let Request { bytes, steps, alignment } = request;
        Ok(placed(self.place_entered(entered, bytes, steps, alignment, take)?))
    }

    /// Finds a place in the stream's heap, entered or not, or in the graph pool that it captures into.
    // Apart from the way above, which is short.
    #[inline(never)]
    fn place_entered(
        &self,
        entered: Option<HeapGuard<D>>,
        bytes: u64,
        steps: u32,
        alignment: u64,
        take: Take,
    ) -> Result<Placed<D>, Error> {
        let request = &Request { bytes, steps, alignment };
        if let Some(entered) = entered
            && let Some((granted, heaps)) = self.cell(request.kind()).hit_entered(entered, request, take)
        {
            return Ok(Placed { granted, heaps });
        }
        self.place_missed(request)
    }

    #[cold]
    fn place_missed(&self, request: &Request) -> Result<Placed<D>, Error> {
        let heaps = &self.shared.heaps;
        let Some(captured) = self.captured_into() else {
            let granted = heaps.allocate_missed(self.cell(request.kind()), request)?;
            return Ok(Placed { granted, heaps: None });
        };
        let granted = heaps.allocate(captured.heaps.cell(request.kind()), request)?;
        Ok(Placed { granted, heaps: Some(captured.heaps) })
    }

    /// Frees a block of the stream's own heaps, or of any other heap of the allocator.
    #[inline]
    fn free_raw(&self, raw: RawAllocation) -> Result<(), Error> {
        let heap = self.cell(raw.key.kind);
        if heap.key() != raw.key || raw.allocator != self.heaps.instance() {
            return self.shared.free_raw(raw);
        }
        Ok(self.heaps.free(raw.freeing())?)
    }
}

#[inline(always)]
fn request(layout: Layout) -> Result<Request, Error> {
    Request::new(layout.bytes(), layout.alignment()).map_err(Error::Request)
}

/// An allocator on one stream, with all at hand that a request needs: for loops that allocate and free within a scope
/// ([`OnStream::allocate_scoped`]) or without handles ([`OnStream::allocate_raw`]), where it saves the lookup of the heap.
/// Keeps the stream registered. Clones are the same.
///
/// ```
/// use concertina::{Allocator, Config, Layout};
/// use concertina_emulator::{Emulator, EmulatorConfig};
///
/// let device = Emulator::new(EmulatorConfig::default())?;
/// let allocator = Allocator::new(device.clone(), Config::default())?;
/// let stream = allocator.register_stream(device.stream());
///
/// let on_stream = allocator.on(&stream)?;
/// for _ in 0..3 {
///     let scratch = on_stream.allocate_scoped(Layout::new(1 << 20))?;
///     println!("work is queued that uses {}", scratch.address());
/// }
/// assert_eq!(allocator.stats().live_peak_bytes, 1 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct OnStream<D: Driver> {
    stream: Stream<D>,
}

impl<D: Driver> Clone for OnStream<D> {
    fn clone(&self) -> Self {
        Self { stream: self.stream.clone() }
    }
}

impl<D: Driver> fmt::Debug for OnStream<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnStream").field(&self.stream_id()).finish()
    }
}

impl<D: Driver> OnStream<D> {
    pub(crate) fn new(stream: Stream<D>) -> Self {
        Self { stream }
    }

    /// The stream.
    pub fn stream_id(&self) -> StreamId {
        self.stream.id()
    }

    /// Allocates a block. Its content is undefined.
    ///
    /// # Errors
    /// As [`Allocator::allocate`](crate::Allocator::allocate).
    #[inline(always)]
    pub fn allocate(&self, layout: Layout) -> Result<Allocation<D>, Error> {
        self.stream.core().allocate(layout)
    }

    /// The same with a handle that borrows this one, and so has no reference of its own to hand on: quicker, where a block
    /// comes and goes in one scope.
    ///
    /// # Errors
    /// As [`Allocator::allocate`](crate::Allocator::allocate).
    #[inline(always)]
    pub fn allocate_scoped(&self, layout: Layout) -> Result<ScopedAllocation<'_, D>, Error> {
        let core = self.stream.core();
        core.allocate_as(
            layout,
            Take::None,
            |granted, _| ScopedAllocation::own(core, granted, layout),
            |placed| ScopedAllocation::new(core, &placed, layout),
        )
    }

    /// The same without a handle: the caller frees it.
    ///
    /// # Errors
    /// As [`Allocator::allocate`](crate::Allocator::allocate).
    #[inline(always)]
    pub fn allocate_raw(&self, layout: Layout) -> Result<RawAllocation, Error> {
        self.stream.core().allocate_raw(layout)
    }

    /// Frees a block in the order of the stream that it was allocated on: with no lookup if that is this one.
    ///
    /// # Errors
    /// As [`Allocator::free_raw`](crate::Allocator::free_raw).
    #[inline(always)]
    pub fn free_raw(&self, raw: RawAllocation) -> Result<(), Error> {
        self.stream.core().free_raw(raw)
    }
}
