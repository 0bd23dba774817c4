//! The face for CUDA programs: memory of a context, streams, typed buffers. Behind the feature `cuda`.
//!
//! Main types: [`Memory`], [`Stream`], [`DeviceBuffer`], [`GrowableBuffer`], [`Graph`]. Neighbours: `concertina-cuda` has the driver, and all that is
//! `unsafe` of buffers; the rest of this crate is the allocator.
//!
//! A program on cudarc has a context and streams. Two lines more, and its buffers don't fragment:
//!
//! ```no_run
//! use concertina::cuda::{DeviceBuffer, Memory};
//! # use cudarc::driver::CudaContext;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = CudaContext::new(0)?; // as before
//! let cuda_stream = context.new_stream()?; // as before
//!
//! let memory = Memory::new(&context)?;
//! let stream = memory.stream(&cuda_stream)?;
//!
//! let x = DeviceBuffer::try_from_slice(&stream, &[1.0_f32, 2.0, 3.0])?;
//! let mut y = DeviceBuffer::<f32>::try_zeroed(&stream, 3)?;
//! cuda_stream.memcpy_dtod(&x, &mut y)?;
//! assert_eq!(y.to_vec()?, [1.0, 2.0, 3.0]);
//! # Ok(())
//! # }
//! ```
//!
//! Kernels take buffers as they take cudarc's slices:
//!
//! ```no_run
//! # use concertina::cuda::{DeviceBuffer, Stream};
//! # use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
//! # fn launch(
//! #     saxpy: &CudaFunction, home: &CudaStream, other: &CudaStream, stream: &Stream, other_stream: &Stream,
//! #     x: &DeviceBuffer<f32>, y: &mut DeviceBuffer<f32>, n: usize,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let config = LaunchConfig::for_num_elems(n as u32);
//! // On the stream that the buffers were made on:
//! unsafe { home.launch_builder(saxpy).arg(&2.0_f32).arg(x).arg(&mut *y).arg(&n).launch(config) }?;
//! // On another one, in the right order with what came before and what comes after:
//! unsafe {
//!     other
//!         .launch_builder(saxpy)
//!         .arg(&2.0_f32)
//!         .arg(&x.on(other_stream)?)
//!         .arg(&mut y.on_mut(other_stream)?)
//!         .arg(&n)
//!         .launch(config)
//! }?;
//! # Ok(())
//! # }
//! ```

mod error;
mod graph;
mod home;
mod memory;
mod stream;

pub use error::Error;
pub use home::Home;
pub use memory::Memory;
pub use stream::Stream;

pub use concertina_cuda::{
    BufferError, Cuda, CudaOptions, FillValue, GraphError, GraphStep, LoadError, OpenError, Probe,
    VirtualMemory, cudarc, load,
};

/// Typed memory on the device: see [`Buffer`](concertina_cuda::Buffer) for all that it does.
pub type DeviceBuffer<T> = concertina_cuda::Buffer<T, Home>;

/// Typed memory on the device that grows and shrinks in place: see [`GrowableBuffer`](concertina_cuda::GrowableBuffer).
///
/// ```no_run
/// # use concertina::cuda::{GrowableBuffer, Stream};
/// # fn cache(stream: &Stream, tokens: &[[f32; 128]]) -> Result<(), concertina::cuda::Error> {
/// let mut keys = GrowableBuffer::<f32>::try_with_max_len(stream, 1 << 30)?; // addresses only
/// for token in tokens {
///     keys.try_extend_from_slice(token)?; // nothing moves
/// }
/// keys.shrink_to(keys.len() / 2); // the rest serves others
/// # Ok(())
/// # }
/// ```
pub type GrowableBuffer<T> = concertina_cuda::GrowableBuffer<T, Home>;

/// A pool for the memory of graphs: see [`GraphPool`](crate::GraphPool).
pub type GraphPool = crate::GraphPool<Cuda>;

/// A captured graph with the pool that its memory is in: see [`Stream::capture`] and
/// [`Graph::launch`](concertina_cuda::Graph::launch).
pub type Graph = concertina_cuda::Graph<GraphPool>;

/// Some elements of a [`DeviceBuffer`], to be read.
pub type View<'a, T> = concertina_cuda::View<'a, T, Home>;

/// Some elements of a [`DeviceBuffer`], to be written.
pub type ViewMut<'a, T> = concertina_cuda::ViewMut<'a, T, Home>;

/// A [`DeviceBuffer`] as work on one stream reads it.
pub type On<'a, T> = concertina_cuda::On<'a, T, Home>;

/// A [`DeviceBuffer`] as work on one stream writes it.
pub type OnMut<'a, T> = concertina_cuda::OnMut<'a, T, Home>;
