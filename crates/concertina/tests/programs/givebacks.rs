//! What the driver refuses to take back, or to finish, while the allocator lives: kept, counted and tried again.
//!
//! Neighbours: `close` has refusals at the end, `failures` those at any point of a program.

use concertina::{Allocator, Config, DriverErrorKind, Layout};
use concertina_emulator::{Emulator, EmulatorConfig, Fault};
use concertina_vmm::Call;

use crate::program::{MIB, Setup};
use crate::world::World;

const PAGE: u64 = 2 * MIB;

#[test]
fn a_frame_whose_release_failed_stays_counted_and_goes_with_the_next_trim() {
    let mut world = World::new(&Setup::plain(PAGE, 8));
    let block = world.must_allocate(5 * PAGE, 0);
    world.free_at(block);
    world.emulator().fail(Fault::once(Call::Release, 3, DriverErrorKind::NotReady));
    let trimmed = world.allocator.trim();
    assert_eq!(trimmed.released_bytes, 4 * PAGE);
    assert_eq!(
        trimmed.failed.as_ref().map(|error| (error.call, error.kind)),
        Some((Call::Release, DriverErrorKind::NotReady))
    );
    let stats = world.allocator.stats();
    assert_eq!((stats.mapped_bytes, stats.free_bytes), (PAGE, 0), "mapped, and of no use to a request");
    world.check();
    let trimmed = world.allocator.trim();
    assert_eq!((trimmed.released_bytes, trimmed.failed), (PAGE, None));
    world.check();
    world.end_empty();
}

#[test]
fn a_frame_whose_release_failed_makes_room_for_a_request_that_needs_it() {
    let mut world = World::new(&Setup::plain(PAGE, 4));
    let block = world.must_allocate(4 * PAGE, 0);
    world.free_at(block);
    world.emulator().fail(Fault::from_nth(Call::Release, 1, DriverErrorKind::NotReady));
    assert_eq!(world.allocator.trim().released_bytes, 0);
    assert!(world.allocate(Layout::new(PAGE), 0).is_refused());
    world.check();
    world.emulator().clear_faults();
    world.must_allocate(4 * PAGE, 0);
    world.check();
    world.end_empty();
}

#[test]
fn a_page_whose_unmap_failed_keeps_its_frame() {
    let mut world = World::new(&Setup::plain(PAGE, 8));
    let block = world.must_allocate(4 * PAGE, 0);
    world.free_at(block);
    world.emulator().fail(Fault::once(Call::Unmap, 1, DriverErrorKind::Invalid));
    let trimmed = world.allocator.trim();
    assert_eq!((trimmed.released_bytes, trimmed.waiting_bytes), (0, 4 * PAGE));
    assert_eq!(trimmed.failed.map(|error| error.call), Some(Call::Unmap));
    world.check();
    // Still mapped, and so revived with no call.
    let before = world.memory_calls();
    assert_eq!(world.must_allocate(4 * PAGE, 0), block);
    assert_eq!(world.memory_calls(), before);
    world.check();
    world.end_empty();
}

#[test]
fn an_unreserve_that_failed_is_tried_again_by_the_next_trim() {
    let device = Emulator::new(EmulatorConfig::default()).unwrap();
    let allocator = Allocator::new(device.clone(), Config::default()).unwrap();
    let stream = allocator.register_stream(device.stream());
    drop(allocator.allocate(Layout::new(PAGE), &stream).unwrap());
    device.fail(Fault::from_nth(Call::Unreserve, 1, DriverErrorKind::NotReady));
    drop(stream);
    assert_eq!(device.leaks().reservations, 1);
    assert_eq!(allocator.audit(), Vec::<String>::new());
    device.clear_faults();
    allocator.trim();
    assert_eq!(device.leaks().reservations, 0);
    allocator.close().unwrap();
    assert!(device.is_empty(), "left: {}", device.leaks());
}

/// The eighth of the published cases (pytorch #188008): a request of twenty frames fails part-way, at each of them.
#[test]
fn a_request_that_fails_part_way_leaves_nothing_that_looks_usable() {
    for (call, error) in [
        (Call::SetAccess, DriverErrorKind::OutOfMemory),
        (Call::SetAccess, DriverErrorKind::Invalid),
        (Call::Map, DriverErrorKind::OutOfMemory),
        (Call::Map, DriverErrorKind::Invalid),
        (Call::Create, DriverErrorKind::Invalid),
        (Call::Create, DriverErrorKind::OutOfMemory),
    ] {
        let mut world = World::new(&Setup::plain(PAGE, 24));
        let other = world.must_allocate(2 * PAGE, 0);
        for frame in 1..=20 {
            world.emulator().fail(Fault::from_nth(call, frame, error));
            let failed = world.allocate(Layout::new(20 * PAGE), 0);
            world.emulator().clear_faults();
            world.check();
            // Access is one call for all frames: the later ones of it never come.
            if call == Call::SetAccess && frame > 1 {
                assert!(!failed.is_refused());
                world.free(world.live.len() - 1);
                break;
            }
            assert!(failed.is_refused(), "{call} {frame}: {failed:?}");
            assert_eq!(world.allocator.stats().live_bytes, 2 * PAGE);
            // Something is freed, and the same request again.
            let block = world.must_allocate(PAGE, 1);
            world.free_at(block);
            let block = world.must_allocate(20 * PAGE, 0);
            world.check();
            world.free_at(block);
            // From nothing again.
            world.allocator.trim();
        }
        world.free_at(other);
        world.end_empty();
    }
}
