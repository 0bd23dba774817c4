//! Graphs that are captured from a stream, with the memory that they work on.
//!
//! Main types: [`Graph`], [`GraphMemory`], [`GraphError`]. Neighbours: the crate `concertina` has the pools that keep a
//! graph's memory, and implements [`GraphMemory`]; cudarc captures and instantiates.

use core::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaStream, DriverError, result};

use crate::buffer::{Registered, Sealed};

/// A step in the life of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphStep {
    /// The begin of the capture.
    Begin,
    /// Its end, and the instantiation.
    End,
    /// A launch.
    Launch,
}

impl fmt::Display for GraphStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Begin => "the capture could not begin",
            Self::End => "the capture could not end with a graph",
            Self::Launch => "the graph could not be launched",
        })
    }
}

/// Why there is no graph, or no launch of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The driver refused. Where a capture was broken, by a copy that waits, say, its end tells.
    #[error("{step}: {error:?}")]
    Driver {
        /// What was asked.
        step: GraphStep,
        /// The driver's answer.
        error: DriverError,
    },
    /// The capture was over before its end, and gave no graph.
    #[error("the capture gave no graph: something else has ended it")]
    NoGraph,
}

fn refused(step: GraphStep) -> impl Fn(DriverError) -> GraphError {
    move |error| GraphError::Driver { step, error }
}

/// What keeps the memory of graphs, and orders their launches. Programs use the one in `concertina::cuda`.
pub trait GraphMemory: Sealed {
    /// A stream that graphs are launched on.
    type Stream: AsRef<Registered>;
    /// Why there was no launch.
    type Error: From<GraphError>;

    /// Puts the stream behind other uses of the memory, has `launch` queue a graph there, and notes the use.
    ///
    /// # Errors
    /// `launch` was not called then.
    fn launch<T>(&self, stream: &Self::Stream, launch: impl FnOnce() -> T) -> Result<T, Self::Error>;
}

/// A graph, ready to be launched as often as one likes, and the pool that its memory is in. Neither is for several threads
/// at once: the driver's graphs are not.
pub struct Graph<P> {
    // Goes first.
    graph: CudaGraph,
    pool: P,
}

impl<P: fmt::Debug> fmt::Debug for Graph<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl<P> Graph<P> {
    /// Joins a graph and the memory that its capture was given.
    pub fn new(graph: CudaGraph, pool: P) -> Self {
        Self { graph, pool }
    }

    /// The pool that its memory is in.
    pub fn pool(&self) -> &P {
        &self.pool
    }

    /// cudarc's graph. Its own `launch` tells the pool nothing.
    pub fn cuda_graph(&self) -> &CudaGraph {
        &self.graph
    }
}

impl<P: GraphMemory> Graph<P> {
    /// Launches the graph on a stream, which need not be the one that it was captured on: behind earlier launches of
    /// graphs of the pool, and behind work on blocks of the pool that are freed by now.
    ///
    /// # Errors
    /// The pool's; [`GraphError::Driver`].
    ///
    /// # Safety
    /// What the captured work reads and writes beside free memory of the pool is there until the launch is over, and in
    /// order with it: buffers of before the capture live and their uses on other streams are ordered by the caller, and
    /// so are those of buffers that were made in the capture and live on. No other launch of the pool on the way writes
    /// what this one leaves to be read.
    pub unsafe fn launch(&self, stream: &P::Stream) -> Result<(), P::Error> {
        let cuda_stream = stream.as_ref().cuda_stream();
        let launched = self.pool.launch(stream, || {
            cuda_stream.context().bind_to_thread()?;
            // SAFETY: graph and stream are alive, since we borrow their owners; this thread alone has the graph, which is
            // not `Sync`; the caller answers for what it works on.
            unsafe { result::graph::launch(self.graph.cu_graph_exec(), cuda_stream.cu_stream()) }
        })?;
        Ok(launched.map_err(refused(GraphStep::Launch))?)
    }
}

/// A capture that has begun. If nobody ends it, a panic is on its way.
struct Begun<'a>(Option<&'a Arc<CudaStream>>);

impl Begun<'_> {
    fn end(&mut self) -> Result<CudaGraph, GraphError> {
        let Some(stream) = self.0.take() else { return Err(GraphError::NoGraph) };
        // Graphs with allocations of the driver's own in them, which are none of ours, may be launched again.
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let ended = stream.end_capture(flags).map_err(refused(GraphStep::End))?;
        ended.ok_or(GraphError::NoGraph)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if self.0.is_some() {
            // There is a panic to tell already.
            let _ = self.end();
        }
    }
}

/// Captures what `record` queues on the stream, and instantiates it; returns the graph, or why there is none, and what
/// `record` returned. The capture forbids calls that the manual names unsafe to this thread only
/// (`CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`); those of this crate are made in the relaxed mode. It is ended in any case, also
/// when `record` panics.
///
/// # Errors
/// If the capture could not begin; `record` was not called then.
pub fn capture<T>(
    stream: &Arc<CudaStream>,
    record: impl FnOnce() -> T,
) -> Result<(Result<CudaGraph, GraphError>, T), GraphError> {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    stream.begin_capture(mode).map_err(refused(GraphStep::Begin))?;
    let mut begun = Begun(Some(stream));
    let recorded = record();
    Ok((begun.end(), recorded))
}
