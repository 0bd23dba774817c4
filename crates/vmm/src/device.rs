//! A driver with what every owner of one device shares: its granularity, whether it is lost, and what could not be
//! given back yet.
//!
//! Main types: [`Device`], [`SegmentKind`], [`Unreturned`]. Neighbours: `Reservation`, `Frame`, `Mapping` and `Malloc` make
//! their calls through it, so that after a sticky error not one more call is made.

use core::fmt;

use crate::driver::{Accessor, Capabilities, CaptureStatus, Driver, FrameProperties, MemoryInfo};
use crate::error::{Call, DriverError, DriverErrorKind, Returned};
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
use crate::units::Address;

/// Something that the driver refused to take back. It stays here, counted, until a retry succeeds.
#[derive(Debug)]
enum Owed<H> {
    Mapping { address: Address, bytes: u64 },
    Handle { handle: H, bytes: u64 },
    Reservation { address: Address, bytes: u64 },
    Malloc { address: Address, bytes: u64 },
}

/// What is still owed to the driver, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unreturned {
    /// Mappings whose unmap failed.
    pub mappings: u64,
    /// Frames whose release failed.
    pub frames: u64,
    /// Bytes of those frames.
    pub frame_bytes: u64,
    /// Reservations whose unreserve failed.
    pub reservations: u64,
    /// Malloc segments whose free failed.
    pub mallocs: u64,
    /// Bytes of those segments.
    pub malloc_bytes: u64,
}

impl Unreturned {
    /// Whether nothing is owed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Unreturned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} mappings, {} frames ({} bytes), {} reservations, {} malloc segments ({} bytes) not given back to the \
             driver",
            self.mappings, self.frames, self.frame_bytes, self.reservations, self.mallocs, self.malloc_bytes
        )
    }
}

/// Where the segments of an allocator get their addresses and their memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SegmentKind {
    /// Addresses are reserved, and frames are mapped under them: any free frame serves any page.
    #[default]
    Reserved,
    /// `cudaMalloc` gives both at once, and takes back only the whole: for devices without virtual memory.
    Malloc,
}

/// Bytes of a page of malloc segments, which no driver tells: 2 MiB, the unit that PyTorch's caching allocator rounds its
/// segments to (`kSmallBuffer`, `kRoundLarge` in `c10/cuda/CUDACachingAllocator`).
pub const MALLOC_PAGE_BYTES: u64 = 2 << 20;

/// One device: its driver, and the state that all owners of its memory share.
pub struct Device<D: Driver> {
    driver: D,
    properties: FrameProperties,
    granularity: u64,
    segments: SegmentKind,
    lost: AtomicBool,
    owed: Mutex<Vec<Owed<D::Handle>>>,
    // Mappings that exist now, stale ones included: what the driver's mapping budget counts.
    mappings: AtomicU64,
}

impl<D: Driver> fmt::Debug for Device<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("properties", &self.properties)
            .field("granularity", &self.granularity)
            .finish_non_exhaustive()
    }
}

impl<D: Driver> Device<D> {
    /// Wraps a driver, for reserved segments; asks it once for the granularity of memory with these properties.
    ///
    /// # Errors
    /// `NotSupported`, with the driver's reason, if the device has no virtual memory; whatever else the driver says to the
    /// question.
    pub fn new(driver: D, properties: FrameProperties) -> Result<Arc<Self>, DriverError> {
        let granularity = driver.granularity(&properties)?;
        if !driver.capabilities().virtual_memory {
            let why = "the device has no virtual memory management";
            return Err(DriverError::new(DriverErrorKind::NotSupported, Call::Reserve, why));
        }
        Self::with_segments(driver, properties, SegmentKind::Reserved, granularity)
    }

    /// Wraps a driver, for malloc segments, whatever else it can do.
    ///
    /// # Errors
    /// What the driver says to the properties.
    pub fn with_mallocs(driver: D, properties: FrameProperties) -> Result<Arc<Self>, DriverError> {
        match driver.granularity(&properties) {
            Err(error) if error.kind != DriverErrorKind::NotSupported => Err(error),
            _ => Self::with_segments(driver, properties, SegmentKind::Malloc, MALLOC_PAGE_BYTES),
        }
    }

    fn with_segments(
        driver: D,
        properties: FrameProperties,
        segments: SegmentKind,
        granularity: u64,
    ) -> Result<Arc<Self>, DriverError> {
        if !granularity.is_power_of_two() {
            return Err(DriverError::new(
                DriverErrorKind::NotSupported,
                Call::Create,
                format!("granularity of {granularity} bytes is no power of two"),
            ));
        }
        Ok(Arc::new(Self {
            driver,
            properties,
            granularity,
            segments,
            lost: AtomicBool::new(false),
            owed: Mutex::new(Vec::new()),
            mappings: AtomicU64::new(0),
        }))
    }

    /// The driver itself.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// Bytes of a page, and of a frame of one page.
    pub fn granularity(&self) -> u64 {
        self.granularity
    }

    /// Where segments get their memory.
    pub fn segment_kind(&self) -> SegmentKind {
        self.segments
    }

    /// Properties that all frames of this device's class are created with.
    pub fn properties(&self) -> &FrameProperties {
        &self.properties
    }

    /// What the device can do.
    pub fn capabilities(&self) -> &Capabilities {
        self.driver.capabilities()
    }

    /// Mappings that exist now, stale ones included.
    pub fn mappings(&self) -> u64 {
        self.mappings.load(Ordering::Relaxed)
    }

    /// Whether a sticky error was seen. No call is made any more; what is owned is leaked.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    fn lost_error(call: Call) -> DriverError {
        DriverError::new(DriverErrorKind::Lost, call, "the device was lost earlier; no call was made")
    }

    fn note<T>(&self, result: Result<T, DriverError>) -> Result<T, DriverError> {
        if let Err(error) = &result
            && error.kind == DriverErrorKind::Lost
        {
            self.lost.store(true, Ordering::Relaxed);
        }
        result
    }

    fn call<T>(&self, call: Call, f: impl FnOnce(&D) -> Result<T, DriverError>) -> Result<T, DriverError> {
        if self.is_lost() {
            return Err(Self::lost_error(call));
        }
        self.note(f(&self.driver))
    }

    /// Free and total physical memory: [`Driver::memory_info`].
    pub fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        self.call(Call::MemoryInfo, D::memory_info)
    }

    pub(crate) fn reserve(&self, bytes: u64, alignment: u64) -> Result<Address, DriverError> {
        self.call(Call::Reserve, |d| d.reserve(bytes, alignment))
    }

    /// Gives addresses back, unless a mapping in them is on the retry list: the driver would refuse.
    pub(crate) fn unreserve(&self, address: Address, bytes: u64) -> Result<(), DriverError> {
        let within = |at: Address| (address..address.add(bytes)).contains(&at);
        let owed = self
            .owed
            .lock()
            .iter()
            .any(|owed| matches!(owed, Owed::Mapping { address, .. } if within(*address)));
        if owed {
            return Err(DriverError::new(
                DriverErrorKind::NotReady,
                Call::Unreserve,
                "a mapping in the range could not be unmapped yet; no call was made",
            ));
        }
        self.call(Call::Unreserve, |d| d.unreserve(address, bytes))
    }

    pub(crate) fn create(&self, bytes: u64) -> Result<D::Handle, DriverError> {
        self.call(Call::Create, |d| d.create(bytes, &self.properties))
    }

    pub(crate) fn release(&self, handle: D::Handle) -> Result<(), Returned<D::Handle>> {
        if self.is_lost() {
            return Err(Returned { owner: handle, error: Self::lost_error(Call::Release) });
        }
        self.driver.release(handle).inspect_err(|returned| {
            if returned.error.kind == DriverErrorKind::Lost {
                self.lost.store(true, Ordering::Relaxed);
            }
        })
    }

    pub(crate) fn map(&self, address: Address, bytes: u64, handle: &D::Handle) -> Result<(), DriverError> {
        self.call(Call::Map, |d| d.map(address, bytes, handle))?;
        self.mappings.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Unmaps `count` adjacent mappings of together `bytes` with one call.
    pub(crate) fn unmap(&self, address: Address, bytes: u64, count: u64) -> Result<(), DriverError> {
        self.call(Call::Unmap, |d| d.unmap(address, bytes))?;
        self.mappings.fetch_sub(count, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn set_access(&self, address: Address, bytes: u64) -> Result<(), DriverError> {
        let accessor = Accessor::Device(self.properties.device);
        self.call(Call::SetAccess, |d| d.set_access(address, bytes, &[accessor]))
    }

    pub(crate) fn malloc(&self, bytes: u64) -> Result<Address, DriverError> {
        self.call(Call::Malloc, |d| d.malloc(bytes))
    }

    /// Waits for the whole device.
    pub(crate) fn free(&self, address: Address) -> Result<(), DriverError> {
        self.call(Call::Free, |d| d.free(address))
    }

    pub(crate) fn event_create(&self) -> Result<D::Event, DriverError> {
        self.call(Call::EventCreate, D::event_create)
    }

    pub(crate) fn event_record(&self, event: &D::Event, stream: &D::Stream) -> Result<(), DriverError> {
        self.call(Call::EventRecord, |d| d.event_record(event, stream))
    }

    pub(crate) fn event_query(&self, event: &D::Event) -> Result<bool, DriverError> {
        self.call(Call::EventQuery, |d| d.event_query(event))
    }

    pub(crate) fn event_synchronize(&self, event: &D::Event) -> Result<(), DriverError> {
        self.call(Call::EventSynchronize, |d| d.event_synchronize(event))
    }

    pub(crate) fn stream_wait(&self, stream: &D::Stream, event: &D::Event) -> Result<(), DriverError> {
        self.call(Call::StreamWait, |d| d.stream_wait(stream, event))
    }

    /// Whether `stream` records a graph: [`Driver::capture_status`].
    pub fn capture_status(&self, stream: &D::Stream) -> Result<CaptureStatus, DriverError> {
        self.call(Call::CaptureStatus, |d| d.capture_status(stream))
    }

    pub(crate) fn owe_mapping(&self, address: Address, bytes: u64) {
        self.owed.lock().push(Owed::Mapping { address, bytes });
    }

    pub(crate) fn owe_handle(&self, handle: D::Handle, bytes: u64) {
        self.owed.lock().push(Owed::Handle { handle, bytes });
    }

    pub(crate) fn owe_reservation(&self, address: Address, bytes: u64) {
        self.owed.lock().push(Owed::Reservation { address, bytes });
    }

    pub(crate) fn owe_malloc(&self, address: Address, bytes: u64) {
        self.owed.lock().push(Owed::Malloc { address, bytes });
    }

    /// What the driver has refused to take back so far.
    pub fn unreturned(&self) -> Unreturned {
        let mut sum = Unreturned::default();
        for owed in self.owed.lock().iter() {
            match owed {
                Owed::Mapping { .. } => sum.mappings += 1,
                Owed::Handle { bytes, .. } => {
                    sum.frames += 1;
                    sum.frame_bytes += bytes;
                }
                Owed::Reservation { .. } => sum.reservations += 1,
                Owed::Malloc { bytes, .. } => {
                    sum.mallocs += 1;
                    sum.malloc_bytes += bytes;
                }
            }
        }
        sum
    }

    /// Tries once more to give back everything on the retry list: mappings first, since a reservation can't go before
    /// them. Returns the bytes of frames and mallocs that went. Makes no call when the list is empty or the device is lost.
    pub fn retry(&self) -> u64 {
        if self.is_lost() {
            return 0;
        }
        let mut owed = std::mem::take(&mut *self.owed.lock());
        if owed.is_empty() {
            return 0;
        }
        owed.sort_by_key(|item| match item {
            Owed::Mapping { .. } => 0,
            Owed::Handle { .. } | Owed::Malloc { .. } => 1,
            Owed::Reservation { .. } => 2,
        });
        let mut released_bytes = 0;
        for item in owed {
            // What fails again goes back on the list at once: a reservation looks there for mappings in it.
            match item {
                Owed::Mapping { address, bytes } => {
                    if self.unmap(address, bytes, 1).is_err() {
                        self.owe_mapping(address, bytes);
                    }
                }
                Owed::Handle { handle, bytes } => match self.release(handle) {
                    Ok(()) => released_bytes += bytes,
                    Err(returned) => self.owe_handle(returned.owner, bytes),
                },
                Owed::Reservation { address, bytes } => {
                    if self.unreserve(address, bytes).is_err() {
                        self.owe_reservation(address, bytes);
                    }
                }
                Owed::Malloc { address, bytes } => match self.free(address) {
                    Ok(()) => released_bytes += bytes,
                    Err(_) => self.owe_malloc(address, bytes),
                },
            }
        }
        released_bytes
    }
}

impl<D: Driver> Drop for Device<D> {
    fn drop(&mut self) {
        self.retry();
        let unreturned = self.unreturned();
        if !unreturned.is_empty() || self.is_lost() {
            tracing::error!(%unreturned, lost = self.is_lost(), "device dropped with memory not given back");
        }
    }
}
