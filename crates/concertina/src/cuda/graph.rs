//! Captures of a CUDA program, and what their graphs are launched by.
//!
//! Main types: none of its own. Neighbours: `crate::graph` has pools and scopes; `concertina-cuda` captures and launches.

use concertina_cuda::GraphMemory;

use super::error::Error;
use super::stream::Stream;
use super::{Graph, GraphPool};

/// A pool keeps the memory of its graphs until the last clone goes.
impl concertina_cuda::Sealed for GraphPool {}

impl GraphMemory for GraphPool {
    type Stream = Stream;
    type Error = Error;

    fn launch<T>(&self, stream: &Stream, launch: impl FnOnce() -> T) -> Result<T, Error> {
        Ok(Self::launch(self, stream.as_allocator_stream(), launch)?)
    }
}

impl Stream {
    /// Captures what `record` queues on this stream into a graph. Buffers that it makes on the stream have memory of the
    /// pool: those that it drops are the graph's own, those that it returns are inputs and results.
    ///
    /// ```no_run
    /// # use concertina::cuda::{DeviceBuffer, Memory, Stream};
    /// # use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
    /// # fn graph(
    /// #     memory: &Memory, stream: &Stream, cuda_stream: &CudaStream, step: &CudaFunction, shape: LaunchConfig,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = memory.graph_pool();
    /// let (graph, x) = stream.capture(&pool, || -> Result<_, Box<dyn std::error::Error>> {
    ///     let mut x = DeviceBuffer::<f32>::try_zeroed(stream, 1000)?;
    ///     let mut temporary = DeviceBuffer::<f32>::try_zeroed(stream, 1000)?;
    ///     unsafe { cuda_stream.launch_builder(step).arg(&mut x).arg(&mut temporary).launch(shape) }?;
    ///     Ok(x)
    /// })?;
    /// // SAFETY: `x` lives, and is used on this stream only.
    /// unsafe { graph.launch(stream) }?;
    /// let results = x.to_vec()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// In a capture nothing waits: `try_from_slice`, `to_vec` and whatever else synchronises is refused by the driver and
    /// breaks the capture. Buffers that were used on other streams before can't be put in order, nor can guards of
    /// [`on`](concertina_cuda::Buffer::on) between streams of the capture: order these by events of your own, and give the
    /// kernels addresses. Another stream of the capture has a scope of its own
    /// ([`crate::Stream::capture`]), which the closure returns, so that it outlives the capture.
    ///
    /// # Errors
    /// Those of `record`; [`Error::Allocator`] with a [`CaptureError`](crate::CaptureError); [`Error::Graph`]. The capture
    /// is ended in any case.
    pub fn capture<T, E: From<Error>>(
        &self,
        pool: &GraphPool,
        record: impl FnOnce() -> Result<T, E>,
    ) -> Result<(Graph, T), E> {
        let scope = self.as_allocator_stream().capture(pool).map_err(Error::from)?;
        let captured = concertina_cuda::capture(self.cuda_stream(), record);
        let ended = scope.end();
        let (graph, recorded) = captured.map_err(Error::from)?;
        // What went wrong first.
        let recorded = recorded?;
        let graph = graph.map_err(Error::from)?;
        ended.map_err(Error::from)?;
        Ok((Graph::new(graph, pool.clone()), recorded))
    }
}
