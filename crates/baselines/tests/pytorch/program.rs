//! A program on PyTorch's allocator, and what it needed.
//!
//! Main type: [`Program`]. Neighbours: `rules` and `options` write such programs.

use std::collections::BTreeMap;

use concertina_baselines::{Pytorch, PytorchBlock, PytorchConf, PytorchError};
use concertina_emulator::{Emulator, EmulatorConfig, EventCompletion};

pub(crate) const MIB: u64 = 1 << 20;

/// An allocator on a device of its own, and the blocks that the program has.
pub(crate) struct Program {
    pub(crate) device: Emulator,
    pub(crate) allocator: Pytorch<Emulator>,
    pub(crate) blocks: BTreeMap<u32, PytorchBlock>,
}

impl Program {
    /// Options as PyTorch takes them, and the device's memory in MiB.
    pub(crate) fn new(conf: &str, capacity_mib: u64) -> Self {
        Self::with_events(conf, capacity_mib, EventCompletion::AtOnce)
    }

    pub(crate) fn with_events(conf: &str, capacity_mib: u64, completion: EventCompletion) -> Self {
        let config = EmulatorConfig::default().with_event_completion(completion);
        let device = Emulator::new(config.with_capacity(capacity_mib * MIB).unwrap()).unwrap();
        let conf: PytorchConf = conf.parse().unwrap();
        let mut allocator = Pytorch::new(device.clone(), conf).unwrap();
        for _ in 0..3 {
            allocator.add_stream(device.stream());
        }
        Self { device, allocator, blocks: BTreeMap::new() }
    }

    pub(crate) fn try_allocate(&mut self, id: u32, bytes: u64, stream: u32) -> Result<u64, PytorchError> {
        let block = self.allocator.allocate(bytes, stream)?;
        let address = block.address().get();
        assert!(self.blocks.insert(id, block).is_none(), "{id} is live");
        Ok(address)
    }

    /// A block of so many MiB on stream 0; its address.
    pub(crate) fn a(&mut self, id: u32, mib: u64) -> u64 {
        self.try_allocate(id, mib * MIB, 0).unwrap()
    }

    pub(crate) fn f(&mut self, ids: &[u32]) {
        for id in ids {
            self.allocator.free(self.blocks.remove(id).unwrap()).unwrap();
        }
    }

    /// Reserved now and at most, in MiB; mallocs or maps, and frees or unmaps, of segments; retries.
    pub(crate) fn figures(&self) -> (u64, u64, u64, u64, u64) {
        let stats = self.allocator.stats();
        let mib = |bytes: u64| {
            assert_eq!(bytes % MIB, 0);
            bytes / MIB
        };
        // What the driver has counted must be the same.
        assert_eq!(stats.reserved.current, self.device.counts().mapped_bytes);
        let (now, peak) = (mib(stats.reserved.current), mib(stats.reserved.peak));
        (now, peak, stats.device_allocs, stats.device_frees, stats.alloc_retries)
    }

    pub(crate) fn allocated(&self) -> u64 {
        self.allocator.stats().allocated.current
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        assert_eq!(self.device.broken_rules().len(), 0, "{:?}", self.device.broken_rules());
    }
}
