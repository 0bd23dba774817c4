//! The races of a capture's end, one program each.
//!
//! Main types: none. Neighbours: `tests/schedules.rs` explores them; what a capture is, is tested in `tests/programs`.

use std::sync::Arc;

use concertina::{Error, GraphPool, Layout};
use concertina_emulator::Emulator;

use crate::world::{Home, PAGE, World};
use crate::{Program, eager_to_steal, explore, side_by_side};

/// A capture ends, and its pool with it, while another thread asks for memory on the stream: it gets what lives on, or
/// is told of the capture.
#[test]
fn a_pool_ends_while_memory_is_asked_for() {
    explore(|_| {
        let world = World::new(eager_to_steal(4));
        let home = world.home();
        let pool = world.allocator.graph_pool();
        let scope = home.stream.capture(&pool).unwrap();
        let (asking, stream) = (Arc::clone(&world), home.stream.clone());
        let ask: Program = Box::new(move || {
            for _ in 0..2 {
                match asking.allocator.allocate(Layout::new(PAGE), &stream) {
                    Ok(block) => asking.allocator.free_raw(block.into_raw()).unwrap(),
                    Err(error) => assert!(matches!(error, Error::Capture(_)), "{error}"),
                }
            }
        });
        let end: Program = Box::new(move || {
            drop(pool);
            scope.end().unwrap();
        });
        side_by_side(vec![ask, end]);
        world.finish(vec![home]);
    });
}

/// Handles of blocks of a capture are recorded for another stream and dropped, while the pool and their stream end by `end`:
/// whoever is last sees the pool's heap off, and nothing is left of it.
fn handles_go_with_their_pool_and_stream(end: fn(Home, GraphPool<Emulator>)) {
    let world = World::new(eager_to_steal(6));
    let (home, other) = (world.home(), world.home());
    let pool = world.allocator.graph_pool();
    let scope = home.stream.capture(&pool).unwrap();
    let blocks =
        [PAGE, PAGE / 8].map(|bytes| world.allocator.allocate(Layout::new(bytes), &home.stream).unwrap());
    scope.end().unwrap();
    let drops = blocks.map(|block| -> Program {
        let user = other.stream.clone();
        Box::new(move || block.record_stream(&user).unwrap())
    });
    let end: Program = Box::new(move || end(home, pool));
    side_by_side(drops.into_iter().chain([end]).collect());
    world.allocator.trim();
    assert_eq!(world.reservations(), 0, "a heap is left for good");
    world.finish(vec![other]);
}

#[test]
fn handles_of_a_capture_go_with_their_stream_and_then_their_pool() {
    explore(|_| {
        handles_go_with_their_pool_and_stream(|home, pool| {
            drop(home);
            drop(pool);
        });
    });
}

#[test]
fn handles_of_a_capture_go_with_their_pool_and_then_their_stream() {
    explore(|_| {
        handles_go_with_their_pool_and_stream(|home, pool| {
            drop(pool);
            drop(home);
        });
    });
}
