//! Random programs: live blocks are apart and mapped, nothing races, all memory comes back, also when driver calls
//! fail.
//!
//! Neighbours: `world` runs them.

use concertina_baselines::{Baseline, Gmlake, Vpmm};
use concertina_emulator::{CallFilter, EmulatedStream, Emulator, EventCompletion, Fault};
use concertina_vmm::{Call, DriverErrorKind};
use proptest::prelude::{Strategy, any, proptest};
use proptest::prop_oneof;
use proptest::test_runner::TestCaseError;

use crate::world::{MIB, Op, STREAMS, World};

/// Small blocks are few: the free of a malloc makes the host wait for everything.
fn ops() -> impl Strategy<Value = Op> {
    let large = || prop_oneof![(2 * MIB)..(24 * MIB), (2 * MIB)..(80 * MIB)];
    let kind = prop_oneof![
        any::<u8>().prop_map(|_| DriverErrorKind::OutOfMemory),
        any::<u8>().prop_map(|_| DriverErrorKind::NotReady),
    ];
    prop_oneof![
        10 => (large(), 0..STREAMS).prop_map(|(bytes, stream)| Op::Allocate { bytes, stream }),
        1 => (1..2 * MIB, 0..STREAMS).prop_map(|(bytes, stream)| Op::Allocate { bytes, stream }),
        9 => any::<usize>().prop_map(|which| Op::Free { which }),
        2 => (any::<usize>(), 0..STREAMS).prop_map(|(which, stream)| Op::Read { which, stream }),
        2 => (0..STREAMS, 0..STREAMS).prop_map(|(stream, on)| Op::Wait { stream, on }),
        1 => (0..=STREAMS).prop_map(|s| Op::Synchronize { stream: (s < STREAMS).then_some(s) }),
        1 => (0..STREAMS).prop_map(|stream| Op::Complete { stream }),
        1 => any::<u8>().prop_map(|_| Op::ReleaseCached),
        1 => (1..40_u64, kind).prop_map(|(nth, kind)| Op::Fail { nth, kind }),
    ]
}

fn completions() -> impl Strategy<Value = EventCompletion> {
    prop_oneof![
        any::<u8>().prop_map(|_| EventCompletion::AtOnce),
        any::<u8>().prop_map(|_| EventCompletion::ByHand),
        any::<u64>().prop_map(EventCompletion::BySeed),
    ]
}

fn run<A: Baseline<Stream = EmulatedStream>>(
    completion: EventCompletion,
    program: &[Op],
    make: impl FnOnce(Emulator) -> A,
) -> Result<(), TestCaseError> {
    let mut world = World::new(completion, make);
    for op in program {
        world.step(op)?;
    }
    world.end()
}

const GMLAKE: [&str; 6] = [
    "",
    "fragLimit:0",
    "fragLimit:0,autoGC:0",
    "fragLimit:0,reAlloc:1,reuseLimit:1.5",
    "fragLimit:20971520,defragLevel:1",
    "fragLimit:0,defragLevel:2,reAlloc:1",
];
/// With 4 MiB a page, and with addresses that are soon used up.
const VPMM: [&str; 4] = ["", "page_size:4194304", "va_size:83886080", "pages:40"];

fn gmlake(options: &str) -> impl Fn(Emulator) -> Gmlake<Emulator> {
    let conf = options.parse().unwrap();
    move |device| Gmlake::new(device, conf).unwrap()
}

fn vpmm(options: &str) -> impl Fn(Emulator) -> Vpmm<Emulator> {
    let conf = options.parse().unwrap();
    move |device| Vpmm::new(device, conf).unwrap()
}

proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 400, ..Default::default() })]

    #[test]
    fn gmlake_keeps_blocks_apart(
        options in 0..GMLAKE.len(),
        completion in completions(),
        program in proptest::collection::vec(ops(), 1..120),
    ) {
        run(completion, &program, gmlake(GMLAKE[options]))?;
    }

    #[test]
    fn vpmm_keeps_blocks_apart(
        options in 0..VPMM.len(),
        completion in completions(),
        program in proptest::collection::vec(ops(), 1..120),
    ) {
        run(completion, &program, vpmm(VPMM[options]))?;
    }
}

/// A program with streams that fits twice, so that it is served though a failure made the allocator take another way.
fn modest_program() -> Vec<Op> {
    let allocate = |mib: u64, stream| Op::Allocate { bytes: mib * MIB, stream };
    let free = |which| Op::Free { which };
    vec![
        allocate(1, 0),
        allocate(20, 0),
        allocate(20, 1),
        Op::Read { which: 1, stream: 2 },
        allocate(26, 0),
        free(1),
        allocate(6, 1),
        free(1),
        free(1),
        Op::Complete { stream: 2 },
        allocate(40, 0),
        Op::Synchronize { stream: None },
        free(0),
        Op::ReleaseCached,
        allocate(20, 1),
        allocate(12, 0),
    ]
}

/// Each driver call of that program fails once: what was refused is served when it is asked for again.
fn each_call_may_fail<A: Baseline<Stream = EmulatedStream>>(least: u64, make: impl Fn(Emulator) -> A) {
    let calls = |device: &Emulator| -> u64 {
        Call::ALL.iter().map(|&call| device.counts().of(call) + device.counts().failed(call)).sum()
    };
    let mut world = World::new(EventCompletion::ByHand, &make);
    let before = calls(&world.device);
    modest_program().iter().for_each(|op| world.step(op).unwrap());
    let made = calls(&world.device) - before;
    assert!(made >= least, "{made} calls");
    world.end().unwrap();
    for nth in 1..=made {
        for kind in [DriverErrorKind::OutOfMemory, DriverErrorKind::NotReady] {
            let mut world = World::new(EventCompletion::ByHand, &make);
            world.device.fail(Fault::once(CallFilter::Every, nth, kind));
            for op in modest_program() {
                if let Op::Allocate { bytes, stream } = op {
                    let served = world.allocate(bytes, stream) || world.allocate(bytes, stream);
                    assert!(served, "call {nth}, {kind:?}: {op:?} is refused again");
                    world.check().unwrap();
                } else {
                    world.step(&op).unwrap();
                }
            }
            world.end().unwrap();
        }
    }
}

#[test]
fn each_call_may_fail_and_the_request_be_made_again() {
    GMLAKE.iter().for_each(|options| each_call_may_fail(100, gmlake(options)));
    VPMM.iter().for_each(|options| each_call_may_fail(60, vpmm(options)));
}
