//! How many driver calls a request makes: those that are needed, and access with one call.
//!
//! Neighbours: `stale` has what becomes of pages whose frames went elsewhere.

use concertina::{CrossStream, HostWait, Policy};
use concertina_emulator::Counts;
use concertina_vmm::Call;
use proptest::prelude::*;

use crate::program::{MIB, Op, Setup, cases, program, roomy};
use crate::world::{Outcome, World, run};

const PAGE: u64 = 2 * MIB;

/// A device of so many pages, and segments that hold them all.
fn lean(device: u64) -> Setup {
    Setup { policy: Policy::Lean, reservation: Some(2 * device), ..Setup::plain(PAGE, device) }
}

/// Calls of these kinds between two counts.
fn since<const N: usize>(before: &Counts, world: &World, calls: [Call; N]) -> [u64; N] {
    let now = world.emulator().counts();
    calls.map(|call| now.of(call) - before.of(call))
}

#[test]
fn a_request_of_many_pages_gets_access_with_one_call() {
    for pages in [1, 2, 7, 40] {
        for bytes in [pages * PAGE, (pages - 1) * PAGE + 512] {
            let mut world = World::new(&Setup::plain(PAGE, 40));
            let before = world.emulator().counts();
            world.must_allocate(bytes, 0);
            let calls = since(&before, &world, [Call::Create, Call::Map, Call::SetAccess, Call::Unmap]);
            assert_eq!(calls, [pages, pages, 1, 0]);
        }
    }
}

/// Stream 0 has a hole of six pages: two stale ones, two held ones, two stale ones. The frames of the stale ones are in
/// the block of stream 1 that is returned.
fn hole_with_stale_ends(setup: &Setup) -> (World, concertina::Address, concertina::Address) {
    let mut world = World::new(setup);
    let [first, middle, last] = [2 * PAGE; 3].map(|bytes| world.must_allocate(bytes, 0));
    assert_eq!((middle, last), (first.add(2 * PAGE), first.add(4 * PAGE)));
    world.free_at(first);
    world.free_at(last);
    let robber = world.must_allocate(4 * PAGE, 1);
    world.free_at(middle);
    assert_eq!(world.allocator.stats().mapped_bytes, 6 * PAGE);
    world.check();
    (world, first, robber)
}

#[test]
fn access_is_granted_over_the_pages_between_with_the_same_call() {
    for (unmap_spans_mappings, unmaps) in [(true, 2), (false, 4)] {
        let lean = Setup { unmap_spans_mappings, ..lean(10) };
        let (mut world, first, _) = hole_with_stale_ends(&lean);
        let before = world.emulator().counts();
        assert_eq!(world.must_allocate(6 * PAGE, 0), first);
        // Neighbours are unmapped with one call where the device allows it.
        let calls = since(&before, &world, [Call::Create, Call::Unmap, Call::Map, Call::SetAccess]);
        assert_eq!(calls, [4, unmaps, 4, 1]);
        assert_eq!(world.allocator.stats().replaced_pages, 4);
        world.check();
        world.end_empty();
    }
}

#[test]
fn a_request_that_only_revives_makes_no_call_for_it() {
    let (mut world, first, robber) = hole_with_stale_ends(&lean(6));
    world.free_at(robber);
    let before = world.memory_calls();
    assert_eq!(world.must_allocate(6 * PAGE, 0), first);
    assert_eq!(world.memory_calls(), before);
    assert_eq!(world.allocator.stats().revived_pages, 4);
    // And back: the other stream's pages are stale now.
    world.free_at(first);
    assert_eq!(world.must_allocate(4 * PAGE, 1), robber);
    assert_eq!(world.memory_calls(), before);
    assert_eq!(world.allocator.stats().revived_pages, 8);
    world.check();
    world.end_empty();
}

#[test]
fn a_place_that_is_wholly_held_costs_no_call_of_any_kind() {
    let mut world = World::new(&Setup::plain(PAGE, 16));
    let blocks: Vec<_> = [512, 700, 40 * 512, MIB, PAGE, 3 * PAGE, PAGE + 512]
        .map(|bytes| (bytes, world.must_allocate(bytes, 0)))
        .into();
    blocks.iter().for_each(|(_, block)| world.free_at(*block));
    // Once more, since what was apart is one hole now, and then ever again.
    for round in 0..3 {
        let before = world.emulator().counts();
        let again: Vec<_> = blocks.iter().map(|(bytes, _)| world.must_allocate(*bytes, 0)).collect();
        again.into_iter().for_each(|block| world.free_at(block));
        assert_eq!(world.emulator().counts(), before, "round {round}");
    }
    world.check();
    world.end_empty();
}

#[test]
fn two_streams_that_take_turns_make_no_memory_call_once_warm() {
    let mut world = World::new(&lean(8));
    let mut turns = Vec::new();
    for _ in 0..6 {
        for stream in [0, 1] {
            let blocks =
                [3 * PAGE, PAGE + 512, 100, 2 * PAGE].map(|bytes| world.must_allocate(bytes, stream));
            blocks.into_iter().for_each(|block| world.free_at(block));
        }
        turns.push(world.memory_calls());
    }
    assert_eq!(turns[2..], [turns[2]; 4], "calls: {turns:?}");
    assert!(world.allocator.stats().revived_pages > 0);
    world.end_empty();
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn a_request_makes_no_call_that_it_does_not_need(program in program(roomy(), 90)) {
        let mut before = Counts::default();
        let mut steps = program.ops.iter().peekable();
        run(&program, |world, op, outcome| {
            let [maps, access, creates, waits] =
                since(&before, world, [Call::Map, Call::SetAccess, Call::Create, Call::EventSynchronize]);
            before = world.emulator().counts();
            steps.next();
            let may_wait = world.setup.host_wait == HostWait::LastResort && matches!(op, Op::Allocate { .. });
            assert!(waits == 0 || may_wait, "{op:?} made the host wait");
            match (op, outcome) {
                (Op::Allocate { .. }, Outcome::Allocated(_)) => {
                    assert_eq!(access, u64::from(maps > 0), "{op:?} made {maps} maps");
                    check_policy(world, creates);
                }
                (Op::Allocate { .. }, _) => assert_eq!((maps, access), (0, 0), "{op:?}: {outcome:?}"),
                _ => assert_eq!((maps, access, creates), (0, 0, 0), "{op:?}"),
            }
        });
    }
}

/// `lean` creates only when nothing is free; `balanced` also while mapped bytes stay near the peak of live bytes.
fn check_policy(world: &World, creates: u64) {
    let stats = world.allocator.stats();
    if creates == 0 || world.setup.cross_stream != CrossStream::DeviceWait || stats.free_bytes == 0 {
        return;
    }
    assert_eq!(
        world.setup.policy,
        Policy::Balanced,
        "created {creates} frames with {} free",
        stats.free_bytes
    );
    assert!(stats.mapped_bytes * 20 <= stats.live_peak_bytes * 21, "{stats:?}");
}
