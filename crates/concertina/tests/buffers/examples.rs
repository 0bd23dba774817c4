//! The examples, on the emulated device: they check their own results, and leave nothing behind.
//!
//! Main types: none. Neighbours: `examples/`.

#![allow(clippy::duplicate_mod, reason = "the examples share a module, which is here twice then")]

#[path = "../../examples/dynamic_shapes.rs"]
mod dynamic_shapes;
#[path = "../../examples/kv_cache.rs"]
mod kv_cache;
#[path = "../../examples/saxpy.rs"]
mod saxpy;
#[path = "../../examples/threads.rs"]
mod threads;

use crate::{Machine, PAGE};

#[test]
fn saxpy_is_right() {
    let machine = Machine::new();
    saxpy::kernels(&machine.libcuda).unwrap();
    saxpy::run(&machine.context, 1_000_000).unwrap();
    machine.ends();
}

#[test]
fn the_line_of_threads_is_right() {
    let machine = Machine::new();
    threads::kernels(&machine.libcuda).unwrap();
    threads::run(&machine.context, 100).unwrap();
    machine.ends();
}

#[test]
fn the_training_loop_learns_in_bounded_memory() {
    let machine = Machine::new();
    dynamic_shapes::kernels(&machine.libcuda).unwrap();
    let trained = dynamic_shapes::run(&machine.context, 200).unwrap();
    // The weights and the largest batch: 512 + 12 bytes for each of at most 9,191 points.
    assert!(trained.peak_live_bytes <= 8 + 9_191 * 524, "{trained:?}");
    // Rounded up to pages: the small buffers have a heap of their own.
    assert!(trained.peak_mapped_bytes <= trained.peak_live_bytes + 4 * PAGE, "{trained:?}");
    machine.ends();
}

#[test]
fn the_kv_cache_takes_what_is_in_it() {
    let machine = Machine::new();
    kv_cache::kernels(&machine.libcuda).unwrap();
    let served = kv_cache::run(&machine.context, 40).unwrap();
    // Less than a page of each cache is not in use, and what the policy lets memory go over: a twentieth.
    let most = (served.peak_live_bytes + 8 * PAGE) * 21 / 20;
    assert!(served.peak_mapped_bytes <= most, "{served:?}");
    assert!(served.preallocated_bytes > 10 * served.peak_mapped_bytes, "{served:?}");
    machine.ends();
}
