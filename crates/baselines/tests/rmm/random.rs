//! Random programs on both allocators, and each driver call failing once.
//!
//! Neighbours: `program` says what must hold.

use concertina_baselines::{RmmArena, RmmPool};
use concertina_emulator::{CallFilter, Emulator, Fault};
use concertina_vmm::{Call, DriverErrorKind};
use proptest::prelude::{Strategy, any, prop_assert_eq, prop_oneof, proptest};
use proptest::test_runner::TestCaseError;

use crate::program::{KIB, MIB, Program, Rmm, STREAMS};

/// One step. Blocks are named by their place among the live ones, counted modulo their number.
#[derive(Clone, Debug)]
enum Op {
    Allocate {
        bytes: u64,
        stream: u32,
    },
    Free {
        which: usize,
    },
    /// A kernel writes the block on its stream.
    Write {
        which: usize,
    },
    Complete {
        stream: u32,
    },
    /// The n-th driver call from here on fails.
    Fail {
        nth: u64,
        kind: DriverErrorKind,
    },
}

fn ops() -> impl Strategy<Value = Op> {
    let bytes = prop_oneof![1..4 * KIB, 1..MIB, 1..4 * MIB, 1..24 * MIB];
    let kind = prop_oneof![
        any::<u8>().prop_map(|_| DriverErrorKind::OutOfMemory),
        any::<u8>().prop_map(|_| DriverErrorKind::NotReady),
    ];
    prop_oneof![
        8 => (bytes, 0..STREAMS).prop_map(|(bytes, stream)| Op::Allocate { bytes, stream }),
        6 => any::<usize>().prop_map(|which| Op::Free { which }),
        6 => any::<usize>().prop_map(|which| Op::Write { which }),
        1 => (0..STREAMS).prop_map(|stream| Op::Complete { stream }),
        1 => (1..12_u64, kind).prop_map(|(nth, kind)| Op::Fail { nth, kind }),
    ]
}

/// A program on the first so many streams.
struct Runner<A> {
    program: Program<A>,
    streams: u32,
    next: u32,
}

impl<A: Rmm> Runner<A> {
    fn new(options: &str, streams: u32) -> Self {
        Self { program: Program::new(options, 64), streams, next: 1 }
    }

    fn nth(&self, which: usize) -> Option<u32> {
        let live = &self.program.live;
        live.keys().nth(which % live.len().max(1)).copied()
    }

    /// Whether it was refused.
    fn step(&mut self, op: &Op) -> bool {
        match *op {
            Op::Allocate { bytes, stream } => {
                self.next += 1;
                return self.program.try_allocate(self.next, bytes, stream % self.streams).is_err();
            }
            Op::Free { which } => {
                if let Some(live) = self.nth(which).and_then(|id| self.program.live.remove(&id)) {
                    // What could not be done is made up for later.
                    let _ = self.program.allocator.free(live.block);
                }
            }
            Op::Write { which } => {
                if let Some(id) = self.nth(which) {
                    self.program.write(id);
                }
            }
            Op::Complete { stream } => {
                self.program.device.complete_stream(&self.program.streams[stream as usize]);
            }
            Op::Fail { nth, kind } => {
                self.program.device.fail(Fault::once(CallFilter::Every, nth, kind));
            }
        }
        false
    }
}

const POOLS: [&str; 4] = ["", "initial:1", "initial:0.3", "initial:0.1,maximum:0.8"];
const ARENAS: [&str; 3] = ["", "initial:1", "initial:0.3,size_classes:true"];

fn run<A: Rmm>(options: &str, streams: u32, program: &[Op], races: Races) -> Result<(), TestCaseError> {
    let mut runner = Runner::<A>::new(options, streams);
    for op in program {
        runner.step(op);
        prop_assert_eq!(runner.program.defect(), None);
    }
    if races == Races::None {
        prop_assert_eq!(runner.program.device.races(), vec![]);
    }
    runner.program.end();
    Ok(())
}

#[derive(PartialEq)]
enum Races {
    None,
    /// Those of RMM's that `pool` has a test of.
    Known,
}

proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 400, ..Default::default() })]

    #[test]
    fn a_pool_of_two_streams_shares_no_byte_and_races_nowhere(
        options in 0..POOLS.len(),
        program in proptest::collection::vec(ops(), 1..150),
    ) {
        run::<RmmPool<Emulator>>(POOLS[options], 2, &program, Races::None)?;
    }

    #[test]
    fn a_pool_of_three_streams_shares_no_byte(
        options in 0..POOLS.len(),
        program in proptest::collection::vec(ops(), 1..150),
    ) {
        run::<RmmPool<Emulator>>(POOLS[options], 3, &program, Races::Known)?;
    }

    #[test]
    fn an_arena_shares_no_byte_and_races_nowhere(
        options in 0..ARENAS.len(),
        program in proptest::collection::vec(ops(), 1..150),
    ) {
        run::<RmmArena<Emulator>>(ARENAS[options], STREAMS, &program, Races::None)?;
    }
}

/// A pool takes from others, joins lists and grows; an arena waits and gives back what streams have.
fn fixed_program() -> Vec<Op> {
    let allocate = |mib: u64, stream| Op::Allocate { bytes: mib * MIB, stream };
    vec![
        allocate(1, 0),
        Op::Write { which: 0 },
        allocate(8, 1),
        allocate(8, 0),
        Op::Write { which: 1 },
        Op::Write { which: 2 },
        Op::Free { which: 1 },
        Op::Free { which: 1 },
        allocate(16, 0),
        Op::Write { which: 1 },
        allocate(1, 1),
        Op::Free { which: 2 },
        allocate(20, 1),
        Op::Free { which: 0 },
        allocate(1, 1),
        Op::Write { which: 0 },
        Op::Free { which: 0 },
        allocate(3, 0),
    ]
}

fn calls(device: &Emulator) -> u64 {
    Call::ALL.iter().map(|&call| device.counts().of(call) + device.counts().failed(call)).sum()
}

/// With each call failing once, what was refused for that is served the second time.
fn each_call_may_fail<A: Rmm>(options: &str, least: u64) {
    let mut runner = Runner::<A>::new(options, 2);
    let before = calls(&runner.program.device);
    for op in fixed_program() {
        assert!(!runner.step(&op), "{op:?}");
    }
    let made = calls(&runner.program.device) - before;
    assert!(made >= least, "{made} calls with `{options}`");
    runner.program.end();
    for nth in 1..=made {
        let mut runner = Runner::<A>::new(options, 2);
        runner.program.device.fail(Fault::once(CallFilter::Every, nth, DriverErrorKind::NotReady));
        for op in fixed_program() {
            assert!(
                !runner.step(&op) || !runner.step(&op),
                "call {nth}, `{options}`: {op:?} is refused again"
            );
            assert_eq!(runner.program.defect(), None, "call {nth}, `{options}`: {op:?}");
        }
        assert_eq!(runner.program.device.races(), [], "call {nth}, `{options}`");
        runner.program.end();
    }
}

#[test]
fn each_call_may_fail_and_the_request_be_made_again() {
    each_call_may_fail::<RmmPool<Emulator>>("", 10);
    each_call_may_fail::<RmmPool<Emulator>>("initial:0.5", 9);
    // 37 MiB: 20 MiB are only to be had when both streams' arenas have given back what they had.
    each_call_may_fail::<RmmArena<Emulator>>("initial:0.58", 12);
}
