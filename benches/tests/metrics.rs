//! The metrics of `docs/metrics.md`, each on an example that can be worked out by hand.
//!
//! Neighbours: `min_capacity.rs` has the minimum capacity; `src/case.rs` makes the figures.

use concertina_bench::{
    AllocationNs, AllocatorName, Capacity, Case, CaseError, DeviceKind, DeviceSpec, Fineness, FoundRequest,
    LargestRequest, MinCapacity, Outcome, PolicyName,
};
use concertina_emulator::{CallCost, CostTable};
use concertina_trace::{LoadedTrace, TraceReader};
use concertina_vmm::Call;

const MIB: u64 = 1 << 20;

fn trace(lines: &str) -> LoadedTrace {
    let text = format!("alloc-trace 1\n{lines}");
    LoadedTrace::read(TraceReader::new(text.as_bytes(), "worked").expect("a trace")).expect("a trace")
}

/// Three blocks of 8 MiB, less one byte in the last, at a mark each; then all but the last are freed.
fn three_blocks() -> LoadedTrace {
    trace("a 1 8388608 0\ni one\na 2 8388608 0\ni two\na 3 8388607 0\ni three\nf 1\nf 2\ni end\na 4 1000 0\n")
}

fn device(capacity_mib: u64) -> DeviceSpec {
    DeviceSpec { capacity: Capacity::Bytes(capacity_mib * MIB), ..DeviceSpec::default() }
}

fn run(trace: &LoadedTrace, allocator: &str, device: &DeviceSpec) -> Outcome {
    let allocator: AllocatorName = allocator.parse().expect("an allocator");
    let case = Case { trace, allocator, policy: PolicyName::Balanced, device };
    case.run().expect("the device can be made").outcome
}

fn largest(trace: &LoadedTrace, allocator: &str, device: &DeviceSpec) -> LargestRequest {
    let allocator: AllocatorName = allocator.parse().expect("an allocator");
    let case = Case { trace, allocator, policy: PolicyName::Balanced, device };
    case.largest_request().expect("the device can be made")
}

#[test]
fn utilisation_and_what_is_missing() {
    let trace = three_blocks();
    // 20 MiB for the first two, and 20 for the third.
    let pytorch = run(&trace, "pytorch", &device(1_024));
    assert_eq!(pytorch.live_peak_bytes, 24 * MIB - 1);
    assert_eq!(pytorch.mapped_peak_bytes, 42 * MIB, "and 2 MiB for the small block at the end");
    assert_eq!(pytorch.utilisation, (24 * MIB - 1) as f64 / (42 * MIB) as f64);
    assert_eq!(pytorch.fragmentation, 1.0 - pytorch.utilisation);
    assert_eq!(pytorch.packed_floor_bytes, 24 * MIB);
    assert_eq!(pytorch.mapped_at_live_peak_bytes, Some(40 * MIB));
    assert_eq!(pytorch.live_bytes_by_mark, [8 * MIB, 16 * MIB, 24 * MIB - 1, 8 * MIB - 1]);
    assert_eq!(pytorch.mapped_bytes_by_mark, [20 * MIB, 20 * MIB, 40 * MIB, 40 * MIB]);
    assert_eq!(pytorch.marks, ["one", "two", "three", "end"]);

    // Concertina maps what it needs, in blocks of whole steps of 512 bytes: one byte of rounding.
    let concertina = run(&trace, "concertina", &device(1_024));
    assert_eq!(concertina.mapped_at_live_peak_bytes, Some(24 * MIB));
    assert_eq!(concertina.internal_at_live_peak_bytes, Some(1));
    assert_eq!(concertina.external_at_live_peak_bytes, Some(0));

    // A driver does not tell what it sets aside for a malloc.
    let direct = run(&trace, "direct", &device(1_024));
    assert_eq!((direct.internal_at_live_peak_bytes, direct.external_at_live_peak_bytes), (None, None));
    assert_eq!(direct.mapped_at_live_peak_bytes, Some(24 * MIB));
}

#[test]
fn a_trace_that_asks_for_nothing_wastes_nothing() {
    let outcome = run(&trace("i nothing\n"), "direct", &device(1_024));
    assert_eq!((outcome.utilisation, outcome.fragmentation, outcome.packed_floor_bytes), (1.0, 0.0, 0));
    assert_eq!(outcome.modelled_allocation_ns, Some(AllocationNs::default()));
}

/// A malloc of granules takes 100 ns, a free 10; nothing else takes time.
fn with_plain_costs(capacity_mib: u64) -> DeviceSpec {
    let table = CostTable::free_of_charge()
        .with(Call::Malloc, CallCost::flat(100))
        .with(Call::Free, CallCost::flat(10));
    DeviceSpec { cost_table: table, ..device(capacity_mib) }
}

#[test]
fn latencies_and_retries_are_those_of_the_driver() {
    let trace = three_blocks();
    let times = |outcome: &Outcome| outcome.modelled_allocation_ns.expect("not on a GPU");
    // Three of four make a malloc, the second one hits.
    let ample = run(&trace, "pytorch", &with_plain_costs(1_024));
    assert_eq!(times(&ample), AllocationNs { p50: 100, p99: 100, max: 100 });
    assert_eq!((ample.allocation_retries, ample.modelled_driver_ns), (0, 300));

    // On 40 MiB the small block at the end needs what is cached. PyTorch is refused, gives the first segment back, and asks
    // again. Refused calls take no time.
    let tight = run(&trace, "pytorch", &with_plain_costs(40));
    assert_eq!((tight.completed, tight.allocation_retries), (true, 1));
    assert_eq!((tight.driver_calls["malloc"], tight.driver_calls["free"]), (3, 1));
    assert_eq!(times(&tight), AllocationNs { p50: 100, p99: 110, max: 110 });

    // On 38 the third block has no room. Nothing is cached that could be given back, but PyTorch asks a second time.
    let short = run(&trace, "pytorch", &with_plain_costs(38));
    assert_eq!((short.completed, short.failed_at_event), (false, Some(4)));
    assert_eq!(short.allocation_retries, 2);
    assert_eq!(times(&short), AllocationNs { p50: 0, p99: 100, max: 100 });
    assert_eq!(short.mapped_at_live_peak_bytes, None, "it was not reached");
}

#[test]
fn the_largest_request_is_what_can_be_had_at_the_live_peak() {
    let trace = three_blocks();
    // 60 MiB, of which 36 and a byte are free. PyTorch has 12 MiB in one segment, 12 in the other, and 20 to ask for.
    let found = |mib| LargestRequest::Found(FoundRequest { bytes: mib * MIB, free_bytes: 36 * MIB + 1 });
    assert_eq!(largest(&trace, "pytorch", &device(60)), found(20));
    for allocator in ["direct", "concertina"] {
        assert_eq!(largest(&trace, allocator, &device(60)), found(36), "{allocator}");
    }
    // 40 MiB: 16 free, of which no 14 are in one piece.
    let LargestRequest::Found(found) = largest(&trace, "pytorch", &device(40)) else {
        panic!("the peak is reached")
    };
    assert_eq!((found.bytes, found.free_bytes), (12 * MIB, 16 * MIB + 1));
    assert_eq!(found.over_free(), (12 * MIB) as f64 / (16 * MIB + 1) as f64);
    // Nothing is free, and nothing can be had.
    let LargestRequest::Found(found) = largest(&trace, "direct", &device(24)) else {
        panic!("the peak is reached")
    };
    assert_eq!((found.bytes, found.free_bytes), (0, 1));
    assert_eq!(largest(&trace, "pytorch", &device(38)), LargestRequest::NotReached);
}

#[test]
fn the_smallest_device_has_what_lives_or_what_is_mapped() {
    let trace = three_blocks();
    for (allocator, mib) in [("direct", 24), ("concertina", 24), ("pytorch", 40)] {
        let allocator: AllocatorName = allocator.parse().expect("an allocator");
        let case = Case { trace: &trace, allocator, policy: PolicyName::Balanced, device: &device(1_024) };
        let MinCapacity::Found(found) = case.min_capacity(Fineness::Thousandth).expect("a device") else {
            panic!("{allocator} needs less than the ample device has")
        };
        assert_eq!((found.capacity_bytes, found.failures_above), (mib * MIB, 0), "{allocator}");
    }
}

#[test]
fn a_multiple_of_live_stays_that_of_the_trace() {
    // 2 × 24 MiB less two bytes, which has 23 whole granules.
    let spec = DeviceSpec { capacity: Capacity::TimesLive(2.0), ..DeviceSpec::default() };
    let LargestRequest::Found(found) = largest(&three_blocks(), "direct", &spec) else {
        panic!("the peak is reached")
    };
    assert_eq!((found.bytes, found.free_bytes), (22 * MIB, 22 * MIB + 1));
}

#[test]
fn nothing_is_searched_for_on_a_gpu() {
    let device = DeviceSpec { kind: DeviceKind::Cuda, ..DeviceSpec::default() };
    let trace = three_blocks();
    let allocator = AllocatorName::Direct;
    let case = Case { trace: &trace, allocator, policy: PolicyName::Balanced, device: &device };
    assert!(matches!(case.largest_request(), Err(CaseError::FixedCapacity)));
}

#[test]
fn outcomes_written_before_these_figures_can_still_be_read() {
    let device = device(1_024);
    let outcome = run(&three_blocks(), "direct", &device);
    let mut json = serde_json::to_value(&outcome).expect("JSON");
    assert_eq!(serde_json::from_value::<Outcome>(json.clone()).expect("an outcome"), outcome);
    let object = json.as_object_mut().expect("an object");
    for key in [
        "utilisation",
        "fragmentation",
        "packed_floor_bytes",
        "mapped_at_live_peak_bytes",
        "live_bytes_by_mark",
        "mapped_bytes_by_mark",
        "allocation_retries",
        "modelled_allocation_ns",
    ] {
        assert!(object.remove(key).is_some(), "{key}");
    }
    let old: Outcome = serde_json::from_value(json).expect("an older outcome");
    assert_eq!((old.mapped_peak_bytes, old.modelled_allocation_ns), (outcome.mapped_peak_bytes, None));
}
