//! An example of each verdict of an out-of-memory report, and of what it advises.
//!
//! Neighbours: `out_of_memory` checks the reports of random programs.

use concertina::{CrossStream, HostWait, Layout, OutOfMemory, Verdict};
use concertina_emulator::EventCompletion;
use concertina_vmm::Call;

use crate::program::{MIB, Op, Setup};
use crate::world::{Outcome, World};

const PAGE: u64 = 2 * MIB;

fn refuse(world: &mut World, bytes: u64, stream: usize) -> OutOfMemory {
    match world.allocate(Layout::new(bytes), stream) {
        Outcome::OutOfMemory(report) => *report,
        other => panic!("{bytes} bytes on stream {stream}: {other:?}"),
    }
}

#[test]
fn not_enough_memory() {
    let mut world = World::new(&Setup::plain(PAGE, 4));
    let block = world.must_allocate(3 * PAGE, 0);
    let report = refuse(&mut world, 2 * PAGE, 0);
    assert_eq!(report.verdict, Verdict::NotEnoughMemory);
    assert_eq!((report.live_bytes, report.largest_bytes, report.limit_bytes), (3 * PAGE, PAGE, None));
    // More than the device has is the same story.
    assert_eq!(refuse(&mut world, 100 * PAGE, 1).verdict, Verdict::NotEnoughMemory);
    world.free_at(block);
    world.must_allocate(2 * PAGE, 0);
    world.end_empty();
}

#[test]
fn over_the_limit() {
    let mut world = World::new(&Setup { limit: Some(4), ..Setup::plain(PAGE, 16) });
    world.must_allocate(3 * PAGE, 0);
    for bytes in [2 * PAGE, 5 * PAGE, 13 * PAGE] {
        let report = refuse(&mut world, bytes, 0);
        assert_eq!(report.verdict, Verdict::OverLimit, "{report}");
        assert_eq!((report.limit_bytes, report.largest_bytes), (Some(4 * PAGE), PAGE));
        assert!(report.mapped_bytes <= 4 * PAGE);
    }
    world.end_empty();
}

#[test]
fn held_by_pending_streams() {
    for (cross_stream, stream) in
        [(CrossStream::Completed, 2), (CrossStream::Completed, 0), (CrossStream::Never, 0)]
    {
        let plain = Setup::plain(PAGE, 4);
        let mut world = World::new(&Setup { completion: EventCompletion::ByHand, cross_stream, ..plain });
        let block = world.must_allocate(4 * PAGE, 0);
        world.record_stream(0, 1);
        world.free_at(block);
        let report = refuse(&mut world, 2 * PAGE, stream);
        assert_eq!(report.verdict, Verdict::HeldByPendingStreams, "{report}");
        assert_eq!((report.live_bytes, report.pending_bytes), (0, 4 * PAGE));
        // Let the other streams get on, then ask again.
        world.complete_all();
        world.must_allocate(2 * PAGE, stream);
        world.end_empty();
    }
}

#[test]
fn held_by_other_streams() {
    let mut world = World::new(&Setup { cross_stream: CrossStream::Never, ..Setup::plain(PAGE, 4) });
    let block = world.must_allocate(3 * PAGE, 0);
    world.free_at(block);
    let report = refuse(&mut world, 2 * PAGE, 1);
    assert_eq!(report.verdict, Verdict::HeldByOtherStreams);
    assert_eq!((report.free_bytes, report.withheld_bytes), (3 * PAGE, 3 * PAGE));
    assert_eq!(report.largest_bytes, PAGE);
    // Synchronise the streams and trim.
    world.step(&Op::SynchronizeDevice);
    world.step(&Op::Trim);
    world.must_allocate(2 * PAGE, 1);
    world.end_empty();
}

/// The frames that were created before the shortage showed go back at once.
#[test]
fn a_refusal_leaves_no_frame_behind() {
    let mut world = World::new(&Setup::plain(PAGE, 64));
    world.must_allocate(10 * PAGE, 0);
    let report = refuse(&mut world, 60 * PAGE, 0);
    assert_eq!(report.verdict, Verdict::NotEnoughMemory);
    assert_eq!((report.mapped_bytes, report.free_bytes), (10 * PAGE, 0));
    assert_eq!(report.device_free_bytes, Some(54 * PAGE));
    assert_eq!(report.largest_bytes, 54 * PAGE);
    world.end_empty();
}

#[test]
fn stranded_in_partly_used_pages() {
    let mut world = World::new(&Setup::plain(PAGE, 4));
    // Eight blocks of half a page each; every other one goes.
    let blocks = [MIB; 8].map(|bytes| world.must_allocate(bytes, 0));
    blocks.iter().step_by(2).for_each(|block| world.free_at(*block));
    let report = refuse(&mut world, 2 * PAGE, 0);
    assert_eq!(report.verdict, Verdict::StrandedInPartlyUsedPages);
    assert_eq!((report.stranded_bytes, report.free_bytes), (2 * PAGE, 0));
    assert_eq!(report.largest_bytes, MIB, "a small one still fits beside the others");
    // With what lives long out of the way, all of it is there.
    blocks.iter().skip(1).step_by(2).take(2).for_each(|block| world.free_at(*block));
    world.must_allocate(2 * PAGE, 0);
    world.end_empty();
}

#[test]
fn no_addresses_left() {
    let mut world = World::new(&Setup { addresses: Some(6), reservation: Some(3), ..Setup::plain(PAGE, 16) });
    world.must_allocate(3 * PAGE, 0);
    world.must_allocate(3 * PAGE, 1);
    let report = refuse(&mut world, 2 * PAGE, 0);
    assert_eq!(report.verdict, Verdict::AddressSpace);
    assert_eq!((report.largest_bytes, report.device_free_bytes), (0, Some(10 * PAGE)));
    world.end_empty();
}

#[test]
fn no_mappings_left() {
    let mut world = World::new(&Setup { max_mappings: Some(5), ..Setup::plain(PAGE, 16) });
    world.must_allocate(3 * PAGE, 0);
    let report = refuse(&mut world, 4 * PAGE, 0);
    assert_eq!(report.verdict, Verdict::AddressSpace);
    assert_eq!(report.largest_bytes, 2 * PAGE);
    world.must_allocate(2 * PAGE, 0);
    world.check();
    world.end_empty();
}

#[test]
fn stale_pages_make_room_for_mappings() {
    let mut world = World::new(&Setup { max_mappings: Some(8), ..Setup::plain(PAGE, 4) });
    for stream in [0, 1, 2, 0] {
        // Of the mappings of those who had the frames before, the stale ones go.
        let block = world.must_allocate(4 * PAGE, stream);
        assert!(world.emulator().counts().mappings <= 8);
        world.check();
        world.free_at(block);
    }
    world.end_empty();
}

#[test]
fn idle_pages_make_room_for_mappings() {
    let mut world = World::new(&Setup { max_mappings: Some(5), ..Setup::plain(PAGE, 4) });
    let block = world.must_allocate(4 * PAGE, 0);
    world.free_at(block);
    // The four pages of stream 0 are held, not stale. There is room for one more mapping: two of them go.
    let block = world.must_allocate(3 * PAGE, 1);
    assert_eq!(world.emulator().counts().mappings, 5);
    assert_eq!(world.emulator().counts().of(Call::Release), 0, "their frames serve the request");
    world.check();
    world.free_at(block);
    world.end_empty();
}

#[test]
fn live_pages_leave_no_room_for_mappings() {
    let mut world = World::new(&Setup { max_mappings: Some(5), ..Setup::plain(PAGE, 8) });
    world.must_allocate(4 * PAGE, 0);
    let report = refuse(&mut world, 2 * PAGE, 1);
    assert_eq!((report.verdict, report.largest_bytes), (Verdict::AddressSpace, PAGE));
    world.must_allocate(PAGE, 1);
    world.check();
    world.end_empty();
}

#[test]
fn late_pages_make_room_for_mappings_once_the_host_has_waited() {
    for (host_wait, served) in [(HostWait::Never, false), (HostWait::LastResort, true)] {
        let completion = EventCompletion::ByHand;
        let mut world =
            World::new(&Setup { max_mappings: Some(5), completion, host_wait, ..Setup::plain(PAGE, 4) });
        let block = world.must_allocate(4 * PAGE, 0);
        world.free_at(block);
        let outcome = world.allocate(Layout::new(3 * PAGE), 1);
        assert_eq!(outcome.is_refused(), !served, "{outcome:?}");
        assert_eq!(world.emulator().counts().host_waits, u64::from(served));
        world.check();
    }
}
