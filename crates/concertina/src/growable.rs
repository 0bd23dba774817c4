//! Memory that grows and shrinks in place, without a type.
//!
//! Main type: [`Growable`]. Neighbours: `allocator` hands it out; `concertina-heap` has what it does.

use core::fmt;
use std::sync::Arc;

use concertina_heap::StreamHeaps;
use concertina_vmm::{Address, Driver, SegmentKind, StreamId, Use};

use crate::error::Error;
use crate::stream::Stream;

/// Memory that reserves its maximum once, grows and shrinks in place, and never moves. Addresses cost next to nothing,
/// so the maximum may be generous; physical memory is taken as it grows, in whole pages.
///
/// Dropping it frees it in the order of its stream, as an [`Allocation`](crate::Allocation). Keeps the allocator alive.
///
/// ```
/// use concertina::{Allocator, Config};
/// use concertina_emulator::{Emulator, EmulatorConfig};
///
/// let device = Emulator::new(EmulatorConfig::default())?;
/// let allocator = Allocator::new(device.clone(), Config::default())?;
/// let stream = allocator.register_stream(device.stream());
///
/// let mut log = allocator.reserve_growable(100 << 30, &stream)?; // more than the device has
/// let address = log.address();
/// log.grow_to(10 << 20)?;
/// log.grow_to(30 << 20)?; // nothing is copied
/// assert_eq!((log.address(), allocator.stats().mapped_bytes), (address, 30 << 20));
/// log.shrink_to(4 << 20); // the rest serves others
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping a growable frees it"]
pub struct Growable<D: Driver> {
    // `None` only while it is dropped.
    inner: Option<concertina_heap::Growable<D>>,
    address: Address,
    max_bytes: u64,
    heaps: Arc<StreamHeaps<D>>,
}

impl<D: Driver> fmt::Debug for Growable<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, stream) = (self.bytes(), self.stream());
        write!(f, "Growable({bytes} of {} bytes at {} on {stream:?})", self.max_bytes, self.address)
    }
}

impl<D: Driver> Growable<D> {
    pub(crate) fn new(heaps: &Arc<StreamHeaps<D>>, max_bytes: u64) -> Result<Self, Error> {
        let device = heaps.heaps().device();
        if device.segment_kind() == SegmentKind::Malloc {
            let why = match device.driver().capabilities().virtual_memory {
                true => "it was configured with malloc segments".to_owned(),
                false => "the device has none".to_owned(),
            };
            return Err(Error::NeedsVirtualMemory { what: "a growable", why });
        }
        let inner = heaps.heaps().reserve_growable(heaps.clock(), max_bytes)?;
        Ok(Self { address: inner.address(), inner: Some(inner), max_bytes, heaps: Arc::clone(heaps) })
    }

    /// The first address: the same from the first byte to the last. Only kernels and copies may follow it, only up to
    /// [`Growable::bytes`], and only in an order with its stream.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Bytes that it has now, as asked.
    pub fn bytes(&self) -> u64 {
        self.inner.as_ref().map_or(0, concertina_heap::Growable::bytes)
    }

    /// Most bytes that it can have.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// The stream in whose order it grows, shrinks and is freed.
    pub fn stream(&self) -> StreamId {
        self.heaps.clock().stream()
    }

    /// Makes it longer, in place: old bytes stay where and what they are, the content of the new ones is undefined.
    /// Nothing happens if it has as many bytes already. No driver call is made as long as it grows into pages that it
    /// holds.
    ///
    /// The host waits for its stream only if pages that a shrink gave up serve others now and work that was queued
    /// before the shrink is not over; and, with a [`CrossStream`](crate::CrossStream) other than `DeviceWait`, for
    /// other streams that used what was cut off.
    ///
    /// # Errors
    /// [`Error::OverMax`], [`Error::OutOfMemory`] with a report, whose sizes are those of the growth;
    /// [`Error::Driver`]. It is as long as before then.
    pub fn grow_to(&mut self, bytes: u64) -> Result<(), Error> {
        match &mut self.inner {
            Some(inner) => Ok(self.heaps.heaps().grow_to(inner, bytes)?),
            None => Ok(()),
        }
    }

    /// Makes it shorter, in place and in the order of its stream: work that was queued before still has what is cut
    /// off, and pages with nothing left in them serve others. Nothing happens if it has as few bytes already.
    pub fn shrink_to(&mut self, bytes: u64) {
        self.shrink_after(bytes, &[]);
    }

    /// The same; what is cut off is not used again before `uses` are done, either.
    pub(crate) fn shrink_after(&mut self, bytes: u64, uses: &[Use]) {
        if let Some(inner) = &mut self.inner
            && let Err(error) = self.heaps.heaps().shrink_to(inner, bytes, uses)
        {
            tracing::error!(%error, "a growable was freed behind its handle");
        }
    }

    /// Says that work queued on `stream`, up to each shrink and the end, uses it as well. What a shrink cuts off is
    /// then not used again before that work is done, or its own stream has been made to wait for it.
    ///
    /// # Errors
    /// [`Error::ForeignStream`].
    pub fn record_stream(&mut self, stream: &Stream<D>) -> Result<(), Error> {
        if !Arc::ptr_eq(self.heaps.heaps(), stream.core().heaps.heaps()) {
            return Err(Error::ForeignStream);
        }
        match &mut self.inner {
            Some(inner) => Ok(self.heaps.heaps().record_growable(inner, stream.core().clock())?),
            None => Ok(()),
        }
    }
}

impl<D: Driver> Drop for Growable<D> {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            self.heaps.heaps().discard(inner);
        }
    }
}
