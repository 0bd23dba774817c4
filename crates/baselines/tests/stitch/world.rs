//! A program with kernels on a baseline: what it has, what it does, and what must hold all the time.
//!
//! Main types: [`World`], [`Op`]. Neighbours: `random` makes programs.

use std::collections::BTreeMap;

use concertina_baselines::Baseline;
use concertina_emulator::{
    Access, BlockId, CallFilter, EmulatedStream, Emulator, EmulatorConfig, EventCompletion, Fault, Work,
};
use concertina_vmm::{Address, DriverErrorKind};
use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const STREAMS: u32 = 3;
const CAPACITY_BYTES: u64 = 256 * MIB;

/// One step of a program. Blocks are named by their place among the live ones, counted modulo their number.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Allocate {
        bytes: u64,
        stream: u32,
    },
    Free {
        which: usize,
    },
    /// The stream waits for the block's own one and reads the block; the allocator is told.
    Read {
        which: usize,
        stream: u32,
    },
    Wait {
        stream: u32,
        on: u32,
    },
    Synchronize {
        stream: Option<u32>,
    },
    Complete {
        stream: u32,
    },
    ReleaseCached,
    /// The n-th driver call from here on fails.
    Fail {
        nth: u64,
        kind: DriverErrorKind,
    },
}

struct Live<B> {
    block: B,
    address: Address,
    bytes: u64,
    stream: u32,
    id: BlockId,
}

pub(crate) struct World<A: Baseline> {
    pub(crate) device: Emulator,
    streams: Vec<EmulatedStream>,
    pub(crate) allocator: A,
    live: Vec<Live<A::Block>>,
}

impl<A: Baseline<Stream = EmulatedStream>> World<A> {
    pub(crate) fn new(completion: EventCompletion, make: impl FnOnce(Emulator) -> A) -> Self {
        let config = EmulatorConfig::default().with_event_completion(completion);
        let device = Emulator::new(config.with_capacity(CAPACITY_BYTES).unwrap()).unwrap();
        let mut allocator = make(device.clone());
        let streams: Vec<_> = (0..STREAMS).map(|number| device.nth_stream(number)).collect();
        streams.iter().for_each(|stream| allocator.add_stream(stream.clone()));
        Self { device, streams, allocator, live: Vec::new() }
    }

    fn stream(&self, number: u32) -> &EmulatedStream {
        &self.streams[number as usize]
    }

    fn queue(&self, stream: u32, access: Access) {
        self.device.queue(self.stream(stream), Work::new("kernel").touching(access).lasting(1_000));
    }

    /// Whether the block was handed out.
    pub(crate) fn allocate(&mut self, bytes: u64, stream: u32) -> bool {
        let Ok(block) = self.allocator.allocate(bytes, stream) else { return false };
        let address = self.allocator.address(&block);
        let id = self.device.block_allocated("block", address, bytes, self.stream(stream));
        self.queue(stream, Access::write(address, bytes).of_block(id));
        self.live.push(Live { block, address, bytes, stream, id });
        true
    }

    fn free(&mut self, which: usize) {
        let Live { block, address, bytes, stream, id } = self.live.swap_remove(which);
        self.queue(stream, Access::read(address, bytes).of_block(id));
        self.device.block_freed(id, self.stream(stream));
        // A failed record is made up for later.
        let _ = self.allocator.free(block);
    }

    fn read(&mut self, which: usize, stream: u32) {
        let Live { address, bytes, stream: own, id, .. } = self.live[which];
        self.wait(stream, own);
        self.queue(stream, Access::read(address, bytes).of_block(id));
        self.allocator.record_stream(&mut self.live[which].block, stream).unwrap();
    }

    fn wait(&mut self, stream: u32, on: u32) {
        self.device.queue_wait(self.stream(stream), self.stream(on));
        self.allocator.stream_wait(stream, on).unwrap();
    }

    fn synchronize(&mut self, stream: Option<u32>) {
        match stream {
            Some(stream) => self.device.synchronize_stream(self.stream(stream)).unwrap(),
            None => self.device.synchronize_device().unwrap(),
        }
        self.allocator.synchronized(stream).unwrap();
    }

    pub(crate) fn step(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let live = self.live.len().max(1);
        match *op {
            Op::Allocate { bytes, stream } => {
                self.allocate(bytes, stream);
            }
            Op::Free { .. } | Op::Read { .. } if self.live.is_empty() => {}
            Op::Free { which } => self.free(which % live),
            Op::Read { which, stream } => self.read(which % live, stream),
            Op::Wait { stream, on } => self.wait(stream, on),
            Op::Synchronize { stream } => self.synchronize(stream),
            Op::Complete { stream } => self.device.complete_stream(self.stream(stream)),
            Op::ReleaseCached => {
                let _ = self.allocator.release_cached();
            }
            Op::Fail { nth, kind } => self.device.fail(Fault::once(CallFilter::Every, nth, kind)),
        }
        self.check()
    }

    /// Nothing raced, no rule is broken, and no byte of memory is behind two live blocks, whatever their addresses.
    pub(crate) fn check(&self) -> Result<(), TestCaseError> {
        prop_assert!(self.device.broken_rules().is_empty(), "{:?}", self.device.broken_rules());
        prop_assert!(self.device.races().is_empty(), "{:?}", self.device.races());
        // By memory and offset: the end of the run, and whose it is.
        let mut runs: BTreeMap<(u64, u64), (u64, Address)> = BTreeMap::new();
        for live in &self.live {
            for piece in self.device.resolve_range(live.address, live.bytes) {
                let Some(backing) = piece.backing else {
                    return Err(TestCaseError::fail(format!("nothing behind {}", piece.address)));
                };
                prop_assert!(backing.accessible, "no access at {}", piece.address);
                let start = (backing.memory.to_raw(), backing.offset_bytes);
                let other = runs.insert(start, (start.1 + piece.bytes, live.address));
                prop_assert!(other.is_none(), "{} has memory of {other:?}", live.address);
            }
        }
        for (&(memory, offset), &(_, address)) in &runs {
            if let Some((_, (end, other))) = runs.range((memory, 0)..(memory, offset)).next_back() {
                prop_assert!(*end <= offset, "{address} has memory of {other}");
            }
        }
        Ok(())
    }

    /// Everything freed and done, the allocator serves again, and gives all of it back when it is dropped.
    pub(crate) fn end(mut self) -> Result<(), TestCaseError> {
        self.device.clear_faults();
        while !self.live.is_empty() {
            self.free(0);
            self.check()?;
        }
        self.synchronize(None);
        prop_assert!(self.allocate(CAPACITY_BYTES / 4, 1), "an empty allocator serves again");
        self.check()?;
        self.free(0);
        self.allocator.release_cached().unwrap();
        self.synchronize(None);
        self.check()?;
        // What is live is given back, too.
        self.allocate(3 * MIB, 0);
        let Self { device, streams, allocator, live } = self;
        drop((allocator, streams, live));
        prop_assert!(device.is_empty(), "{}", device.leaks());
        prop_assert_eq!(device.broken_rules(), vec![]);
        Ok(())
    }
}
