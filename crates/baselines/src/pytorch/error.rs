//! Why the allocator refused.
//!
//! Main type: [`PytorchError`]. Neighbours: `request` has most of the reasons; `conf` has those of bad options.

use concertina_trace::target::TargetError;
use concertina_vmm::DriverError;

/// What went wrong. After any of these all live blocks are what they were.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PytorchError {
    /// The driver has nothing left, or the memory fraction allows no more, and freeing the cache did not help.
    #[error(
        "{requested_bytes} bytes asked for, {segment_bytes} more needed, {reserved_bytes} reserved, of which \
         {allocated_bytes} are in use{}; free blocks or use a larger device",
        .limit_bytes.map_or(String::new(), |limit| format!(", {limit} allowed by the memory fraction"))
    )]
    OutOfMemory {
        /// As asked, in bytes.
        requested_bytes: u64,
        /// The segment that was asked of the driver in vain, in bytes.
        segment_bytes: u64,
        /// What the allocator has of the driver, in bytes.
        reserved_bytes: u64,
        /// What the program has of it, in bytes.
        allocated_bytes: u64,
        /// The limit by `per_process_memory_fraction`, in bytes.
        limit_bytes: Option<u64>,
    },
    /// PyTorch answers with a null pointer.
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
    /// Expandable segments need frames that the device can't create.
    #[error(
        "frames of {frame_bytes} bytes are no multiple of the device's granularity of {granularity_bytes} bytes; \
         choose another large_segment_size_mb or no expandable_segments"
    )]
    FrameSize {
        /// The size of a frame.
        frame_bytes: u64,
        /// The driver's granularity.
        granularity_bytes: u64,
    },
    /// The driver refused a call that PyTorch does not expect to fail.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl PytorchError {
    /// Whether memory was short, and nothing else wrong.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory { .. } => true,
            Self::Driver(error) => error.is_out_of_memory(),
            _ => false,
        }
    }
}

impl From<PytorchError> for TargetError {
    fn from(error: PytorchError) -> Self {
        if error.is_out_of_memory() { Self::OutOfMemory(error.into()) } else { Self::Failed(error.into()) }
    }
}
