//! The device that a case runs on.
//!
//! Main types: [`DeviceSpec`]. Neighbours: `case` makes an emulator of it for each run; `size` has its parts.

use concertina_emulator::{ConfigError, CostTable, EmulatorConfig, EventCompletion};

use crate::size::{Capacity, Granularity};

/// An emulated device as the command line describes it: its capacity may depend on the trace.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSpec {
    /// Its memory.
    pub capacity: Capacity,
    /// Its smallest mappable size.
    pub granularity: Granularity,
    /// Further operations that an event needs to complete; 0: events complete at once.
    pub event_lag: u64,
    /// What driver calls cost.
    pub cost_table: CostTable,
}

impl Default for DeviceSpec {
    /// 80 GiB, 2 MiB granularity, events at once, the costs of an H100.
    fn default() -> Self {
        Self {
            capacity: Capacity::Bytes(80 << 30),
            granularity: Granularity::CUDA,
            event_lag: 0,
            cost_table: CostTable::h100(),
        }
    }
}

impl DeviceSpec {
    /// The emulator's configuration for a trace whose live bytes reach `live_peak_bytes`.
    ///
    /// # Errors
    /// If no device can have these values.
    pub fn config(&self, live_peak_bytes: u64) -> Result<EmulatorConfig, ConfigError> {
        EmulatorConfig::default()
            .with_granularity(self.granularity.bytes())
            .with_event_completion(EventCompletion::AfterOperations(self.event_lag))
            .with_cost_table(self.cost_table.clone())
            .with_capacity(self.capacity.resolve(live_peak_bytes))
    }
}
