//! The end of an allocator: who keeps it alive, what a close says, and allocators that do not know each other.
//!
//! Neighbours: `givebacks` has refusals while it lives.

use concertina::{Allocation, Allocator, Config, DriverErrorKind, Error, Layout, Stream};
use concertina_emulator::{Emulator, EmulatorConfig, Fault};
use concertina_vmm::Call;

use crate::program::{GIB, MIB};

const PAGE: u64 = 2 * MIB;

fn device() -> Emulator {
    Emulator::new(EmulatorConfig::default()).unwrap()
}

fn on(device: &Emulator) -> (Allocator<Emulator>, Stream<Emulator>) {
    let allocator = Allocator::new(device.clone(), Config::default()).unwrap();
    let stream = allocator.register_stream(device.stream());
    (allocator, stream)
}

#[test]
fn an_allocation_keeps_the_allocator_alive_when_all_else_is_dropped() {
    let device = device();
    let (allocator, stream) = on(&device);
    let blocks = [512, 3 * PAGE].map(|bytes| allocator.allocate(Layout::new(bytes), &stream).unwrap());
    drop((allocator, stream));
    let accessible = |block: &Allocation<Emulator>| {
        let pieces = device.resolve_range(block.address(), block.bytes());
        pieces.iter().all(|piece| piece.backing.is_some_and(|backing| backing.accessible))
    };
    let [first, second] = blocks;
    assert!(accessible(&first) && accessible(&second));
    drop(first);
    assert!(accessible(&second));
    assert!(!device.is_empty());
    drop(second);
    assert!(device.is_empty(), "left: {}", device.leaks());
    assert_eq!(device.broken_rules(), Vec::new());
}

#[test]
fn a_stream_keeps_the_allocator_alive() {
    let device = device();
    let (allocator, stream) = on(&device);
    drop(allocator.allocate(Layout::new(PAGE), &stream).unwrap());
    drop(allocator);
    assert!(!device.is_empty());
    drop(stream);
    assert!(device.is_empty(), "left: {}", device.leaks());
}

#[test]
fn a_close_in_use_says_by_how_many() {
    let device = device();
    let (allocator, stream) = on(&device);
    let block = allocator.allocate(Layout::new(PAGE), &stream).unwrap();
    let clone = allocator.clone();
    match allocator.close() {
        Err(Error::InUse(users)) => assert_eq!(users, 2, "a clone, and the stream with its block"),
        other => panic!("{other:?}"),
    }
    // Nothing has happened to what is in use.
    assert_eq!(clone.stats().live_bytes, PAGE);
    assert_eq!(clone.audit(), Vec::<String>::new());
    drop(block);
    drop(stream);
    clone.close().unwrap();
    assert!(device.is_empty(), "left: {}", device.leaks());
}

#[test]
fn a_close_tells_what_the_driver_would_not_take() {
    for call in [Call::Unreserve, Call::Release, Call::Unmap] {
        let device = device();
        let (allocator, stream) = on(&device);
        // Live until the stream is retired, so that the segments are there for the close.
        let raw = allocator.allocate_raw(Layout::new(3 * PAGE), &stream).unwrap();
        allocator.allocate_raw(Layout::new(512), &stream).unwrap();
        drop(stream);
        assert_eq!(raw.bytes(), 3 * PAGE);
        device.fail(Fault::from_nth(call, 1, DriverErrorKind::NotReady));
        let unreturned = match allocator.close() {
            Err(Error::Unreturned(unreturned)) => unreturned,
            other => panic!("{call}: {other:?}"),
        };
        let held = device.leaks();
        match call {
            Call::Unreserve => assert_eq!((unreturned.reservations, held.reservations), (2, 2)),
            Call::Release => {
                assert_eq!((unreturned.frames, held.frames), (4, 4));
                assert_eq!((unreturned.frame_bytes, held.mapped_bytes), (4 * PAGE, 4 * PAGE));
            }
            _ => assert_eq!((unreturned.mappings, held.mappings), (4, 4)),
        }
        assert_eq!(device.broken_rules(), Vec::new(), "{call}");
    }
}

#[test]
fn a_close_that_can_not_wait_for_a_stream_leaks_and_says_so() {
    for call in [Call::EventCreate, Call::EventRecord] {
        let device = device();
        let (allocator, stream) = on(&device);
        allocator.allocate_raw(Layout::new(3 * PAGE), &stream).unwrap();
        drop(stream);
        device.fail(Fault::from_nth(call, 1, DriverErrorKind::Invalid));
        let held = device.leaks();
        match allocator.close() {
            Err(Error::Unreturned(unreturned)) => {
                let said = (unreturned.mappings, unreturned.frames, unreturned.reservations);
                assert_eq!(said, (held.mappings, held.frames, held.reservations), "{unreturned}");
            }
            other => panic!("{call}: {other:?}"),
        }
        let left = device.leaks();
        assert_eq!((left.mappings, left.frames), (3, 3), "nothing is unmapped under work in flight");
        assert_eq!(device.broken_rules(), Vec::new());
    }
}

#[test]
fn allocators_do_not_know_each_other() {
    let first = device();
    for second in [first.clone(), device()] {
        let (mine, my_stream) = on(&first);
        let (theirs, their_stream) = on(&second);
        let raw = mine.allocate_raw(Layout::new(PAGE), &my_stream).unwrap();
        let their_block = theirs.allocate(Layout::new(PAGE), &their_stream).unwrap();

        let foreign = mine.allocate(Layout::new(PAGE), &their_stream);
        assert!(matches!(foreign, Err(Error::ForeignStream)), "{foreign:?}");
        assert!(matches!(their_block.record_stream(&my_stream), Err(Error::ForeignStream)));
        assert!(matches!(mine.record_stream_raw(raw, &their_stream), Err(Error::ForeignStream)));
        // The same numbers over there are another block.
        assert!(matches!(theirs.free_raw(raw), Err(Error::NotLive(_))));
        assert!(matches!(theirs.record_stream_raw(raw, &their_stream), Err(Error::NotLive(_))));
        assert_eq!(theirs.stats().live_bytes, PAGE);

        // One gives up what it has and ends; the other does not notice.
        mine.free_raw(raw).unwrap();
        assert_eq!(mine.trim().released_bytes, PAGE);
        drop(my_stream);
        mine.close().unwrap();
        assert_eq!(theirs.audit(), Vec::<String>::new());
        assert_eq!(theirs.trim().released_bytes, 0);
        drop(their_block);
        assert_eq!(theirs.trim().released_bytes, PAGE);
        drop(their_stream);
        theirs.close().unwrap();
        assert!(second.is_empty(), "left: {}", second.leaks());
        assert_eq!(second.broken_rules(), Vec::new());
    }
}

#[test]
fn two_allocators_on_one_device_share_its_capacity() {
    let device = Emulator::new(EmulatorConfig::default().with_capacity(GIB).unwrap()).unwrap();
    let ((first, first_stream), (second, second_stream)) = (on(&device), on(&device));
    let block = first.allocate(Layout::new(GIB * 3 / 4), &first_stream).unwrap();
    match second.allocate(Layout::new(GIB / 2), &second_stream) {
        Err(Error::OutOfMemory(report)) => {
            assert_eq!((report.live_bytes, report.limit_bytes), (0, None));
            assert_eq!(report.largest_bytes, GIB / 4);
        }
        other => panic!("{other:?}"),
    }
    drop(block);
    assert_eq!(first.trim().released_bytes, GIB * 3 / 4);
    drop(second.allocate(Layout::new(GIB / 2), &second_stream).unwrap());
}
