//! What GPU programs would use instead of Concertina, as allocators that traces are replayed on.
//!
//! Main types: [`Baseline`], [`Direct`], [`Pytorch`], [`RmmPool`], [`RmmArena`]. Neighbours: `concertina-trace` replays on
//! them, the benches set them beside Concertina.
//!
//! | baseline | what it stands for | what is modelled |
//! | --- | --- | --- |
//! | [`Direct`] | no allocator at all: each allocation is a `cudaMalloc`, each free a `cudaFree` | how the driver packs small requests into granules, in the emulator; the time of both calls, from its cost table |
//! | [`Pytorch`] | PyTorch's caching allocator, native or with expandable segments, with its options | sizes, pools, places and driver calls, as its source has them |
//! | [`RmmPool`] | `pool_memory_resource` of RMM, the RAPIDS Memory Manager | lists, joining, growth, events and waits, places and driver calls, as its source has them |
//! | [`RmmArena`] | `arena_memory_resource` of RMM | superblocks, places and waits of the host, as its source has them |

#![forbid(unsafe_code)]

mod baseline;
mod direct;
mod options;
pub mod pytorch;
pub mod rmm;

pub use baseline::Baseline;
pub use direct::{Direct, DirectBlock};
pub use options::OptionsError;
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
