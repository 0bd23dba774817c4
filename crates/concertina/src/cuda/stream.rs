//! Streams of a CUDA program, registered with its memory.
//!
//! Main type: [`Stream`]. Neighbours: `memory` registers them, one registration for each; `home` is what buffers keep.

use core::fmt;
use std::sync::Arc;

use concertina_cuda::{Cuda, Registered};
use concertina_vmm::StreamId;
use cudarc::driver::CudaStream;

use super::home::Home;

/// One registration of a stream. Its end retires the stream.
pub(super) struct Registration {
    pub(super) home: Arc<Home>,
    pub(super) stream: crate::Stream<Cuda>,
}

/// A stream of the program's that memory is allocated on. Clones, and further registrations of the same stream, are the
/// same.
///
/// When the last one is dropped, the stream's free memory serves other streams. Buffers that live stay valid, and are freed
/// in the stream's order; the stream itself is kept for them. (A buffer of another stream that cudarc copied on this one
/// counts as a handle until somebody waits for the copy, or the buffer goes.)
#[derive(Clone)]
pub struct Stream {
    pub(super) registration: Arc<Registration>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.id()).finish()
    }
}

impl Stream {
    pub(super) fn home(&self) -> &Arc<Home> {
        &self.registration.home
    }

    /// The stream of the driver.
    pub fn cuda_stream(&self) -> &Arc<CudaStream> {
        self.home().registered.cuda_stream()
    }

    /// The allocator's number for it.
    pub fn id(&self) -> StreamId {
        self.registration.stream.id()
    }

    /// The stream as the allocator takes it: for memory without a type, and to tell it of waits of the program's own.
    pub fn as_allocator_stream(&self) -> &crate::Stream<Cuda> {
        &self.registration.stream
    }
}

impl AsRef<Registered> for Stream {
    fn as_ref(&self) -> &Registered {
        &self.home().registered
    }
}
