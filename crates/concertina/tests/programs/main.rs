//! What the allocator must show, on the emulated device: random programs against a model, failures on command, the
//! reports of out of memory, and worked examples.
//!
//! Neighbours: `program` has the operations and how they are drawn, `world` runs them and checks everything after each,
//! while the emulator looks for races. `PROPTEST_CASES` raises the number of random programs.

#![forbid(unsafe_code)]

mod captures;
mod cases;
mod close;
mod counts;
mod failures;
mod givebacks;
mod growables;
mod hangs;
mod lost;
mod mallocs;
mod never_fails;
mod on_stream;
mod order;
mod out_of_memory;
mod program;
mod random;
mod requests;
mod retired;
mod rules;
mod stale;
mod trim_waits;
mod verdicts;
mod world;
