//! What can go wrong for a CUDA program.
//!
//! Main type: [`Error`]. Neighbours: all of `cuda` returns it.

use concertina_cuda::{BufferError, GraphError, OpenError};
use concertina_vmm::CrossStream;

/// A failed call. All buffers are as they were, nothing is lost, and the call may be made again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device can't be used: no driver, an old one.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The allocator: out of memory, a setting that can't be, the driver.
    #[error(transparent)]
    Allocator(#[from] crate::Error),
    /// A buffer: a length that can't be, a copy that failed.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// The stream is registered, with another rule: register it before anything else does, or let go of it first.
    #[error(
        "the stream is registered with the rule {registered:?}, not {asked:?}: let go of that registration first"
    )]
    OtherRule {
        /// The rule that it has.
        registered: CrossStream,
        /// The rule that was asked for.
        asked: CrossStream,
    },
    /// A graph: its capture, or a launch.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The stream is of another context than the memory: make the memory of that context, too.
    #[error(
        "a stream of device {stream}; the memory is of a context on device {memory}, and not of the stream's"
    )]
    WrongContext {
        /// Ordinal of the stream's device.
        stream: usize,
        /// Ordinal of the memory's device.
        memory: usize,
    },
}

impl Error {
    /// Whether freeing memory, or asking for less, may help.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Allocator(error) if error.is_out_of_memory())
    }
}
