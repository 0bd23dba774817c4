//! A block that was freed and allocated again at once is kept in between: nobody may be able to tell.
//!
//! Neighbours: `crates/heap/src/heap/last_hit.rs` says why. Whoever looks into a heap makes it forget what it keeps. So a
//! program runs on two allocators, and one of them is looked into after each step: it never keeps anything, and is the
//! model of the other one.

#![forbid(unsafe_code)]

use concertina::{
    Allocator, CaptureScope, Config, GraphPool, Layout, OnStream, Policy, RawAllocation, StaleRule, Stream,
};
use concertina_emulator::{Emulator, EmulatorConfig, EventCompletion};
use proptest::prelude::*;

const SIZES: [u64; 8] = [512, 700, 4 << 10, 300 << 10, 1 << 20, 3 << 20, 20 << 20, 33 << 20];

/// One step of a program. Numbers are taken modulo what there is.
#[derive(Clone, Copy, Debug)]
enum Op {
    Allocate {
        size: usize,
        alignment: u32,
        stream: usize,
    },
    FreeLast,
    Free {
        nth: usize,
    },
    /// So many pairs of one size.
    Pairs {
        size: usize,
        stream: usize,
        pairs: usize,
    },
    Record {
        nth: usize,
        stream: usize,
    },
    Look,
    Trim,
    TrimTo {
        mib: u64,
    },
    /// Operations are queued: events may complete.
    Advance,
    /// The stream ends, and another one comes in its place.
    Replace {
        stream: usize,
    },
    /// A capture into the graph pool begins on the stream, or ends.
    Capture {
        stream: usize,
    },
    /// The pool ends, and another one comes in its place.
    NewPool,
}

fn op() -> impl Strategy<Value = Op> {
    let size = 0..SIZES.len();
    prop_oneof![
        5 => (size.clone(), prop_oneof![4 => Just(0u32), 1 => 1u32..14], 0usize..2)
            .prop_map(|(size, alignment, stream)| Op::Allocate { size, alignment, stream }),
        4 => Just(Op::FreeLast),
        3 => any::<usize>().prop_map(|nth| Op::Free { nth }),
        3 => (size, 0usize..2, 1usize..5)
            .prop_map(|(size, stream, pairs)| Op::Pairs { size, stream, pairs }),
        1 => (any::<usize>(), 0usize..2).prop_map(|(nth, stream)| Op::Record { nth, stream }),
        1 => Just(Op::Look),
        1 => Just(Op::Trim),
        1 => (0u64..100).prop_map(|mib| Op::TrimTo { mib }),
        2 => Just(Op::Advance),
        1 => (0usize..2).prop_map(|stream| Op::Replace { stream }),
        3 => (0usize..2).prop_map(|stream| Op::Capture { stream }),
        1 => Just(Op::NewPool),
    ]
}

/// What a program runs on.
#[derive(Clone, Copy, Debug)]
struct Setup {
    policy: Policy,
    stale: StaleRule,
    completion: EventCompletion,
    virtual_memory: bool,
}

impl Setup {
    const PLAIN: Self = Self {
        policy: Policy::Balanced,
        stale: StaleRule::Keep,
        completion: EventCompletion::AtOnce,
        virtual_memory: true,
    };
}

fn setup() -> impl Strategy<Value = Setup> {
    let policy = prop_oneof![Just(Policy::Lean), Just(Policy::Balanced)];
    let stale = prop_oneof![3 => Just(StaleRule::Keep), 1 => Just(StaleRule::Eager)];
    let completion = (0u64..9).prop_map(EventCompletion::AfterOperations);
    (policy, stale, completion, prop::bool::weighted(0.8)).prop_map(
        |(policy, stale, completion, virtual_memory)| Setup { policy, stale, completion, virtual_memory },
    )
}

struct Side {
    device: Emulator,
    allocator: Allocator<Emulator>,
    streams: Vec<Stream<Emulator>>,
    on_streams: Vec<OnStream<Emulator>>,
    pool: GraphPool<Emulator>,
    captures: [Option<CaptureScope<Emulator>>; 2],
    live: Vec<RawAllocation>,
}

impl Side {
    fn new(setup: Setup) -> Self {
        let Setup { policy, stale, completion, virtual_memory } = setup;
        let config = EmulatorConfig::default().with_capacity(128 << 20).expect("whole pages");
        let config = EmulatorConfig { virtual_memory, ..config.with_event_completion(completion) };
        let device = Emulator::new(config).expect("a device");
        let config = Config::builder().policy(policy).stale(stale).build();
        let allocator = Allocator::new(device.clone(), config).expect("settings that can be");
        let streams: Vec<_> = (0..2).map(|_| allocator.register_stream(device.stream())).collect();
        let on_streams = streams.iter().map(|stream| allocator.on(stream).expect("its own stream")).collect();
        let pool = allocator.graph_pool();
        Self { device, allocator, streams, on_streams, pool, captures: [None, None], live: Vec::new() }
    }

    /// What the program sees of a step: the addresses it got, or what was returned.
    fn step(&mut self, op: Op) -> String {
        let Self { device, allocator, streams, on_streams, pool, captures, live } = self;
        match op {
            Op::Allocate { size, alignment, stream } => {
                let layout = Layout::new(SIZES[size]).aligned_to(512 << alignment);
                match allocator.allocate_raw(layout, &streams[stream]) {
                    Ok(block) => {
                        live.push(block);
                        format!("{block:?}")
                    }
                    Err(error) => error.to_string(),
                }
            }
            Op::FreeLast => {
                live.pop().map_or_else(String::new, |block| format!("{:?}", allocator.free_raw(block)))
            }
            Op::Free { nth } if !live.is_empty() => {
                let block = live.swap_remove(nth % live.len());
                let freed = format!("{:?}", allocator.free_raw(block));
                // The second free is refused, kept or not.
                format!("{freed} {:?}", allocator.free_raw(block).is_err())
            }
            Op::Pairs { size, stream, pairs } => {
                let layout = Layout::new(SIZES[size]);
                let scoped = |_| match on_streams[stream].allocate_scoped(layout) {
                    Ok(block) => format!("{block:?} of {}", block.bytes()),
                    Err(error) => error.to_string(),
                };
                let pair = |_| match on_streams[stream].allocate_raw(layout) {
                    // The other stream's handle does as well.
                    Ok(block) => format!("{block:?} {:?}", on_streams[pairs % 2].free_raw(block)),
                    Err(error) => error.to_string(),
                };
                (0..pairs).map(scoped).chain((0..pairs).map(pair)).collect()
            }
            Op::Record { nth, stream } if !live.is_empty() => {
                let block = live[nth % live.len()];
                format!("{:?}", allocator.record_stream_raw(block, &streams[stream]).is_ok())
            }
            Op::Free { .. } | Op::Record { .. } => String::new(),
            Op::Advance => {
                device.advance(3);
                String::new()
            }
            Op::Replace { stream } if captures[stream].is_none() => {
                streams[stream] = allocator.register_stream(device.stream());
                on_streams[stream] = allocator.on(&streams[stream]).expect("its own stream");
                String::new()
            }
            Op::Capture { stream } => match captures[stream].take() {
                Some(scope) => format!("{:?}", scope.end()),
                None => match streams[stream].capture(pool) {
                    Ok(scope) => {
                        captures[stream] = Some(scope);
                        String::new()
                    }
                    Err(error) => error.to_string(),
                },
            },
            Op::NewPool => {
                *pool = allocator.graph_pool();
                String::new()
            }
            Op::Replace { .. } => String::new(),
            Op::Look => format!("{:?}", allocator.stats()),
            Op::Trim => format!("{:?}", allocator.trim()),
            Op::TrimTo { mib } => format!("{:?}", allocator.trim_to(mib << 20)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn a_kept_block_is_seen_by_nobody(
        setup in setup(),
        program in prop::collection::vec(op(), 1..80),
    ) {
        let (mut keeps, mut forgets) = (Side::new(setup), Side::new(setup));
        for (at, op) in program.into_iter().enumerate() {
            let seen = keeps.step(op);
            prop_assert_eq!(seen, forgets.step(op), "step {}, {:?}", at, op);
            forgets.allocator.stats();
            prop_assert_eq!(
                keeps.device.counts().memory_calls(),
                forgets.device.counts().memory_calls(),
                "driver calls up to step {}, {:?}", at, op
            );
        }
        prop_assert_eq!(keeps.allocator.audit(), Vec::<String>::new());
        prop_assert_eq!(keeps.allocator.stats(), forgets.allocator.stats());
    }
}

/// The pair as a program sees it: one place, a new handle each time, and an old handle that is dead.
#[test]
fn a_pair_stays_where_it_is_and_its_old_handles_are_dead() {
    let Side { allocator, streams, .. } = Side::new(Setup::PLAIN);
    let layout = Layout::new(20 << 20);
    let mut before: Option<RawAllocation> = None;
    for _ in 0..4 {
        let block = allocator.allocate_raw(layout, &streams[0]).unwrap();
        assert_eq!(allocator.stats().live_bytes, 20 << 20);
        if let Some(before) = before.replace(block) {
            assert_eq!(block.address(), before.address());
            assert_ne!(block, before);
            assert!(allocator.free_raw(before).is_err());
        }
        allocator.free_raw(block).unwrap();
        assert!(allocator.free_raw(block).is_err());
        assert!(allocator.record_stream_raw(block, &streams[1]).is_err());
        assert_eq!((allocator.stats().live_bytes, allocator.stats().live_blocks), (0, 0));
    }
    // What the pair left is free: all of it goes.
    assert_eq!(allocator.trim().released_bytes, 20 << 20);
}
