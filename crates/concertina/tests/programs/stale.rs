//! Worked examples of stale pages and of trimming: what stays mapped, what comes back, and what goes.
//!
//! Neighbours: `counts` has what they save; the emulator's detector would see an unmap under work in flight.

use concertina::{Address, DriverErrorKind, Policy, StaleRule};
use concertina_emulator::{EventCompletion, Fault};
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
fn a_trim_to_a_size_removes_the_mappings_of_frames_that_go_and_no_others() {
    let mut world = World::new(&Setup { policy: Policy::Lean, ..Setup::plain(PAGE, 8) });
    let first = world.must_allocate(4 * PAGE, 0);
    world.free_at(first);
    let second = world.must_allocate(4 * PAGE, 1);
    // Four stale pages, whose frames are in use elsewhere.
    assert_eq!((world.allocator.trim_to(PAGE).released_bytes, world.emulator().counts().mappings), (0, 8));
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
fn a_trim_of_everything_removes_all_stale_mappings_that_are_done_in_as_few_calls_as_can_be() {
    for (spans, two_runs, and_one) in [(true, 2, 3), (false, 5, 7)] {
        let setup = Setup { policy: Policy::Lean, unmap_spans_mappings: spans, ..by_hand(12) };
        let mut world = World::new(&setup);
        // Stream 0 leaves five stale pages behind, with a live block between the second and the third.
        let blocks = [2, 1, 3].map(|pages| world.must_allocate(pages * PAGE, 0));
        world.free_at(blocks[0]);
        world.free_at(blocks[2]);
        let taken = world.must_allocate(5 * PAGE, 1);
        // Two frames that nobody wants, at the end of what stream 1 has.
        let spare = world.must_allocate(2 * PAGE, 1);
        world.free_at(spare);
        let counts = |world: &World| (world.emulator().counts().mappings, world.count(Call::Unmap));
        assert_eq!(counts(&world), (6 + 7, 0));
        // Work may use all of it. What nobody is seen to use stays: what there is of it is a cache.
        assert_eq!(world.allocator.trim().released_bytes, 0);
        assert_eq!(counts(&world), (13, 0));
        world.step(&Op::Complete { stream: 0 });
        // Stale pages hold no memory: none comes back, and the five mappings go.
        assert_eq!(world.allocator.trim().released_bytes, 0);
        assert_eq!(counts(&world), (8, two_runs));
        world.step(&Op::Complete { stream: 1 });
        assert_eq!(world.allocator.trim().released_bytes, 2 * PAGE);
        assert_eq!(counts(&world), (6, and_one));
        world.check();
        // The addresses serve again, behind new mappings.
        let maps = world.count(Call::Map);
        assert_eq!(world.must_allocate(3 * PAGE, 0), blocks[2]);
        assert_eq!(world.count(Call::Map), maps + 3);
        world.free_at(taken);
        world.check();
        world.end_empty();
    }
}

#[test]
fn a_trim_gives_back_the_addresses_of_segments_in_which_nothing_is_left() {
    let setup = Setup { reservation: Some(4), ..by_hand(20) };
    let mut world = World::new(&setup);
    // Three segments of four pages each; a block stays in the second.
    let blocks = [3, 4, 4].map(|pages| world.must_allocate(pages * PAGE, 0));
    let other = world.must_allocate(PAGE, 1);
    let reservations = |world: &World| world.emulator().leaks().reservations;
    assert_eq!((reservations(&world), world.allocator.stats().address_bytes), (4, 12 * PAGE));
    world.free_at(blocks[0]);
    world.free_at(blocks[2]);
    // Work may use them; and then their memory goes as well, but not what one byte lives in.
    world.allocator.trim();
    assert_eq!((reservations(&world), world.count(Call::Unreserve)), (4, 0));
    world.step(&Op::Complete { stream: 0 });
    assert_eq!(world.allocator.trim().released_bytes, 7 * PAGE, "memory, and no addresses");
    let stats = world.allocator.stats();
    assert_eq!(
        (reservations(&world), stats.address_bytes, stats.address_peak_bytes),
        (2, 5 * PAGE, 12 * PAGE)
    );
    world.check();
    // Others take their places, one by one, and go as well.
    let again = [4, 3, 4].map(|pages| world.must_allocate(pages * PAGE, 0));
    assert_eq!((reservations(&world), world.allocator.stats().address_bytes), (5, 16 * PAGE));
    again.into_iter().chain([other]).for_each(|block| world.free_at(block));
    world.allocator.trim();
    world.complete_all();
    assert_eq!(world.allocator.trim().released_bytes, 12 * PAGE);
    assert_eq!((reservations(&world), world.allocator.stats().address_bytes), (1, 4 * PAGE));
    world.check();
    world.end_empty();
}

#[test]
fn addresses_that_the_driver_would_not_take_serve_again_or_go_with_the_next_trim() {
    let setup = Setup { reservation: Some(4), ..Setup::plain(PAGE, 8) };
    for trimmed_again in [false, true] {
        let mut world = World::new(&setup);
        let block = world.must_allocate(4 * PAGE, 0);
        world.free_at(block);
        world.emulator().fail(Fault::once(Call::Unreserve, 1, DriverErrorKind::NotReady));
        let trimmed = world.allocator.trim();
        assert_eq!(trimmed.released_bytes, 4 * PAGE);
        assert_eq!(trimmed.failed.map(|error| error.kind), Some(DriverErrorKind::NotReady));
        world.check();
        if trimmed_again {
            assert_eq!(world.allocator.trim().failed, None);
            assert_eq!(world.emulator().leaks().reservations, 0);
        }
        world.must_allocate(4 * PAGE, 0);
        assert_eq!(world.count(Call::Reserve), 1 + u64::from(trimmed_again));
        world.check();
        world.end_empty();
    }
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

/// A budget that all memory fits in, and not one mapping more: what holds the last one must go, whatever lies there.
#[test]
fn bins_and_pending_blocks_make_room_in_the_budget() {
    for pending in [false, true] {
        let mut world = World::new(&Setup { max_mappings: Some(4), ..by_hand(4) });
        let small = world.must_allocate(512, 0);
        if pending {
            world.record_stream(0, 1);
        }
        world.free_at(small);
        let stats = world.allocator.stats();
        assert_eq!((stats.binned_bytes, stats.pending_bytes), if pending { (0, 512) } else { (512, 0) });
        world.step(&Op::SynchronizeDevice);
        world.must_allocate(4 * PAGE, 0);
        world.check();
        world.end_empty();
    }
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
