//! What came out of a case: the figures of a row, under the names that the JSON of `bench` has.
//!
//! Main types: [`Outcome`], [`Fences`], [`Failure`]. Neighbours: `case` makes them; `docs/bench.md` defines each key.

use std::collections::BTreeMap;

use concertina_trace::Latencies;
use serde::{Deserialize, Serialize};

use crate::largest_request::LargestRequest;
use crate::min_capacity::MinCapacity;

/// The figures of one case. Names, units and meanings are those of `docs/bench.md`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The trace's name.
    pub trace: String,
    /// The allocator's name, with its options after a colon if it has any.
    pub allocator: String,
    /// The policy's name, for allocators that have one.
    pub policy: Option<String>,
    /// Which device: `emulated`, `emulated-cuda` or `cuda`.
    pub device: String,
    /// Memory of the device in bytes.
    pub capacity_bytes: u64,
    /// Smallest mappable size in bytes.
    pub granularity_bytes: u64,
    /// Operations that an event needs to complete.
    pub event_lag: u64,
    /// Seed of the kernels that the program queues, if it queues any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_seed: Option<u64>,
    /// Name of the cost table.
    pub cost_table: String,
    /// Events replayed.
    pub events: u64,
    /// Most live bytes at once, as asked.
    pub live_peak_bytes: u64,
    /// Most bytes of physical memory at once that were not given back to the driver.
    pub mapped_peak_bytes: u64,
    /// The latter over the former.
    pub mapped_over_live: f64,
    /// The live peak over the mapped peak.
    #[serde(default)]
    pub utilisation: f64,
    /// What is left of 1.
    #[serde(default)]
    pub fragmentation: f64,
    /// The live peak rounded up to whole granularities.
    #[serde(default)]
    pub packed_floor_bytes: u64,
    /// Physical bytes not given back to the driver, when live bytes had reached their peak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapped_at_live_peak_bytes: Option<u64>,
    /// Bytes of these that rounding took, if the allocator tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internal_at_live_peak_bytes: Option<u64>,
    /// Bytes of these that were in no live block, if the allocator tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_at_live_peak_bytes: Option<u64>,
    /// Most bytes of addresses in use for placement at once.
    pub address_peak_bytes: u64,
    /// The same over the live peak.
    pub address_over_live: f64,
    /// Most bytes of addresses reserved at once.
    pub reserved_address_peak_bytes: u64,
    /// Whether the trace ran to its end.
    pub completed: bool,
    /// What kind of end it was, if it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The event that failed, counted from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_at_event: Option<u64>,
    /// What the allocator said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Calls done, by kind.
    pub driver_calls: BTreeMap<String, u64>,
    /// Running total of the calls that change memory, at each mark.
    pub driver_calls_by_mark: Vec<u64>,
    /// Live bytes at each mark, as asked.
    #[serde(default)]
    pub live_bytes_by_mark: Vec<u64>,
    /// Physical bytes not given back to the driver, at each mark.
    #[serde(default)]
    pub mapped_bytes_by_mark: Vec<u64>,
    /// Labels of the marks.
    pub marks: Vec<String>,
    /// Events and waits on the device.
    pub fences: Fences,
    /// Waits of a stream for an event, on the device: the allocator's.
    #[serde(default)]
    pub device_waits: u64,
    /// Modelled time until the device was done with the program's kernels, in nanoseconds: with work only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelled_device_ns: Option<u64>,
    /// The same over that of the same run on a device with more memory than it can use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_ns_over_unlimited: Option<f64>,
    /// The same over that of the kernels alone, without an allocator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_ns_over_kernels: Option<f64>,
    /// Modelled time of all driver calls, in nanoseconds.
    pub modelled_driver_ns: u64,
    /// Creates and mallocs that the driver refused.
    #[serde(default)]
    pub allocation_retries: u64,
    /// Modelled time inside an allocation, in nanoseconds: not on a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelled_allocation_ns: Option<AllocationNs>,
    /// The same measured: on a GPU only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_allocation_ns: Option<AllocationNs>,
    /// The largest request that is served at the live peak, in bytes: if it was searched for and the trace comes so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub largest_request_bytes: Option<u64>,
    /// The same over the bytes that are free then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub largest_request_over_free: Option<f64>,
    /// Memory of the smallest device on which the trace runs to its end, in bytes: if it was searched for and found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_capacity_bytes: Option<u64>,
    /// The same over the live peak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_capacity_over_live: Option<f64>,
    /// How many of eight larger devices were too small.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures_above: Option<u64>,
    /// Measured time of all driver calls, in nanoseconds: on a GPU only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_driver_ns: Option<u64>,
    /// Times that the allocator made the host wait.
    pub host_waits: u64,
    /// Time of the replay over its events, in nanoseconds.
    pub host_ns_per_event: f64,
}

/// Fences that the allocator used. The program's own waits are not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fences {
    /// Events recorded.
    pub records: u64,
    /// Waits of a stream for an event, on the device.
    pub waits: u64,
}

/// Time of the host in driver calls inside an allocation that was served, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationNs {
    /// Half of them take no longer.
    pub p50: u64,
    /// 99 of a hundred take no longer.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

impl From<&Latencies> for AllocationNs {
    fn from(latencies: &Latencies) -> Self {
        Self { p50: latencies.percentile(50), p99: latencies.percentile(99), max: latencies.longest() }
    }
}

/// Why a trace did not run to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// The device is too small for the trace on this allocator: a result.
    OutOfMemory,
    /// The allocator failed in another way: a defect.
    Failed,
    /// The checker found a block that is not mapped, or shares bytes with another: a defect.
    Violation,
}

impl Outcome {
    /// Driver calls that change memory, all kinds together.
    pub fn memory_calls(&self) -> u64 {
        let changes =
            |name: &str| concertina_vmm::Call::ALL.iter().any(|c| c.name() == name && c.is_memory_call());
        self.driver_calls.iter().filter(|(name, _)| changes(name)).map(|(_, calls)| calls).sum()
    }

    /// Takes over what a search for the smallest device found: figures, or a defect.
    pub fn adopt_min_capacity(&mut self, found: MinCapacity) {
        match found {
            MinCapacity::Found(found) => {
                self.min_capacity_bytes = Some(found.capacity_bytes);
                self.min_capacity_over_live = Some(found.over_live);
                self.failures_above = Some(found.failures_above);
            }
            MinCapacity::OutOfMemory { .. } => {}
            MinCapacity::Defect(defect) => self.adopt_defect_of_search(*defect),
        }
    }

    /// Takes over what a search for the largest request found: figures, or a defect.
    pub fn adopt_largest_request(&mut self, found: LargestRequest) {
        match found {
            LargestRequest::Found(found) => {
                self.largest_request_bytes = Some(found.bytes);
                self.largest_request_over_free = Some(found.over_free());
            }
            LargestRequest::NotReached => {}
            LargestRequest::Defect(defect) => self.adopt_defect_of_search(*defect),
        }
    }

    fn adopt_defect_of_search(&mut self, mut defect: Self) {
        let capacity = defect.capacity_bytes;
        defect.error = defect.error.map(|error| format!("in a search, on {capacity} bytes: {error}"));
        self.adopt_defect(defect);
    }

    /// Takes over how `checked`, a second run of the same case, ended, if that was in a defect.
    pub fn adopt_defect(&mut self, checked: Self) {
        if checked.is_defect() {
            self.completed = false;
            self.failure = checked.failure;
            self.failed_at_event = checked.failed_at_event;
            self.error = checked.error;
        }
    }

    /// Whether it ended in a defect, not in a result.
    pub fn is_defect(&self) -> bool {
        matches!(self.failure, Some(Failure::Failed | Failure::Violation))
    }
}
