//! What GPU programs would use instead of Concertina, as allocators that traces are replayed on.
//!
//! Main types: [`Baseline`], [`Direct`], [`DriverPool`], [`Pytorch`], [`Bfc`], [`RmmPool`], [`RmmArena`], [`Gmlake`], [`Vpmm`],
//! [`Fixed`]. Neighbours: `concertina-trace` replays on them, the benches set them beside Concertina.
//!
//! | baseline | what it stands for | what is modelled |
//! | --- | --- | --- |
//! | [`Direct`] | no allocator at all: each allocation is a `cudaMalloc`, each free a `cudaFree` | how the driver packs small requests into granules, in the emulator; the time of both calls, from its cost table |
//! | [`DriverPool`] | the driver's own pool, `cudaMallocAsync` | whose freed memory a request may have, and what a synchronisation gives back, as the CUDA Programming Guide has them; the rest is a guess, told beside it |
//! | [`Pytorch`] | PyTorch's caching allocator, native or with expandable segments, with its options | sizes, pools, places and driver calls, as its source has them |
//! | [`Bfc`] | TensorFlow's and JAX's best fit with coalescing | sizes, places, mallocs, as its source has them |
//! | [`Fixed`] | one malloc of everything, cut up by hand | best fit in steps of 256 bytes |
//! | [`RmmPool`] | `pool_memory_resource` of RMM, the RAPIDS Memory Manager | lists, joining, growth, events and waits, places and driver calls, as its source has them |
//! | [`RmmArena`] | `arena_memory_resource` of RMM | superblocks, places and waits of the host, as its source has them |
//! | [`Gmlake`] | GMLake: PyTorch's allocator with fragments stitched by mapping them a second time | sizes, blocks, stitching and driver calls, as its source has them |
//! | [`Vpmm`] | VPMM, the pool of OpenVM's prover: free pages are mapped where they are needed | regions, pages, events, waits and driver calls, as its source has them; blocks below a page by `cudaMalloc`, as a stand-in |

#![forbid(unsafe_code)]

mod baseline;
pub mod bfc;
mod carving;
mod direct;
pub mod driver_pool;
mod event_queues;
mod fixed;
pub mod gmlake;
mod main_stream;
mod options;
mod pool_error;
pub mod pytorch;
pub mod rmm;
pub mod vpmm;

pub use baseline::Baseline;
pub use bfc::Bfc;
pub use bfc::conf::BfcConf;
pub use direct::{Direct, DirectBlock};
pub use driver_pool::DriverPool;
pub use driver_pool::conf::{DriverPoolConf, Remap};
pub use fixed::{Fixed, FixedConf};
pub use gmlake::conf::{DefragLevel, GmlakeConf};
pub use gmlake::{Gmlake, GmlakeBlock, GmlakeStats};
pub use main_stream::PoolBlock;
pub use options::OptionsError;
pub use pool_error::PoolError;
pub use pytorch::conf::{ConfError, PytorchConf};
pub use pytorch::error::PytorchError;
pub use pytorch::rounding::Divisions;
pub use pytorch::stats::{Level, PytorchStats};
pub use pytorch::{Pytorch, PytorchBlock};
pub use rmm::RmmBlock;
pub use rmm::arena::RmmArena;
pub use rmm::conf::{RmmArenaConf, RmmPoolConf};
pub use rmm::error::RmmError;
pub use rmm::pool::RmmPool;
pub use vpmm::conf::VpmmConf;
pub use vpmm::{Vpmm, VpmmBlock};
