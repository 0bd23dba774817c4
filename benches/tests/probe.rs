//! The measurement of a driver, whole, over the emulated libcuda: what is measured, what is found, and that all goes back.
//!
//! Main types: none. Neighbours: `concertina_bench::probe` measures. No time is looked at: there is no GPU.

#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::time::Duration;

use concertina_bench::probe::{
    Expected, Found, Load, Memory, Part, Pattern, ProbePlan, ProbeReport, run, to_toml,
};
use concertina_bench::{BenchDevice, EmulatedCuda};
use concertina_cuda::Stream;
use concertina_emulator::CostTable;
use concertina_libcuda::{Code, DeviceConfig};
use concertina_vmm::{Call, Driver as _};

fn device(config: DeviceConfig) -> EmulatedCuda {
    EmulatedCuda::to_be_measured(config).expect("the emulated libcuda is built beside the tests")
}

fn streams(device: &EmulatedCuda) -> [Stream; 2] {
    [0, 1].map(|number| device.new_stream(number).expect("a stream"))
}

/// The smallest plan that goes through every line.
fn smallest() -> ProbePlan {
    ProbePlan {
        repeat: 1,
        frame_bytes: vec![2 << 20],
        malloc_bytes: vec![2 << 20],
        batches: vec![1, 3],
        area_bytes: 8 << 20,
        gather_blocks: 1,
        gather_reads: 1,
        most_mappings: 3,
        kernel: Duration::from_millis(10),
        ..ProbePlan::emulated()
    }
}

/// Measures, and sees that nothing is left.
fn measure(device: &EmulatedCuda, plan: &ProbePlan) -> ProbeReport {
    let [first, second] = streams(device);
    let report = run(device.driver(), [&first, &second], plan, |_| ());
    drop([first, second]);
    assert_eq!(device.not_given_back(), None);
    report
}

#[test]
fn everything_is_measured_and_given_back() {
    let device = device(DeviceConfig::default());
    let plan = ProbePlan::emulated();
    let [first, second] = streams(&device);
    let mut parts = Vec::new();
    let report = run(device.driver(), [&first, &second], &plan, |part| parts.push(part));
    drop([first, second]);
    assert_eq!(device.not_given_back(), None);
    assert_eq!(parts, Part::ALL);
    assert_eq!(report.failed, []);

    // The emulated driver creates nothing for export, and that is said.
    let left_out: Vec<&str> = report.left_out.iter().map(|left_out| left_out.what.as_str()).collect();
    assert_eq!(left_out, ["memory for export as a file"]);

    let calls = |load: Load| -> BTreeSet<&str> {
        let of_load = report.timings.iter().filter(|timing| timing.load == load);
        of_load.map(|timing| timing.call).collect()
    };
    for call in Call::ALL {
        assert!(calls(Load::Idle).contains(call.name()), "{} was not measured", call.name());
    }
    for call in ["pool_malloc", "pool_malloc_fresh", "pool_free", "create_for_rdma", "event_destroy"] {
        assert!(calls(Load::Idle).contains(call), "{call} was not measured");
    }
    let of_frames = ["create", "map", "release", "reserve", "set_access", "unmap", "unreserve"];
    assert_eq!(calls(Load::UnderKernel), BTreeSet::from(of_frames));
    for timing in &report.timings {
        assert_eq!(timing.repeats, 3, "{timing:?}");
        let quantiles = [timing.least_ns, timing.p10_ns, timing.median_ns, timing.p90_ns];
        assert!(quantiles.is_sorted(), "{timing:?}");
    }
    for load in [Load::Idle, Load::UnderKernel] {
        let creates = report.timings.iter().filter(|timing| timing.call == "create" && timing.load == load);
        assert_eq!(creates.map(|timing| timing.bytes).collect::<Vec<_>>(), [2 << 20, 32 << 20, 1 << 30]);
        for call in ["set_access", "unmap"] {
            let batches = report.timings.iter().filter(|timing| {
                (timing.call, timing.load, timing.bytes) == (call, load, 2 << 20) && timing.mappings > 1
            });
            let batches: Vec<_> = batches.map(|timing| (timing.mappings, timing.driver_calls)).collect();
            assert_eq!(batches, [(4, 1), (4, 4), (16, 1), (16, 16), (64, 1), (64, 64)], "{call}");
            assert_eq!(
                report.fits.iter().filter(|fit| (fit.call, fit.load) == (call, load)).count(),
                1,
                "{call}"
            );
        }
    }
    let limit = report.mapping_limit.expect("it was tried");
    assert_eq!((limit.bytes, limit.mappings, limit.refusal), (2 << 20, 1_000, None));
}

/// Of the emulated driver it is known: a free waits, as CUDA's does, and no other call.
#[test]
fn calls_that_wait_for_a_kernel_are_found() {
    let device = device(DeviceConfig::default());
    let report = measure(&device, &ProbePlan { kernel: Duration::from_millis(500), ..smallest() });
    let all: Vec<&str> = report.waits.iter().map(|wait| wait.call).collect();
    let expected = [
        "reserve",
        "create",
        "map",
        "set_access",
        "unmap",
        "release",
        "unreserve",
        "memory_info",
        "malloc",
        "free",
        "pool_malloc",
        "pool_free",
    ];
    assert_eq!(all, expected);
    let waiting: Vec<&str> = report.waits.iter().filter(|wait| wait.waited).map(|wait| wait.call).collect();
    assert_eq!(waiting, ["free"]);
}

#[test]
fn rules_are_found_to_hold_or_not() {
    let device = device(DeviceConfig::default());
    let report = measure(&device, &smallest());
    assert_eq!(report.rules.len(), 26);
    for finding in &report.rules {
        assert_ne!(finding.found, Found::NotTried, "{finding:?}");
        assert_eq!(finding.holds(), (finding.expected != Expected::NotKnown).then_some(true), "{finding:?}");
    }
    // What no source says, and what the emulator makes of it.
    let open: Vec<_> = report.rules.iter().filter(|finding| finding.expected == Expected::NotKnown).collect();
    assert_eq!(open.iter().map(|finding| finding.found).collect::<Vec<_>>(), [Found::Refused]);
    drop(device);

    let config = DeviceConfig { unmap_spans_mappings: false, ..DeviceConfig::default() };
    let report = measure(&self::device(config), &smallest());
    let broken: Vec<_> =
        report.rules.iter().filter(|finding| finding.holds() == Some(false)).map(|f| f.rule).collect();
    assert_eq!(broken, ["unmap of two mappings"]);
    // Then no time is given for it, and all else is measured.
    assert!(report.timings.iter().any(|timing| timing.mappings == 3 && timing.call == "set_access"));
    assert!(!report.timings.iter().any(|t| t.mappings == 3 && t.call == "unmap" && t.driver_calls == 1));
}

#[test]
fn memory_of_every_kind_is_timed() {
    let device = device(DeviceConfig::default());
    let report = measure(&device, &ProbePlan { area_bytes: 128 << 20, ..smallest() });
    let kinds: Vec<_> =
        report.bandwidth.iter().map(|found| (found.memory, found.frame_bytes, found.pattern)).collect();
    let memories = [
        (Memory::Malloc, 0),
        (Memory::InOrder, 2 << 20),
        (Memory::Shuffled, 2 << 20),
        (Memory::Shuffled, 64 << 20),
    ];
    let patterns = [Pattern::Write, Pattern::Copy, Pattern::RandomReads];
    let expected: Vec<_> = memories
        .iter()
        .flat_map(|&(memory, frame)| patterns.map(|pattern| (memory, frame, pattern)))
        .collect();
    assert_eq!(kinds, expected);
    for found in &report.bandwidth {
        assert_eq!(found.area_bytes, 128 << 20);
        // Half is copied; 256 threads read once.
        let counted = match found.pattern {
            Pattern::Write => 128 << 20,
            Pattern::Copy => 64 << 20,
            Pattern::RandomReads => 256 * 32,
        };
        assert_eq!(found.counted_bytes, counted, "{found:?}");
        if found.memory == Memory::Malloc {
            assert_eq!(found.times_slower_than_malloc, 1.0);
        }
    }
}

/// What the driver refuses for want of room, or lacks, is left out and said.
#[test]
fn small_and_poor_devices_are_measured_as_far_as_they_go() {
    let config = DeviceConfig {
        capacity_bytes: 64 << 20,
        max_mappings: Some(40),
        memory_pools: false,
        ..DeviceConfig::default()
    };
    let plan = ProbePlan {
        frame_bytes: vec![2 << 20, 1 << 30],
        area_bytes: 1 << 30,
        most_mappings: 2_000,
        ..smallest()
    };
    let report = measure(&device(config), &plan);
    assert_eq!(report.failed, []);
    let left_out = |what: &str| report.left_out.iter().any(|left_out| left_out.what.contains(what));
    for what in ["frames of 1073741824 bytes", "a block of 2097152 bytes from the pool", "bandwidth"] {
        assert!(left_out(what), "{what}: {:?}", report.left_out);
    }
    let sizes: BTreeSet<u64> =
        report.timings.iter().filter(|timing| timing.call == "map").map(|timing| timing.bytes).collect();
    assert_eq!(sizes, BTreeSet::from([2 << 20]));
    let limit = report.mapping_limit.expect("it was tried");
    assert_eq!(limit.mappings, 40);
    assert!(limit.refusal.expect("there is a limit").contains("out of memory"));
}

/// With no time at all, each part still gives a figure or two, and says that it was cut short.
#[test]
fn time_is_bounded() {
    let device = device(DeviceConfig::default());
    let plan = ProbePlan { budget: Duration::ZERO, repeat: 1_000_000, ..smallest() };
    let report = measure(&device, &plan);
    assert_eq!(report.failed, []);
    assert!(report.timings.iter().all(|timing| timing.repeats == 1), "{:?}", report.timings);
    let cut: Vec<&str> = report.left_out.iter().map(|left_out| left_out.what.as_str()).collect();
    assert!(cut.contains(&"the rest of frames") && cut.contains(&"the rest of rules"), "{cut:?}");
}

/// The emulator takes the table, and charges by it.
#[test]
fn the_table_is_read_back() {
    let device = device(DeviceConfig::default());
    let report = measure(&device, &smallest());
    let table = report.cost_table("measured here");
    let text = to_toml(&table, &[device.driver().probe().to_string()]);
    assert_eq!(CostTable::from_toml(&text).expect("what is written is read"), table);
    for call in Call::ALL {
        assert!(table.of(*call).base_ns > 0, "{} costs nothing", call.name());
    }
}

/// Whatever call fails, whenever: what was taken goes back, and the report has the error or the rest.
#[test]
fn everything_is_given_back_after_a_failure() {
    let functions = [
        "cuMemAddressReserve",
        "cuMemAddressFree",
        "cuMemCreate",
        "cuMemRelease",
        "cuMemMap",
        "cuMemUnmap",
        "cuMemSetAccess",
        "cuMemGetAccess",
        "cuMemGetInfo_v2",
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        "cuMemAllocAsync",
        "cuMemFreeAsync",
        "cuMemPoolTrimTo",
        "cuDeviceGetDefaultMemPool",
        "cuModuleLoadData",
        "cuModuleUnload",
        "cuModuleGetFunction",
        "cuMemHostAlloc",
        "cuMemHostGetDevicePointer_v2",
        "cuMemFreeHost",
        "cuLaunchKernel",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventQuery",
        "cuEventSynchronize",
        "cuStreamWaitEvent",
        "cuStreamIsCapturing",
        "cuCtxSynchronize",
        "cuMemsetD8Async",
        "cuMemcpyDtoDAsync_v2",
        "cuMemGetAllocationGranularity",
    ];
    let plan = smallest();
    for function in functions {
        // The first call, and one that comes while much is held.
        for nth in [1, 30] {
            let device = device(DeviceConfig::default());
            let [first, second] = streams(&device);
            device.libcuda().fail_once(function, nth, Code::INVALID_VALUE).expect("a function");
            let report = run(device.driver(), [&first, &second], &plan, |_| ());
            device.libcuda().clear_failures();
            drop([first, second]);
            assert_eq!(device.not_given_back(), None, "{function}, call {nth}: {:?}", report.failed);
        }
    }
}

/// A device that is lost is asked nothing more.
#[test]
fn a_lost_device_ends_it() {
    let device = device(DeviceConfig::default());
    let [first, second] = streams(&device);
    device.libcuda().fail_once("cuMemUnmap", 2, Code::ILLEGAL_ADDRESS).expect("a function");
    let report = run(device.driver(), [&first, &second], &smallest(), |_| ());
    let failed: Vec<&str> = report.failed.iter().map(|part| part.what.as_str()).collect();
    assert_eq!(failed, ["frames"]);
    assert!(report.failed[0].why.contains("device lost"), "{:?}", report.failed);
    assert!(device.driver().granularity(&concertina_vmm::FrameProperties { device: 0 }).is_err());
}
