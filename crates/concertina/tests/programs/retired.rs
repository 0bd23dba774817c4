//! Worked examples of streams that end before their memory does.
//!
//! Neighbours: `order` has the streams that go on.

use concertina::{Allocator, Config, CrossStream, HostWait, Layout};
use concertina_emulator::{Emulator, EmulatorConfig, EventCompletion};

use crate::program::{MIB, Op, Setup};
use crate::world::World;

const PAGE: u64 = 2 * MIB;

fn by_hand(device: u64, cross_stream: CrossStream) -> World {
    let plain = Setup::plain(PAGE, device);
    World::new(&Setup { completion: EventCompletion::ByHand, cross_stream, ..plain })
}

#[test]
fn the_frames_of_a_retired_stream_serve_others_at_once() {
    let mut world = by_hand(4, CrossStream::DeviceWait);
    let block = world.must_allocate(4 * PAGE, 0);
    world.free_at(block);
    world.replace_stream(0);
    world.must_allocate(4 * PAGE, 1);
    world.check();
    assert_eq!(world.allocator.stats().fences.waits, 1);
    assert_eq!(world.emulator().counts().host_waits, 0);
    world.end_empty();
}

#[test]
fn with_never_they_serve_others_once_they_are_done() {
    let mut world = by_hand(4, CrossStream::Never);
    let block = world.must_allocate(4 * PAGE, 0);
    world.free_at(block);
    world.replace_stream(0);
    assert!(world.allocate(Layout::new(PAGE), 1).is_refused());
    world.complete_all();
    world.must_allocate(4 * PAGE, 1);
    world.check();
    world.end_empty();
}

#[test]
fn a_block_outlives_the_handle_of_its_stream() {
    let mut world = by_hand(8, CrossStream::DeviceWait);
    let block = world.must_allocate(2 * PAGE, 0);
    world.replace_stream(0);
    world.must_allocate(6 * PAGE, 1);
    assert!(world.allocate(Layout::new(PAGE), 1).is_refused());
    world.check();
    world.free_at(block);
    // Its frames serve others before its work is done; its addresses go after that.
    let other = world.must_allocate(2 * PAGE, 1);
    world.check();
    // Those that were reserved for the refused request go at once.
    world.allocator.trim();
    let reservations = world.emulator().leaks().reservations;
    world.complete_all();
    world.allocator.trim();
    assert_eq!(world.emulator().leaks().reservations, reservations - 1);
    world.free_at(other);
    world.check();
    world.end_empty();
}

#[test]
fn a_recorded_use_outlives_the_handle_of_its_stream() {
    let mut world = by_hand(8, CrossStream::Completed);
    let block = world.must_allocate(2 * PAGE, 0);
    // A stream that never allocated anything, so that nothing but this use is known of it.
    world.record_stream(0, 1);
    world.replace_stream(1);
    world.free_at(block);
    assert_eq!(world.allocator.stats().pending_bytes, 2 * PAGE);
    assert_ne!(world.must_allocate(2 * PAGE, 0), block);
    world.complete_all();
    assert_eq!(world.must_allocate(2 * PAGE, 0), block);
    world.check();
    world.end_empty();
}

#[test]
fn the_end_waits_for_the_work_of_retired_streams() {
    let mut world = by_hand(8, CrossStream::DeviceWait);
    world.must_allocate(2 * PAGE, 0);
    world.record_stream(0, 1);
    world.replace_stream(1);
    // The detector cries if anything is unmapped under the kernel on the stream that is gone.
    world.end_empty();
}

#[test]
fn a_retired_stream_is_kept_alive_while_its_work_is_in_flight_and_no_longer() {
    for allocates in [false, true] {
        let mut world = by_hand(8, CrossStream::DeviceWait);
        let block = world.must_allocate(2 * PAGE, 2);
        if allocates {
            let own = world.must_allocate(2 * PAGE, 1);
            world.free_at(own);
        }
        world.record_stream(0, 1);
        let driver_stream = world.streams[1].own.clone();
        world.replace_stream(1);
        world.free_at(block);
        let one_and_ours = |world: &mut World| {
            // Anything slow looks after what retired streams left.
            let block = world.must_allocate(3 * PAGE, 0);
            world.free_at(block);
            driver_stream.holders()
        };
        assert_eq!(one_and_ours(&mut world), 2, "in flight");
        world.complete_all();
        world.must_allocate(4 * PAGE, 0);
        assert_eq!(driver_stream.holders(), 1, "done");
        world.check();
        world.end_empty();
    }
}

/// `Never` keeps frames with their stream, but nothing waits for a stream that is gone: what it had is nobody's once its
/// work is done.
#[test]
fn the_host_waits_for_the_end_of_a_retired_stream_whatever_the_rule() {
    for setup in [Setup::plain(PAGE, 4), Setup::without_virtual_memory(4)] {
        for pending in [false, true] {
            let rules = (CrossStream::Never, HostWait::LastResort);
            let mut world = World::new(&Setup {
                completion: EventCompletion::ByHand,
                cross_stream: rules.0,
                host_wait: rules.1,
                ..setup.clone()
            });
            let block = world.must_allocate(4 * PAGE, 0);
            if pending {
                world.record_stream(0, 2);
            }
            world.free_at(block);
            let waits = |world: &World| world.allocator.stats().fences.host_waits;
            assert_eq!(waits(&world), 0);
            // As long as the stream is there, a wait for what is pending would serve nobody else.
            assert!(world.allocate(Layout::new(4 * PAGE), 1).is_refused());
            assert_eq!(waits(&world), 0, "{pending}, {setup:?}");
            world.replace_stream(0);
            world.must_allocate(4 * PAGE, 1);
            assert_eq!(waits(&world), 1 + u64::from(pending), "{setup:?}");
            world.check();
            world.end_empty();
        }
    }
}

#[test]
fn streams_that_come_and_go_leave_nothing() {
    let mut world = by_hand(8, CrossStream::DeviceWait);
    let mut held = Vec::new();
    for round in 0..100 {
        let block = world.must_allocate(3 * PAGE, 0);
        world.record_stream(world.live.len() - 1, 1);
        world.free_at(block);
        world.replace_stream(0);
        world.replace_stream(1);
        world.step(&Op::Complete { stream: 2 });
        world.emulator().complete_all();
        // Something slow, which looks after what retired streams left.
        let other = world.must_allocate(8 * PAGE, 2);
        world.free_at(other);
        world.check();
        if round >= 50 {
            let leaks = world.emulator().leaks();
            held.push((leaks.reservations, leaks.events, leaks.mapped_bytes));
        }
    }
    assert!(held.iter().all(|now| *now == held[0]), "grows: {held:?}");
    world.end_empty();
}

#[test]
fn the_last_clone_of_a_stream_retires_it() {
    let device = Emulator::new(EmulatorConfig::default()).unwrap();
    let allocator = Allocator::new(device.clone(), Config::default()).unwrap();
    let stream = allocator.register_stream(device.stream());
    drop(allocator.allocate(Layout::new(PAGE), &stream).unwrap());
    let clone = stream.clone();
    assert_eq!(clone.id(), stream.id());
    drop(stream);
    drop(allocator.allocate(Layout::new(PAGE), &clone).unwrap());
    assert_eq!(device.leaks().reservations, 1);
    drop(clone);
    assert_eq!(device.leaks().reservations, 0);
    assert_eq!(allocator.audit(), Vec::<String>::new());
}

#[test]
fn a_stream_for_each_call_needs_the_memory_of_one_stream() {
    const CALL: u64 = 64 * MIB;
    for completion in [EventCompletion::AtOnce, EventCompletion::AfterOperations(1000)] {
        let device = Emulator::new(EmulatorConfig::default().with_event_completion(completion)).unwrap();
        let allocator = Allocator::new(device.clone(), Config::default()).unwrap();
        for _ in 0..1000 {
            let stream = allocator.register_stream(device.stream());
            drop(allocator.allocate(Layout::new(CALL), &stream).unwrap());
            device.advance(2);
        }
        let stats = allocator.stats();
        assert!(stats.mapped_peak_bytes * 10 <= 11 * CALL, "{completion:?}: {stats:?}");
        assert_eq!(stats.fences.host_waits, 0);
        // The addresses of streams whose work is done have gone.
        device.complete_all();
        allocator.trim();
        assert_eq!(device.leaks().reservations, 0, "{completion:?}");
    }
}
