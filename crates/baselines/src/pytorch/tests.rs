//! Random programs: the bookkeeping holds after every step, also when driver calls fail.
//!
//! Neighbours: `audit` says what must hold; the worked examples are in `tests/pytorch.rs` of this crate.

use std::collections::BTreeMap;

use concertina_emulator::{CallFilter, Emulator, EmulatorConfig, EventCompletion, Fault};
use concertina_vmm::{Address, Call, DriverErrorKind};
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::test_runner::TestCaseError;

use super::audit::audit;
use super::conf::PytorchConf;
use super::{Pytorch, PytorchBlock};

const MIB: u64 = 1 << 20;
const STREAMS: u32 = 3;
const CAPACITY_BYTES: u64 = 512 * MIB;

/// One step of a random program. Blocks are named by their place among the live ones, counted modulo their number.
#[derive(Clone, Debug)]
enum Op {
    Allocate {
        bytes: u64,
        stream: u32,
    },
    Free {
        which: usize,
    },
    RecordStream {
        which: usize,
        stream: u32,
    },
    Complete {
        stream: u32,
    },
    EmptyCache,
    /// The n-th driver call from here on fails.
    Fail {
        nth: u64,
        kind: DriverErrorKind,
    },
}

fn ops() -> impl Strategy<Value = Op> {
    let bytes = prop_oneof![1..4096_u64, 1..2 * MIB, 1..24 * MIB, 1..150 * MIB];
    let kind = prop_oneof![
        any::<u8>().prop_map(|_| DriverErrorKind::OutOfMemory),
        any::<u8>().prop_map(|_| DriverErrorKind::NotReady),
    ];
    prop_oneof![
        8 => (bytes, 0..STREAMS).prop_map(|(bytes, stream)| Op::Allocate { bytes, stream }),
        6 => any::<usize>().prop_map(|which| Op::Free { which }),
        2 => (any::<usize>(), 0..STREAMS).prop_map(|(which, stream)| Op::RecordStream { which, stream }),
        1 => (0..STREAMS).prop_map(|stream| Op::Complete { stream }),
        1 => any::<u8>().prop_map(|_| Op::EmptyCache),
        2 => (1..12_u64, kind).prop_map(|(nth, kind)| Op::Fail { nth, kind }),
    ]
}

const CONFS: [&str; 6] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:20,roundup_power2_divisions:4",
    "max_split_size_mb:20,expandable_segments:True,large_segment_size_mb:12",
    "garbage_collection_threshold:0.4,per_process_memory_fraction:0.8",
    "garbage_collection_threshold:0.4,per_process_memory_fraction:0.8,expandable_segments:True",
];

struct World {
    device: Emulator,
    streams: Vec<concertina_emulator::EmulatedStream>,
    allocator: Pytorch<Emulator>,
    live: Vec<(PytorchBlock, u64)>,
    /// What was freed while another stream could still use it: address, bytes, the streams.
    in_use: BTreeMap<u64, (u64, Vec<u32>)>,
    recorded: BTreeMap<u64, Vec<u32>>,
}

impl World {
    fn new(conf: &str) -> Self {
        let config = EmulatorConfig::default().with_event_completion(EventCompletion::ByHand);
        let device = Emulator::new(config.with_capacity(CAPACITY_BYTES).unwrap()).unwrap();
        let mut allocator = Pytorch::new(device.clone(), conf.parse::<PytorchConf>().unwrap()).unwrap();
        let streams: Vec<_> = (0..STREAMS).map(|_| device.stream()).collect();
        for stream in &streams {
            allocator.add_stream(stream.clone());
        }
        Self {
            device,
            streams,
            allocator,
            live: Vec::new(),
            in_use: BTreeMap::new(),
            recorded: BTreeMap::new(),
        }
    }

    fn step(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::Allocate { bytes, stream } => {
                let waits = self.waits();
                match self.allocator.allocate(bytes, stream) {
                    Ok(block) => {
                        if self.waits() == waits {
                            self.check_not_in_use(block.address().get(), bytes)?;
                        } else {
                            self.in_use.clear();
                        }
                        self.live.push((block, bytes));
                    }
                    Err(_) => self.forget_waits(waits),
                }
            }
            Op::Free { which } if !self.live.is_empty() => {
                let (block, bytes) = self.live.swap_remove(which % self.live.len());
                let address = block.address().get();
                if let Some(streams) = self.recorded.remove(&address) {
                    self.in_use.insert(address, (bytes, streams));
                }
                // A failed record is made up for later.
                let _ = self.allocator.free(block);
            }
            Op::RecordStream { which, stream } if !self.live.is_empty() => {
                let which = which % self.live.len();
                let block = &self.live[which].0;
                self.allocator.record_stream(block, stream).unwrap();
                if self.allocator.blocks.at(block.id).stream != stream {
                    self.recorded.entry(block.address().get()).or_default().push(stream);
                }
            }
            Op::Complete { stream } => {
                self.device.complete_stream(&self.streams[stream as usize]);
                self.in_use.retain(|_, (_, streams)| {
                    streams.retain(|&other| other != stream);
                    !streams.is_empty()
                });
            }
            Op::EmptyCache => {
                let waits = self.waits();
                let _ = self.allocator.empty_cache();
                self.forget_waits(waits);
            }
            Op::Fail { nth, kind } => self.device.fail(Fault::once(CallFilter::Every, nth, kind)),
            Op::Free { .. } | Op::RecordStream { .. } => {}
        }
        self.check()
    }

    /// Calls that make the host wait: each may end any use.
    fn waits(&self) -> u64 {
        let counts = self.device.counts();
        counts.of(Call::EventSynchronize) + counts.of(Call::Free)
    }

    fn forget_waits(&mut self, waits: u64) {
        if self.waits() != waits {
            self.in_use.clear();
        }
    }

    fn check_not_in_use(&self, address: u64, bytes: u64) -> Result<(), TestCaseError> {
        for (&start, (length, streams)) in &self.in_use {
            prop_assert!(
                start + length <= address || address + bytes <= start,
                "{address:#x} is still used by streams {streams:?}"
            );
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(audit(&self.allocator), Vec::<String>::new());
        prop_assert!(self.device.broken_rules().is_empty(), "{:?}", self.device.broken_rules());
        let mut ends: Vec<(u64, u64)> =
            self.live.iter().map(|(block, bytes)| (block.address().get(), *bytes)).collect();
        ends.sort_unstable();
        for pair in ends.windows(2) {
            prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0, "two live blocks at {:#x}", pair[1].0);
        }
        for (block, bytes) in &self.live {
            for at in [block.address(), Address::new(block.address().get() + bytes - 1)] {
                prop_assert!(self.device.resolve(at).is_some(), "nothing behind {at}");
            }
        }
        Ok(())
    }

    /// Everything freed and done: the allocator gives all of it back.
    fn end(mut self) -> Result<(), TestCaseError> {
        self.device.clear_faults();
        for (block, _) in std::mem::take(&mut self.live) {
            self.allocator.free(block).unwrap();
        }
        self.allocator.empty_cache().unwrap();
        self.check()?;
        // A segment that could map nothing stays, with all of it unmapped.
        prop_assert_eq!(self.allocator.small.sizes().0 + self.allocator.large.sizes().0, 0);
        let stats = *self.allocator.stats();
        for level in [stats.reserved, stats.allocated, stats.active, stats.requested] {
            prop_assert_eq!(level.current, 0);
        }
        let Self { device, streams, allocator, .. } = self;
        drop((allocator, streams));
        prop_assert!(device.is_empty(), "{}", device.leaks());
        Ok(())
    }
}

proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 500, ..Default::default() })]

    #[test]
    fn random_programs_keep_the_books(
        conf in 0..CONFS.len(),
        program in proptest::collection::vec(ops(), 1..120),
    ) {
        let mut world = World::new(CONFS[conf]);
        for op in &program {
            world.step(op)?;
        }
        world.end()?;
    }
}

fn calls(device: &Emulator) -> u64 {
    Call::ALL.iter().map(|&call| device.counts().of(call) + device.counts().failed(call)).sum()
}

/// A program that makes every kind of call, with each call of it failing once: what was refused is served the second
/// time.
#[test]
fn each_call_may_fail_and_the_request_be_made_again() {
    for (conf, least) in [("", 15), ("expandable_segments:True", 60)] {
        let mut world = World::new(conf);
        let before = calls(&world.device);
        for op in fixed_program() {
            world.step(&op).unwrap();
        }
        let made = calls(&world.device) - before;
        assert!(made >= least, "{made} calls with `{conf}`");
        world.end().unwrap();
        for nth in 1..=made {
            let mut world = World::new(conf);
            world.device.fail(Fault::once(CallFilter::Every, nth, DriverErrorKind::NotReady));
            for op in fixed_program() {
                let live = world.live.len();
                world.step(&op).unwrap();
                if matches!(op, Op::Allocate { .. }) && world.live.len() == live {
                    world.step(&op).unwrap();
                    assert_eq!(world.live.len(), live + 1, "call {nth}, `{conf}`: {op:?} is refused again");
                }
            }
            world.end().unwrap();
        }
    }
}

/// Needs more than the device has twice, so that the cache is given back; with events outstanding.
fn fixed_program() -> Vec<Op> {
    let allocate = |mib: u64, stream| Op::Allocate { bytes: mib * MIB, stream };
    vec![
        allocate(1, 0),
        allocate(100, 0),
        allocate(100, 1),
        Op::RecordStream { which: 1, stream: 2 },
        allocate(150, 0),
        Op::Free { which: 1 },
        allocate(30, 1),
        Op::Free { which: 1 },
        allocate(160, 2),
        allocate(140, 1),
        Op::EmptyCache,
    ]
}
