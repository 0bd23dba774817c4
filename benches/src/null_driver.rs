//! A driver whose calls do nothing: what is left of the time is the allocator's own.
//!
//! Main type: [`NullDriver`]. Neighbours: the emulator checks and counts each call, and takes longer for it than the
//! allocator; the bench `slow_path` runs on this one instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use concertina_vmm::{
    Accessor, Address, Call, Capabilities, CaptureStatus, Driver, DriverError, DriverErrorKind,
    FrameProperties, MemoryInfo, Returned,
};

/// Bytes of a page.
const PAGE_BYTES: u64 = 2 << 20;

#[derive(Debug)]
struct State {
    capabilities: Capabilities,
    capacity_bytes: u64,
    used_bytes: AtomicU64,
    next_address: AtomicU64,
    calls: AtomicU64,
    held_up: AtomicBool,
}

/// A device that gives out memory up to its capacity, believes all that it is told, and keeps no books. A clone is the same
/// device. Streams are numbers.
#[derive(Clone, Debug)]
pub struct NullDriver(Arc<State>);

impl NullDriver {
    /// A device with so many frames of 2 MiB; `max_mappings` is what it says of its mapping budget.
    pub fn new(frames: u64, max_mappings: Option<u64>) -> Self {
        Self(Arc::new(State {
            capabilities: Capabilities { virtual_memory: true, unmap_spans_mappings: true, max_mappings },
            capacity_bytes: frames * PAGE_BYTES,
            used_bytes: AtomicU64::new(0),
            next_address: AtomicU64::new(1 << 40),
            calls: AtomicU64::new(0),
            held_up: AtomicBool::new(false),
        }))
    }

    /// No work completes from now on.
    pub fn hold_up(&self) {
        self.0.held_up.store(true, Ordering::Relaxed);
    }

    /// Calls made so far.
    pub fn calls(&self) -> u64 {
        self.0.calls.load(Ordering::Relaxed)
    }

    fn done<T>(&self, value: T) -> Result<T, DriverError> {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        Ok(value)
    }

    fn no_mallocs<T>(call: Call) -> Result<T, DriverError> {
        Err(DriverError::new(DriverErrorKind::NotSupported, call, "this device has frames only"))
    }
}

impl Driver for NullDriver {
    /// Its bytes.
    type Handle = u64;
    type Event = ();
    type Stream = u32;

    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn granularity(&self, _: &FrameProperties) -> Result<u64, DriverError> {
        Ok(PAGE_BYTES)
    }

    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        let total_bytes = self.0.capacity_bytes;
        self.done(MemoryInfo {
            free_bytes: total_bytes - self.0.used_bytes.load(Ordering::Relaxed),
            total_bytes,
        })
    }

    fn reserve(&self, bytes: u64, alignment: u64) -> Result<Address, DriverError> {
        let next = &self.0.next_address;
        let address = next.load(Ordering::Relaxed).next_multiple_of(alignment.max(PAGE_BYTES));
        next.store(address + bytes, Ordering::Relaxed);
        self.done(Address::new(address))
    }

    fn unreserve(&self, _: Address, _: u64) -> Result<(), DriverError> {
        self.done(())
    }

    fn create(&self, bytes: u64, _: &FrameProperties) -> Result<u64, DriverError> {
        let used = self.0.used_bytes.load(Ordering::Relaxed) + bytes;
        if used > self.0.capacity_bytes {
            return Err(DriverError::new(DriverErrorKind::OutOfMemory, Call::Create, "the device is full"));
        }
        self.0.used_bytes.store(used, Ordering::Relaxed);
        self.done(bytes)
    }

    fn release(&self, bytes: u64) -> Result<(), Returned<u64>> {
        self.0.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn map(&self, _: Address, _: u64, _: &u64) -> Result<(), DriverError> {
        self.done(())
    }

    fn unmap(&self, _: Address, _: u64) -> Result<(), DriverError> {
        self.done(())
    }

    fn set_access(&self, _: Address, _: u64, _: &[Accessor]) -> Result<(), DriverError> {
        self.done(())
    }

    fn event_create(&self) -> Result<(), DriverError> {
        self.done(())
    }

    fn event_record(&self, (): &(), _: &u32) -> Result<(), DriverError> {
        self.done(())
    }

    fn event_query(&self, (): &()) -> Result<bool, DriverError> {
        self.done(!self.0.held_up.load(Ordering::Relaxed))
    }

    fn event_synchronize(&self, (): &()) -> Result<(), DriverError> {
        self.done(())
    }

    fn stream_wait(&self, _: &u32, (): &()) -> Result<(), DriverError> {
        self.done(())
    }

    fn capture_status(&self, _: &u32) -> Result<CaptureStatus, DriverError> {
        self.done(CaptureStatus::None)
    }

    fn malloc(&self, _: u64) -> Result<Address, DriverError> {
        Self::no_mallocs(Call::Malloc)
    }

    fn free(&self, _: Address) -> Result<(), DriverError> {
        Self::no_mallocs(Call::Free)
    }
}
