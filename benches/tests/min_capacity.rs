//! The smallest device that a trace needs: worked examples, and what PyTorch's own binary needs on the bundled traces.
//!
//! Neighbours: `src/min_capacity.rs` searches; `pytorch.rs` has the model's other figures.

use std::num::NonZeroUsize;
use std::thread;

use concertina_baselines::PytorchConf;
use concertina_bench::{
    AllocatorName, Capacity, Case, CaseError, DeviceKind, DeviceSpec, Fineness, FoundCapacity, MinCapacity,
    PolicyName, TraceFile, in_parallel,
};
use concertina_trace::{LoadedTrace, TraceReader};

const MIB: u64 = 1 << 20;

fn bundled(name: &str) -> LoadedTrace {
    LoadedTrace::open(TraceFile::find(name).expect("bundled").path()).expect("a bundled trace is readable")
}

fn trace(lines: &str) -> LoadedTrace {
    let text = format!("alloc-trace 1\n{lines}");
    LoadedTrace::read(TraceReader::new(text.as_bytes(), "worked").expect("a trace")).expect("a trace")
}

fn search(trace: &LoadedTrace, allocator: &str, device: &DeviceSpec, fineness: Fineness) -> MinCapacity {
    let allocator: AllocatorName = allocator.parse().expect("an allocator");
    let case = Case { trace, allocator, policy: PolicyName::Balanced, device };
    case.min_capacity(fineness).expect("the device can be made")
}

fn found(trace: &LoadedTrace, allocator: &str, fineness: Fineness) -> FoundCapacity {
    match search(trace, allocator, &DeviceSpec::default(), fineness) {
        MinCapacity::Found(found) => found,
        other => panic!("{allocator} on {}: {other:?}", trace.name()),
    }
}

/// Three blocks of 100, 200 and 300 MiB, the middle one freed, then one of 250.
#[test]
fn a_freed_block_in_the_middle() {
    let trace = bundled("s1");
    // Live are at most 650 MiB. Whole granules can be anywhere; PyTorch gives the freed segment back when memory is short.
    for allocator in ["direct", "pytorch", "concertina"] {
        let found = found(&trace, allocator, Fineness::Thousandth);
        assert_eq!((found.capacity_bytes, found.failures_above), (650 * MIB, 0), "{allocator}");
        assert_eq!(found.over_live, 1.0);
    }
    // Whole frames of 20 MiB: 100 and 300 as they are, 260 for 250.
    let found = found(&trace, "pytorch-expandable", Fineness::Thousandth);
    assert_eq!((found.capacity_bytes, found.failures_above), (660 * MIB, 0));
}

#[test]
fn where_the_ample_peak_is_enough_at_once_few_replays_are_made() {
    // One block of whole granules: ample, and then the bound below, which is the one above, too.
    let found = found(&trace("a 0 4194304 0\n"), "direct", Fineness::Granularity);
    let wanted = FoundCapacity { capacity_bytes: 4 * MIB, over_live: 1.0, failures_above: 0, replays: 2 };
    assert_eq!(found, wanted);
}

#[test]
fn exact_is_the_boundary_itself() {
    let trace = bundled("t7");
    let coarse = found(&trace, "pytorch", Fineness::Thousandth).capacity_bytes;
    let exact = found(&trace, "pytorch", Fineness::Granularity).capacity_bytes;
    assert!(exact <= coarse && coarse - exact <= coarse / 1_000, "{exact} and {coarse}");
    for (capacity, fits) in [(exact - 2 * MIB, false), (exact, true)] {
        let device = DeviceSpec { capacity: Capacity::Bytes(capacity), ..DeviceSpec::default() };
        let allocator = AllocatorName::Pytorch(PytorchConf::native());
        let case = Case { trace: &trace, allocator, policy: PolicyName::Balanced, device: &device };
        assert_eq!(case.run().expect("a device").outcome.completed, fits, "{capacity}");
    }
}

#[test]
fn the_search_ends_where_no_device_is_enough() {
    // 0.1 % of an ample device are less than the 100 MiB of the first block.
    let device = DeviceSpec::default();
    let found =
        search(&bundled("s1"), "pytorch:per_process_memory_fraction:0.001", &device, Fineness::Thousandth);
    assert_eq!(found, MinCapacity::OutOfMemory { capacity_bytes: 80 << 30 });
}

#[test]
fn the_capacity_of_a_gpu_is_fixed() {
    let trace = bundled("s1");
    let device = DeviceSpec { kind: DeviceKind::Cuda, ..DeviceSpec::default() };
    let allocator = AllocatorName::Concertina;
    let case = Case { trace: &trace, allocator, policy: PolicyName::Balanced, device: &device };
    let error = case.min_capacity(Fineness::Thousandth).expect_err("not on a GPU");
    assert!(matches!(error, CaseError::FixedCapacity), "{error}");
}

#[test]
fn both_ways_to_the_emulated_device_find_the_same() {
    let trace = bundled("s3");
    let device = DeviceSpec { kind: DeviceKind::EmulatedCuda, ..DeviceSpec::default() };
    for allocator in ["pytorch-expandable", "concertina"] {
        let directly = MinCapacity::Found(found(&trace, allocator, Fineness::Thousandth));
        assert_eq!(search(&trace, allocator, &device, Fineness::Thousandth), directly, "{allocator}");
    }
}

#[test]
fn concertina_needs_at_most_a_fiftieth_more_than_lives() {
    let traces = TraceFile::bundled().iter().map(|file| bundled(file.name())).collect::<Vec<_>>();
    in_parallel(cores(), &traces, |trace| {
        let found = found(trace, "concertina", Fineness::Thousandth);
        assert!(found.over_live <= 1.02, "{}: {found:?}", trace.name());
        assert_eq!(found.failures_above, 0, "{}", trace.name());
    });
}

/// What PyTorch 2.11.0's own binary needs, found by the same bisection with a new process for each device tried: bytes
/// native, how many of eight larger devices failed, and the same with `expandable_segments:True`.
#[rustfmt::skip]
const PYTORCH: [(&str, u64, u64, u64, u64); 13] = [
    ("s1_middle", 681_574_400, 0, 692_060_160, 0),
    ("s2_big_then_alternate", 8_589_934_592, 0, 8_598_323_200, 0),
    ("s3_three_holes", 576_716_800, 0, 587_202_560, 0),
    ("s4_nlp_dynamic", 17_293_115_392, 0, 15_185_477_632, 0),
    ("s5_small_holes", 14_485_028_864, 0, 13_870_563_328, 0),
    ("s6_random", 18_396_217_344, 3, 17_643_339_776, 0),
    ("s7_streams", 16_712_204_288, 0, 16_338_911_232, 0),
    ("t1_gpt2_train", 42_662_363_136, 0, 40_823_160_832, 0),
    ("t2_llama_lora", 42_408_607_744, 0, 35_875_979_264, 0),
    ("t4_bert_train", 42_945_478_656, 0, 38_845_546_496, 0),
    ("t5_resnet50_multiscale", 35_781_607_424, 0, 35_387_342_848, 0),
    ("t7_serve_nopaging", 35_313_942_528, 2, 34_567_356_416, 0),
    ("t8_moe_train", 48_664_412_160, 0, 48_505_028_608, 0),
];

#[test]
fn the_models_of_pytorch_need_what_pytorch_needs() {
    let cases: Vec<(LoadedTrace, &str, u64, u64)> = PYTORCH
        .into_iter()
        .flat_map(|(name, native, native_above, expandable, expandable_above)| {
            [
                (bundled(name), "pytorch", native, native_above),
                (bundled(name), "pytorch-expandable", expandable, expandable_above),
            ]
        })
        .collect();
    in_parallel(cores(), &cases, |(trace, allocator, bytes, above)| {
        let found = found(trace, allocator, Fineness::Thousandth);
        assert_eq!(
            (found.capacity_bytes, found.failures_above),
            (*bytes, *above),
            "{allocator} on {}",
            trace.name()
        );
    });
}

fn cores() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}
