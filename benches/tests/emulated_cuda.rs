//! The crate `cuda` over the emulated libcuda is the same device as the emulator called directly: the same calls, the
//! same memory, whatever the events do and however many mappings there may be.
//!
//! Main types: none. Neighbours: `figures` has what the traces must show; both tests run cases of the harness.

#![cfg(target_os = "linux")]

use concertina_bench::{
    AllocatorName, BenchDevice, Capacity, Case, ConcertinaTarget, Counted, DeviceKind, DeviceSpec, Outcome,
    PolicyName, TraceFile,
};
use concertina_emulator::{Counts, EmulatedStream, Emulator, Piece};
use concertina_trace::target::TargetError;
use concertina_trace::{LoadedTrace, Replay, ReplayDevice};
use concertina_vmm::{Address, Call};

fn load(word: &str) -> LoadedTrace {
    LoadedTrace::open(TraceFile::find(word).expect("bundled").path()).expect("a bundled trace is readable")
}

/// The outcome on this kind of device, without the two figures that must differ.
fn outcome(
    trace: &LoadedTrace,
    allocator: AllocatorName,
    policy: PolicyName,
    device: &DeviceSpec,
) -> Outcome {
    let case = Case { trace, allocator, policy, device };
    let mut outcome = case.run().expect("the device can be made").outcome;
    assert_eq!(outcome.device, device.kind.name());
    outcome.device = String::new();
    outcome.host_ns_per_event = 0.0;
    outcome
}

#[track_caller]
fn assert_same(
    trace: &LoadedTrace,
    allocator: AllocatorName,
    policy: PolicyName,
    device: &DeviceSpec,
) -> Outcome {
    let [direct, through_libcuda] = [DeviceKind::Emulated, DeviceKind::EmulatedCuda]
        .map(|kind| outcome(trace, allocator, policy, &DeviceSpec { kind, ..device.clone() }));
    // First what is promised, so that a difference is easy to read; then all the rest.
    assert_eq!(direct.driver_calls, through_libcuda.driver_calls, "{allocator} {policy} {device:?}");
    assert_eq!(direct.mapped_peak_bytes, through_libcuda.mapped_peak_bytes);
    assert_eq!(direct, through_libcuda);
    direct
}

#[test]
fn worked_examples_are_the_same() {
    for word in ["s1", "s2", "s3"] {
        let trace = load(word);
        let tight = Capacity::Bytes(trace.capacity_bytes().expect("the header has the device's size"));
        for capacity in [Capacity::Bytes(80 << 30), tight] {
            let device = DeviceSpec { capacity, ..DeviceSpec::default() };
            assert_same(&trace, AllocatorName::Direct, PolicyName::Lean, &device);
            for event_lag in [0, 1_000] {
                let device = DeviceSpec { event_lag, ..device.clone() };
                for policy in PolicyName::ALL {
                    let outcome = assert_same(&trace, AllocatorName::Concertina, *policy, &device);
                    assert_eq!(outcome.error, None, "{word} {policy}");
                }
            }
        }
    }
}

#[test]
fn training_is_the_same() {
    let trace = load("t1");
    for (policy, event_lag) in [(PolicyName::Lean, 1_000), (PolicyName::Balanced, 0)] {
        let device = DeviceSpec { event_lag, ..DeviceSpec::default() };
        let outcome = assert_same(&trace, AllocatorName::Concertina, policy, &device);
        assert!(outcome.driver_calls["map"] > 10_000 && outcome.completed, "{outcome:?}");
    }
}

/// Many streams: steals across them, waits on the device, waits of the program's.
#[test]
fn streams_are_the_same() {
    let trace = load("s7");
    let device = DeviceSpec { event_lag: 100, ..DeviceSpec::default() };
    let outcome = assert_same(&trace, AllocatorName::Concertina, PolicyName::Balanced, &device);
    assert!(outcome.fences.waits > 0 && outcome.completed, "{outcome:?}");
}

#[test]
fn a_mapping_budget_is_kept_in_the_same_way() {
    let trace = load("t1");
    let free = assert_same(&trace, AllocatorName::Concertina, PolicyName::Lean, &DeviceSpec::default());
    // 40,575,084,648 bytes live are 19,348 pages: a budget that stale mappings have to make room in, and one in which
    // the blocks have none.
    let device = DeviceSpec { max_mappings: Some(19_700), ..DeviceSpec::default() };
    let bound = assert_same(&trace, AllocatorName::Concertina, PolicyName::Lean, &device);
    assert!(bound.completed && bound.driver_calls != free.driver_calls, "the budget changes something");
    let device = DeviceSpec { max_mappings: Some(19_000), ..DeviceSpec::default() };
    let refused = assert_same(&trace, AllocatorName::Concertina, PolicyName::Lean, &device);
    assert!(!refused.completed);
}

#[test]
fn other_pages_and_other_costs_are_the_same() {
    let trace = load("s1");
    let cost_table = concertina_emulator::CostTable::a100();
    let granularity = "64KiB".parse().expect("a granularity");
    let device = DeviceSpec { granularity, cost_table, ..DeviceSpec::default() };
    for allocator in AllocatorName::ALL {
        let outcome = assert_same(&trace, *allocator, PolicyName::Balanced, &device);
        assert_eq!(outcome.cost_table, "a100");
        assert!(outcome.modelled_driver_ns > 0);
    }
}

#[test]
fn the_checker_looks_through_libcuda() {
    for word in ["s3", "t1"] {
        let trace = load(word);
        for allocator in AllocatorName::ALL {
            let device = DeviceSpec { kind: DeviceKind::EmulatedCuda, ..DeviceSpec::default() };
            let case =
                Case { trace: &trace, allocator: *allocator, policy: PolicyName::Balanced, device: &device };
            let outcome = case.check().expect("the device can be made").outcome;
            assert_eq!((outcome.error, outcome.completed), (None, true), "{word} {allocator}");
        }
    }
}

#[test]
fn where_there_is_no_gpu_the_error_says_so() {
    let trace = load("s1");
    let device = DeviceSpec { kind: DeviceKind::Cuda, ..DeviceSpec::default() };
    let case = Case {
        trace: &trace,
        allocator: AllocatorName::Concertina,
        policy: PolicyName::Lean,
        device: &device,
    };
    // A real GPU can be checked no more than one that is missing.
    let error = case.check().expect_err("nothing looks through a GPU's page tables");
    assert!(error.to_string().contains("--device emulated-cuda"), "{error}");
}

/// The emulator under the counting driver, counted by both.
#[derive(Debug)]
struct Twice {
    emulator: Emulator,
    driver: Counted<Emulator>,
}

impl ReplayDevice for Twice {
    fn advance(&self, operations: u64) {
        self.emulator.advance(operations);
    }

    fn counts(&self) -> Counts {
        self.driver.counts()
    }

    fn resolve_range_into(&self, address: Address, bytes: u64, pieces: &mut Vec<Piece>) {
        self.emulator.resolve_range_into(address, bytes, pieces);
    }
}

impl BenchDevice for Twice {
    type Driver = Counted<Emulator>;

    fn driver(&self) -> &Counted<Emulator> {
        &self.driver
    }

    fn new_stream(&self, number: u32) -> Result<EmulatedStream, TargetError> {
        Ok(self.emulator.nth_stream(number))
    }

    fn synchronize_stream(&self, stream: &EmulatedStream) -> Result<(), TargetError> {
        BenchDevice::synchronize_stream(&self.emulator, stream)
    }

    fn synchronize_device(&self) -> Result<(), TargetError> {
        BenchDevice::synchronize_device(&self.emulator)
    }

    fn defect_at_end(&self) -> Option<String> {
        None
    }
}

#[test]
fn what_is_counted_on_a_gpu_is_what_an_emulator_would_count() {
    for word in ["s2", "s7"] {
        let trace = load(word);
        let config = DeviceSpec { event_lag: 100, ..DeviceSpec::default() }.config(trace.live_peak().bytes);
        let emulator = Emulator::new(config.expect("a device")).expect("a device");
        let device = Twice { driver: Counted::new(emulator.clone()), emulator };
        let mut target = ConcertinaTarget::new(&device, PolicyName::Lean).expect("an allocator");
        let report = Replay::new(&trace, &device).run(&mut target);
        assert!(report.completed(), "{:?}", report.failure);
        let (ours, theirs) = (device.driver.counts(), device.emulator.counts());
        for call in Call::ALL {
            assert_eq!(ours.of(*call), theirs.of(*call), "{word}: {}", call.name());
            assert_eq!(ours.failed(*call), theirs.failed(*call), "{word}: {}", call.name());
        }
        let memory = |of: &Counts| {
            [of.mapped_bytes, of.mapped_peak_bytes, of.reserved_bytes, of.reserved_peak_bytes, of.handles]
        };
        assert_eq!(memory(&ours), memory(&theirs), "{word}");
        assert_eq!((ours.mappings, ours.mappings_peak), (theirs.mappings, theirs.mappings_peak), "{word}");
    }
}
