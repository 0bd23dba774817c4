//! CUDA virtual memory as owned values: reservations, frames, mappings and segments, the fences that order their reuse,
//! and the trait [`Driver`] that all of it stands on.
//!
//! This is the lowest layer: it knows bytes, pages and the driver's rules, and nothing of blocks or placement. The
//! layers above are drawn in `docs/architecture.md`.
//!
//! Who owns what: a [`Frame`] is in the slot of one page of one [`Segment`], in the [`FrameStore`], or in the hands of
//! whoever is moving it; a [`Mapping`] is in the slot of its page until it is unmapped; a [`Reservation`] is in its
//! segment. None of them can be cloned, and each gives itself back when it is dropped.

#![forbid(unsafe_code)]

#[cfg(feature = "contract")]
pub mod contract;
pub mod cross_stream;
pub mod device;
pub mod driver;
pub mod error;
pub mod fence;
pub mod frame;
pub mod frame_store;
mod free_frames;
pub mod malloc;
pub mod mapping;
pub mod page_bits;
pub mod reservation;
pub mod segment;
pub mod sync;
pub mod units;

pub use cross_stream::CrossStream;
pub use device::{Device, MALLOC_PAGE_BYTES, SegmentKind, Unreturned};
pub use driver::{Accessor, Capabilities, CaptureStatus, Driver, FrameProperties, MemoryInfo};
pub use error::{Call, DriverError, DriverErrorKind, Returned};
pub use fence::{BeginCapture, FenceCounts, Fences, Order, StreamClock, Use, Uses};
pub use frame::Frame;
pub use frame_store::{CreateError, Directory, FrameStore, Holder, ReleaseError};
pub use malloc::{Malloc, MallocCounts};
pub use mapping::{Access, Mapping};
pub use reservation::{PageState, Place, Reservation};
pub use segment::Segment;
pub use units::{Address, FrameId, PageRange, SegmentId, StreamId};
