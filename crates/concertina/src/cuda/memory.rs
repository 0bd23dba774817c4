//! The memory of a context.
//!
//! Main type: [`Memory`]. Neighbours: `stream` is what it registers.

use core::fmt;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, ThreadId};

use concertina_cuda::{Cuda, Registered};
use concertina_vmm::CrossStream;
use cudarc::driver::{CudaContext, CudaStream};

use crate::allocator::Allocator;
use crate::config::Config;

use super::GraphPool;
use super::error::Error;
use super::home::Home;
use super::stream::{Registration, Stream};

/// `CU_STREAM_PER_THREAD`: a name for another stream in each thread.
const PER_THREAD: usize = 2;

/// Which stream of the driver, in this context.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Name {
    raw: usize,
    thread: Option<ThreadId>,
}

impl Name {
    fn of(stream: &CudaStream) -> Self {
        let raw = stream.cu_stream() as usize;
        Self { raw, thread: (raw == PER_THREAD).then(|| thread::current().id()) }
    }
}

pub(super) struct Shared {
    pub(super) allocator: Allocator<Cuda>,
    // A registration keeps its stream, so that a name that leads to one is not another stream's by now.
    streams: Mutex<HashMap<Name, Weak<Registration>>>,
}

impl Shared {
    fn streams(&self) -> MutexGuard<'_, HashMap<Name, Weak<Registration>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_of_context(&self, stream: &CudaStream) -> bool {
        self.allocator.driver().context().cu_ctx() == stream.context().cu_ctx()
    }

    pub(super) fn find(&self, stream: &CudaStream) -> Option<Stream> {
        if !self.is_of_context(stream) {
            return None;
        }
        let registration = self.streams().get(&Name::of(stream))?.upgrade()?;
        Some(Stream { registration })
    }
}

/// Device memory of a CUDA context that does not fragment. Clones are the same memory; any thread may use it.
#[derive(Clone)]
pub struct Memory {
    shared: Arc<Shared>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Memory").field(&self.shared.allocator).finish()
    }
}

impl Memory {
    /// Memory of the context's device. Takes none yet.
    ///
    /// # Errors
    /// [`Error::Open`]: among others, the driver is too old. On a device without virtual memory the allocator uses malloc
    /// segments, of which the log warns: [`Allocator::segment_kind`].
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, Error> {
        let cuda = Cuda::new(context)?;
        let config = Config::builder().device(cuda.ordinal()).build();
        Self::with_driver(cuda, config)
    }

    /// The same with a driver that was made before, and with settings. Their device is the driver's.
    ///
    /// # Errors
    /// [`Error::Allocator`] for a setting that can't be.
    pub fn with_driver(cuda: Cuda, config: Config) -> Result<Self, Error> {
        let allocator = Allocator::new(cuda, config)?;
        Ok(Self { shared: Arc::new(Shared { allocator, streams: Mutex::new(HashMap::new()) }) })
    }

    /// Registers a stream, unless it is registered: then it is the same [`Stream`].
    ///
    /// A copy by cudarc on a stream that is not registered is in the right order, too, but makes the host wait.
    ///
    /// It follows the rule of the memory's settings, but for a per-thread default stream: on that no other thread can record
    /// an event, so it is registered with [`CrossStream::Completed`].
    ///
    /// # Errors
    /// [`Error::WrongContext`].
    pub fn stream(&self, stream: &Arc<CudaStream>) -> Result<Stream, Error> {
        let rule = (stream.cu_stream() as usize == PER_THREAD).then_some(CrossStream::Completed);
        self.register(stream, rule)
    }

    /// The same for a stream with a rule of its own: one whose work may wait for other streams or for the host, such as that
    /// of collectives, is registered with [`CrossStream::Completed`].
    ///
    /// # Errors
    /// [`Error::WrongContext`]; [`Error::OtherRule`] if it is registered with another rule.
    pub fn stream_with(&self, stream: &Arc<CudaStream>, rule: CrossStream) -> Result<Stream, Error> {
        let stream = self.register(stream, Some(rule))?;
        match self.shared.allocator.rule_of(stream.as_allocator_stream()) {
            registered if registered == rule => Ok(stream),
            registered => Err(Error::OtherRule { registered, asked: rule }),
        }
    }

    fn register(&self, stream: &Arc<CudaStream>, rule: Option<CrossStream>) -> Result<Stream, Error> {
        let shared = &self.shared;
        if !shared.is_of_context(stream) {
            let memory = shared.allocator.driver().context().ordinal();
            return Err(Error::WrongContext { stream: stream.context().ordinal(), memory });
        }
        let mut streams = shared.streams();
        let name = Name::of(stream);
        if let Some(registration) = streams.get(&name).and_then(Weak::upgrade) {
            return Ok(Stream { registration });
        }
        // Those that have gone make room.
        streams.retain(|_, registration| registration.strong_count() > 0);
        let kept = concertina_cuda::Stream::from(stream);
        let handle = match rule {
            Some(rule) => shared.allocator.register_stream_with(kept, rule),
            None => shared.allocator.register_stream(kept),
        };
        let core = Arc::clone(handle.core());
        let registered = Registered::new(stream, Arc::clone(core.clock()));
        let home = Arc::new(Home { memory: Arc::clone(shared), core, registered });
        let registration = Arc::new(Registration { home, stream: handle });
        streams.insert(name, Arc::downgrade(&registration));
        Ok(Stream { registration })
    }

    /// A pool for the memory of graphs that are captured: [`Stream::capture`]. It grows in captures;
    /// [`Allocator::graph_pool_with`] has one that does not.
    pub fn graph_pool(&self) -> GraphPool {
        self.shared.allocator.graph_pool()
    }

    /// The allocator: figures, trims, memory without a type.
    pub fn allocator(&self) -> &Allocator<Cuda> {
        &self.shared.allocator
    }

    /// Gives everything back to the driver and says whether it took it. Dropping the last clone does the same and can
    /// only log what went wrong.
    ///
    /// # Errors
    /// [`crate::Error::InUse`] while a clone, a stream or a buffer exists; [`crate::Error::Unreturned`] with what the
    /// driver would not take.
    pub fn close(self) -> Result<(), Error> {
        let shared = Arc::try_unwrap(self.shared)
            .map_err(|shared| crate::Error::InUse(Arc::strong_count(&shared) - 1))?;
        Ok(shared.allocator.close()?)
    }
}
