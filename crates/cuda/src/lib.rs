//! Concertina's driver on CUDA: virtual memory, events and streams through `cudarc::driver::sys`, in the context that
//! the program already uses.
//!
//! ```no_run
//! # use cudarc::driver::CudaContext;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = CudaContext::new(0)?; // the program's own
//! let cuda = concertina_cuda::Cuda::new(&context)?;
//! println!("{}", cuda.probe());
//! # Ok(())
//! # }
//! ```
//!
//! [`Cuda`] is a [`Driver`](concertina_vmm::Driver). What it
//! finds out about the device, and why something is missing, is in its [`Probe`].
//!
//! This crate holds all `unsafe` of the library. Every call of the driver goes through one function
//! (`Context::call`), which makes the context current, refuses once the process is exiting, and turns the driver's code
//! into a [`DriverError`](concertina_vmm::DriverError); nothing of it touches cudarc's own error slot.

#![allow(unsafe_code)]

mod allocation;
mod attribute;
mod buffer;
mod context;
mod cuda;
mod driver;
mod error;
mod event;
mod exit;
mod functions;
mod graph;
mod handle;
mod library;
mod probe;
mod raw;
mod status;
mod stream;
mod touch;
mod trial;

pub use buffer::{
    Buffer, BufferError, FillValue, GrowableBuffer, Home, On, OnMut, Registered, Transfer, View, ViewMut,
};
pub use cuda::{Cuda, CudaOptions, VirtualMemory};
pub use error::OpenError;
pub use event::Event;
pub use exit::process_is_exiting;
pub use graph::{Graph, GraphError, GraphMemory, GraphStep, capture};
pub use handle::Handle;
pub use library::{LoadError, load};
pub use probe::{DriverVersion, Granularity, Missing, Probe, Support};
pub use raw::{Access, Area, Kernels, Purpose, RawCalls, Spin};
pub use status::kind_of;
pub use stream::Stream;

#[doc(hidden)]
pub use buffer::Sealed;

/// The version of cudarc that this crate speaks: its types are in this crate's signatures.
pub use cudarc;
