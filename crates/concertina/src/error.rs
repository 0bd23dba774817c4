//! What can go wrong, by what the caller can do about it.
//!
//! Main type: [`Error`]. Neighbours: every fallible function of this crate returns it.

use concertina_heap::{AllocateError, CaptureError, FreeError, GrowError, OutOfMemory, RequestError};
use concertina_vmm::{Address, DriverError, Unreturned};

use crate::config::ConfigError;

/// A failed call. Whichever it is: all live blocks are as they were, nothing is lost, and the call may be made again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting that can't be: change the configuration.
    #[error("configuration: {0}")]
    Config(#[from] ConfigError),
    /// A request that no device could serve: change the call.
    #[error(transparent)]
    Request(RequestError),
    /// Not enough memory of the kind asked for. The report says why, and what would help.
    #[error(transparent)]
    OutOfMemory(Box<OutOfMemory>),
    /// A driver call failed for another reason than memory. After [`DriverErrorKind::Lost`](crate::DriverErrorKind)
    /// the device is gone for this process.
    #[error("driver: {0}")]
    Driver(#[from] DriverError),
    /// A growable has fewer addresses than that: reserve as many when it is made.
    #[error("growth to {bytes} bytes of a growable for {max_bytes}: reserve as many when it is made")]
    OverMax {
        /// Bytes asked for, in all.
        bytes: u64,
        /// Most bytes that it can have.
        max_bytes: u64,
    },
    /// The block is not live: freed twice, or not of this allocator.
    #[error(transparent)]
    NotLive(#[from] FreeError),
    /// No live block begins at that address: it was freed before, or is not one that this `ByAddress` gave out.
    #[error(
        "no live block begins at {address}: it was freed before, or is not one that this `ByAddress` gave out"
    )]
    NoBlockAt {
        /// The address.
        address: Address,
    },
    /// What was asked for stands on virtual memory, and the device has none, or malloc segments were configured.
    #[error("{what} needs virtual memory, which this allocator does not have: {why}")]
    NeedsVirtualMemory {
        /// What was asked for.
        what: &'static str,
        /// Why there is none.
        why: String,
    },
    /// The stream is registered with another allocator: register it here, too.
    #[error("the stream is registered with another allocator: register it with this one, too")]
    ForeignStream,
    /// A stream captures a graph, and the call would have to do what a capture forbids. The capture is not broken by it.
    #[error(transparent)]
    Capture(CaptureError),
    /// The allocator is still in use, by a clone, a stream, an allocation, a growable, a graph pool or a `ByAddress`: let go of
    /// these first. The number is that of references to its books; blocks of one stream count as one.
    #[error(
        "the allocator is still in use: {0} references by clones, streams, allocations, growables or graph pools"
    )]
    InUse(usize),
    /// The driver would not take everything back.
    #[error("{0}")]
    Unreturned(Unreturned),
}

impl Error {
    /// Whether freeing memory, or asking for less, may help.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory(_))
    }
}

impl From<AllocateError> for Error {
    fn from(error: AllocateError) -> Self {
        match error {
            AllocateError::Request(error) => Self::Request(error),
            AllocateError::OutOfMemory(report) => Self::OutOfMemory(report),
            AllocateError::Driver(error) => Self::Driver(error),
            AllocateError::Capture(error) => Self::Capture(error),
        }
    }
}

impl From<CaptureError> for Error {
    fn from(error: CaptureError) -> Self {
        AllocateError::from(error).into()
    }
}

impl From<GrowError> for Error {
    fn from(error: GrowError) -> Self {
        match error {
            GrowError::OverMax { bytes, max_bytes } => Self::OverMax { bytes, max_bytes },
            GrowError::Allocate(error) => error.into(),
        }
    }
}
