//! What GPU programs would use instead of Concertina, as allocators that traces are replayed on.
//!
//! Main types: [`Baseline`], [`Direct`], [`Pytorch`], [`Gmlake`], [`Vpmm`]. Neighbours: `concertina-trace` replays on them,
//! the benches set them beside Concertina.
//!
//! | baseline | what it stands for | what is modelled |
//! | --- | --- | --- |
//! | [`Direct`] | no allocator at all: each allocation is a `cudaMalloc`, each free a `cudaFree` | how the driver packs small requests into granules, in the emulator; the time of both calls, from its cost table |
//! | [`Pytorch`] | PyTorch's caching allocator, native or with expandable segments, with its options | sizes, pools, places and driver calls, as its source has them |
//! | [`Gmlake`] | GMLake: PyTorch's allocator with fragments stitched by mapping them a second time | sizes, blocks, stitching and driver calls, as its source has them |
//! | [`Vpmm`] | VPMM, the pool of OpenVM's prover: free pages are mapped where they are needed | regions, pages, events, waits and driver calls, as its source has them; blocks below a page by `cudaMalloc`, as a stand-in |

#![forbid(unsafe_code)]

mod baseline;
mod direct;
mod event_queues;
pub mod gmlake;
mod options;
mod pool_error;
pub mod pytorch;
pub mod vpmm;

pub use baseline::Baseline;
pub use direct::{Direct, DirectBlock};
pub use gmlake::conf::{DefragLevel, GmlakeConf};
pub use gmlake::{Gmlake, GmlakeBlock, GmlakeStats};
pub use options::OptionsError;
pub use pool_error::PoolError;
pub use pytorch::conf::{ConfError, PytorchConf};
pub use pytorch::error::PytorchError;
pub use pytorch::rounding::Divisions;
pub use pytorch::stats::{Level, PytorchStats};
pub use pytorch::{Pytorch, PytorchBlock};
pub use vpmm::conf::VpmmConf;
pub use vpmm::{Vpmm, VpmmBlock};
