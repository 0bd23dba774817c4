//! Random programs: live blocks are apart and mapped, nothing races, all memory comes back, also when driver calls fail.
//!
//! Neighbours: `world` runs them.

use concertina_baselines::{Baseline, Bfc, DriverPool, Fixed};
use concertina_emulator::{CallFilter, EmulatedStream, Emulator, EventCompletion, Fault};
use concertina_vmm::{Call, DriverErrorKind};
use proptest::prelude::{Strategy, any, proptest};
use proptest::prop_oneof;
use proptest::test_runner::TestCaseError;

use crate::world::{MIB, Op, STREAMS, World};

fn ops() -> impl Strategy<Value = Op> {
    let bytes = prop_oneof![1..4096_u64, 1..2 * MIB, 1..24 * MIB, 1..150 * MIB];
    let kind = prop_oneof![
        any::<u8>().prop_map(|_| DriverErrorKind::OutOfMemory),
        any::<u8>().prop_map(|_| DriverErrorKind::NotReady),
    ];
    prop_oneof![
        10 => (bytes, 0..STREAMS).prop_map(|(bytes, stream)| Op::Allocate { bytes, stream }),
        8 => any::<usize>().prop_map(|which| Op::Free { which }),
        2 => (any::<usize>(), 0..STREAMS).prop_map(|(which, stream)| Op::Read { which, stream }),
        2 => (0..STREAMS, 0..STREAMS).prop_map(|(stream, on)| Op::Wait { stream, on }),
        1 => (0..=STREAMS).prop_map(|s| Op::Synchronize { stream: (s < STREAMS).then_some(s) }),
        1 => (0..STREAMS).prop_map(|stream| Op::Complete { stream }),
        1 => any::<u8>().prop_map(|_| Op::ReleaseCached),
        2 => (1..12_u64, kind).prop_map(|(nth, kind)| Op::Fail { nth, kind }),
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

const BFC: [&str; 4] = [
    "",
    "garbage_collection:false,memory_fraction:0.9",
    "allow_growth:false",
    "internal_fragmentation_fraction:0.05",
];
const DRIVER_POOL: [&str; 7] = [
    "",
    "release_threshold_mb:max",
    "release_threshold_mb:128,frame_mb:2",
    "opportunistic:false",
    "follow_events:false,remap:pressure",
    "internal_dependencies:false,retry:false,frame_mb:6",
    "remap:never",
];
const FIXED: [&str; 2] = ["", "memory_mb:300"];

fn bfc(options: &str) -> impl Fn(Emulator) -> Bfc<Emulator> {
    let conf = options.parse().unwrap();
    move |device| Bfc::new(device, conf).unwrap()
}

fn driver_pool(options: &str) -> impl Fn(Emulator) -> DriverPool<Emulator> {
    let conf = options.parse().unwrap();
    move |device| DriverPool::new(device, conf).unwrap()
}

fn fixed(options: &str) -> impl Fn(Emulator) -> Fixed<Emulator> {
    let conf = options.parse().unwrap();
    move |device| Fixed::new(device, conf)
}

proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 300, ..Default::default() })]

    #[test]
    fn bfc_keeps_blocks_apart(
        options in 0..BFC.len(),
        completion in completions(),
        program in proptest::collection::vec(ops(), 1..120),
    ) {
        run(completion, &program, bfc(BFC[options]))?;
    }

    #[test]
    fn driver_pool_keeps_blocks_apart(
        options in 0..DRIVER_POOL.len(),
        completion in completions(),
        program in proptest::collection::vec(ops(), 1..120),
    ) {
        run(completion, &program, driver_pool(DRIVER_POOL[options]))?;
    }

    #[test]
    fn fixed_keeps_blocks_apart(
        options in 0..FIXED.len(),
        completion in completions(),
        program in proptest::collection::vec(ops(), 1..120),
    ) {
        run(completion, &program, fixed(FIXED[options]))?;
    }
}

/// A program with streams that fits twice, so that it is served though a failure made the allocator take another way.
fn modest_program() -> Vec<Op> {
    let allocate = |mib: u64, stream| Op::Allocate { bytes: mib * MIB, stream };
    let free = |which| Op::Free { which };
    vec![
        allocate(1, 0),
        allocate(40, 0),
        allocate(40, 1),
        Op::Read { which: 1, stream: 2 },
        allocate(50, 0),
        free(1),
        allocate(12, 1),
        free(1),
        free(1),
        allocate(50, 2),
        Op::Synchronize { stream: None },
        free(0),
        Op::ReleaseCached,
        allocate(40, 1),
        allocate(20, 0),
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
    BFC.iter().for_each(|options| each_call_may_fail(8, bfc(options)));
    each_call_may_fail(8, fixed(""));
    DRIVER_POOL.iter().for_each(|options| each_call_may_fail(30, driver_pool(options)));
}
