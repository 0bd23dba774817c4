//! The proof under storm: random programs of several threads and streams, with failures, on the emulated device with the
//! race detector on; and that it would find what an allocator may forget.
//!
//! Neighbours: `random` has the storm and how to replay a failure, `mutants` what is forgotten. `tests/programs` checks
//! more after each step, of fewer programs; `tests/schedules.rs` tries out how threads may meet.

#![forbid(unsafe_code)]

mod actor;
mod coverage;
mod dice;
mod growing;
mod ledger;
mod mutants;
mod mutation;
mod op;
mod program;
mod random;
mod setup;
mod site;
