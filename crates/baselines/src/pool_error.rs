//! Why a pool refused: the errors of the baselines that are pools without options that can be wrong.
//!
//! Main type: [`PoolError`]. Neighbours: `driver_pool`, `bfc`, `fixed`, `gmlake` and `vpmm` return it.

use concertina_trace::target::TargetError;
use concertina_vmm::DriverError;

/// What went wrong. After any of these all live blocks are what they were.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// Nothing free is large enough, and the driver or the pool's own limit gives no more.
    #[error(
        "{requested_bytes} bytes asked for, {held_bytes} held of the driver, of which {used_bytes} are in use; free \
         blocks or use a larger device"
    )]
    OutOfMemory {
        /// As asked, in bytes.
        requested_bytes: u64,
        /// What the pool has of the driver, in bytes.
        held_bytes: u64,
        /// What blocks have of it, rounding and what was not split off included, in bytes.
        used_bytes: u64,
    },
    /// No pool has blocks of nothing.
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
    /// The pool's frames can't be created on the device.
    #[error(
        "frames of {frame_bytes} bytes are no multiple of the device's granularity of {granularity_bytes} bytes; \
         choose another size of frames, or another allocator where it is fixed"
    )]
    FrameSize {
        /// The size of a frame.
        frame_bytes: u64,
        /// The driver's granularity.
        granularity_bytes: u64,
    },
    /// The driver refused a call.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl PoolError {
    /// Whether memory was short, and nothing else wrong.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory { .. } => true,
            Self::Driver(error) => error.is_out_of_memory(),
            _ => false,
        }
    }
}

impl From<PoolError> for TargetError {
    fn from(error: PoolError) -> Self {
        if error.is_out_of_memory() { Self::OutOfMemory(error.into()) } else { Self::Failed(error.into()) }
    }
}
