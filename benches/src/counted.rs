//! A driver that counts its calls and measures them, for devices that nothing else counts on.
//!
//! Main types: [`Counted`], [`CountedHandle`]. Neighbours: `cuda_device` puts it over a GPU's driver; the emulator counts
//! for itself, and tests compare the two.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use concertina_emulator::Counts;
use concertina_vmm::{
    Accessor, Address, Call, Capabilities, CaptureStatus, Driver, DriverError, FrameProperties, MemoryInfo,
    Returned,
};

/// A driver, and what was called on it. Clones share both.
///
/// Times are measured here, from call to return, not modelled. An event synchronise counts as a wait of the host whether
/// or not its event was complete. A malloc counts with the bytes asked for: what a driver takes behind it is not known.
#[derive(Debug)]
pub struct Counted<D> {
    inner: D,
    book: Arc<Mutex<Book>>,
}

#[derive(Debug, Default)]
struct Book {
    counts: Counts,
    /// Where mappings begin.
    mappings: BTreeSet<u64>,
    /// Bytes of mallocs, by address.
    mallocs: BTreeMap<u64, u64>,
}

impl<D: Clone> Clone for Counted<D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), book: Arc::clone(&self.book) }
    }
}

/// A frame's handle with its size.
#[derive(Debug)]
pub struct CountedHandle<H> {
    inner: H,
    bytes: u64,
}

impl Book {
    fn take(&mut self, bytes: u64) {
        let counts = &mut self.counts;
        counts.mapped_bytes += bytes;
        counts.mapped_peak_bytes = counts.mapped_peak_bytes.max(counts.mapped_bytes);
    }

    fn give_back(&mut self, bytes: u64) {
        self.counts.mapped_bytes = self.counts.mapped_bytes.saturating_sub(bytes);
    }
}

impl<D> Counted<D> {
    /// Counts what is called on `inner` through it.
    pub fn new(inner: D) -> Self {
        Self { inner, book: Arc::default() }
    }

    /// The driver itself; what is called on it is not counted.
    pub const fn inner(&self) -> &D {
        &self.inner
    }

    /// What was counted so far. The times are measured.
    pub fn counts(&self) -> Counts {
        self.book().counts
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the call, counts it, and if it was done notes what it changed.
    fn call<T, E>(
        &self,
        call: Call,
        body: impl FnOnce(&D) -> Result<T, E>,
        note: impl FnOnce(&mut Book, &T),
    ) -> Result<T, E> {
        let start = Instant::now();
        let result = body(&self.inner);
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut book = self.book();
        let counts = &mut book.counts;
        let (done, failed) = (counts.of(call), counts.failed(call));
        let time = counts.modelled_ns_of(call).saturating_add(ns);
        counts.modelled_ns = counts.modelled_ns.saturating_add(ns);
        match &result {
            Ok(value) => {
                *counts = counts.with_calls(call, done + 1, failed, time);
                note(&mut book, value);
            }
            Err(_) => *counts = counts.with_calls(call, done, failed + 1, time),
        }
        result
    }
}

impl<D: Driver> Driver for Counted<D> {
    type Handle = CountedHandle<D::Handle>;
    type Event = D::Event;
    type Stream = D::Stream;

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn granularity(&self, properties: &FrameProperties) -> Result<u64, DriverError> {
        self.inner.granularity(properties)
    }

    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        self.call(Call::MemoryInfo, D::memory_info, |_, _| {})
    }

    fn reserve(&self, bytes: u64, alignment: u64) -> Result<Address, DriverError> {
        self.call(
            Call::Reserve,
            |inner| inner.reserve(bytes, alignment),
            |book, _| {
                let counts = &mut book.counts;
                counts.reserved_bytes += bytes;
                counts.reserved_peak_bytes = counts.reserved_peak_bytes.max(counts.reserved_bytes);
            },
        )
    }

    fn unreserve(&self, address: Address, bytes: u64) -> Result<(), DriverError> {
        self.call(
            Call::Unreserve,
            |inner| inner.unreserve(address, bytes),
            |book, ()| book.counts.reserved_bytes = book.counts.reserved_bytes.saturating_sub(bytes),
        )
    }

    fn create(&self, bytes: u64, properties: &FrameProperties) -> Result<Self::Handle, DriverError> {
        let inner = self.call(
            Call::Create,
            |inner| inner.create(bytes, properties),
            |book, _| {
                book.counts.handles += 1;
                book.take(bytes);
            },
        )?;
        Ok(CountedHandle { inner, bytes })
    }

    fn release(&self, handle: Self::Handle) -> Result<(), Returned<Self::Handle>> {
        let CountedHandle { inner: handle, bytes } = handle;
        let released = self.call(
            Call::Release,
            |inner| inner.release(handle),
            |book, ()| {
                book.counts.handles -= 1;
                book.give_back(bytes);
            },
        );
        released.map_err(|Returned { owner, error }| Returned {
            owner: CountedHandle { inner: owner, bytes },
            error,
        })
    }

    fn map(&self, address: Address, bytes: u64, handle: &Self::Handle) -> Result<(), DriverError> {
        self.call(
            Call::Map,
            |inner| inner.map(address, bytes, &handle.inner),
            |book, ()| {
                book.mappings.insert(address.get());
                book.counts.mappings += 1;
                book.counts.mappings_peak = book.counts.mappings_peak.max(book.counts.mappings);
            },
        )
    }

    fn unmap(&self, address: Address, bytes: u64) -> Result<(), DriverError> {
        self.call(
            Call::Unmap,
            |inner| inner.unmap(address, bytes),
            |book, ()| {
                let range = address.get()..address.get().saturating_add(bytes);
                while let Some(start) = book.mappings.range(range.clone()).next().copied() {
                    book.mappings.remove(&start);
                }
                book.counts.mappings = book.mappings.len() as u64;
            },
        )
    }

    fn set_access(&self, address: Address, bytes: u64, accessors: &[Accessor]) -> Result<(), DriverError> {
        self.call(Call::SetAccess, |inner| inner.set_access(address, bytes, accessors), |_, ()| {})
    }

    fn event_create(&self) -> Result<Self::Event, DriverError> {
        self.call(Call::EventCreate, D::event_create, |_, _| {})
    }

    fn event_record(&self, event: &Self::Event, stream: &Self::Stream) -> Result<(), DriverError> {
        self.call(Call::EventRecord, |inner| inner.event_record(event, stream), |_, ()| {})
    }

    fn event_query(&self, event: &Self::Event) -> Result<bool, DriverError> {
        self.call(Call::EventQuery, |inner| inner.event_query(event), |_, _| {})
    }

    fn event_synchronize(&self, event: &Self::Event) -> Result<(), DriverError> {
        self.call(
            Call::EventSynchronize,
            |inner| inner.event_synchronize(event),
            |book, ()| book.counts.host_waits += 1,
        )
    }

    fn stream_wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), DriverError> {
        self.call(Call::StreamWait, |inner| inner.stream_wait(stream, event), |_, ()| {})
    }

    fn capture_status(&self, stream: &Self::Stream) -> Result<CaptureStatus, DriverError> {
        self.call(Call::CaptureStatus, |inner| inner.capture_status(stream), |_, _| {})
    }

    fn malloc(&self, bytes: u64) -> Result<Address, DriverError> {
        self.call(
            Call::Malloc,
            |inner| inner.malloc(bytes),
            |book, address| {
                book.mallocs.insert(address.get(), bytes);
                book.take(bytes);
            },
        )
    }

    fn free(&self, address: Address) -> Result<(), DriverError> {
        self.call(
            Call::Free,
            |inner| inner.free(address),
            |book, ()| {
                let bytes = book.mallocs.remove(&address.get()).unwrap_or(0);
                book.give_back(bytes);
                book.counts.host_waits += 1;
            },
        )
    }
}
