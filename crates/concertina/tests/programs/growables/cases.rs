//! Worked examples of growables: what they cost, whom they serve, what they wait for, and when they go.
//!
//! Neighbours: `growables` has the random programs.

use concertina::{Allocator, Config, CrossStream, Error, Layout, RequestError};
use concertina_emulator::{CallFilter, Emulator, EmulatorConfig, EventCompletion, Fault};
use concertina_vmm::{Call, DriverErrorKind};

use crate::failures::CALLS;
use crate::program::{GIB, MIB, Op, Setup};
use crate::world::{Outcome, World};

const PAGE: u64 = 2 * MIB;

fn plain(device: u64) -> World {
    World::new(&Setup::plain(PAGE, device))
}

fn by_hand(device: u64, cross_stream: CrossStream) -> World {
    let plain = Setup::plain(PAGE, device);
    World::new(&Setup { completion: EventCompletion::ByHand, cross_stream, ..plain })
}

impl World {
    fn must_reserve(&mut self, max: u64, stream: usize) -> usize {
        let outcome = self.reserve(max, stream);
        assert!(matches!(outcome, Outcome::Done), "{outcome:?}");
        self.growables.len() - 1
    }

    fn must_grow(&mut self, index: usize, bytes: u64) {
        let outcome = self.grow(index, bytes);
        assert!(matches!(outcome, Outcome::Done), "{outcome:?}");
        self.check();
    }

    fn calls(&self) -> [u64; 7] {
        let calls = [Call::Reserve, Call::Create, Call::Map, Call::SetAccess];
        let more = [Call::Unmap, Call::Release, Call::Unreserve];
        let [a, b, c, d] = calls.map(|call| self.count(call));
        let [e, f, g] = more.map(|call| self.count(call));
        [a, b, c, d, e, f, g]
    }
}

#[test]
fn growth_makes_one_reservation_and_one_access_call_a_step_that_needs_pages() {
    let mut world = plain(16);
    let cache = world.must_reserve(100 * PAGE, 0);
    assert_eq!(world.calls(), [1, 0, 0, 0, 0, 0, 0], "addresses only");
    // Tokens of 1,000 bytes: the first of them takes a page, the others of the page are free.
    for token in 1..=PAGE / 1000 {
        world.must_grow(cache, token * 1000);
    }
    assert_eq!(world.calls(), [1, 1, 1, 1, 0, 0, 0]);
    world.must_grow(cache, 8 * PAGE);
    assert_eq!(world.calls(), [1, 8, 8, 2, 0, 0, 0], "seven frames, seven maps, one call for their access");
    let stats = world.allocator.stats();
    assert_eq!((stats.live_bytes, stats.live_blocks, stats.mapped_bytes), (8 * PAGE, 1, 8 * PAGE));
    assert_eq!((stats.address_bytes, stats.live_peak_bytes), (8 * PAGE, 8 * PAGE));
    // Down and up again, with nobody in between: nothing.
    world.shrink(cache, PAGE / 2);
    world.check();
    assert_eq!(world.allocator.stats().free_bytes, 7 * PAGE);
    world.must_grow(cache, 8 * PAGE);
    assert_eq!(world.calls(), [1, 8, 8, 2, 0, 0, 0]);
    // It goes with its mappings and its addresses; its frames stay with the allocator.
    world.discard(cache);
    world.check();
    assert_eq!(world.calls(), [1, 8, 8, 2, 1, 0, 1], "one unmap for the run of eight pages");
    let stats = world.allocator.stats();
    assert_eq!((stats.live_blocks, stats.free_bytes, stats.address_bytes), (0, 8 * PAGE, 0));
    assert_eq!(stats.address_peak_bytes, 8 * PAGE);
    world.end_empty();
}

#[test]
fn what_a_shrink_frees_serves_others_and_comes_back_without_a_call() {
    let mut world = plain(8);
    let cache = world.must_reserve(8 * PAGE, 0);
    world.must_grow(cache, 8 * PAGE);
    world.shrink(cache, 2 * PAGE);
    let block = world.must_allocate(6 * PAGE, 1);
    world.check();
    // There is nothing left for it, and it stays as it is.
    let refused = world.grow(cache, 5 * PAGE);
    let Outcome::OutOfMemory(report) = refused else { panic!("{refused:?}") };
    assert_eq!((report.asked_bytes, report.largest_bytes, report.live_bytes), (3 * PAGE, 0, 8 * PAGE));
    world.check();
    world.free_at(block);
    let calls = world.memory_calls();
    world.must_grow(cache, 8 * PAGE);
    assert_eq!(world.memory_calls(), calls, "all six pages are revived");
    assert_eq!(world.allocator.stats().revived_pages, 6);
    assert_eq!(world.count(Call::Create), 8);
    world.end_empty();
}

#[test]
fn the_report_says_how_far_it_could_grow() {
    let mut world = plain(8);
    let cache = world.must_reserve(100 * PAGE, 0);
    world.must_grow(cache, PAGE + 1000);
    world.must_allocate(3 * PAGE, 1);
    let refused = world.grow(cache, 50 * PAGE);
    let Outcome::OutOfMemory(report) = refused else { panic!("{refused:?}") };
    // 8 frames, 3 of them the block's: the growable can have 5, and ends in the third step of its second page.
    assert_eq!(report.largest_bytes, 5 * PAGE - (PAGE + 1024));
    assert_eq!(report.asked_bytes, 49 * PAGE - 1000);
    world.check();
    world.must_grow(cache, 5 * PAGE);
    assert!(world.grow(cache, 5 * PAGE + 1).is_refused());
    world.end_empty();
}

#[test]
fn the_host_waits_where_a_page_is_taken_and_its_old_mapping_may_be_in_use() {
    for busy in [true, false] {
        let mut world = by_hand(8, CrossStream::DeviceWait);
        let cache = world.must_reserve(8 * PAGE, 0);
        world.must_grow(cache, 4 * PAGE);
        world.shrink(cache, PAGE);
        // Takes the three frames that the shrink freed, and keeps them, among seven.
        let frames: Vec<_> = (0..7).map(|_| world.must_allocate(PAGE, 1)).collect();
        let stale = |page: u64| {
            let backing = world.emulator().resolve(world.growables[cache].range().0.add(page * PAGE));
            backing.map(|backing| backing.memory)
        };
        let stale = [1, 2, 3].map(|page| stale(page).expect("mapped as before"));
        let mut spare = 0;
        for block in frames {
            let memory = world.emulator().resolve(block).expect("a live block").memory;
            if !stale.contains(&memory) {
                world.free_at(block);
                spare += 1;
            }
        }
        assert_eq!(spare, 4);
        world.check();
        if !busy {
            world.synchronize(0);
        }
        world.must_grow(cache, 4 * PAGE);
        assert_eq!(world.emulator().counts().host_waits, u64::from(busy));
        assert_eq!(world.allocator.stats().fences.host_waits, u64::from(busy));
        world.end_empty();
    }
}

#[test]
fn what_other_streams_use_is_pending_after_a_shrink() {
    for cross_stream in [CrossStream::DeviceWait, CrossStream::Completed] {
        let mut world = by_hand(8, cross_stream);
        let cache = world.must_reserve(8 * PAGE, 0);
        world.must_grow(cache, 4 * PAGE);
        world.record_growable(cache, 1);
        world.shrink(cache, PAGE);
        assert_eq!(world.allocator.stats().pending_bytes, 3 * PAGE);
        world.check();
        let before = world.allocator.stats().fences;
        world.must_grow(cache, 2 * PAGE);
        let after = world.allocator.stats().fences;
        let waits = (after.waits - before.waits, after.host_waits - before.host_waits);
        match cross_stream {
            CrossStream::DeviceWait => assert_eq!(waits, (1, 0)),
            // Nothing may be put into a stream.
            _ => assert_eq!(waits, (0, 1)),
        }
        assert_eq!(world.allocator.stats().pending_bytes, 0);
        world.end_empty();
    }
}

#[test]
fn what_the_program_ordered_itself_is_not_waited_for() {
    let mut world = by_hand(8, CrossStream::Completed);
    let cache = world.must_reserve(8 * PAGE, 0);
    world.must_grow(cache, 4 * PAGE);
    world.record_growable(cache, 1);
    world.shrink(cache, PAGE);
    world.step(&Op::Wait { waiter: 0, on: 1 });
    world.must_grow(cache, 4 * PAGE);
    assert_eq!(world.emulator().counts().host_waits, 0);
    world.end_empty();
}

/// The rest of what was pending is free behind the wait for the other stream, not behind the shrink.
#[test]
fn the_rest_of_a_pending_end_is_taken_after_the_wait_for_it() {
    let mut world = by_hand(4, CrossStream::DeviceWait);
    let cache = world.must_reserve(4 * PAGE, 0);
    world.must_grow(cache, 4 * PAGE);
    world.record_growable(cache, 1);
    world.shrink(cache, PAGE);
    // An event behind the shrink, and done: whoever goes by it has not waited for stream 1.
    world.synchronize(0);
    world.must_grow(cache, 2 * PAGE);
    world.must_allocate(2 * PAGE, 2);
    world.check();
    world.end_empty();
}

#[test]
fn a_growable_outlives_the_handle_of_its_stream() {
    let mut world = by_hand(8, CrossStream::DeviceWait);
    let [first, second] = [0, 0].map(|stream| world.must_reserve(8 * PAGE, stream));
    world.must_grow(first, PAGE);
    world.replace_stream(0);
    // With bytes and without.
    world.must_grow(first, 3 * PAGE);
    world.must_grow(second, PAGE);
    world.shrink(second, 0);
    world.must_grow(second, 5 * PAGE);
    let reservations = world.emulator().leaks().reservations;
    assert_eq!(reservations, 2);
    world.discard(first);
    world.discard(0);
    world.check();
    assert_eq!(world.emulator().leaks().reservations, 2, "their work is in flight");
    world.complete_all();
    world.must_allocate(8 * PAGE, 1);
    assert_eq!(world.emulator().leaks().reservations, 1, "that of the block");
    world.check();
    world.end_empty();
}

#[test]
fn growables_that_come_and_go_leave_nothing() {
    let mut world = by_hand(8, CrossStream::DeviceWait);
    let mut held = Vec::new();
    for round in 0..100 {
        let cache = world.must_reserve(16 * PAGE, 0);
        world.must_grow(cache, 3 * PAGE);
        world.record_growable(cache, 1);
        world.shrink(cache, PAGE);
        world.must_grow(cache, 2 * PAGE);
        world.discard(cache);
        // Their frames serve at once, before their work is done.
        let block = world.must_allocate(8 * PAGE, 2);
        world.free_at(block);
        world.emulator().complete_all();
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
fn the_end_waits_for_work_on_growables() {
    let mut world = by_hand(8, CrossStream::DeviceWait);
    let cache = world.must_reserve(8 * PAGE, 0);
    world.must_grow(cache, 4 * PAGE);
    world.record_growable(cache, 1);
    world.discard(cache);
    world.end_empty();
}

#[test]
fn a_trim_takes_what_a_shrink_freed() {
    let mut world = plain(8);
    let cache = world.must_reserve(8 * PAGE, 0);
    world.must_grow(cache, 8 * PAGE);
    world.shrink(cache, 3 * PAGE + 1);
    assert_eq!(world.allocator.trim().released_bytes, 4 * PAGE);
    world.check();
    world.must_grow(cache, 8 * PAGE);
    world.end_empty();
}

#[test]
fn bad_use_is_refused_with_its_values() {
    let device = Emulator::new(EmulatorConfig::default()).unwrap();
    let allocator = Allocator::new(device.clone(), Config::default()).unwrap();
    let other = Allocator::new(device.clone(), Config::default()).unwrap();
    let stream = allocator.register_stream(device.stream());
    let foreign = other.register_stream(device.stream());
    let empty = allocator.reserve_growable(0, &stream);
    assert!(matches!(empty, Err(Error::Request(RequestError::Empty))), "{empty:?}");
    let huge = allocator.reserve_growable(u64::MAX, &stream);
    assert!(matches!(huge, Err(Error::Request(RequestError::TooLarge { bytes: u64::MAX, .. }))), "{huge:?}");
    assert!(matches!(allocator.reserve_growable(PAGE, &foreign), Err(Error::ForeignStream)));
    assert_eq!(device.leaks().reservations, 0);

    let mut growable = allocator.reserve_growable(3000, &stream).unwrap();
    assert_eq!((growable.bytes(), growable.max_bytes()), (0, 3000));
    growable.grow_to(3000).unwrap();
    let over = growable.grow_to(3001).unwrap_err();
    assert!(matches!(over, Error::OverMax { bytes: 3001, max_bytes: 3000 }), "{over:?}");
    assert!(matches!(growable.record_stream(&foreign), Err(Error::ForeignStream)));
    growable.grow_to(5).unwrap();
    assert_eq!(growable.bytes(), 3000, "no shorter");
    growable.shrink_to(4000);
    assert_eq!(growable.bytes(), 3000, "no longer");
    // It keeps the allocator alive.
    drop(stream);
    assert!(matches!(allocator.clone().close(), Err(Error::InUse(_))));
    drop(growable);
    assert_eq!(allocator.audit(), Vec::<String>::new());
    allocator.close().unwrap();
}

#[test]
fn without_addresses_there_is_a_report() {
    let setup = Setup { addresses: Some(40), ..Setup::plain(PAGE, 16) };
    let mut world = World::new(&setup);
    let refused = world.reserve(41 * PAGE, 0);
    let Outcome::OutOfMemory(report) = refused else { panic!("{refused:?}") };
    assert_eq!((report.asked_bytes, report.verdict), (41 * PAGE, concertina::Verdict::AddressSpace));
    world.check();
    world.must_reserve(40 * PAGE, 0);
    world.end_empty();
}

/// The first, second, ... call of each kind fails in a program that needs all of them; then the same step goes well.
#[test]
fn any_one_call_may_fail() {
    let mut struck = 0;
    for call in CALLS {
        for nth in 1..40 {
            let mut world = by_hand(8, CrossStream::DeviceWait);
            let fault = Fault::once(CallFilter::Kind(call), nth, DriverErrorKind::Invalid);
            world.emulator().fail(fault);
            if matches!(world.reserve(16 * PAGE, 0), Outcome::Failed(_)) {
                world.check();
                world.must_reserve(16 * PAGE, 0);
            }
            for (step, pages) in [(0, 4), (1, 1), (2, 6), (3, 2), (4, 5)] {
                if step % 2 == 1 {
                    world.shrink(0, pages * PAGE - 100);
                    // Somebody takes frames of it.
                    let block = match world.allocate(Layout::new(5 * PAGE), 2) {
                        Outcome::Allocated(block) => block,
                        _ => world.must_allocate(5 * PAGE, 2),
                    };
                    world.free_at(block);
                    world.must_allocate(PAGE, 2);
                } else if world.grow(0, pages * PAGE).is_refused() {
                    world.check();
                    world.must_grow(0, pages * PAGE);
                }
                world.record_growable(0, 1);
                world.check();
                while !world.live.is_empty() {
                    world.free(0);
                }
            }
            world.discard(0);
            world.check();
            world.step(&Op::Trim);
            world.check();
            struck += world.emulator().counts().failed(call);
            world.end_empty();
        }
    }
    assert!(struck > 100, "{struck} calls failed");
}

#[test]
fn two_gigabytes_of_tokens_need_no_copy() {
    let mut world = World::new(&Setup::plain(PAGE, 1024));
    let cache = world.must_reserve(GIB * 2, 0);
    for step in 1..=64 {
        world.must_grow(cache, step * 32 * MIB);
    }
    let stats = world.allocator.stats();
    assert_eq!((stats.mapped_peak_bytes, stats.live_peak_bytes), (GIB * 2, GIB * 2));
    assert_eq!(world.calls(), [1, 1024, 1024, 64, 0, 0, 0]);
    world.end_empty();
}
