//! An emulated device whose driver's time is measured, so that it can be taken off the time of a replay.
//!
//! Main types: [`ClockedDevice`]. Neighbours: `counted` measures the calls; `passes` replays on it.

use std::time::{Duration, Instant};

use concertina_emulator::{Counts, EmulatedStream, Emulator, Piece};
use concertina_trace::ReplayDevice;
use concertina_trace::target::TargetError;
use concertina_vmm::{Address, Driver as _};

use crate::bench_device::BenchDevice;
use crate::counted::Counted;

/// Calls that the cost of the clock is taken from.
const CALLS: u64 = 10_000;

/// The emulator, with a clock around every driver call.
#[derive(Debug)]
pub struct ClockedDevice {
    driver: Counted<Emulator>,
}

impl ClockedDevice {
    /// A clock around the calls on this emulator.
    pub fn new(emulator: Emulator) -> Self {
        Self { driver: Counted::new(emulator) }
    }

    fn emulator(&self) -> &Emulator {
        self.driver.inner()
    }

    /// Time that was spent in driver calls.
    pub fn in_driver(&self) -> Duration {
        Duration::from_nanos(self.driver.counts().modelled_ns)
    }

    /// Driver calls of all kinds, events and waits among them.
    pub fn driver_calls(&self) -> u64 {
        self.driver.counts().iter().map(|(_, calls)| calls).sum()
    }

    /// What the clock and the counting take beside one call, on the caller's time: of the shortest of five runs.
    pub fn cost_of_a_call(&self) -> Duration {
        let run = || {
            let (begun, before) = (Instant::now(), self.in_driver());
            for _ in 0..CALLS {
                // A question that changes nothing, so that whatever it answers is fine.
                let _ = self.driver.memory_info();
            }
            begun.elapsed().saturating_sub(self.in_driver() - before) / CALLS as u32
        };
        (0..5).map(|_| run()).min().unwrap_or_default()
    }
}

/// The counts are of what was called through the clock; page tables are the emulator's.
impl ReplayDevice for ClockedDevice {
    fn advance(&self, operations: u64) {
        self.emulator().advance(operations);
    }

    fn counts(&self) -> Counts {
        self.driver.counts()
    }

    fn resolve_range_into(&self, address: Address, bytes: u64, pieces: &mut Vec<Piece>) {
        self.emulator().resolve_range_into(address, bytes, pieces);
    }
}

impl BenchDevice for ClockedDevice {
    type Driver = Counted<Emulator>;

    fn driver(&self) -> &Counted<Emulator> {
        &self.driver
    }

    fn new_stream(&self, number: u32) -> Result<EmulatedStream, TargetError> {
        self.emulator().new_stream(number)
    }

    fn synchronize_stream(&self, stream: &EmulatedStream) -> Result<(), TargetError> {
        BenchDevice::synchronize_stream(self.emulator(), stream)
    }

    fn synchronize_device(&self) -> Result<(), TargetError> {
        BenchDevice::synchronize_device(self.emulator())
    }

    fn defect_at_end(&self) -> Option<String> {
        self.emulator().defect_at_end()
    }
}
