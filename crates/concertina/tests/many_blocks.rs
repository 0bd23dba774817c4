//! Heaps of many blocks, where a free is done while the next ones come: nobody may find memory missing.
//!
//! Neighbours: `crates/heap/src/heap/deferred.rs` says why. A heap defers from 65,536 live blocks on; programs here go to and fro
//! over that. Whoever looks into a heap has everything done that was deferred, so they look seldom.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use concertina::{
    Address, Allocation, Allocator, ByAddress, Config, CrossStream, DEFERRED_FROM_BLOCKS, HostWait, Layout,
    OnStream, RawAllocation, ScopedAllocation, Stream,
};
use concertina_emulator::{Emulator, EmulatorConfig, EventCompletion};
use proptest::prelude::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// From how many live blocks on a heap defers frees.
const MANY: usize = DEFERRED_FROM_BLOCKS as usize;
/// Of the blocks that make a heap large: too large for a bin.
const FILLER: u64 = 2 * KIB;
/// With sizes that go to bins.
const SIZES: [u64; 7] = [1, 512, KIB, KIB + 1, 40 * KIB, 700 * KIB, MIB];

fn device(pages: u64, completion: EventCompletion) -> Emulator {
    let config = EmulatorConfig::default().with_capacity(pages * 2 * MIB).expect("whole pages");
    Emulator::new(config.with_event_completion(completion)).expect("a device")
}

fn handles(
    allocator: &Allocator<Emulator>,
    stream: &Stream<Emulator>,
    bytes: u64,
    count: usize,
) -> Vec<Allocation<Emulator>> {
    (0..count).map(|_| allocator.allocate(Layout::new(bytes), stream).expect("room")).collect()
}

/// How a block is held.
#[derive(Clone, Copy, Debug)]
enum Way {
    Handle,
    Scoped,
    Raw,
    ByAddress,
}

/// One step of a program. Numbers are taken modulo what there is.
#[derive(Clone, Copy, Debug)]
enum Op {
    Allocate {
        size: usize,
        way: Way,
    },
    /// The one in this place by address.
    Free {
        nth: usize,
    },
    /// So many blocks in a row of addresses.
    FreeRow {
        nth: usize,
        blocks: usize,
    },
    Record {
        nth: usize,
    },
    /// So many more or fewer of the blocks that make the heap large.
    Fill {
        blocks: usize,
    },
    Drain {
        blocks: usize,
    },
    Look,
    Trim,
    /// The other stream asks for so much, and lets it go.
    Rob {
        pages: u64,
    },
    Advance,
}

fn op() -> impl Strategy<Value = Op> {
    let way = prop_oneof![4 => Just(Way::Handle), 2 => Just(Way::Raw), 1 => Just(Way::Scoped), 1 => Just(Way::ByAddress)];
    prop_oneof![
        12 => (0..SIZES.len(), way).prop_map(|(size, way)| Op::Allocate { size, way }),
        9 => any::<usize>().prop_map(|nth| Op::Free { nth }),
        2 => (any::<usize>(), 2..6_usize).prop_map(|(nth, blocks)| Op::FreeRow { nth, blocks }),
        1 => any::<usize>().prop_map(|nth| Op::Record { nth }),
        1 => (1..20_usize).prop_map(|blocks| Op::Fill { blocks }),
        1 => (1..20_usize).prop_map(|blocks| Op::Drain { blocks }),
        1 => Just(Op::Look),
        1 => Just(Op::Trim),
        1 => (1..30_u64).prop_map(|pages| Op::Rob { pages }),
        1 => Just(Op::Advance),
    ]
}

/// A block in whatever hands.
#[derive(Debug)]
enum Held<'a> {
    Handle(Allocation<Emulator>),
    Scoped(ScopedAllocation<'a, Emulator>),
    Raw(RawAllocation),
    ByAddress(Address),
}

struct World<'a> {
    allocator: &'a Allocator<Emulator>,
    streams: &'a [Stream<Emulator>; 2],
    on_stream: &'a OnStream<Emulator>,
    by_address: &'a ByAddress<Emulator>,
    filler: Vec<Allocation<Emulator>>,
    /// By address, with the bytes as asked: the model. The filler is not in it; the audit sees that nothing overlaps that.
    live: BTreeMap<u64, (u64, Held<'a>)>,
}

impl<'a> World<'a> {
    fn allocate(&mut self, bytes: u64, way: Way) -> Result<(), TestCaseError> {
        let layout = Layout::new(bytes);
        let held = match way {
            Way::Handle => self.allocator.allocate(layout, &self.streams[0]).map(Held::Handle),
            Way::Scoped => self.on_stream.allocate_scoped(layout).map(Held::Scoped),
            Way::Raw => self.allocator.allocate_raw(layout, &self.streams[0]).map(Held::Raw),
            Way::ByAddress => self.by_address.allocate(layout, &self.streams[0]).map(Held::ByAddress),
        };
        let Ok(held) = held else { return Ok(()) };
        let start = match &held {
            Held::Handle(block) => block.address(),
            Held::Scoped(block) => block.address(),
            Held::Raw(block) => block.address(),
            Held::ByAddress(address) => *address,
        };
        let start = start.get();
        let before = self.live.range(..start + bytes).next_back();
        let end_before = before.map(|(start, (bytes, _))| start + bytes);
        prop_assert!(end_before.is_none_or(|end| end <= start), "{held:?} overlaps {before:?}");
        self.live.insert(start, (bytes, held));
        Ok(())
    }

    fn free(&mut self, start: u64) -> Result<(), TestCaseError> {
        match self.live.remove(&start).expect("it is in the book").1 {
            Held::Handle(block) => drop(block),
            Held::Scoped(block) => drop(block),
            Held::Raw(block) => {
                prop_assert!(self.allocator.free_raw(block).is_ok());
                prop_assert!(self.allocator.free_raw(block).is_err(), "{block:?} is freed twice");
                prop_assert!(self.allocator.record_stream_raw(block, &self.streams[1]).is_err());
            }
            Held::ByAddress(address) => {
                prop_assert!(self.by_address.free(address).is_ok());
                prop_assert!(self.by_address.free(address).is_err(), "{address:?} is freed twice");
            }
        }
        Ok(())
    }

    fn nth(&self, nth: usize) -> Option<u64> {
        self.live.keys().nth(nth % self.live.len().max(1)).copied()
    }

    fn record(&self, start: u64) -> bool {
        let other = &self.streams[1];
        match &self.live[&start].1 {
            Held::Handle(block) => block.record_stream(other),
            Held::Scoped(block) => block.record_stream(other),
            Held::Raw(block) => self.allocator.record_stream_raw(*block, other),
            Held::ByAddress(address) => self.by_address.record_stream(*address, other),
        }
        .is_ok()
    }

    fn look(&self) -> Result<(), TestCaseError> {
        let stats = self.allocator.stats();
        let blocks = self.filler.len() + self.live.len();
        let bytes = self.live.values().map(|(bytes, _)| bytes).sum::<u64>();
        let bytes = bytes + self.filler.len() as u64 * FILLER;
        prop_assert_eq!((stats.live_blocks, stats.live_bytes), (blocks as u64, bytes));
        prop_assert_eq!(self.allocator.audit(), Vec::<String>::new());
        Ok(())
    }

    fn step(&mut self, op: Op) -> Result<(), TestCaseError> {
        match op {
            Op::Allocate { size, way } => self.allocate(SIZES[size], way)?,
            Op::Free { nth } => {
                if let Some(start) = self.nth(nth) {
                    self.free(start)?;
                }
            }
            Op::FreeRow { nth, blocks } => {
                let Some(first) = self.nth(nth) else { return Ok(()) };
                let row: Vec<u64> = self.live.range(first..).take(blocks).map(|(start, _)| *start).collect();
                for start in row {
                    self.free(start)?;
                }
            }
            Op::Record { nth } => {
                if let Some(start) = self.nth(nth) {
                    prop_assert!(self.record(start), "the block is live");
                }
            }
            Op::Fill { blocks } => {
                let (allocator, stream) = (self.allocator, &self.streams[0]);
                let more = (0..blocks).map_while(|_| allocator.allocate(Layout::new(FILLER), stream).ok());
                self.filler.extend(more);
            }
            Op::Drain { blocks } => self.filler.truncate(self.filler.len().saturating_sub(blocks)),
            Op::Look => self.look()?,
            Op::Trim => drop(self.allocator.trim()),
            Op::Rob { pages } => {
                drop(self.allocator.allocate(Layout::new(pages * 2 * MIB), &self.streams[1]));
            }
            Op::Advance => self.allocator.driver().advance(3),
        }
        Ok(())
    }
}

fn run(completion: EventCompletion, spare: usize, program: &[Op]) -> Result<(), TestCaseError> {
    let device = device(96, completion);
    let allocator = Allocator::new(device.clone(), Config::default()).expect("settings that can be");
    let streams = [(); 2].map(|()| allocator.register_stream(device.stream()));
    let on_stream = allocator.on(&streams[0]).expect("its own stream");
    let by_address = allocator.by_address();
    let filler = handles(&allocator, &streams[0], FILLER, MANY - 10 + spare);
    let mut world = World {
        allocator: &allocator,
        streams: &streams,
        on_stream: &on_stream,
        by_address: &by_address,
        filler,
        live: BTreeMap::new(),
    };
    for (at, &op) in program.iter().enumerate() {
        world.step(op).map_err(|error| TestCaseError::fail(format!("step {at}, {op:?}: {error}")))?;
    }
    world.look()?;
    while let Some(start) = world.nth(0) {
        world.free(start)?;
    }
    drop(world);
    let stats = allocator.stats();
    prop_assert_eq!((stats.live_blocks, stats.live_bytes), (0, 0));
    prop_assert_eq!(allocator.audit(), Vec::<String>::new());
    prop_assert!(allocator.trim_wait().is_ok());
    prop_assert_eq!(allocator.stats().mapped_bytes, 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn many_blocks_come_and_go_as_few_do(
        operations in 0..9_u64,
        spare in 0..60_usize,
        program in prop::collection::vec(op(), 1..200),
    ) {
        run(EventCompletion::AfterOperations(operations), spare, &program)?;
    }
}

/// Blocks of 32 KiB in [`full`].
const OTHERS: usize = 377;

struct Full {
    device: Emulator,
    allocator: Allocator<Emulator>,
    stream: Stream<Emulator>,
    filler: Vec<Allocation<Emulator>>,
    others: Vec<Allocation<Emulator>>,
}

/// A stream whose many blocks fill the device to the last byte: 65,648 of 2 KiB and behind them [`OTHERS`] of 32 KiB are 140 MiB.
fn full() -> Full {
    let device = device(70, EventCompletion::AtOnce);
    let allocator = Allocator::new(device.clone(), Config::default()).unwrap();
    let stream = allocator.register_stream(device.stream());
    let filler = handles(&allocator, &stream, FILLER, MANY + 112);
    let others = handles(&allocator, &stream, 32 * KIB, OTHERS);
    let stats = allocator.stats();
    assert_eq!((stats.live_bytes, stats.mapped_bytes), (140 * MIB, 140 * MIB));
    Full { device, allocator, stream, filler, others }
}

#[test]
fn memory_that_was_freed_serves_at_once_with_no_call() {
    let Full { device, allocator, stream, filler: _filler, others: mut blocks } = full();
    let before = device.counts();
    for round in 0..100 {
        // Neighbours, in this order and in the other one: their place is the only one that is large enough.
        let at = 7 * round % (blocks.len() - 3);
        let mut gone: Vec<_> = blocks.drain(at..at + 3).collect();
        let first = gone[0].address();
        assert_eq!(gone[2].address(), first.add(64 * KIB), "neighbours");
        if round % 2 == 1 {
            gone.reverse();
        }
        drop(gone);
        let whole = allocator.allocate(Layout::new(96 * KIB), &stream).unwrap();
        assert_eq!(whole.address(), first);
        drop(whole);
        for again in handles(&allocator, &stream, 32 * KIB, 3) {
            blocks.push(again);
        }
        blocks.sort_by_key(|block| block.address().get());
        assert_eq!(device.counts(), before, "round {round}");
    }
    assert_eq!(allocator.audit(), Vec::<String>::new());
}

#[test]
fn raw_blocks_are_freed_once_whatever_was_freed_since() {
    let Full { allocator, stream, filler: _filler, others, .. } = full();
    drop(others);
    let raw = |bytes| allocator.allocate_raw(Layout::new(bytes), &stream).unwrap();
    let blocks: Vec<RawAllocation> = (1..20).map(|n| raw(n * 4 * KIB)).collect();
    let mut owned = handles(&allocator, &stream, 5 * KIB, blocks.len());
    for (freed, block) in blocks.iter().enumerate() {
        allocator.free_raw(*block).unwrap();
        // The other kind of free.
        owned.pop();
        for gone in &blocks[..=freed] {
            assert!(allocator.free_raw(*gone).is_err(), "{gone:?} was freed");
        }
    }
    assert_eq!(allocator.stats().live_blocks, MANY as u64 + 112);
    assert_eq!(allocator.audit(), Vec::<String>::new());
}

#[test]
fn another_stream_gets_the_frames_of_what_was_freed() {
    let Full { device, allocator, filler: _filler, mut others, .. } = full();
    let other = allocator.register_stream(device.stream());
    assert!(allocator.allocate(Layout::new(2 * MIB), &other).is_err());
    // All pages of what is freed, but for that in which the filler ends: 12,064 KiB.
    while let Some(block) = others.pop() {
        drop(block);
    }
    let robbed = allocator.allocate(Layout::new(10 * MIB), &other).unwrap();
    assert_eq!(allocator.stats().mapped_bytes, 140 * MIB);
    assert_eq!(allocator.audit(), Vec::<String>::new());
    drop(robbed);
}

#[test]
fn a_stream_that_retires_with_many_blocks_leaves_nothing() {
    let Full { device, allocator, stream, mut filler, others } = full();
    drop(stream);
    drop(others);
    // From both ends: the last one is the last block of the heap.
    while filler.len() > 1 {
        drop(filler.swap_remove(0));
    }
    assert_eq!(allocator.stats().live_bytes, FILLER);
    drop(filler);
    let stats = allocator.stats();
    assert_eq!((stats.live_blocks, stats.live_bytes, stats.address_bytes), (0, 0, 0));
    allocator.trim();
    assert_eq!(allocator.stats().mapped_bytes, 0);
    assert_eq!(device.counts().mapped_bytes, 0);
}

#[test]
fn handles_of_many_blocks_go_on_other_threads() {
    let Full { allocator, stream, filler, others, .. } = full();
    std::thread::scope(|threads| {
        for share in [filler, others] {
            threads.spawn(|| share.into_iter().rev().for_each(drop));
        }
        // Meanwhile this one takes what there is.
        for _ in 0..1_000 {
            drop(allocator.allocate(Layout::new(32 * KIB), &stream));
        }
    });
    let stats = allocator.stats();
    assert_eq!((stats.live_blocks, stats.live_bytes), (0, 0));
    assert_eq!(allocator.audit(), Vec::<String>::new());
    allocator.trim();
    assert_eq!(allocator.stats().mapped_bytes, 0);
}

/// Whether another stream gets 2 MiB of what was freed before its stream was waited for, and the waits on the device for it.
fn robs_after_a_wait(blocks: usize, rule: CrossStream, keep: bool) -> (bool, u64) {
    // The pages of the filler, and 4 MiB.
    let pages = (blocks as u64 * FILLER).div_ceil(2 * MIB) + 2;
    let device = device(pages, EventCompletion::ByHand);
    let config = Config::builder().host_wait(HostWait::Never).build();
    let allocator = Allocator::new(device.clone(), config).unwrap();
    let own = device.stream();
    let stream = allocator.register_stream_with(own.clone(), rule);
    let other = allocator.register_stream_with(device.stream(), rule);
    let mut filler = handles(&allocator, &stream, FILLER, blocks);
    let last = allocator.allocate(Layout::new(FILLER), &stream).unwrap();
    drop(handles(&allocator, &stream, MIB, 4));
    let kept = keep.then(|| allocator.allocate(Layout::new(FILLER), &stream).unwrap());
    device.complete_stream(&own);
    stream.note_synchronized();
    // At a later tick: of the last hit, or of any other block.
    drop(kept);
    if !keep {
        drop(last);
        filler.truncate(filler.len() - 2);
    }
    let before = allocator.stats().fences.waits;
    let got = allocator.allocate(Layout::new(2 * MIB), &other).is_ok();
    (got, allocator.stats().fences.waits - before)
}

#[test]
fn what_was_freed_before_a_wait_needs_no_other_one() {
    for blocks in [MANY - 100, MANY + 100] {
        for rule in [CrossStream::Completed, CrossStream::DeviceWait] {
            for keep in [false, true] {
                let seen = robs_after_a_wait(blocks, rule, keep);
                assert_eq!(seen, (true, 0), "{blocks} blocks, {rule:?}, the last hit kept: {keep}");
            }
        }
    }
}
