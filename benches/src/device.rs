//! The device that a case runs on.
//!
//! Main types: [`DeviceSpec`], [`DeviceKind`]. Neighbours: `case` makes an emulator of it for each run; `size` has its parts.

use concertina_emulator::{ConfigError, CostTable, Detection, EmulatorConfig, EventCompletion};
use concertina_libcuda::DeviceConfig;

use crate::size::{Capacity, Granularity};

/// Which way leads to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// The emulator, called directly.
    #[default]
    Emulated,
    /// The crate `cuda` over the emulated libcuda, behind which the same emulator is.
    EmulatedCuda,
    /// The crate `cuda` over a GPU. All else that a spec says is the device's own then.
    Cuda,
}

impl DeviceKind {
    /// Its name, as on the command line and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Emulated => "emulated",
            Self::EmulatedCuda => "emulated-cuda",
            Self::Cuda => "cuda",
        }
    }
}

/// A device as the command line describes it: its capacity may depend on the trace.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSpec {
    /// Which way leads to it.
    pub kind: DeviceKind,
    /// Its memory.
    pub capacity: Capacity,
    /// Its smallest mappable size.
    pub granularity: Granularity,
    /// Further operations that an event needs to complete; 0: events complete at once.
    pub event_lag: u64,
    /// Seed of the kernels that the program queues, which complete by the virtual clock; without one it queues none, and
    /// `event_lag` says when events complete.
    pub work: Option<u64>,
    /// What driver calls cost.
    pub cost_table: CostTable,
    /// Most mappings at once; none without a limit.
    pub max_mappings: Option<u64>,
}

impl Default for DeviceSpec {
    /// 80 GiB, 2 MiB granularity, events at once, the costs of an H100.
    fn default() -> Self {
        Self {
            kind: DeviceKind::default(),
            capacity: Capacity::Bytes(80 << 30),
            granularity: Granularity::CUDA,
            event_lag: 0,
            work: None,
            cost_table: CostTable::h100(),
            max_mappings: None,
        }
    }
}

impl DeviceSpec {
    /// The emulator's configuration for a trace whose live bytes reach `live_peak_bytes`, without the race detector.
    ///
    /// # Errors
    /// If no device can have these values.
    pub fn config(&self, live_peak_bytes: u64) -> Result<EmulatorConfig, ConfigError> {
        let completion = match self.work {
            Some(_) => EventCompletion::ByClock,
            None => EventCompletion::AfterOperations(self.event_lag),
        };
        let config = EmulatorConfig { max_mappings: self.max_mappings, ..EmulatorConfig::default() }
            .with_granularity(self.granularity.bytes())
            .with_event_completion(completion)
            .with_detection(Detection::Off)
            .with_cost_table(self.cost_table.clone())
            .with_capacity(self.capacity.resolve(live_peak_bytes))?;
        config.check()?;
        Ok(config)
    }

    /// The emulated libcuda's configuration for such a trace.
    ///
    /// # Errors
    /// As [`DeviceSpec::config`].
    pub fn cuda_config(&self, live_peak_bytes: u64) -> Result<DeviceConfig, ConfigError> {
        Ok(self.as_cuda(&self.config(live_peak_bytes)?))
    }

    /// The same device as the emulated libcuda takes it.
    pub(crate) fn as_cuda(&self, config: &EmulatorConfig) -> DeviceConfig {
        DeviceConfig {
            capacity_bytes: config.capacity_bytes,
            granularity_bytes: config.granularity_bytes,
            max_mappings: config.max_mappings,
            event_lag: self.event_lag,
            detection: config.detection,
            cost_table: config.cost_table.clone(),
            ..DeviceConfig::default()
        }
    }
}
