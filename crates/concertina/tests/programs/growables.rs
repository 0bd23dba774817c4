//! Growables among other blocks: random programs against a model, failures at each call, and worked examples.
//!
//! Main types: [`LiveGrowable`], [`GrowOp`]. Neighbours: `world` has the blocks beside them, and what is checked after
//! each step.
//!
//! Each run of bytes that a growth adds is a block of its own for the race detector: what lay at these addresses before a
//! shrink is somebody else's, and work on it must come before.

mod cases;

use concertina::{Address, CrossStream, Error, Growable, StreamId};
use concertina_emulator::{Access, BlockId, EmulatedStream, Emulator, Fault, Piece, Work};
use concertina_vmm::DriverErrorKind;
use proptest::prelude::*;

use crate::failures::CALLS;
use crate::program::{Op, STREAMS, Setup, Size, any_setup, cases, op, roomy};
use crate::world::{KERNEL_NS, Outcome, World};

/// What one growth added, as far as it is still there.
struct Grown {
    /// Where it ends, from the start of the growable.
    end: u64,
    block: BlockId,
    backing: Vec<Piece>,
}

/// A growable, with what it should hold.
pub(crate) struct LiveGrowable {
    growable: Growable<Emulator>,
    stream: EmulatedStream,
    recorded: Vec<(StreamId, EmulatedStream)>,
    grown: Vec<Grown>,
}

impl LiveGrowable {
    pub(crate) fn range(&self) -> (Address, u64) {
        (self.growable.address(), self.grown.last().map_or(0, |grown| grown.end))
    }

    pub(crate) fn backing(&self) -> (Address, u64, Vec<Piece>) {
        let (address, bytes) = self.range();
        (address, bytes, joined(self.grown.iter().flat_map(|grown| &grown.backing)))
    }
}

/// Pieces of neighbouring ranges as those of one: a frame that two of them share is one piece.
fn joined<'a>(pieces: impl Iterator<Item = &'a Piece>) -> Vec<Piece> {
    let mut whole: Vec<Piece> = Vec::new();
    for piece in pieces {
        match whole.last_mut() {
            Some(last)
                if last.backing.zip(piece.backing).is_some_and(|(last_backing, backing)| {
                    last_backing.memory == backing.memory
                        && last_backing.offset_bytes + last.bytes == backing.offset_bytes
                }) =>
            {
                last.bytes += piece.bytes;
            }
            _ => whole.push(*piece),
        }
    }
    whole
}

/// A step of a program with growables. `nth` counts them, oldest first, modulo their number.
#[derive(Clone, Debug)]
enum GrowOp {
    /// A step of programs without.
    Plain(Op),
    Reserve {
        max: Size,
        stream: usize,
    },
    /// By so many bytes.
    Grow {
        nth: usize,
        by: Size,
    },
    /// To so many thousandths, after kernels on all streams that use it.
    Shrink {
        nth: usize,
        thousandths: u64,
    },
    /// By so few bytes.
    Cut {
        nth: usize,
        by: u64,
    },
    Record {
        nth: usize,
        stream: usize,
    },
    Drop {
        nth: usize,
    },
}

impl World {
    fn reserve(&mut self, max: u64, stream: usize) -> Outcome {
        let user = &self.streams[stream];
        match self.allocator.reserve_growable(max, &user.registered) {
            Ok(growable) => {
                let stream = user.own.clone();
                let new = LiveGrowable { growable, stream, recorded: Vec::new(), grown: Vec::new() };
                self.growables.push(new);
                Outcome::Done
            }
            Err(Error::OutOfMemory(report)) => Outcome::OutOfMemory(report),
            Err(error) => Outcome::Failed(error),
        }
    }

    fn grow(&mut self, index: usize, bytes: u64) -> Outcome {
        let live = &mut self.growables[index];
        let (address, before) = live.range();
        let grown = live.growable.grow_to(bytes);
        assert_eq!(live.growable.address(), address);
        match grown {
            Ok(()) => {
                assert_eq!(live.growable.bytes(), bytes);
                let (stream, id) = (live.stream.clone(), live.growable.stream());
                let (block, backing) = self.write(&stream, id, address.add(before), bytes - before);
                self.growables[index].grown.push(Grown { end: bytes, block, backing });
                Outcome::Done
            }
            Err(error) => {
                assert_eq!(live.growable.bytes(), before, "a growth that fails changes nothing");
                match error {
                    Error::OutOfMemory(report) => Outcome::OutOfMemory(report),
                    error => Outcome::Failed(error),
                }
            }
        }
    }

    /// The streams that use a growable work on its bytes from `start` on.
    fn use_growable(&self, index: usize, start: u64) {
        let live = &self.growables[index];
        let registered = |id: StreamId| self.streams.iter().any(|stream| stream.registered.id() == id);
        let recorded = live.recorded.iter().filter(|(id, _)| registered(*id));
        // The program puts its readers behind what was written on the growable's own stream.
        let readers = recorded.map(|(_, own)| own).inspect(|own| self.device.queue_wait(own, &live.stream));
        for stream in readers.chain([&live.stream]) {
            let mut from = 0;
            for grown in &live.grown {
                let (first, end) = (from.max(start), grown.end);
                if first < end {
                    let address = live.growable.address().add(first);
                    let read = Access::read(address, end - first).of_block(grown.block);
                    self.device.queue(stream, Work::new("read").touching(read).lasting(KERNEL_NS));
                }
                from = end;
            }
        }
    }

    fn shrink(&mut self, index: usize, bytes: u64) {
        self.use_growable(index, bytes);
        let live = &mut self.growables[index];
        let address = live.growable.address();
        // Before the allocator is told, so that nobody else has the bytes by then. A block that loses its end stays one.
        let mut from = 0;
        live.grown.retain_mut(|grown| {
            let start = std::mem::replace(&mut from, grown.end);
            if start < bytes && bytes < grown.end {
                grown.end = bytes;
                grown.backing = self.device.resolve_range(address.add(start), bytes - start);
            }
            if start >= bytes {
                self.device.block_freed(grown.block, &live.stream);
            }
            start < bytes
        });
        live.growable.shrink_to(bytes);
        assert_eq!((live.growable.address(), live.growable.bytes()), (address, bytes));
    }

    fn record_growable(&mut self, index: usize, stream: usize) -> Outcome {
        let user = &self.streams[stream];
        let live = &mut self.growables[index];
        live.recorded.push((user.registered.id(), user.own.clone()));
        match live.growable.record_stream(&user.registered) {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::Failed(error),
        }
    }

    fn discard(&mut self, index: usize) {
        self.use_growable(index, 0);
        let live = self.growables.remove(index);
        live.grown.iter().for_each(|grown| self.device.block_freed(grown.block, &live.stream));
    }

    fn grow_step(&mut self, op: &GrowOp) -> Outcome {
        let page = self.setup.page_bytes;
        let nth = |nth: usize| nth.checked_rem(self.growables.len());
        match *op {
            GrowOp::Plain(ref op) => return self.step(op),
            GrowOp::Reserve { max, stream } => return self.reserve(max.of(page), stream),
            GrowOp::Grow { .. } => {
                return match self.growth_of(op) {
                    Some(Growth { index, bytes, .. }) => self.grow(index, bytes),
                    None => Outcome::Skipped,
                };
            }
            GrowOp::Shrink { nth: at, thousandths } => {
                let Some(index) = nth(at) else { return Outcome::Skipped };
                self.shrink(index, self.growables[index].range().1 * thousandths / 1000);
            }
            GrowOp::Cut { nth: at, by } => {
                let Some(index) = nth(at) else { return Outcome::Skipped };
                self.shrink(index, self.growables[index].range().1.saturating_sub(by));
            }
            GrowOp::Record { nth: at, stream } => {
                let Some(index) = nth(at) else { return Outcome::Skipped };
                return self.record_growable(index, stream);
            }
            GrowOp::Drop { nth: at } => match nth(at) {
                Some(index) => self.discard(index),
                None => return Outcome::Skipped,
            },
        }
        Outcome::Done
    }

    /// What the step would make a growable grow to, if it does.
    fn growth_of(&self, op: &GrowOp) -> Option<Growth> {
        let GrowOp::Grow { nth, by } = op else { return None };
        let page = self.setup.page_bytes;
        let index = nth.checked_rem(self.growables.len())?;
        let live = &self.growables[index];
        let before = live.range().1;
        let bytes = (before + by.of(page)).min(live.growable.max_bytes());
        // Pages that the growth reaches and that hold nothing of the growable yet.
        let needed = bytes.div_ceil(page) - before.div_ceil(page);
        (bytes > before).then_some(Growth { index, bytes, needed, free: self.free_frames() })
    }

    /// Only memory is short, so that a growth is refused only if the frames are not there; and what the report calls
    /// the largest growth goes well.
    fn check_refusal(&mut self, growth: &Growth, largest: u64) {
        let bounded = self.setup.addresses.is_some() || self.setup.max_mappings.is_some();
        if self.setup.cross_stream != CrossStream::DeviceWait || bounded {
            return;
        }
        assert!(growth.needed > growth.free, "refused: {growth:?}");
        let before = self.growables[growth.index].range().1;
        assert!(largest < growth.bytes - before);
        if largest > 0 {
            let bytes = before.next_multiple_of(512) + largest;
            let again = self.grow(growth.index, bytes.min(self.growables[growth.index].growable.max_bytes()));
            assert!(!again.is_refused(), "{largest} bytes more than {before}, after {growth:?}: {again:?}");
        }
    }
}

/// A growth that is about to be asked for.
#[derive(Debug)]
struct Growth {
    index: usize,
    bytes: u64,
    /// Frames that it needs.
    needed: u64,
    /// Frames without live bytes.
    free: u64,
}

fn grow_op(device: u64) -> impl Strategy<Value = GrowOp> {
    let stream = || 0..STREAMS;
    let nth = any::<usize>;
    let by = prop_oneof![
        2 => (1_u64..3000).prop_map(Size::bytes),
        3 => (0..=device / 4, 1_u64..100_000).prop_map(|(pages, bytes)| Size { pages, bytes }),
        2 => (1..=device / 2).prop_map(Size::pages),
    ];
    prop_oneof![
        10 => op(device).prop_map(GrowOp::Plain),
        2 => (1..=2 * device, stream()).prop_map(|(pages, stream)| GrowOp::Reserve { max: Size::pages(pages), stream }),
        1 => (0..=device, 1_u64..100_000, stream())
            .prop_map(|(pages, bytes, stream)| GrowOp::Reserve { max: Size { pages, bytes }, stream }),
        8 => (nth(), by).prop_map(|(nth, by)| GrowOp::Grow { nth, by }),
        4 => (nth(), 0_u64..1000).prop_map(|(nth, thousandths)| GrowOp::Shrink { nth, thousandths }),
        1 => nth().prop_map(|nth| GrowOp::Shrink { nth, thousandths: 0 }),
        1 => (nth(), 1_u64..2000).prop_map(|(nth, by)| GrowOp::Cut { nth, by }),
        2 => (nth(), stream()).prop_map(|(nth, stream)| GrowOp::Record { nth, stream }),
        1 => nth().prop_map(|nth| GrowOp::Drop { nth }),
    ]
}

#[derive(Clone)]
struct GrowProgram {
    setup: Setup,
    ops: Vec<GrowOp>,
}

impl core::fmt::Debug for GrowProgram {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        writeln!(f, "{:?}", self.setup)?;
        self.ops.iter().try_for_each(|op| writeln!(f, "    {op:?},"))
    }
}

fn grow_program(setup: impl Strategy<Value = Setup>, steps: usize) -> impl Strategy<Value = GrowProgram> {
    setup.prop_flat_map(move |setup| {
        let ops = prop::collection::vec(grow_op(setup.device), 1..steps);
        (Just(setup), ops).prop_map(|(setup, ops)| GrowProgram { setup, ops })
    })
}

proptest! {
    #![proptest_config(cases(1200))]

    #[test]
    fn every_invariant_holds_after_every_step(program in grow_program(any_setup(), 90)) {
        let mut world = World::new(&program.setup);
        for op in &program.ops {
            let growth = world.growth_of(op);
            match (world.grow_step(op), growth) {
                (Outcome::Failed(error), _) => panic!("{op:?}: {error}"),
                (Outcome::OutOfMemory(report), Some(growth)) => {
                    world.check();
                    world.check_refusal(&growth, report.largest_bytes);
                }
                _ => {}
            }
            world.check();
        }
        world.end_empty();
    }

    #[test]
    fn calls_may_fail_at_random(
        program in grow_program(roomy(), 60),
        call in prop::sample::select(CALLS.to_vec()),
        parts in 10_000_u32..600_000,
        seed in any::<u64>(),
    ) {
        let mut world = World::new(&program.setup);
        for op in &program.ops {
            let growth = world.growth_of(op);
            world.emulator().fail(Fault::random(call, parts, seed, DriverErrorKind::Invalid));
            let outcome = world.grow_step(op);
            world.emulator().clear_faults();
            world.check();
            let Some(growth) = growth.filter(|_| outcome.is_refused()) else { continue };
            // Now that no call fails, it is refused for nothing but memory.
            if let Outcome::OutOfMemory(report) = world.grow(growth.index, growth.bytes) {
                world.check_refusal(&growth, report.largest_bytes);
            }
            world.check();
        }
        world.complete_all();
        world.growables.clear();
        while !world.live.is_empty() {
            world.free(0);
        }
        for stream in 0..world.streams.len() {
            world.synchronize(stream);
        }
        prop_assert_eq!(world.allocator.trim().failed, None);
        world.check();
        world.end_empty();
    }
}
