//! A device that is lost: not one more call is made, nothing is torn down, and nothing panics.
//!
//! Neighbours: `failures` has the errors after which a device goes on.

use concertina::{DriverErrorKind, Error, Layout};
use concertina_emulator::Fault;
use concertina_vmm::Call;

use crate::failures::{CALLS, fixed_programs, fixed_setups};
use crate::program::{MIB, Program, Setup};
use crate::world::{World, is_driver_error};

/// Runs the program on a device that is lost at the n-th of these calls; what it does from then on makes no call.
fn lose(program: &Program, call: Call, nth: u64) -> bool {
    let mut world = World::new(&program.setup);
    world.emulator().fail(Fault::once(call, nth, DriverErrorKind::Lost));
    let mut at_loss = None;
    for op in &program.ops {
        world.step(op);
        if world.device.is_lost() {
            let counts = *at_loss.get_or_insert_with(|| world.emulator().counts());
            assert_eq!(world.emulator().counts(), counts, "{op:?} after the loss at {call} {nth}");
        }
        world.check();
    }
    let device = world.end();
    let counts = device.counts();
    assert_eq!(counts.calls_after_lost, 0, "lost at {call} {nth}");
    assert_eq!(device.broken_rules(), Vec::new());
    device.is_lost()
}

#[test]
fn no_call_is_made_after_the_loss_at_any_call() {
    for program in fixed_programs(&fixed_setups(), 60) {
        for call in CALLS {
            let mut nth = 1;
            while lose(&program, call, nth) {
                // Every one of the first, then every few.
                nth += 1 + nth / 4;
            }
        }
    }
}

#[test]
fn held_memory_still_serves_and_everything_else_says_that_the_device_is_lost() {
    let page = 2 * MIB;
    let mut world = World::new(&Setup::plain(page, 8));
    let block = world.must_allocate(2 * page, 0);
    world.free_at(block);
    world.emulator().fail(Fault::once(Call::Create, 1, DriverErrorKind::Lost));
    for _ in 0..3 {
        let refused = world.allocate(Layout::new(3 * page), 0);
        assert!(is_driver_error(&refused, DriverErrorKind::Lost), "{refused:?}");
        world.check();
    }
    let trimmed = world.allocator.trim();
    assert_eq!(trimmed.released_bytes, 0);
    assert_eq!(trimmed.failed.map(|error| error.kind), Some(DriverErrorKind::Lost));
    world.check();
    let mapped = world.emulator().counts().mapped_bytes;
    let World { device, allocator, streams, live, .. } = world;
    drop((live, streams));
    match allocator.close() {
        Err(Error::Unreturned(unreturned)) => assert_eq!(unreturned.frame_bytes, mapped, "{unreturned}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(device.counts().calls_after_lost, 0);
}
