//! Failures on command: every kind of call, every kind of error, at any point of a program.
//!
//! Neighbours: `lost` has the device that goes away, `givebacks` what the driver refuses to take back.
//!
//! After any failure all live blocks and their bytes are intact, everything is counted, no call breaks a rule, and the
//! request can be made again.

use concertina::{CrossStream, DriverErrorKind, Layout};
use concertina_emulator::{CallFilter, EventCompletion, Fault};
use concertina_vmm::Call;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::program::{MIB, Op, Program, Setup, cases, malloc_setup, op, program, roomy};
use crate::world::{Outcome, World};

/// The calls that an allocator makes.
pub(crate) const CALLS: [Call; 15] = [
    Call::Reserve,
    Call::Unreserve,
    Call::Create,
    Call::Release,
    Call::Map,
    Call::Unmap,
    Call::SetAccess,
    Call::MemoryInfo,
    Call::EventCreate,
    Call::EventRecord,
    Call::EventQuery,
    Call::EventSynchronize,
    Call::StreamWait,
    Call::Malloc,
    Call::Free,
];

/// Errors after which the device goes on.
const ERRORS: [DriverErrorKind; 4] = [
    DriverErrorKind::OutOfMemory,
    DriverErrorKind::NotReady,
    DriverErrorKind::NotSupported,
    DriverErrorKind::Invalid,
];

/// The same programs every time, so that a failure names its own.
pub(crate) fn fixed_programs(setups: &[Setup], steps: usize) -> Vec<Program> {
    let mut runner = TestRunner::deterministic();
    let mut draw = |setup: &Setup| {
        let ops = prop::collection::vec(op(setup.device), steps..=steps);
        let ops = ops.new_tree(&mut runner).unwrap().current();
        Program { setup: setup.clone(), ops }
    };
    setups.iter().map(&mut draw).collect()
}

/// Small devices, so that programs steal, wait and run short.
pub(crate) fn fixed_setups() -> Vec<Setup> {
    let page = 2 * MIB;
    let lag = EventCompletion::AfterOperations(7);
    let rule = |cross_stream, setup| Setup { cross_stream, ..setup };
    vec![
        Setup { reservation: Some(4), ..Setup::plain(page, 12) },
        Setup { completion: lag, ..Setup::plain(64 << 10, 24) },
        rule(CrossStream::Completed, Setup { completion: lag, ..Setup::plain(page, 10) }),
        Setup { completion: EventCompletion::ByHand, limit: Some(9), ..Setup::plain(page, 16) },
        rule(CrossStream::Never, Setup { unmap_spans_mappings: false, ..Setup::plain(page, 12) }),
        Setup { completion: lag, ..Setup::without_virtual_memory(32) },
        rule(CrossStream::Completed, Setup { limit: Some(24), ..Setup::without_virtual_memory(40) }),
    ]
}

/// Whether the model says that there is memory for the request.
fn is_there(world: &World, layout: Layout) -> bool {
    let free = if world.setup.virtual_memory {
        world.frames_for(layout.bytes()) <= world.free_frames()
    } else {
        world.malloc_fits(layout)
    };
    free && (world.setup.cross_stream == CrossStream::DeviceWait
        || (world.setup.cross_stream == CrossStream::Completed
            && world.setup.completion == EventCompletion::AtOnce))
}

/// Runs the program with the fault, and whatever is refused a second time, without it.
pub(crate) fn run_with(program: &Program, fault: Fault) -> World {
    let mut world = World::new(&program.setup);
    for (number, op) in program.ops.iter().enumerate() {
        world.emulator().fail(fault);
        let outcome = world.step(op);
        world.emulator().clear_faults();
        world.check();
        if let (Op::Allocate { size, alignment, stream }, true) = (op, outcome.is_refused()) {
            let layout = world.layout(*size, *alignment);
            let there = is_there(&world, layout);
            let again = world.allocate(layout, *stream);
            assert!(!(there && again.is_refused()), "step {number}, {op:?}: {outcome:?}, then {again:?}");
            world.check();
        }
    }
    world
}

/// Calls of one kind that the program makes, the end included.
fn calls_of(program: &Program, call: Call) -> u64 {
    let mut world = World::new(&program.setup);
    for op in &program.ops {
        world.step(op);
    }
    world.end().counts().of(call)
}

/// One failure in the whole of a program, at the n-th call of its kind, for any n; whatever of it is left strikes at the
/// end, too.
#[test]
fn any_one_call_may_fail_at_any_point() {
    for program in fixed_programs(&fixed_setups(), 60) {
        for call in CALLS {
            let calls = calls_of(&program, call);
            // At most so many points, spread over the program; the first ones all.
            let step = (calls / 24).max(1);
            for nth in (1..=calls.min(6)).chain((7..=calls).step_by(step as usize)) {
                let error = ERRORS[(nth % 4) as usize];
                one_failure(&program, Fault::once(call, nth, error));
            }
        }
    }
}

fn one_failure(program: &Program, fault: Fault) {
    let mut world = World::new(&program.setup);
    world.emulator().fail(fault);
    for (number, op) in program.ops.iter().enumerate() {
        let outcome = world.step(op);
        world.check();
        let Op::Allocate { size, alignment, stream } = *op else { continue };
        let layout = world.layout(size, alignment);
        if outcome.is_refused() && is_there(&world, layout) {
            let counts = world.emulator().counts();
            let struck = CALLS.iter().any(|call| counts.failed(*call) > 0);
            assert!(struck, "{fault:?}, step {number}, {op:?}: {outcome:?} before anything failed");
            let again = world.allocate(layout, stream);
            assert!(!again.is_refused(), "{fault:?}, step {number}, {op:?}: {outcome:?}, then {again:?}");
            world.check();
        }
    }
    world.end_empty();
}

/// Every call of one kind fails while a step is made, for each kind: nothing is lost, and the next try goes well.
#[test]
fn all_calls_of_a_kind_may_fail_during_any_step() {
    for program in fixed_programs(&fixed_setups(), 60) {
        for call in CALLS {
            for error in ERRORS {
                run_with(&program, Fault::from_nth(call, 1, error)).end_empty();
            }
        }
    }
}

fn error() -> impl Strategy<Value = DriverErrorKind> {
    prop::sample::select(ERRORS.to_vec())
}

fn filter() -> impl Strategy<Value = CallFilter> {
    let kinds = CALLS.map(CallFilter::Kind).to_vec();
    prop_oneof![Just(CallFilter::Every), Just(CallFilter::Memory), prop::sample::select(kinds)]
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn calls_may_fail_at_random_through_a_random_program(
        program in program(prop_oneof![2 => roomy(), 1 => malloc_setup()], 60),
        calls in filter(),
        error in error(),
        parts in 10_000_u32..600_000,
        seed in any::<u64>(),
    ) {
        let mut world = World::new(&program.setup);
        world.emulator().fail(Fault::random(calls, parts, seed, error));
        for op in &program.ops {
            world.step(op);
            world.check();
        }
        world.emulator().clear_faults();
        // The device works again: what is free serves, and all of it can go back.
        world.complete_all();
        while !world.live.is_empty() {
            world.free(0);
        }
        for stream in 0..world.streams.len() {
            world.synchronize(stream);
        }
        let trimmed = world.allocator.trim();
        prop_assert_eq!(trimmed.failed, None);
        world.check();
        if world.setup.cross_stream == CrossStream::DeviceWait {
            let most = world.setup.most_frames() * world.setup.page_bytes;
            let again = world.allocate(Layout::new(most), 0);
            prop_assert!(matches!(again, Outcome::Allocated(_)), "{:?}", again);
            world.check();
        }
        world.end_empty();
    }
}
