//! One run: a trace, an allocator, a device.
//!
//! Main types: [`Case`], [`Run`], [`CaseError`]. Neighbours: `targets` makes the allocator, `concertina_trace` replays,
//! `outcome` names the figures.

use concertina_emulator::{ConfigError, Detection, Emulator, EmulatorConfig};
use concertina_trace::target::TargetError;
use concertina_trace::{
    FailureCause, LoadedTrace, MarkReport, Observation, Replay, ReplayReport, Watch, Workload,
};
use concertina_vmm::Call;

use crate::allocator_name::AllocatorName;
use crate::bench_device::BenchDevice;
use crate::catalogue::PolicyName;
use crate::cuda_device::{CudaError, EmulatedCuda, RealCuda};
use crate::device::{DeviceKind, DeviceSpec};
use crate::outcome::{AllocationNs, Failure, Fences, Outcome};
use crate::targets;
use crate::unlimited::Unlimited;

/// Alignment in bytes that every block must have: what `cudaMalloc` promises and kernels count on.
const ALIGNMENT_BYTES: u64 = 256;

/// How many times the live peak is memory without a limit: more than any allocator here maps.
const UNLIMITED: u64 = 16;

/// What to run. Each run makes a new device and a new allocator.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The trace.
    pub trace: &'a LoadedTrace,
    /// The allocator.
    pub allocator: AllocatorName,
    /// Its policy; without effect on allocators that have none.
    pub policy: PolicyName,
    /// The device.
    pub device: &'a DeviceSpec,
}

/// What came out of a run, and the way there.
#[derive(Debug)]
pub struct Run {
    /// The figures.
    pub outcome: Outcome,
    /// How things stood at each mark.
    pub marks: Vec<MarkReport>,
    /// How things stood at the end, before what was live was freed.
    pub end: MarkReport,
    /// What was noted on the way, if it was observed.
    pub observation: Option<Observation>,
}

/// Why there was no run at all.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// No device can be as asked.
    #[error("the device can't be made: {0}")]
    Device(#[from] ConfigError),
    /// There is no CUDA device, real or emulated, as asked.
    #[error("no CUDA device: {0}")]
    Cuda(#[from] CudaError),
    /// A real device tells nothing that could be checked.
    #[error("nothing can be checked on a GPU: its page tables can't be read; use --device emulated-cuda")]
    Unchecked,
    /// Kernels of traces exist on the emulator alone.
    #[error("work can be queued on the emulator only, called directly: use --device emulated")]
    NoWork,
    /// The memory of a real device is what it is.
    #[error(
        "nothing can be searched for on a GPU, whose memory is what it is: use --device emulated or emulated-cuda"
    )]
    FixedCapacity,
    /// The allocator could not be set up on the device.
    #[error("{allocator} can't be set up: {error}")]
    SetUp {
        /// The allocator, with its options.
        allocator: String,
        /// What it said.
        #[source]
        error: TargetError,
    },
}

impl CaseError {
    /// Whether the device was too small to set the allocator up.
    pub const fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::SetUp { error: TargetError::OutOfMemory(_), .. })
    }
}

impl Case<'_> {
    /// Replays the trace, timed, without the checker.
    ///
    /// # Errors
    /// If device or allocator can't be made. A replay that stops early is an outcome.
    pub fn run(&self) -> Result<Run, CaseError> {
        let mut run = self.replay_once()?;
        if let (Some(seed), true) = (self.device.work, run.outcome.completed) {
            let config = self.device.config(self.trace.live_peak().bytes)?;
            let over = |ns: Option<u64>| Some(run.outcome.modelled_device_ns? as f64 / ns?.max(1) as f64);
            let unlimited = over(self.unlimited_ns(&config)?);
            let kernels = over(self.kernels_ns(config, seed)?);
            run.outcome.device_ns_over_unlimited = unlimited;
            run.outcome.device_ns_over_kernels = kernels;
        }
        Ok(run)
    }

    /// One replay without the checker, compared with no other.
    pub(crate) fn replay_once(&self) -> Result<Run, CaseError> {
        self.replay(Look::Away)
    }

    /// Replays the trace and looks at every block through the device's page tables, and with work for races; not timed.
    ///
    /// # Errors
    /// As [`Case::run`].
    pub fn check(&self) -> Result<Run, CaseError> {
        self.replay(Look::AtBlocks)
    }

    /// Replays the trace and notes what `watch` asks for; not timed.
    ///
    /// # Errors
    /// As [`Case::run`].
    pub fn observe(&self, watch: &Watch) -> Result<Observation, CaseError> {
        let run = self.replay(Look::AtMemory(watch))?;
        Ok(run.observation.unwrap_or_default())
    }

    fn replay(&self, look: Look<'_>) -> Result<Run, CaseError> {
        let kind = self.device.kind;
        if self.device.work.is_some() && kind != DeviceKind::Emulated {
            return Err(CaseError::NoWork);
        }
        if kind == DeviceKind::Cuda {
            if look == Look::AtBlocks {
                return Err(CaseError::Unchecked);
            }
            let device = RealCuda::open()?;
            let size = Size { capacity: device.capacity_bytes(), granularity: device.granularity_bytes() };
            return self.on(&device, size, look);
        }
        let config = self.device.config(self.trace.live_peak().bytes)?;
        let size = Size { capacity: config.capacity_bytes, granularity: config.granularity_bytes };
        if kind == DeviceKind::EmulatedCuda {
            return self.on(&EmulatedCuda::new(self.device.as_cuda(&config))?, size, look);
        }
        let detection = if look == Look::AtBlocks { Detection::On } else { Detection::Off };
        self.on(&Emulator::new(config.with_detection(detection))?, size, look)
    }

    /// Modelled time of the same on a device with more memory than it can use; none if it fails there.
    fn unlimited_ns(&self, config: &EmulatorConfig) -> Result<Option<u64>, CaseError> {
        let ample = self.trace.live_peak().bytes.saturating_mul(UNLIMITED).max(config.capacity_bytes);
        let config = config.clone().with_capacity(ample)?;
        let size = Size { capacity: config.capacity_bytes, granularity: config.granularity_bytes };
        let outcome = self.on(&Emulator::new(config)?, size, Look::Away)?.outcome;
        Ok(outcome.modelled_device_ns.filter(|_| outcome.completed))
    }

    /// Modelled time of the same kernels without an allocator: memory is free of charge and never ends.
    fn kernels_ns(&self, config: EmulatorConfig, seed: u64) -> Result<Option<u64>, CaseError> {
        let emulator = Emulator::new(config)?;
        let replay = Replay::new(self.trace, &emulator).with_work(Workload { emulator: &emulator, seed });
        Ok(replay.run(&mut Unlimited::default()).device_ns)
    }

    fn on<D: BenchDevice>(&self, device: &D, size: Size, look: Look<'_>) -> Result<Run, CaseError> {
        let mut replay = Replay::new(self.trace, device);
        match look {
            Look::Away => {}
            Look::AtBlocks => replay = replay.checked(ALIGNMENT_BYTES),
            Look::AtMemory(watch) => replay = replay.watched(watch),
        }
        if let (Some(seed), Some(emulator)) = (self.device.work, device.emulator()) {
            replay = replay.with_work(Workload { emulator, seed });
        }
        let report = targets::replay(self, device, &replay)?;
        let defect = defect_at_end(&report, device);
        let mut run = self.describe(size, report);
        if let (Some(error), None) = (defect, run.outcome.failure) {
            run.outcome.completed = false;
            run.outcome.failure = Some(Failure::Failed);
            run.outcome.failed_at_event = Some(run.outcome.events);
            run.outcome.error = Some(error);
        }
        Ok(run)
    }

    fn describe(&self, size: Size, report: ReplayReport) -> Run {
        let counts = report.counts;
        let over_live = |bytes: u64| bytes as f64 / report.live_peak_bytes.max(1) as f64;
        let events = report.events as u64;
        let latencies = AllocationNs::from(&report.latencies);
        let at_live_peak = report.at_live_peak;
        let live_peak = self.trace.live_peak().bytes;
        let internal = at_live_peak.and_then(|at| Some(at.block_bytes?.saturating_sub(live_peak)));
        let external = at_live_peak.and_then(|at| Some(at.mapped_bytes.saturating_sub(at.block_bytes?)));
        // Of what was reached, if the replay ended before its end.
        let utilisation = match counts.mapped_peak_bytes {
            0 => 1.0,
            mapped => report.live_peak_bytes as f64 / mapped as f64,
        };
        // Nobody models a GPU: what its calls took was measured.
        let measured = self.device.kind == DeviceKind::Cuda;
        let outcome = Outcome {
            trace: self.trace.name().to_owned(),
            allocator: self.allocator.to_string(),
            policy: self.allocator.has_policy().then(|| self.policy.name().to_owned()),
            device: self.device.kind.name().to_owned(),
            capacity_bytes: size.capacity,
            granularity_bytes: size.granularity,
            event_lag: self.device.event_lag,
            work_seed: self.device.work,
            cost_table: if measured { "none".to_owned() } else { self.device.cost_table.name.clone() },
            events,
            live_peak_bytes: report.live_peak_bytes,
            mapped_peak_bytes: counts.mapped_peak_bytes,
            mapped_over_live: over_live(counts.mapped_peak_bytes),
            utilisation,
            fragmentation: 1.0 - utilisation,
            packed_floor_bytes: live_peak.checked_next_multiple_of(size.granularity).unwrap_or(live_peak),
            mapped_at_live_peak_bytes: at_live_peak.map(|at| at.mapped_bytes),
            internal_at_live_peak_bytes: internal,
            external_at_live_peak_bytes: external,
            address_peak_bytes: report.address_peak_bytes,
            address_over_live: over_live(report.address_peak_bytes),
            reserved_address_peak_bytes: counts.reserved_peak_bytes,
            completed: report.completed(),
            failure: report.failure.as_ref().map(|failure| kind_of(&failure.cause)),
            failed_at_event: report.failure.as_ref().map(|failure| failure.event as u64),
            error: report.failure.as_ref().map(|failure| failure.cause.to_string()),
            driver_calls: counts.iter().map(|(call, calls)| (call.name().to_owned(), calls)).collect(),
            driver_calls_by_mark: report.marks.iter().map(MarkReport::memory_calls).collect(),
            live_bytes_by_mark: report.marks.iter().map(|mark| mark.live_bytes).collect(),
            mapped_bytes_by_mark: report.marks.iter().map(MarkReport::mapped_bytes).collect(),
            marks: report.marks.iter().map(|mark| mark.label.to_string()).collect(),
            fences: Fences { records: counts.of(Call::EventRecord), waits: counts.of(Call::StreamWait) },
            device_waits: report.device_waits(),
            modelled_device_ns: report.device_ns,
            device_ns_over_unlimited: None,
            device_ns_over_kernels: None,
            modelled_driver_ns: if measured { 0 } else { counts.modelled_ns },
            measured_driver_ns: measured.then_some(counts.modelled_ns),
            allocation_retries: report.allocation_retries(),
            modelled_allocation_ns: (!measured).then_some(latencies),
            measured_allocation_ns: measured.then_some(latencies),
            largest_request_bytes: None,
            largest_request_over_free: None,
            min_capacity_bytes: None,
            min_capacity_over_live: None,
            failures_above: None,
            host_waits: counts.host_waits,
            host_ns_per_event: report.host_ns.unwrap_or(0) as f64 / events.max(1) as f64,
        };
        let end =
            MarkReport { label: "end".into(), event: report.events, live_bytes: report.live_bytes, counts };
        Run { outcome, marks: report.marks, end, observation: report.observation }
    }
}

/// What a replay looks at beside its figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look<'a> {
    Away,
    AtBlocks,
    AtMemory(&'a Watch),
}

/// Bytes of a device, and of its pages.
#[derive(Clone, Copy, Debug)]
struct Size {
    capacity: u64,
    granularity: u64,
}

fn kind_of(cause: &FailureCause) -> Failure {
    match cause {
        FailureCause::Violation(_) => Failure::Violation,
        cause if cause.is_out_of_memory() => Failure::OutOfMemory,
        FailureCause::Target(_) | FailureCause::Hang(_) => Failure::Failed,
    }
}

/// What is wrong although the trace ended well: blocks that could not be freed, rules of the driver that were broken,
/// memory that was not given back when the allocator was dropped.
fn defect_at_end(report: &ReplayReport, device: &impl BenchDevice) -> Option<String> {
    let cleanup = report.cleanup_failure.as_ref();
    let cleanup = cleanup.map(|error| format!("a block could not be freed at the end: {error}"));
    cleanup.or_else(|| device.defect_at_end())
}
