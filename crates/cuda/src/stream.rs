//! Streams of the program, kept alive.
//!
//! Main types: [`Stream`], [`Owner`]. Neighbours: `driver` records events and queues waits on it.

use std::sync::Arc;
use std::thread::{self, ThreadId};

use cudarc::driver::{CudaContext, CudaStream, sys};

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
    owner: Owner,
    // Of a per-thread default stream: whose.
    thread: Option<ThreadId>,
}

/// Who keeps the stream alive.
#[derive(Clone, Debug)]
enum Owner {
    /// This value, with cudarc's.
    Shared(UnlessExiting<Arc<CudaStream>>),
    /// The program, which has promised it; kept is the context only.
    Program { raw: sys::CUstream, context: UnlessExiting<Arc<CudaContext>> },
}

// SAFETY: `raw` is a name that the driver takes from any thread, which `CudaStream` relies on as well; that of a
// per-thread default stream is used by its thread only (`foreign_thread`).
unsafe impl Send for Owner {}
// SAFETY: as above; the value itself never changes.
unsafe impl Sync for Owner {}

impl Stream {
    /// Keeps `stream` alive and stands for it.
    pub fn new(stream: Arc<CudaStream>) -> Self {
        Self::owned_by(Owner::Shared(UnlessExiting::new(stream)))
    }

    /// Stands for a stream that a program has by the driver's name for it, such as one not written in Rust. A null pointer
    /// is the legacy default stream. The context is kept alive, the stream is not.
    ///
    /// # Safety
    /// `raw` is a stream of this context, and is not destroyed while a clone of this value exists. (An allocator keeps one
    /// until the stream's last handle and last block have gone.)
    pub unsafe fn borrowed(context: &Arc<CudaContext>, raw: sys::CUstream) -> Self {
        Self::owned_by(Owner::Program { raw, context: UnlessExiting::new(Arc::clone(context)) })
    }

    fn owned_by(owner: Owner) -> Self {
        let mut stream = Self { owner, thread: None };
        if stream.raw() as usize == PER_THREAD {
            stream.thread = Some(thread::current().id());
        }
        stream
    }

    /// The program's stream, where cudarc has it: not of one that is [borrowed](Self::borrowed).
    pub fn cuda_stream(&self) -> Option<&Arc<CudaStream>> {
        match &self.owner {
            Owner::Shared(stream) => Some(stream),
            Owner::Program { .. } => None,
        }
    }

    pub(crate) fn raw(&self) -> sys::CUstream {
        match &self.owner {
            Owner::Shared(stream) => stream.cu_stream(),
            Owner::Program { raw, .. } => *raw,
        }
    }

    pub(crate) fn context(&self) -> &CudaContext {
        match &self.owner {
            Owner::Shared(stream) => stream.context(),
            Owner::Program { context, .. } => context,
        }
    }

    /// Whether `other` is this very stream, in the calling thread.
    pub(crate) fn is_same(&self, other: &CudaStream) -> bool {
        self.raw() == other.cu_stream()
            && self.context().cu_ctx() == other.context().cu_ctx()
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
