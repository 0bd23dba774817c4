//! A request within the bytes of free frames does not fail.
//!
//! Neighbours: `world` counts the frames with live bytes from the page table; `order` has what streams wait for.
//!
//! What is free depends on the cross-stream rule:
//! - `DeviceWait`: every frame without live bytes, whatever work is in flight and whatever is pending.
//! - `Completed`: the same when all events are done. When they are late, a refused request has recorded every event that
//!   it would have needed: once the device has caught up, the same request goes well.
//! - `Never`: of these, the frames that the request's own stream used last, and those not created yet.
//!
//! Where the host may wait, nothing has to be asked for twice.

use concertina::{CrossStream, HostWait, Layout};
use concertina_emulator::EventCompletion;
use proptest::prelude::*;

use crate::program::{Op, Setup, cases, malloc_setup, program, roomy};
use crate::world::{Outcome, World, run};

fn with_rule(cross_stream: CrossStream) -> impl Strategy<Value = Setup> {
    roomy().prop_map(move |setup| Setup { cross_stream, ..setup })
}

fn without_virtual_memory(cross_stream: CrossStream) -> impl Strategy<Value = Setup> {
    malloc_setup().prop_map(move |setup| Setup { cross_stream, ..setup })
}

/// The layout of a request that was refused.
fn refused(world: &World, op: &Op, outcome: &Outcome) -> Option<(Layout, usize)> {
    match (op, outcome) {
        (Op::Allocate { size, alignment, stream }, Outcome::OutOfMemory(_)) => {
            Some((world.layout(*size, *alignment), *stream))
        }
        _ => None,
    }
}

/// Frames that may serve a stream that takes only its own.
fn own_frames(world: &World, stream: usize) -> u64 {
    let id = world.streams[stream].registered.id();
    let busy = world.busy_frames();
    let mapped = world.allocator.stats().mapped_bytes / world.setup.page_bytes;
    let own = world.last_user.iter().filter(|(frame, user)| **user == id && !busy.contains(frame));
    // Frames that went back to the driver are counted as the driver's only.
    let own = own.filter(|(frame, _)| world.device.mappings_of(**frame) > 0).count() as u64;
    world.setup.most_frames() - mapped + own
}

/// Where the host may wait, nothing is refused for work that has not ended.
fn may_be_refused(world: &World) -> bool {
    world.setup.host_wait == HostWait::Never
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn with_device_waits_any_frame_without_live_bytes_serves(
        program in program(with_rule(CrossStream::DeviceWait), 90),
    ) {
        run(&program, |world, op, outcome| {
            if let Some((layout, _)) = refused(world, op, outcome) {
                let (needed, free) = (world.frames_for(layout.bytes()), world.free_frames());
                assert!(needed > free, "{layout:?} refused with {free} frames free: {outcome:?}");
            }
        });
    }

    /// What mallocs can't give is in segments with live bytes: as much of it as is free is lost to other requests.
    #[test]
    fn without_virtual_memory_all_but_segments_with_live_bytes_serves(
        program in program(without_virtual_memory(CrossStream::DeviceWait), 90),
    ) {
        run(&program, |world, op, outcome| {
            if let Some((layout, _)) = refused(world, op, outcome) {
                assert!(!world.malloc_fits(layout), "{layout:?} refused: {outcome:?}");
            }
        });
    }

    #[test]
    fn without_virtual_memory_and_waits_what_is_done_serves(
        program in program(without_virtual_memory(CrossStream::Completed), 90),
    ) {
        run(&program, |world, op, outcome| {
            let Some((layout, stream)) = refused(world, op, outcome) else { return };
            if !world.malloc_fits(layout) {
                return;
            }
            assert_ne!(world.setup.completion, EventCompletion::AtOnce, "{layout:?}: {outcome:?}");
            world.complete_all();
            let again = world.allocate(layout, stream);
            assert!(!again.is_refused(), "{layout:?} refused again: {again:?}");
        });
    }

    #[test]
    fn with_completed_any_frame_whose_work_is_done_serves(
        program in program(with_rule(CrossStream::Completed), 90),
    ) {
        run(&program, |world, op, outcome| {
            let Some((layout, stream)) = refused(world, op, outcome) else { return };
            let (needed, free) = (world.frames_for(layout.bytes()), world.free_frames());
            if needed > free {
                return;
            }
            assert_ne!(world.setup.completion, EventCompletion::AtOnce, "{layout:?}, {free} free: {outcome:?}");
            assert!(may_be_refused(world), "{layout:?}, {free} free: {outcome:?}");
            world.complete_all();
            let again = world.allocate(layout, stream);
            assert!(!again.is_refused(), "{layout:?} refused with {free} frames free and done: {again:?}");
        });
    }

    #[test]
    fn with_never_any_frame_of_the_own_stream_serves(program in program(with_rule(CrossStream::Never), 90)) {
        run(&program, |world, op, outcome| {
            let Some((layout, stream)) = refused(world, op, outcome) else { return };
            let (needed, free) = (world.frames_for(layout.bytes()), own_frames(world, stream));
            if needed > free {
                return;
            }
            // Blocks that other streams still use are pending, and nothing but the host may wait for those.
            assert!(may_be_refused(world), "{layout:?}, {free} free: {outcome:?}");
            world.complete_all();
            let again = world.allocate(layout, stream);
            assert!(!again.is_refused(), "{layout:?} refused with {free} frames of its own: {again:?}");
        });
    }
}
