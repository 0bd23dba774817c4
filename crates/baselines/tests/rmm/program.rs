//! A program on one of RMM's allocators.
//!
//! Main type: [`Program`]. Neighbours: `pool`, `arena` and `random` write such programs.

use std::collections::BTreeMap;

use concertina_baselines::{Baseline, RmmArena, RmmBlock, RmmPool};
use concertina_emulator::{EmulatedStream, Emulator, EmulatorConfig, EventCompletion, Work};
use concertina_trace::target::TargetError;
use concertina_vmm::{Address, Call};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const STREAMS: u32 = 3;

/// What the tests ask of either allocator.
pub(crate) trait Rmm: Baseline<Stream = EmulatedStream, Block = RmmBlock> + Sized {
    fn with_options(device: &Emulator, options: &str) -> Self;
    fn held_bytes(&self) -> u64;
}

impl Rmm for RmmPool<Emulator> {
    fn with_options(device: &Emulator, options: &str) -> Self {
        Self::new(device.clone(), options.parse().unwrap()).unwrap()
    }

    fn held_bytes(&self) -> u64 {
        Self::held_bytes(self)
    }
}

impl Rmm for RmmArena<Emulator> {
    fn with_options(device: &Emulator, options: &str) -> Self {
        Self::new(device.clone(), options.parse().unwrap()).unwrap()
    }

    fn held_bytes(&self) -> u64 {
        Self::held_bytes(self)
    }
}

/// A block that the program has.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) block: RmmBlock,
    pub(crate) bytes: u64,
    pub(crate) stream: u32,
}

/// An allocator on a device of its own, where nothing completes before the host waits for it or the test says so.
pub(crate) struct Program<A> {
    pub(crate) device: Emulator,
    pub(crate) streams: Vec<EmulatedStream>,
    pub(crate) allocator: A,
    pub(crate) live: BTreeMap<u32, Live>,
    /// Where the first block of all was: addresses are told from there.
    first: Option<u64>,
}

impl<A: Rmm> Program<A> {
    /// The options, and the device's memory in MiB.
    pub(crate) fn new(options: &str, capacity_mib: u64) -> Self {
        let config = EmulatorConfig::default().with_event_completion(EventCompletion::ByHand);
        let device = Emulator::new(config.with_capacity(capacity_mib * MIB).unwrap()).unwrap();
        let mut allocator = A::with_options(&device, options);
        let streams: Vec<_> = (0..STREAMS).map(|number| device.nth_stream(number)).collect();
        for stream in &streams {
            allocator.add_stream(stream.clone());
        }
        Self { device, streams, allocator, live: BTreeMap::new(), first: None }
    }

    /// A block; where it begins, in bytes from the first block of all on.
    pub(crate) fn try_allocate(&mut self, id: u32, bytes: u64, stream: u32) -> Result<u64, TargetError> {
        let block = self.allocator.allocate(bytes, stream)?;
        let address = block.address().get();
        assert!(self.live.insert(id, Live { block, bytes, stream }).is_none(), "{id} is live");
        Ok(address.wrapping_sub(*self.first.get_or_insert(address)))
    }

    pub(crate) fn a(&mut self, id: u32, bytes: u64, stream: u32) -> u64 {
        self.try_allocate(id, bytes, stream).unwrap()
    }

    pub(crate) fn f(&mut self, ids: &[u32]) {
        for id in ids {
            self.allocator.free(self.live.remove(id).unwrap().block).unwrap();
        }
    }

    /// A kernel writes the block on its stream.
    pub(crate) fn write(&self, id: u32) {
        let Live { block, bytes, stream } = &self.live[&id];
        let work = Work::new(format!("of {id}")).writing(block.address(), *bytes);
        self.device.queue(&self.streams[*stream as usize], work);
    }

    pub(crate) fn held_mib(&self) -> f64 {
        self.allocator.held_bytes() as f64 / MIB as f64
    }

    pub(crate) fn count(&self, call: Call) -> u64 {
        self.device.counts().of(call)
    }

    /// What is wrong with the live blocks, if anything: shared bytes, or nothing behind them.
    pub(crate) fn defect(&self) -> Option<String> {
        let of = |live: &Live| (live.block.address().get(), live.bytes);
        let mut ranges: Vec<_> = self.live.values().map(of).collect();
        ranges.sort_unstable();
        let shared = ranges.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0);
        let bare = ranges.iter().find(|&&(address, bytes)| {
            !address.is_multiple_of(256)
                || [address, address + bytes - 1]
                    .iter()
                    .any(|&at| self.device.resolve(Address::new(at)).is_none())
        });
        let rules = self.device.broken_rules();
        shared
            .map(|pair| format!("two live blocks at {:#x}", pair[1].0))
            .or_else(|| bare.map(|(address, _)| format!("nothing behind {address:#x}, or not aligned")))
            .or_else(|| rules.first().map(ToString::to_string))
    }

    /// Everything freed; one block more is to be had; and the allocator gives all back.
    pub(crate) fn end(mut self) {
        self.device.clear_faults();
        let ids: Vec<u32> = self.live.keys().copied().collect();
        self.f(&ids);
        self.a(0, 256, 1);
        assert_eq!(self.defect(), None);
        let Self { device, streams, allocator, .. } = self;
        drop((allocator, streams));
        assert!(device.is_empty(), "{}", device.leaks());
        assert!(device.broken_rules().is_empty(), "{:?}", device.broken_rules());
    }
}

/// Whether it says that memory is short.
pub(crate) fn is_out_of_memory<T>(result: &Result<T, TargetError>) -> bool {
    matches!(result, Err(TargetError::OutOfMemory(_)))
}
