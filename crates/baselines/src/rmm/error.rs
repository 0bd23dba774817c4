//! Why RMM's allocators refused.
//!
//! Main type: [`RmmError`]. Neighbours: `pool` and `arena` have the reasons.

use concertina_trace::target::TargetError;
use concertina_vmm::DriverError;

/// What went wrong. After any of these all live blocks are what they were.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RmmError {
    /// No free block is large enough, and there is no more to be had of the driver.
    #[error(
        "no room for {requested_bytes} bytes: {held_bytes} are held, of which {live_bytes} are in use, and there are no \
         more to be had; free blocks, allow more with `initial` or `maximum`, or use a larger device"
    )]
    OutOfMemory {
        /// Rounded, in bytes.
        requested_bytes: u64,
        /// What the allocator has of the driver, in bytes.
        held_bytes: u64,
        /// What the program has of it, rounded, in bytes.
        live_bytes: u64,
    },
    /// RMM answers with a null pointer.
    #[error("0 bytes asked for; ask for 1 at least")]
    ZeroBytes,
    /// No stream of this number was added.
    #[error("no stream {stream}: {streams} were added; add it first")]
    UnknownStream {
        /// The number.
        stream: u32,
        /// How many there are.
        streams: usize,
    },
    /// The pool shall begin with more than it may have.
    #[error("`initial` is {initial_bytes} bytes here and `maximum` {maximum_bytes}: it must not be more")]
    InitialOverMaximum {
        /// What it shall begin with, in bytes.
        initial_bytes: u64,
        /// What it may have, in bytes.
        maximum_bytes: u64,
    },
    /// The arena is smaller than one superblock.
    #[error(
        "an arena of {bytes} bytes is too small: it must have 1 MiB; raise `initial` or use a larger device"
    )]
    ArenaTooSmall {
        /// Its size in bytes.
        bytes: u64,
    },
    /// The driver refused a call for another reason than want of memory.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl RmmError {
    /// Whether memory was short, and nothing else wrong.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory { .. } => true,
            Self::Driver(error) => error.is_out_of_memory(),
            _ => false,
        }
    }
}

impl From<RmmError> for TargetError {
    fn from(error: RmmError) -> Self {
        if error.is_out_of_memory() { Self::OutOfMemory(error.into()) } else { Self::Failed(error.into()) }
    }
}
