//! The races of a free that finds its heap's lock taken, one program each, named by the race.
//!
//! Main types: none. Neighbours: `tests/schedules.rs` explores them; the protocol stands in `docs/locking.md`.

use std::sync::Arc;

use concertina::{Allocator, Config, Layout, RawAllocation};
use concertina_emulator::{Emulator, EmulatorConfig};

use crate::world::{Home, PAGE, World};
use crate::{Program, eager_to_steal, explore, side_by_side};

/// Looks into every heap, one lock after the other: who frees meanwhile finds one taken.
fn look(world: &Arc<World>, times: u64) -> Program {
    let world = Arc::clone(world);
    Box::new(move || {
        for _ in 0..times {
            world.allocator.stats();
        }
    })
}

fn raw(world: &World, home: &Home, bytes: u64) -> RawAllocation {
    world.allocator.allocate_raw(Layout::new(bytes), &home.stream).unwrap()
}

/// A free that has returned counts for everybody: for the figures, and for another stream that needs the very frames.
#[test]
fn a_free_that_returned_is_seen_by_a_thief() {
    explore(|_| {
        let world = World::new(eager_to_steal(4));
        let homes = vec![world.home(), world.home()];
        let block = world.allocate(&homes[0], 4 * PAGE);
        let (freer, home) = (Arc::clone(&world), homes[1].clone());
        let free_then_steal: Program = Box::new(move || {
            drop(block);
            assert_eq!(freer.allocator.stats().live_bytes, 0);
            // Nobody else takes a frame, so that these four are to be had.
            assert!(freer.allocate(&home, 4 * PAGE).is_some(), "the frames of the free are not seen");
        });
        side_by_side(vec![free_then_steal, look(&world, 3)]);
        world.finish(homes);
    });
}

/// The free is queued while another thread serves a request from the same heap, and is to serve its next one.
#[test]
fn a_free_is_queued_while_its_heap_serves() {
    explore(|_| {
        let world = World::new(eager_to_steal(3));
        let homes = vec![world.home()];
        let block = world.allocate(&homes[0], 2 * PAGE);
        let (server, home) = (Arc::clone(&world), homes[0].clone());
        let serve: Program = Box::new(move || {
            for _ in 0..2 {
                assert!(server.allocate(&home, PAGE).is_some(), "one frame is free all along");
            }
        });
        side_by_side(vec![serve, Box::new(move || drop(block))]);
        let stats = world.allocator.stats();
        assert_eq!((stats.live_bytes, stats.live_peak_bytes / PAGE), (0, stats.live_peak_bytes / PAGE));
        assert!((2..=3).contains(&(stats.live_peak_bytes / PAGE)), "{stats:?}");
        world.finish(homes);
    });
}

/// The last block of a stream is freed as the stream retires, while somebody looks: one of the three sees it off, and
/// nobody has to come back for it.
#[test]
fn the_last_free_is_queued_as_its_stream_retires() {
    explore(|_| {
        let world = World::new(eager_to_steal(2));
        let leaving = world.home();
        let block = world.allocate(&leaving, PAGE);
        side_by_side(vec![Box::new(move || drop(leaving)), Box::new(move || drop(block)), look(&world, 2)]);
        assert_eq!(world.reservations(), 0, "the heap of the retired stream was left behind");
        world.finish(Vec::new());
    });
}

/// Raw blocks are freed, and a use of one is recorded, as their stream retires and others come: each is found by the
/// table of streams or in the registry, and none is lost.
#[test]
fn raw_blocks_are_freed_as_streams_come_and_go() {
    explore(|_| {
        let world = World::new(eager_to_steal(4));
        let (leaving, other) = (world.home(), world.home());
        let free = |block: RawAllocation| -> Program {
            let (world, user) = (Arc::clone(&world), other.clone());
            Box::new(move || {
                world.allocator.record_stream_raw(block, &user.stream).unwrap();
                world.allocator.free_raw(block).unwrap();
            })
        };
        let frees = [free(raw(&world, &leaving, PAGE)), free(raw(&world, &leaving, PAGE / 8))];
        let serving = Arc::clone(&world);
        let come_and_go: Program = Box::new(move || {
            drop(leaving);
            let homes = [serving.home(), serving.home()];
            for block in homes.each_ref().map(|home| raw(&serving, home, PAGE / 8)) {
                serving.allocator.free_raw(block).unwrap();
            }
        });
        side_by_side(frees.into_iter().chain([come_and_go]).collect());
        // A heap whose work was not seen done at its last free goes with a trim.
        world.allocator.trim();
        assert_eq!(world.reservations(), 0, "the heap of a retired stream is left for good");
        world.finish(vec![other]);
    });
}

/// Two threads free one block. At most one of them is told that it was not live, and it is freed once.
#[test]
fn two_threads_free_one_block() {
    explore(|_| {
        let world = World::new(eager_to_steal(3));
        let homes = vec![world.home()];
        let block = raw(&world, &homes[0], PAGE);
        let free = || -> Program {
            let world = Arc::clone(&world);
            Box::new(move || drop(world.allocator.free_raw(block)))
        };
        let (server, home) = (Arc::clone(&world), homes[0].clone());
        // What is allocated in its place is not what the second free frees: its generation is another.
        let serve: Program = Box::new(move || {
            let block = server.allocate(&home, PAGE).expect("two frames are free");
            assert!(server.allocator.stats().live_bytes >= PAGE, "a second free took another block");
            drop(block);
        });
        side_by_side(vec![free(), free(), serve]);
        world.finish(homes);
    });
}

/// A use is recorded as the block is freed. If it was recorded, the block waits for it; if not, the caller is told.
#[test]
fn a_use_is_recorded_as_the_block_is_freed() {
    explore(|dice| {
        let mut settings = eager_to_steal(2);
        settings.completion = crate::Settings::by_dice(2, dice).completion;
        let world = World::new(settings);
        let homes = vec![world.home(), world.home()];
        let block = raw(&world, &homes[0], PAGE);
        let (recorder, other) = (Arc::clone(&world), homes[1].clone());
        let record: Program = Box::new(move || {
            // No work stands behind it: what is told here is told in time.
            match recorder.allocator.record_stream_raw(block, &other.stream) {
                Ok(()) | Err(concertina::Error::NotLive(_)) => {}
                Err(error) => panic!("{error}"),
            }
        });
        let freer = Arc::clone(&world);
        let free: Program = Box::new(move || freer.allocator.free_raw(block).unwrap());
        side_by_side(vec![record, free, look(&world, 2)]);
        let stats = world.allocator.stats();
        assert_eq!((stats.live_bytes, stats.live_blocks), (0, 0));
        world.finish(homes);
    });
}

/// A block that another stream works on is freed while its heap's lock is taken: it waits for all that was queued
/// before the free, and serves nobody before.
#[test]
fn a_block_with_a_recorded_use_is_freed_while_its_heap_serves() {
    explore(|dice| {
        let mut settings = eager_to_steal(3);
        settings.completion = crate::Settings::by_dice(3, dice).completion;
        let world = World::new(settings);
        let homes = vec![world.home(), world.home()];
        let block = world.allocate(&homes[0], 2 * PAGE).unwrap();
        world.work_elsewhere(&block, &homes[0], &homes[1]);
        if dice.below(2) == 0 {
            world.work_again_elsewhere(&block, &homes[0], &homes[1]);
        }
        let (server, home) = (Arc::clone(&world), homes[0].clone());
        let serve: Program = Box::new(move || {
            for pages in [1, 3, 2] {
                drop(server.allocate(&home, pages * PAGE));
            }
        });
        side_by_side(vec![serve, Box::new(move || drop(block))]);
        world.finish(homes);
    });
}

/// Two heaps rise at once: neither sees the other's new count, and the peak is still not less than what lives at any
/// moment that somebody looks, nor more than both ever had.
#[test]
fn two_heaps_rise_at_once() {
    explore(|_| {
        let world = World::new(eager_to_steal(8));
        let homes = vec![world.home(), world.home()];
        let rise = |home: &Home| -> Program {
            let (world, home) = (Arc::clone(&world), home.clone());
            Box::new(move || {
                for pages in [1, 3, 2] {
                    let block = world.allocate(&home, pages * PAGE).expect("eight frames are enough");
                    let stats = world.allocator.stats();
                    assert!(stats.live_peak_bytes >= stats.live_bytes.min(pages * PAGE), "{stats:?}");
                    assert!((pages..=pages + 3).contains(&(stats.live_bytes / PAGE)), "{stats:?}");
                    drop(block);
                }
            })
        };
        side_by_side(vec![rise(&homes[0]), rise(&homes[1])]);
        let peak = world.allocator.stats().live_peak_bytes;
        assert!((3..=6).contains(&(peak / PAGE)), "{peak}");
        // With one thread it is exact again.
        let both = [world.allocate(&homes[0], 3 * PAGE), world.allocate(&homes[1], 4 * PAGE)];
        assert_eq!(world.allocator.stats().live_peak_bytes, 7 * PAGE);
        drop(both);
        world.finish(homes);
    });
}

/// The program lets go of allocator and streams while other threads still have blocks. These keep it alive, and whoever
/// frees the last one gives everything back.
#[test]
fn blocks_outlive_the_handles_of_their_allocator() {
    explore(|dice| {
        let device = Emulator::new(EmulatorConfig::default().with_granularity(PAGE)).unwrap();
        let allocator = Allocator::new(device.clone(), Config::default()).unwrap();
        let streams = [(); 2].map(|()| allocator.register_stream(device.stream()));
        let mut blocks: Vec<_> = (0..4)
            .map(|number| {
                let bytes = PAGE / 8 + dice.below(2) * PAGE;
                allocator.allocate(Layout::new(bytes), &streams[number % 2]).unwrap()
            })
            .collect();
        blocks[0].record_stream(&streams[1]).unwrap();
        let others = blocks.split_off(2);
        side_by_side(vec![
            Box::new(move || drop((streams, allocator))),
            Box::new(move || drop(blocks)),
            Box::new(move || drop(others)),
        ]);
        assert!(device.is_empty(), "{}", device.leaks());
        assert_eq!(device.broken_rules(), []);
    });
}
