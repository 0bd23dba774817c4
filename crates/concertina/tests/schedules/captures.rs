//! The races of a capture's end, one program each.
//!
//! Main types: none. Neighbours: `tests/schedules.rs` explores them; what a capture is, is tested in `tests/programs`.

use std::sync::Arc;

use concertina::{Error, Layout};

use crate::world::{PAGE, World};
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
