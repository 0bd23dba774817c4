//! Concertina: GPU memory that does not fragment, for CUDA programs in Rust.
//!
//! Address space is reserved generously, physical memory is created in small frames, and any free frame serves any
//! page: so a request fails only when the bytes are truly not there. The map of the project is `docs/architecture.md`.
//!
//! [`Allocator`] is the way in; [`Stream`] and [`Allocation`] are what a program holds of it. With the feature `cuda`, the
//! module `cuda` is the way in for programs on cudarc, with typed buffers.

#![forbid(unsafe_code)]

mod address_table;
mod allocation;
mod allocator;
mod by_address;
mod config;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
mod graph;
mod growable;
mod layout;
mod on_stream;
mod scoped;
mod stream;
mod stream_table;

pub use allocation::{Allocation, RawAllocation};
pub use allocator::Allocator;
pub use by_address::ByAddress;
pub use config::{Config, ConfigBuilder, ConfigError};
pub use error::Error;
pub use graph::{CaptureScope, GraphPool};
pub use growable::Growable;
pub use layout::Layout;
pub use on_stream::OnStream;
pub use scoped::ScopedAllocation;
pub use stream::Stream;

pub use concertina_heap::{
    CaptureError, DEFERRED_FROM_BLOCKS, FreeError, Growth, HostWait, OutOfMemory, Policy, RequestError,
    StaleRule, Stats, Trimmed, Verdict,
};
pub use concertina_vmm::{
    Address, CrossStream, Driver, DriverError, DriverErrorKind, FenceCounts, SegmentKind, StreamId,
    Unreturned,
};

/// The programs in the README compile.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Handles may be sent to and shared by any thread, whatever the driver: compiles only while that is so.
#[cfg(test)]
mod handles_cross_threads {
    use super::{
        Allocation, Allocator, ByAddress, CaptureScope, Driver, Error, GraphPool, Growable, OnStream,
        ScopedAllocation, Stream,
    };

    fn is_send_and_sync<T: Send + Sync>() {}

    #[allow(dead_code)]
    fn all_are<D: Driver>() {
        is_send_and_sync::<Allocator<D>>();
        is_send_and_sync::<Stream<D>>();
        is_send_and_sync::<OnStream<D>>();
        is_send_and_sync::<ByAddress<D>>();
        is_send_and_sync::<Allocation<D>>();
        is_send_and_sync::<ScopedAllocation<'_, D>>();
        is_send_and_sync::<Growable<D>>();
        is_send_and_sync::<GraphPool<D>>();
        is_send_and_sync::<CaptureScope<D>>();
        is_send_and_sync::<Error>();
    }
}
