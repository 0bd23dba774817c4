//! The rules of RMM's pool and arena, each on a program of a few lines, and random programs.
//!
//! Neighbours: the unit tests of `rmm`; the bundled traces are in the tests of `concertina-bench`, beside what RMM's own
//! headers made of them.

mod arena;
mod pool;
mod program;
mod random;
