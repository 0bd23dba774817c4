//! The one seam between the allocator and a device: the trait [`Driver`].
//!
//! Main types: [`Driver`], [`Capabilities`], [`FrameProperties`]. Neighbours: the emulator and the
//! CUDA driver implement it; only the owners in this crate call it. Names keep the driver's nouns: the CUDA manual's
//! page on `cuMemMap` is the manual of [`Driver::map`].

use core::fmt::Debug;

use crate::error::{DriverError, Returned};
use crate::units::Address;

/// What a device can do. Asked once, when the driver is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Reservations, frames and mappings exist at all.
    pub virtual_memory: bool,
    /// One unmap may cover several adjacent whole mappings. True by practice on CUDA, not on HIP.
    pub unmap_spans_mappings: bool,
    /// Most mappings that the driver holds at once, if known; over it, set access or map runs out of memory.
    /// (Seen near 520,000 pages on one H100 with driver 580.82: a single public witness.)
    pub max_mappings: Option<u64>,
}

/// Where physical memory lies and what it may be used for; fixed when a frame is created. Frames with equal properties
/// form a class and serve one another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FrameProperties {
    /// Ordinal of the device that the memory lies on.
    pub device: u32,
}

/// Who may read and write a mapped range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accessor {
    /// The device with this ordinal.
    Device(u32),
}

/// Physical memory of the device, as the driver counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that a create could still take (by any process).
    pub free_bytes: u64,
    /// Bytes of the whole device.
    pub total_bytes: u64,
}

/// Whether a stream is recording a graph instead of running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CaptureStatus {
    /// Work runs.
    None,
    /// Work is recorded.
    Active,
    /// The capture was broken by an illegal call.
    Invalidated,
}

/// CUDA virtual memory management of one device, with the events and waits that make reuse safe.
///
/// One value stands for one device. Calls may come from any thread. A call that fails has changed nothing.
pub trait Driver: Send + Sync + 'static {
    /// A physical allocation. Not clonable: whoever holds it releases it, once.
    type Handle: Debug + Send + Sync;
    /// A marker in a stream. Dropping it destroys it.
    type Event: Debug + Send + Sync;
    /// A stream that its owner keeps alive; a clone is the same stream.
    type Stream: Clone + Debug + Send + Sync;

    /// What the device can do.
    fn capabilities(&self) -> &Capabilities;

    /// Smallest mappable size in bytes for memory with these properties: a power of two.
    fn granularity(&self, properties: &FrameProperties) -> Result<u64, DriverError>;

    /// Free and total physical memory in bytes. Slow on real devices: not for the hit path.
    fn memory_info(&self) -> Result<MemoryInfo, DriverError>;

    /// Takes `bytes` of addresses (a multiple of the granularity), aligned to `alignment` bytes (a power of two, or 0
    /// for the granularity).
    fn reserve(&self, bytes: u64, alignment: u64) -> Result<Address, DriverError>;

    /// Gives back a whole reservation: exactly the address and size of one `reserve`, with nothing mapped in it.
    fn unreserve(&self, address: Address, bytes: u64) -> Result<(), DriverError>;

    /// Takes `bytes` of physical memory (a multiple of the granularity).
    fn create(&self, bytes: u64, properties: &FrameProperties) -> Result<Self::Handle, DriverError>;

    /// Gives up the handle. The memory is free once its last mapping has gone too.
    fn release(&self, handle: Self::Handle) -> Result<(), Returned<Self::Handle>>;

    /// Maps the whole handle, from its start, at unmapped addresses of one reservation. No access yet.
    fn map(&self, address: Address, bytes: u64, handle: &Self::Handle) -> Result<(), DriverError>;

    /// Unmaps whole mappings. Does not wait for work on the device: the caller proves that none uses them.
    fn unmap(&self, address: Address, bytes: u64) -> Result<(), DriverError>;

    /// Lets `accessors` read and write a range of whole, adjacent mappings.
    fn set_access(&self, address: Address, bytes: u64, accessors: &[Accessor]) -> Result<(), DriverError>;

    /// A new event, not recorded yet.
    fn event_create(&self) -> Result<Self::Event, DriverError>;

    /// Puts the event behind all work queued on `stream` so far; an earlier record of it is forgotten.
    fn event_record(&self, event: &Self::Event, stream: &Self::Stream) -> Result<(), DriverError>;

    /// Whether the work before the event is done.
    fn event_query(&self, event: &Self::Event) -> Result<bool, DriverError>;

    /// Makes the host wait until the work before the event is done.
    fn event_synchronize(&self, event: &Self::Event) -> Result<(), DriverError>;

    /// Makes work queued on `stream` from now on wait, on the device, for the event.
    fn stream_wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), DriverError>;

    /// Whether `stream` records a graph.
    fn capture_status(&self, stream: &Self::Stream) -> Result<CaptureStatus, DriverError>;

    /// `cudaMalloc`: `bytes` of accessible memory, aligned to 256 bytes at least. This and [`Driver::free`] are for devices
    /// without virtual memory, and for baselines.
    fn malloc(&self, bytes: u64) -> Result<Address, DriverError>;

    /// `cudaFree`: gives back the address of one `malloc`. Waits for the whole device.
    fn free(&self, address: Address) -> Result<(), DriverError>;
}
