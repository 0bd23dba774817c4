//! What GPU programs would use instead of Concertina, as allocators that traces are replayed on.
//!
//! Main types: [`Direct`]. Neighbours: `concertina-trace` replays on them, the benches set them beside Concertina.
//!
//! | baseline | what it stands for | what is modelled |
//! | --- | --- | --- |
//! | [`Direct`] | no allocator at all: each allocation is a `cudaMalloc`, each free a `cudaFree` | how the driver packs small requests into granules, in the emulator; the time of both calls, from its cost table |
//!
//! Caches that keep freed blocks (PyTorch's two modes, RMM's pool) belong here too and are not there yet.

#![forbid(unsafe_code)]

mod direct;

pub use direct::{Direct, DirectBlock};
