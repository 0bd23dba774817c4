//! Worked examples of stale pages and of trimming: what stays mapped, what comes back, and what goes.
//!
//! Neighbours: `counts` has what they save; the emulator's detector would see an unmap under work in flight.

use concertina::{Address, Policy, StaleRule};
use concertina_emulator::EventCompletion;
use concertina_vmm::Call;

use crate::program::{MIB, Op, Setup};
use crate::world::World;

const PAGE: u64 = 2 * MIB;

fn by_hand(device: u64) -> Setup {
    let plain = Setup::plain(PAGE, device);
    Setup { completion: EventCompletion::ByHand, policy: Policy::Lean, ..plain }
}

fn is_mapped(world: &World, address: Address) -> bool {
    world.emulator().resolve(address).is_some()
}

#[test]
fn a_stale_page_with_a_busy_frame_is_not_used_before_its_work_is_done() {
    let mut world = World::new(&by_hand(12));
    let block = world.must_allocate(4 * PAGE, 0);
    world.free_at(block);
    world.must_allocate(4 * PAGE, 1);
    assert_eq!(world.allocator.stats().created_frames, 4, "the frames went to stream 1");
    // The place is free and fits, but the kernel of the first block may still use the old mapping.
    let other = world.must_allocate(4 * PAGE, 0);
    assert_ne!(other, block);
    assert_eq!((world.count(Call::Unmap), world.allocator.stats().replaced_pages), (0, 0));
    world.step(&Op::Complete { stream: 0 });
    assert_eq!(world.must_allocate(4 * PAGE, 0), block);
    assert_eq!((world.count(Call::Unmap), world.allocator.stats().replaced_pages), (1, 4));
    world.check();
    world.end_empty();
}

#[test]
fn stale_pages_stay_mapped_or_go_at_once_as_the_rule_says() {
    for stale in [StaleRule::Keep, StaleRule::Eager] {
        let mut world = World::new(&Setup { stale, ..by_hand(6) });
        let block = world.must_allocate(4 * PAGE, 0);
        world.free_at(block);
        world.must_allocate(4 * PAGE, 1);
        assert!(is_mapped(&world, block), "work may still use the old mapping");
        world.step(&Op::Complete { stream: 0 });
        // The next request that looks finds the work done.
        world.must_allocate(2 * PAGE, 2);
        assert_eq!(is_mapped(&world, block), stale == StaleRule::Keep);
        world.check();
        world.end_empty();
    }
}

#[test]
fn a_trim_gives_back_what_is_done_and_waits_for_nothing() {
    let mut world = World::new(&by_hand(12));
    let kept = world.must_allocate(PAGE, 0);
    let mine = world.must_allocate(4 * PAGE, 0);
    let theirs = world.must_allocate(3 * PAGE, 1);
    world.free_at(mine);
    world.free_at(theirs);
    let trimmed = world.allocator.trim();
    assert_eq!((trimmed.released_bytes, trimmed.waiting_bytes), (0, 7 * PAGE));
    world.step(&Op::Complete { stream: 1 });
    let trimmed = world.allocator.trim();
    assert_eq!((trimmed.released_bytes, trimmed.waiting_bytes), (3 * PAGE, 4 * PAGE));
    world.check();
    world.step(&Op::Complete { stream: 0 });
    let trimmed = world.allocator.trim();
    assert_eq!((trimmed.released_bytes, trimmed.waiting_bytes, trimmed.failed), (4 * PAGE, 0, None));
    assert_eq!(world.emulator().counts().mapped_bytes, PAGE);
    assert_eq!(world.emulator().counts().host_waits, 0);
    world.free_at(kept);
    world.check();
    world.end_empty();
}

#[test]
fn a_frame_that_is_still_mapped_where_work_may_run_stays_until_that_is_done() {
    let mut world = World::new(&by_hand(4));
    let first = world.must_allocate(4 * PAGE, 0);
    world.free_at(first);
    let second = world.must_allocate(4 * PAGE, 1);
    world.free_at(second);
    // All that stream 1 did is done on the device, and with it what it waited for; but only stream 1 is looked at.
    world.step(&Op::Complete { stream: 1 });
    world.allocator.trim();
    world.step(&Op::Complete { stream: 1 });
    let trimmed = world.allocator.trim();
    assert_eq!(trimmed.released_bytes + trimmed.waiting_bytes, 4 * PAGE);
    world.check();
    world.complete_all();
    world.allocator.trim();
    assert_eq!(world.emulator().counts().mapped_bytes, 0);
    assert_eq!(world.emulator().counts().mappings, 0);
    world.check();
    world.end_empty();
}

#[test]
fn a_trim_removes_the_mappings_of_frames_that_go_and_no_others() {
    let mut world = World::new(&Setup { policy: Policy::Lean, ..Setup::plain(PAGE, 8) });
    let first = world.must_allocate(4 * PAGE, 0);
    world.free_at(first);
    let second = world.must_allocate(4 * PAGE, 1);
    // Four stale pages, whose frames are in use elsewhere.
    assert_eq!((world.allocator.trim().released_bytes, world.emulator().counts().mappings), (0, 8));
    world.free_at(second);
    let before = world.count(Call::Unmap);
    let trimmed = world.allocator.trim_to(PAGE);
    assert_eq!((trimmed.released_bytes, world.emulator().counts().mappings), (3 * PAGE, 2));
    // Three neighbours in each of the two places.
    assert_eq!(world.count(Call::Unmap) - before, 2);
    world.check();
    world.end_empty();
}

#[test]
fn a_trim_to_a_size_stops_there() {
    let mut world = World::new(&Setup::plain(PAGE, 16));
    let kept = world.must_allocate(3 * PAGE, 0);
    let block = world.must_allocate(10 * PAGE, 0);
    world.free_at(block);
    let mapped = |world: &World| world.emulator().counts().mapped_bytes / PAGE;
    for (bytes, released, left) in [
        (20 * PAGE, 0, 13),
        (13 * PAGE, 0, 13),
        (11 * PAGE, 2, 11),
        // In whole frames: at most so many bytes stay.
        (10 * PAGE + 1, 1, 10),
        (9 * PAGE - 1, 2, 8),
        (0, 5, 3),
        (0, 0, 3),
    ] {
        let trimmed = world.allocator.trim_to(bytes);
        assert_eq!((trimmed.released_bytes / PAGE, mapped(&world)), (released, left), "to {bytes}");
        assert_eq!(trimmed.waiting_bytes, 0, "live bytes do not wait");
        world.check();
    }
    // What went is created again when it is needed.
    assert_eq!(world.must_allocate(10 * PAGE, 0), block);
    assert_eq!(mapped(&world), 13);
    world.free_at(kept);
    world.check();
    world.end_empty();
}

#[test]
fn a_trim_empties_bins_and_takes_pending_blocks_that_are_done() {
    let mut world = World::new(&by_hand(8));
    let small = world.must_allocate(512, 0);
    let large = world.must_allocate(3 * PAGE, 0);
    let index = world.live.iter().position(|live| live.allocation.address() == large).unwrap();
    world.record_stream(index, 1);
    world.free_at(small);
    world.free_at(large);
    assert_eq!(world.allocator.stats().binned_bytes, 512);
    assert_eq!(world.allocator.trim().released_bytes, 0);
    world.complete_all();
    // The other stream is done: one trim takes the block back, and what it was freed behind is done, too.
    let trimmed = world.allocator.trim();
    assert_eq!(trimmed.released_bytes, 4 * PAGE);
    let stats = world.allocator.stats();
    assert_eq!((stats.binned_bytes, stats.pending_bytes, stats.mapped_bytes), (0, 0, 0));
    world.check();
    world.end_empty();
}
