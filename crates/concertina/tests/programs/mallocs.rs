//! Malloc segments, for devices without virtual memory: worked examples of each step, and what virtual memory would buy.
//!
//! Neighbours: `random`, `never_fails`, `out_of_memory` and `failures` have random programs on them.

use concertina::{
    Allocator, Config, CrossStream, DriverErrorKind, Error, HostWait, Layout, OutOfMemory, Policy,
    SegmentKind, Verdict,
};
use concertina_emulator::{Emulator, EmulatorConfig, EventCompletion, Fault};
use concertina_vmm::Call;
use proptest::prelude::*;

use crate::program::{MIB, Op, Setup, cases, malloc_setup, program};
use crate::world::{Outcome, World, run};

const PAGE: u64 = 2 * MIB;

/// A device of so many bytes that steals before it mallocs.
fn lean(bytes: u64) -> Setup {
    Setup { policy: Policy::Lean, ..Setup::without_virtual_memory(bytes / PAGE) }
}

/// Mallocs, frees and waits on the device so far.
fn counts(world: &World) -> [u64; 3] {
    [Call::Malloc, Call::Free, Call::StreamWait].map(|call| world.count(call))
}

fn refuse(world: &mut World, bytes: u64, stream: usize) -> OutOfMemory {
    match world.allocate(Layout::new(bytes), stream) {
        Outcome::OutOfMemory(report) => *report,
        other => panic!("{bytes} bytes on stream {stream}: {other:?}"),
    }
}

#[test]
fn segments_have_the_sizes_of_the_caching_allocators() {
    let mut world = World::new(&Setup::without_virtual_memory(512));
    let mapped = |world: &World| world.allocator.stats().mapped_bytes / MIB;
    world.must_allocate(512, 0);
    world.must_allocate(MIB, 0);
    assert_eq!(mapped(&world), 2, "both in one segment of 2 MiB");
    world.must_allocate(MIB, 0);
    assert_eq!(mapped(&world), 4);
    world.must_allocate(MIB + 1, 0);
    world.must_allocate(18 * MIB, 0);
    assert_eq!(mapped(&world), 24, "both in one of 20 MiB");
    world.must_allocate(21 * MIB, 0);
    assert_eq!(mapped(&world), 46, "whole pages");
    let aligned = world.allocate(Layout::new(20 * MIB).aligned_to(4 * PAGE), 0);
    let Outcome::Allocated(address) = aligned else { panic!("{aligned:?}") };
    assert!(address.is_aligned_to(4 * PAGE));
    assert_eq!(mapped(&world), 74, "with room for the alignment wherever the driver puts it");
    assert_eq!(counts(&world), [5, 0, 0]);
    world.check();
    world.end_empty();
}

#[test]
fn what_was_allocated_before_costs_no_call() {
    let mut world = World::new(&Setup::without_virtual_memory(64));
    let sizes = [512, 40 * 512, MIB, 3 * MIB, 20 * MIB, MIB + 512];
    let blocks = sizes.map(|bytes| world.must_allocate(bytes, 0));
    blocks.into_iter().for_each(|block| world.free_at(block));
    let before = world.emulator().counts();
    for _ in 0..3 {
        let blocks = sizes.map(|bytes| world.must_allocate(bytes, 0));
        blocks.into_iter().for_each(|block| world.free_at(block));
    }
    assert_eq!(world.emulator().counts(), before);
    world.end_empty();
}

/// Four segments, each with a block that lives in the middle: 14 MiB of whole pages are free in each, and no 30 MiB.
#[test]
fn fragmentation_is_told_and_would_not_be_there_with_virtual_memory() {
    let of = |virtual_memory| Setup { virtual_memory, ..Setup::without_virtual_memory(40) };
    let fill = |world: &mut World| {
        let pairs: Vec<_> =
            (0..4).map(|_| [15 * MIB, 4 * MIB].map(|bytes| world.must_allocate(bytes, 0))).collect();
        pairs.iter().for_each(|[passing, _]| world.free_at(*passing));
    };
    let mut world = World::new(&of(false));
    fill(&mut world);
    let report = refuse(&mut world, 30 * MIB, 0);
    assert_eq!(report.verdict, Verdict::FragmentedWithoutVirtualMemory, "{report}");
    assert_eq!((report.mapped_bytes, report.live_bytes), (80 * MIB, 16 * MIB));
    assert_eq!((report.free_bytes, report.stranded_bytes), (56 * MIB, 8 * MIB));
    assert_eq!((report.free_frames, report.largest_bytes), (28, 15 * MIB));
    assert!(report.to_string().contains("fragmented, and without virtual memory"), "{report}");
    // No segment went for nothing.
    assert_eq!(counts(&world), [4, 0, 0]);
    world.must_allocate(report.largest_bytes, 0);
    world.check();
    world.end_empty();

    let mut world = World::new(&of(true));
    fill(&mut world);
    world.must_allocate(30 * MIB, 0);
    world.end_empty();
}

/// What of the memory is not to be had at all is not called fragmentation.
#[test]
fn other_verdicts_are_the_same_as_with_virtual_memory() {
    let mut world = World::new(&lean(40 * MIB));
    world.must_allocate(30 * MIB, 0);
    let report = refuse(&mut world, 12 * MIB, 0);
    assert_eq!((report.verdict, report.largest_bytes), (Verdict::NotEnoughMemory, 10 * MIB));
    assert_eq!(refuse(&mut world, 100 * MIB, 1).verdict, Verdict::NotEnoughMemory);
    world.must_allocate(10 * MIB, 0);
    world.end_empty();

    let mut world = World::new(&Setup { limit: Some(12), ..lean(80 * MIB) });
    world.must_allocate(20 * MIB, 0);
    let report = refuse(&mut world, 6 * MIB, 0);
    assert_eq!((report.verdict, report.largest_bytes), (Verdict::OverLimit, 4 * MIB));
    world.end_empty();

    let mut world = World::new(&Setup { cross_stream: CrossStream::Never, ..lean(40 * MIB) });
    let block = world.must_allocate(30 * MIB, 0);
    world.free_at(block);
    let report = refuse(&mut world, 20 * MIB, 1);
    assert_eq!((report.verdict, report.withheld_bytes), (Verdict::HeldByOtherStreams, 30 * MIB));
    world.end_empty();

    let late =
        Setup { completion: EventCompletion::ByHand, cross_stream: CrossStream::Completed, ..lean(40 * MIB) };
    let mut world = World::new(&late);
    let block = world.must_allocate(30 * MIB, 0);
    world.record_stream(0, 1);
    world.free_at(block);
    let report = refuse(&mut world, 20 * MIB, 0);
    assert_eq!((report.verdict, report.pending_bytes), (Verdict::HeldByPendingStreams, 30 * MIB));
    world.complete_all();
    world.must_allocate(20 * MIB, 0);
    world.end_empty();
}

/// An empty segment goes to another stream as it is: a wait on the device, and no call about memory.
#[test]
fn an_empty_segment_is_handed_over_behind_a_wait_on_the_device() {
    let mut world = World::new(&Setup { completion: EventCompletion::ByHand, ..lean(80 * MIB) });
    let block = world.must_allocate(30 * MIB, 0);
    world.free_at(block);
    assert_eq!(world.must_allocate(24 * MIB, 1), block, "the same memory");
    assert_eq!(counts(&world), [1, 0, 1]);
    world.check();
    // And back. What the first stream finds there is behind what the second one did.
    world.free_at(block);
    assert_eq!(world.must_allocate(30 * MIB, 0), block);
    assert_eq!(counts(&world), [1, 0, 2]);
    // To the other heap of the same stream it goes without a wait.
    world.free_at(block);
    let small = world.must_allocate(512, 0);
    world.free_at(small);
    assert_eq!(world.must_allocate(MIB + 512, 0), block, "what the own heap has serves first");
    assert_eq!(world.allocator.stats().moved_segments, 2);
    world.check();
    world.end_empty();
}

/// It would stay with a stream that has no use for most of it.
#[test]
fn a_segment_much_larger_than_needed_is_not_handed_over() {
    let mut world = World::new(&lean(200 * MIB));
    let block = world.must_allocate(100 * MIB, 0);
    world.free_at(block);
    assert_ne!(world.must_allocate(30 * MIB, 1), block);
    assert_eq!(counts(&world), [2, 0, 0]);
    // When there is no other way it is given back, and a part of it taken again.
    world.must_allocate(100 * MIB - PAGE, 2);
    world.must_allocate(60 * MIB, 1);
    world.check();
    assert_eq!(world.allocator.stats().mapped_bytes, 190 * MIB);
    world.end_empty();
}

/// Segments that are too small by themselves go back to the driver, the largest first, until there is room for one malloc.
#[test]
fn empty_segments_make_room_for_a_larger_one() {
    let mut world = World::new(&lean(100 * MIB));
    let blocks = [20, 30, 24, 22].map(|size| world.must_allocate(size * MIB, size as usize % 3));
    for block in &blocks[..3] {
        world.free_at(*block);
    }
    world.must_allocate(50 * MIB, 0);
    assert_eq!(counts(&world)[..2], [5, 2], "30 and 24 MiB went");
    assert_eq!(world.allocator.stats().mapped_bytes, 92 * MIB);
    world.check();
    world.end_empty();
}

/// What was noted about the pages of a segment that has gone is not taken for those of the next in its place.
#[test]
fn a_smaller_segment_comes_where_a_larger_one_was() {
    let mut world = World::new(&lean(200 * MIB));
    let whole = world.must_allocate(60 * MIB, 0);
    world.free_at(whole);
    for bytes in [2 * MIB, 4 * MIB, 2 * MIB] {
        let blocks: Vec<_> = (0..60 * MIB / bytes).map(|_| world.must_allocate(bytes, 0)).collect();
        blocks.iter().step_by(2).for_each(|block| world.free_at(*block));
        blocks.iter().skip(1).step_by(2).for_each(|block| world.free_at(*block));
    }
    assert_eq!(world.allocator.trim().released_bytes, 60 * MIB);
    for _ in 0..20 {
        let blocks: Vec<_> = (0..10).map(|_| world.must_allocate(2 * MIB, 0)).collect();
        blocks.into_iter().for_each(|block| world.free_at(block));
        world.check();
    }
    assert_eq!(counts(&world)[..2], [2, 1]);
    world.end_empty();
}

/// A request that could not be served anyhow gives nothing back: no wait for the device, no malloc to be made again.
#[test]
fn a_hopeless_request_gives_nothing_back() {
    let mut world = World::new(&lean(100 * MIB));
    world.must_allocate(40 * MIB, 0);
    let block = world.must_allocate(40 * MIB, 1);
    world.free_at(block);
    let report = refuse(&mut world, 61 * MIB, 0);
    assert_eq!((report.verdict, report.largest_bytes), (Verdict::NotEnoughMemory, 60 * MIB));
    assert_eq!(counts(&world)[..2], [2, 0]);
    world.must_allocate(60 * MIB, 0);
    assert_eq!(counts(&world)[..2], [3, 1]);
    world.end_empty();
}

#[test]
fn pending_blocks_come_back_before_a_malloc() {
    let mut world = World::new(&Setup { completion: EventCompletion::ByHand, ..lean(80 * MIB) });
    let block = world.must_allocate(30 * MIB, 0);
    world.record_stream(0, 1);
    world.free_at(block);
    assert_eq!(world.allocator.stats().pending_bytes, 30 * MIB);
    assert_eq!(world.must_allocate(30 * MIB, 0), block);
    world.check();
    assert_eq!(counts(&world)[..2], [1, 0]);
    world.end_empty();
}

#[test]
fn a_trim_gives_back_what_is_empty_and_done() {
    let mut world = World::new(&Setup { completion: EventCompletion::ByHand, ..lean(200 * MIB) });
    let [first, second, small] = [30 * MIB, 40 * MIB, 512].map(|bytes| world.must_allocate(bytes, 0));
    let kept = world.must_allocate(22 * MIB, 1);
    world.free_at(second);
    world.free_at(small);
    let trimmed = world.allocator.trim();
    assert_eq!((trimmed.released_bytes, trimmed.waiting_bytes), (0, 42 * MIB), "not done");
    world.complete_all();
    // The largest that is not more than asked for, else the smallest.
    assert_eq!(world.allocator.trim_to(93 * MIB).released_bytes, 2 * MIB);
    world.check();
    world.free_at(first);
    world.synchronize(0);
    let trimmed = world.allocator.trim();
    assert_eq!((trimmed.released_bytes, trimmed.waiting_bytes, trimmed.failed), (70 * MIB, 0, None));
    assert_eq!(world.allocator.stats().mapped_bytes, 22 * MIB);
    world.check();
    world.free_at(kept);
    world.end_empty();
}

#[test]
fn the_segments_of_a_retired_stream_serve_others() {
    let mut world = World::new(&Setup { completion: EventCompletion::ByHand, ..lean(80 * MIB) });
    let block = world.must_allocate(30 * MIB, 0);
    world.free_at(block);
    world.step(&Op::Replace { stream: 0 });
    world.check();
    assert_eq!(world.allocator.stats().free_bytes, 30 * MIB);
    assert_eq!(world.must_allocate(30 * MIB, 1), block);
    world.check();
    assert_eq!(counts(&world)[..2], [1, 0]);
    world.end_empty();
}

#[test]
fn a_segment_that_the_driver_would_not_take_is_counted_and_tried_again() {
    let mut world = World::new(&lean(80 * MIB));
    let blocks = [30 * MIB, 20 * MIB].map(|bytes| world.must_allocate(bytes, 0));
    blocks.into_iter().for_each(|block| world.free_at(block));
    world.emulator().fail(Fault::once(Call::Free, 1, DriverErrorKind::NotReady));
    let trimmed = world.allocator.trim();
    assert_eq!(trimmed.released_bytes, 20 * MIB);
    assert_eq!(trimmed.failed.map(|error| error.call), Some(Call::Free));
    let stats = world.allocator.stats();
    assert_eq!((stats.mapped_bytes, stats.free_bytes), (30 * MIB, 0), "mapped, and of no use");
    world.check();
    // A request that needs the room makes it go.
    world.must_allocate(60 * MIB, 1);
    assert_eq!(world.allocator.stats().mapped_bytes, 60 * MIB);
    world.check();
    world.end_empty();
}

#[test]
fn a_close_tells_of_segments_that_the_driver_would_not_take() {
    for (call, fails) in [(Call::Free, Call::Free), (Call::Malloc, Call::EventRecord)] {
        let device =
            Emulator::new(EmulatorConfig { virtual_memory: false, ..EmulatorConfig::default() }).unwrap();
        let allocator = Allocator::new(device.clone(), Config::default()).unwrap();
        let stream = allocator.register_stream(device.stream());
        allocator.allocate_raw(Layout::new(30 * MIB), &stream).unwrap();
        allocator.allocate_raw(Layout::new(512), &stream).unwrap();
        drop(stream);
        device.fail(Fault::from_nth(fails, 1, DriverErrorKind::NotReady));
        let unreturned = match allocator.close() {
            Err(Error::Unreturned(unreturned)) => unreturned,
            other => panic!("{call}: {other:?}"),
        };
        assert_eq!((unreturned.mallocs, unreturned.malloc_bytes), (2, 32 * MIB), "{unreturned}");
        assert_eq!((unreturned.mappings, unreturned.frames, unreturned.reservations), (0, 0, 0));
        assert_eq!((device.leaks().mallocs, device.broken_rules()), (2, Vec::new()));
    }
}

#[test]
fn the_kind_of_segments_is_told_and_can_be_asked_for() {
    let without = EmulatorConfig { virtual_memory: false, ..EmulatorConfig::default() };
    let kind = |config: &EmulatorConfig, settings: Config| {
        let device = Emulator::new(config.clone()).unwrap();
        Allocator::new(device, settings).map(|allocator| allocator.segment_kind())
    };
    let ask = |kind| Config::builder().segments(kind).build();
    let with = EmulatorConfig::default();
    assert_eq!(kind(&with, Config::default()).unwrap(), SegmentKind::Reserved);
    assert_eq!(kind(&with, ask(SegmentKind::Malloc)).unwrap(), SegmentKind::Malloc);
    assert_eq!(kind(&without, Config::default()).unwrap(), SegmentKind::Malloc);
    let refused = kind(&without, ask(SegmentKind::Reserved)).unwrap_err();
    assert!(matches!(refused, Error::NeedsVirtualMemory { .. }), "{refused}");
    let allocator = Allocator::new(Emulator::new(without.clone()).unwrap(), Config::default()).unwrap();
    let stream = allocator.register_stream(allocator.driver().stream());
    let growable = allocator.reserve_growable(1 << 20, &stream).unwrap_err();
    assert_eq!(
        growable.to_string(),
        "a growable needs virtual memory, which this allocator does not have: the device has none"
    );
    let text = "a reserved segment needs virtual memory, which this allocator does not have: the emulated device was made \
                without virtual memory";
    assert_eq!(refused.to_string(), text);
    // Frames of another device are a mistake with or without.
    for config in [&with, &without] {
        assert!(matches!(kind(config, Config::builder().device(3).build()), Err(Error::Driver(_))));
    }
}

proptest! {
    #![proptest_config(cases(600))]

    /// A request makes one malloc at most, a refused one none; segments go back on its path only if there was no room.
    #[test]
    fn a_request_makes_no_call_that_it_does_not_need(program in program(malloc_setup(), 90)) {
        let mut before = (0, 0, 0);
        run(&program, |world, op, outcome| {
            let now = (world.count(Call::Malloc), world.count(Call::Free), world.emulator().counts().mapped_bytes);
            let (mallocs, frees) = (now.0 - before.0, now.1 - before.1);
            let room = world.setup.most_frames() * world.setup.page_bytes - before.2;
            before = now;
            if world.setup.host_wait == HostWait::Never {
                assert_eq!(world.count(Call::EventSynchronize), 0, "the host waits in frees only");
            }
            match (op, outcome) {
                (Op::Allocate { .. }, Outcome::Allocated(_)) => assert!(mallocs <= 1, "{op:?}: {mallocs} mallocs"),
                (Op::Trim | Op::TrimTo { .. }, _) => assert_eq!(mallocs, 0),
                (Op::Allocate { .. }, _) => assert_eq!((mallocs, frees), (0, 0), "{op:?}: {outcome:?}"),
                _ => assert_eq!((mallocs, frees), (0, 0), "{op:?}"),
            }
            if let (Op::Allocate { size, alignment, .. }, true) = (op, frees > 0) {
                let needed = world.malloc_bytes_for(world.layout(*size, *alignment));
                assert!(needed > room, "{op:?}: {frees} frees with room for {room} bytes");
                assert_eq!(mallocs, 1);
            }
        });
    }
}
