//! The bench harness of Concertina: one run of one trace on one allocator over the emulated device, and what came out.
//!
//! Main types: `Case`, `Outcome`, [`TraceFile`], [`Capacity`]. Neighbours: `cargo xtask bench` prints the outcomes, the
//! criterion benches time the same runs, tests assert on them. The method is in `benches/README.md`.

#![forbid(unsafe_code)]

pub mod catalogue;
pub mod size;

pub use catalogue::{AllocatorName, PolicyName, TraceFile, UnknownAllocator, UnknownPolicy, UnknownTrace};
pub use size::{Capacity, Granularity, SizeError};
