//! What device the library is.
//!
//! Main types: [`DeviceConfig`], [`Backing`], [`Execution`], [`ConfigError`]. Neighbours: `Library::fresh` takes it; the
//! emulator has its own part of it.

use concertina_emulator::{CallCost, CostTable, Detection, EmulatorConfig, EventCompletion};
use concertina_vmm::Call;

use crate::abi::{CALLS, RawConfig, RawCost};
use crate::budget;
use crate::code::{Code, Outcome};
use crate::layout::{Layout, MAX_DEVICES};

/// What is behind device addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// Pages of the host at the very same addresses: a touch of what is not mapped or not accessible is a fault of the
    /// processor. Bounded by the kernel's memory areas (`vm.max_map_count`).
    #[default]
    HostPages,
    /// A page table in software: no limit to the mappings and no call of the kernel for each, for long traces. Copies and
    /// fills translate, and an illegal address loses the device; kernels must ask `Launch::pointer` where an address is.
    Software,
}

/// Who does the work that is queued on streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Execution {
    /// A worker thread for each stream: what runs when is as undetermined as on a GPU.
    #[default]
    Workers,
    /// The calling thread, before the call returns; the same every time. Events complete by the emulator's model.
    AtCall,
}

/// What devices there are. The default: one of 80 GiB with 2 MiB granularity, on host pages, with asynchronous streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// How many: 1 to 8, all alike. None can access another's memory.
    pub devices: u32,
    /// Memory of each in bytes: a multiple of the granularity.
    pub capacity_bytes: u64,
    /// Smallest mappable size in bytes: a power of two, 4 KiB or more.
    pub granularity_bytes: u64,
    /// Most mappings of each device; without a value what the host holds (on host pages), or no limit.
    pub max_mappings: Option<u64>,
    /// What is behind addresses.
    pub backing: Backing,
    /// Who does the work.
    pub execution: Execution,
    /// With [`Execution::AtCall`]: after how many further operations ([`Library::advance`](crate::Library::advance)) a
    /// recorded event completes.
    pub event_lag: u64,
    /// Whether the virtual memory calls are there, and attribute 102 says so.
    pub virtual_memory: bool,
    /// Whether the asynchronous pools are there, and attribute 115 says so.
    pub memory_pools: bool,
    /// Whether one unmap may cover several mappings.
    pub unmap_spans_mappings: bool,
    /// Whether races are looked for: accesses to the same bytes that nothing orders, and unmaps under work
    /// ([`Library::races`](crate::Library::races)).
    pub detection: Detection,
    /// What calls cost on the virtual clock.
    pub cost_table: CostTable,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        let emulator = EmulatorConfig::default();
        Self {
            devices: 1,
            capacity_bytes: emulator.capacity_bytes,
            granularity_bytes: emulator.granularity_bytes,
            max_mappings: emulator.max_mappings,
            backing: Backing::default(),
            execution: Execution::default(),
            event_lag: 0,
            virtual_memory: true,
            memory_pools: true,
            unmap_spans_mappings: emulator.unmap_spans_mappings,
            detection: emulator.detection,
            cost_table: emulator.cost_table,
        }
    }
}

impl DeviceConfig {
    /// The same devices with the whole granules that fit in `bytes` as their memory. Set the granularity first.
    #[must_use]
    pub fn with_capacity(mut self, bytes: u64) -> Self {
        self.capacity_bytes = bytes - bytes.checked_rem(self.granularity_bytes).unwrap_or(0);
        self
    }

    /// The same devices on another backing.
    #[must_use]
    pub fn with_backing(mut self, backing: Backing) -> Self {
        self.backing = backing;
        self
    }

    /// The same devices with work done by others.
    #[must_use]
    pub fn with_execution(mut self, execution: Execution) -> Self {
        self.execution = execution;
        self
    }

    /// The same devices, on which races are looked for or not.
    #[must_use]
    pub fn with_detection(mut self, detection: Detection) -> Self {
        self.detection = detection;
        self
    }

    /// Whether there can be such devices on this host.
    ///
    /// # Errors
    /// The first value that can't be.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !(1..=MAX_DEVICES).contains(&self.devices) {
            return Err(ConfigError::Devices { devices: self.devices });
        }
        let layout = Layout::of_device(0, self.devices);
        self.emulator_config(0, &layout).check()?;
        let most = budget::host_budget() / u64::from(self.devices);
        match self.max_mappings {
            Some(asked) if self.backing == Backing::HostPages && asked > most => {
                Err(ConfigError::MaxMappings { asked, most })
            }
            _ => Ok(()),
        }
    }

    /// Most mappings of one device.
    pub(crate) fn host_budget(&self) -> Option<u64> {
        match self.backing {
            Backing::Software => self.max_mappings,
            Backing::HostPages => {
                let most = (budget::host_budget() / u64::from(self.devices.max(1))).max(1);
                Some(self.max_mappings.unwrap_or(most).min(most))
            }
        }
    }

    pub(crate) fn emulator_config(&self, ordinal: u32, layout: &Layout) -> EmulatorConfig {
        EmulatorConfig {
            capacity_bytes: self.capacity_bytes,
            granularity_bytes: self.granularity_bytes,
            address_space_bytes: layout.reservations.end - layout.reservations.start,
            address_layout: layout.for_emulator(),
            max_mappings: self.host_budget(),
            event_completion: match (self.execution, self.event_lag) {
                (Execution::Workers, _) | (_, 0) => EventCompletion::AtOnce,
                (Execution::AtCall, lag) => EventCompletion::AfterOperations(lag),
            },
            virtual_memory: self.virtual_memory,
            detection: self.detection,
            unmap_spans_mappings: self.unmap_spans_mappings,
            cost_table: self.cost_table.clone(),
            device: ordinal,
        }
    }

    pub(crate) fn to_raw(&self) -> RawConfig {
        RawConfig {
            devices: self.devices,
            backing: u32::from(self.backing == Backing::Software),
            execution: u32::from(self.execution == Execution::AtCall),
            without_virtual_memory: u32::from(!self.virtual_memory),
            without_pools: u32::from(!self.memory_pools),
            unmap_one_mapping: u32::from(!self.unmap_spans_mappings),
            without_detection: u32::from(self.detection == Detection::Off),
            capacity_bytes: self.capacity_bytes,
            granularity_bytes: self.granularity_bytes,
            max_mappings: self.max_mappings.unwrap_or(0),
            event_lag: self.event_lag,
            small_malloc_ns: self.cost_table.small_malloc_ns,
            costs: raw_costs(&self.cost_table),
        }
    }

    pub(crate) fn from_raw(raw: &RawConfig) -> Outcome<Self> {
        let flag = |number: u32| match number {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Code::INVALID_VALUE),
        };
        Ok(Self {
            devices: raw.devices,
            capacity_bytes: raw.capacity_bytes,
            granularity_bytes: raw.granularity_bytes,
            max_mappings: Some(raw.max_mappings).filter(|&budget| budget > 0),
            backing: if flag(raw.backing)? { Backing::Software } else { Backing::HostPages },
            execution: if flag(raw.execution)? { Execution::AtCall } else { Execution::Workers },
            event_lag: raw.event_lag,
            virtual_memory: !flag(raw.without_virtual_memory)?,
            memory_pools: !flag(raw.without_pools)?,
            unmap_spans_mappings: !flag(raw.unmap_one_mapping)?,
            detection: if flag(raw.without_detection)? { Detection::Off } else { Detection::On },
            cost_table: table_of(raw),
        })
    }
}

fn raw_costs(table: &CostTable) -> [RawCost; CALLS] {
    let mut costs = [RawCost::default(); CALLS];
    for &call in Call::ALL {
        let &CallCost { base_ns, per_gib_ns, per_mapping_ns } = table.of(call);
        costs[call as usize] = RawCost { base_ns, per_gib_ns, per_mapping_ns };
    }
    costs
}

/// The table that crossed; its name did not.
fn table_of(raw: &RawConfig) -> CostTable {
    let mut table = CostTable::free_of_charge();
    table.name = "given".to_owned();
    table.small_malloc_ns = raw.small_malloc_ns;
    for &call in Call::ALL {
        let RawCost { base_ns, per_gib_ns, per_mapping_ns } = raw.costs[call as usize];
        table = table.with(call, CallCost { base_ns, per_gib_ns, per_mapping_ns });
    }
    table
}

/// A value that no device on this host can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No device, or too many.
    #[error("{devices} devices: give 1 to {MAX_DEVICES}")]
    Devices {
        /// How many were given.
        devices: u32,
    },
    /// The emulator refuses a value.
    #[error(transparent)]
    Emulator(#[from] concertina_emulator::ConfigError),
    /// More mappings than the host's kernel can hold for one process.
    #[error(
        "{asked} mappings on host pages: this host holds {most} for each device; raise vm.max_map_count, or use \
         Backing::Software"
    )]
    MaxMappings {
        /// The budget given.
        asked: u64,
        /// The largest that can be.
        most: u64,
    },
}
