//! CUDA virtual memory as owned values: reservations, frames, mappings and segments, the fences that order their reuse,
//! and the trait [`Driver`] that all of it stands on.
//!
//! This is the lowest layer: it knows bytes, pages and the driver's rules, and nothing of blocks or placement. The
//! layers above are drawn in `docs/architecture.md`.

#[cfg(feature = "contract")]
pub mod contract;
pub mod driver;
pub mod error;
pub mod units;

pub use driver::{
    Accessor, BaselineDriver, Capabilities, CaptureStatus, Driver, FrameProperties, MemoryInfo,
};
pub use error::{Call, DriverError, DriverErrorKind, Returned};
pub use units::{Address, FrameId, PageRange, SegmentId, StreamId};
