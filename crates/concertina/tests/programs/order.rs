//! Worked examples of order: what is waited for when memory goes from one stream to another, and what is not.
//!
//! Neighbours: the emulator's detector would see a race in any of them; `retired` has the streams that end.

use concertina::{CrossStream, Layout, Policy, Verdict};
use concertina_emulator::EventCompletion;
use concertina_vmm::Call;

use crate::program::{MIB, Op, Setup};
use crate::world::{Outcome, World};

const PAGE: u64 = 2 * MIB;

/// A device of so many pages whose work is done when the test says so.
fn by_hand(device: u64, cross_stream: CrossStream) -> World {
    let plain = Setup::plain(PAGE, device);
    World::new(&Setup { completion: EventCompletion::ByHand, cross_stream, ..plain })
}

fn waits(world: &World) -> u64 {
    world.check();
    world.allocator.stats().fences.waits
}

#[test]
fn a_steal_across_streams_waits_once_on_the_device_and_not_again() {
    let mut world = by_hand(4, CrossStream::DeviceWait);
    let block = world.must_allocate(4 * PAGE, 0);
    world.free_at(block);
    world.must_allocate(2 * PAGE, 1);
    assert_eq!(waits(&world), 1);
    // The same work of stream 0 is over for stream 1, and known to be: two more frames cost no wait.
    world.must_allocate(PAGE, 1);
    world.must_allocate(PAGE, 1);
    assert_eq!(waits(&world), 1);
    assert_eq!(world.allocator.stats().created_frames, 4);
    assert_eq!(world.emulator().counts().host_waits, 0);
    world.end_empty();
}

#[test]
fn frames_that_come_back_to_their_stream_wait_for_the_borrower() {
    let mut world = by_hand(4, CrossStream::DeviceWait);
    for (count, stream) in [0, 1, 0, 1].into_iter().enumerate() {
        let block = world.must_allocate(4 * PAGE, stream);
        assert_eq!(waits(&world), count as u64, "one wait for each change of hands");
        world.free_at(block);
    }
    world.end_empty();
}

#[test]
fn a_wait_that_the_program_told_is_not_made_again() {
    let mut world = by_hand(4, CrossStream::DeviceWait);
    let block = world.must_allocate(4 * PAGE, 0);
    world.free_at(block);
    world.step(&Op::Wait { waiter: 1, on: 0 });
    world.must_allocate(4 * PAGE, 1);
    assert_eq!(waits(&world), 0);
    world.end_empty();
}

#[test]
fn work_freed_after_the_told_wait_is_waited_for() {
    let mut world = by_hand(4, CrossStream::DeviceWait);
    let block = world.must_allocate(4 * PAGE, 0);
    world.step(&Op::Wait { waiter: 1, on: 0 });
    world.free_at(block);
    world.must_allocate(4 * PAGE, 1);
    assert_eq!(waits(&world), 1);
    world.end_empty();
}

#[test]
fn a_synchronisation_that_the_program_told_saves_the_wait() {
    for whole_device in [false, true] {
        let mut world = by_hand(4, CrossStream::DeviceWait);
        let block = world.must_allocate(4 * PAGE, 0);
        world.free_at(block);
        world.step(&if whole_device { Op::SynchronizeDevice } else { Op::Synchronize { stream: 0 } });
        world.must_allocate(4 * PAGE, 1);
        assert_eq!(waits(&world), 0);
        world.end_empty();
    }
}

#[test]
fn the_small_and_the_large_heap_of_a_stream_serve_one_another_without_a_wait() {
    let mut world = by_hand(4, CrossStream::Never);
    let large = world.must_allocate(4 * PAGE, 0);
    world.free_at(large);
    let small = world.must_allocate(512, 0);
    assert_eq!(world.allocator.stats().stolen_frames, 1);
    world.must_allocate(3 * PAGE, 0);
    world.free_at(small);
    // The page that a small block lay on, and one that a large one did.
    world.must_allocate(PAGE, 0);
    let stats = world.allocator.stats();
    assert_eq!((stats.created_frames, stats.mapped_bytes), (4, 4 * PAGE));
    assert_eq!((waits(&world), stats.fences.host_waits), (0, 0));
    world.end_empty();
}

#[test]
fn a_free_makes_no_driver_call() {
    let mut world = by_hand(8, CrossStream::DeviceWait);
    let blocks: Vec<_> =
        [512, 100 * 512, MIB, PAGE, 3 * PAGE + 512].map(|bytes| world.must_allocate(bytes, 0)).into();
    let before = world.emulator().counts();
    blocks.into_iter().for_each(|block| world.free_at(block));
    assert_eq!(world.emulator().counts(), before);
    world.end_empty();
}

#[test]
fn without_device_waits_a_busy_frame_of_another_stream_serves_only_once_it_is_done() {
    let mut world = by_hand(4, CrossStream::Completed);
    let block = world.must_allocate(4 * PAGE, 0);
    world.free_at(block);
    match world.allocate(Layout::new(PAGE), 1) {
        Outcome::OutOfMemory(report) => {
            assert_eq!(report.verdict, Verdict::HeldByOtherStreams);
            assert_eq!((report.free_bytes, report.withheld_bytes), (4 * PAGE, 4 * PAGE));
        }
        other => panic!("{other:?}"),
    }
    world.step(&Op::Complete { stream: 0 });
    world.must_allocate(4 * PAGE, 1);
    assert_eq!(waits(&world), 0);
    world.end_empty();
}

#[test]
fn with_never_a_frame_of_another_stream_does_not_serve_even_from_the_store() {
    let mut world = World::new(&Setup { cross_stream: CrossStream::Never, ..Setup::plain(PAGE, 3) });
    world.must_allocate(PAGE, 0);
    let block = world.must_allocate(2 * PAGE, 0);
    world.free_at(block);
    // Refused, with the two free frames in the store.
    assert!(world.allocate(Layout::new(3 * PAGE), 0).is_refused());
    assert!(world.allocate(Layout::new(PAGE), 1).is_refused());
    world.must_allocate(2 * PAGE, 0);
    world.check();
    world.end_empty();
}

#[test]
fn a_recorded_stream_counts_with_all_its_work_up_to_the_free() {
    let mut world = by_hand(8, CrossStream::Completed);
    let block = world.must_allocate(2 * PAGE, 0);
    world.record_stream(0, 1);
    // An event on stream 1 for another reason, which is then done.
    world.must_allocate(PAGE, 1);
    world.step(&Op::Complete { stream: 1 });
    // The free comes after one more kernel on stream 1 that reads the block.
    world.free_at(block);
    assert_eq!(world.allocator.stats().pending_bytes, 2 * PAGE);
    let other = world.must_allocate(2 * PAGE, 0);
    assert_ne!(other, block);
    world.step(&Op::Complete { stream: 1 });
    assert_eq!(world.must_allocate(2 * PAGE, 0), block);
    world.check();
    world.end_empty();
}

#[test]
fn a_pending_block_comes_back_once_its_streams_are_done() {
    let mut world = by_hand(8, CrossStream::DeviceWait);
    let block = world.must_allocate(2 * PAGE, 0);
    world.record_stream(0, 1);
    world.record_stream(0, 2);
    world.free_at(block);
    assert_eq!(world.allocator.stats().pending_bytes, 2 * PAGE);
    world.step(&Op::Complete { stream: 1 });
    world.step(&Op::Complete { stream: 2 });
    let before = world.memory_calls();
    assert_eq!(world.must_allocate(2 * PAGE, 0), block);
    assert_eq!((world.memory_calls(), waits(&world)), (before, 0));
    assert_eq!(world.allocator.stats().pending_bytes, 0);
    world.end_empty();
}

#[test]
fn a_pending_block_is_taken_back_by_a_wait_on_the_device_when_memory_is_short() {
    let mut world = by_hand(4, CrossStream::DeviceWait);
    let block = world.must_allocate(4 * PAGE, 0);
    world.record_stream(0, 1);
    world.free_at(block);
    // For its own stream: that one waits for the stream that still reads.
    let block = world.must_allocate(4 * PAGE, 0);
    assert_eq!(waits(&world), 1);
    // For another: the block's stream waits for the reader, and the other for the block's stream.
    world.record_stream(0, 1);
    world.free_at(block);
    world.must_allocate(4 * PAGE, 2);
    assert_eq!(waits(&world), 3);
    assert_eq!(world.emulator().counts().host_waits, 0);
    world.end_empty();
}

#[test]
fn a_pending_block_that_came_back_needs_no_further_event() {
    let mut world = by_hand(4, CrossStream::Completed);
    let block = world.must_allocate(4 * PAGE, 0);
    world.record_stream(0, 1);
    world.free_at(block);
    // Refused; every event that it would have needed is recorded now.
    assert!(world.allocate(Layout::new(PAGE), 2).is_refused());
    world.complete_all();
    world.must_allocate(PAGE, 2);
    world.check();
    world.end_empty();
}

#[test]
fn pending_blocks_of_the_streams_other_heap_are_looked_at() {
    let mut world = by_hand(4, CrossStream::Never);
    let large = world.must_allocate(4 * PAGE, 0);
    world.record_stream(0, 1);
    world.free_at(large);
    world.step(&Op::Complete { stream: 1 });
    world.must_allocate(512, 0);
    assert_eq!(world.count(Call::Create), 4);
    world.end_empty();
}

/// The program waits for a stream, and before it tells so, a request on another stream takes back a block of that stream: its
/// pages may still be in use by a reader, whom the program did not wait for.
#[test]
fn what_is_told_late_does_not_hold_for_a_block_that_was_taken_back_meanwhile() {
    let setup = Setup { completion: EventCompletion::ByHand, policy: Policy::Lean, ..Setup::plain(PAGE, 4) };
    let mut world = World::new(&setup);
    let block = world.must_allocate(4 * PAGE, 0);
    world.record_stream(0, 1);
    world.free_at(block);
    world.device.synchronize_stream(&world.streams[0].own).unwrap();
    world.must_allocate(4 * PAGE, 2);
    world.streams[0].registered.note_synchronized();
    assert_eq!(world.allocator.unmap_stale_to(0), 0, "the reader may use its pages still");
    world.check();
    world.complete_all();
    assert_eq!(world.allocator.unmap_stale_to(0), 4);
    world.check();
    world.end_empty();
}
