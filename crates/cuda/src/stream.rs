//! Streams of the program, kept alive.
//!
//! Main type: [`Stream`]. Neighbours: `driver` records events and queues waits on it.

use std::sync::Arc;
use std::thread::{self, ThreadId};

use cudarc::driver::{CudaStream, sys};

use crate::exit::UnlessExiting;

/// `CU_STREAM_PER_THREAD`: a name for another stream in each thread.
const PER_THREAD: usize = 2;

/// A stream of the program's, kept alive as long as a clone of this value. A clone is the same stream.
///
/// The driver's name for a *per-thread default stream* means another stream in each thread, and there is no way to speak
/// of another thread's. So such a stream belongs to the thread that made this value: register it once a thread, and
/// expect a refusal (`Invalid`) where another thread has to record an event on it or make it wait, as when it frees or
/// takes over memory of that stream. Streams made with `CudaContext::new_stream` have no such limit.
#[derive(Clone, Debug)]
pub struct Stream {
    stream: UnlessExiting<Arc<CudaStream>>,
    // Of a per-thread default stream: whose.
    thread: Option<ThreadId>,
}

impl Stream {
    /// Keeps `stream` alive and stands for it.
    pub fn new(stream: Arc<CudaStream>) -> Self {
        let per_thread = stream.cu_stream() as usize == PER_THREAD;
        Self { stream: UnlessExiting::new(stream), thread: per_thread.then(|| thread::current().id()) }
    }

    /// The program's stream.
    pub fn cuda_stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub(crate) fn raw(&self) -> sys::CUstream {
        self.stream.cu_stream()
    }

    /// Whether `other` is this very stream, in the calling thread.
    pub(crate) fn is_same(&self, other: &CudaStream) -> bool {
        self.raw() == other.cu_stream()
            && self.cuda_stream().context().cu_ctx() == other.context().cu_ctx()
            && self.foreign_thread().is_none()
    }

    /// The thread that alone may use it, unless it is the calling one.
    pub(crate) fn foreign_thread(&self) -> Option<ThreadId> {
        self.thread.filter(|thread| *thread != thread::current().id())
    }
}

impl From<Arc<CudaStream>> for Stream {
    fn from(stream: Arc<CudaStream>) -> Self {
        Self::new(stream)
    }
}

impl From<&Arc<CudaStream>> for Stream {
    fn from(stream: &Arc<CudaStream>) -> Self {
        Self::new(Arc::clone(stream))
    }
}
