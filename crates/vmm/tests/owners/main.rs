//! The owners of this crate over the emulator: who gives what back, and when.
//!
//! Main types: [`Setup`]. Neighbours: `returns` and `retries` are about single owners, `segments`, `frame_stores` and
//! `fences` compare with trivial models.

mod captures;
mod fence_model;
mod fences;
mod frame_stores;
mod mallocs;
mod recorder;
mod retries;
mod returns;
mod segments;

use std::sync::Arc;

use concertina_emulator::{Counts, Emulator, EmulatorConfig, Rule};
use concertina_vmm::{Call, Device, FrameProperties, FrameStore};

/// A device and its driver's own view of it.
struct Setup {
    emulator: Emulator,
    device: Arc<Device<Emulator>>,
}

impl Setup {
    fn new(config: EmulatorConfig) -> Self {
        let emulator = Emulator::new(config).unwrap();
        let device = Device::new(emulator.clone(), FrameProperties::default()).unwrap();
        Self { emulator, device }
    }

    fn of_mallocs() -> Self {
        let emulator =
            Emulator::new(EmulatorConfig { virtual_memory: false, ..EmulatorConfig::default() }).unwrap();
        let device = Device::with_mallocs(emulator.clone(), FrameProperties::default()).unwrap();
        Self { emulator, device }
    }

    fn page(&self) -> u64 {
        self.device.granularity()
    }

    fn store(&self) -> Arc<FrameStore<Emulator>> {
        Arc::new(FrameStore::new(&self.device, None))
    }

    fn counts(&self) -> Counts {
        self.emulator.counts()
    }

    /// Calls of one kind that reached the driver, done or failed.
    fn calls(&self, call: Call) -> u64 {
        self.counts().of(call) + self.counts().failed(call)
    }

    fn broken(&self) -> Vec<Rule> {
        self.emulator.broken_rules().iter().map(|broken| broken.rule).collect()
    }

    /// Nothing is left on the device and no rule was broken.
    #[track_caller]
    fn assert_clean(&self) {
        assert!(self.emulator.is_empty(), "{}", self.emulator.leaks());
        assert_eq!(self.emulator.recount(), self.emulator.leaks());
        assert_eq!(self.device.mappings(), 0);
        assert!(self.device.unreturned().is_empty());
        assert_eq!(self.broken(), []);
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self::new(EmulatorConfig::default())
    }
}
