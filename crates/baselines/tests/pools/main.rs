//! The pools (`driver-pool`, `bfc`, `fixed`) with streams, and random programs on them.
//!
//! Neighbours: the rules of each, worked out by hand, are beside its source, if not here.

mod driver_pool;
mod fixed;
mod random;
mod streams;
mod world;
