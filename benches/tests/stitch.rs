//! GMLake and VPMM on the bundled traces.
//!
//! Neighbours: `concertina_baselines` has the models and the tests of their rules. No binary stands behind these
//! figures: those of the small traces are worked out by hand, beside them; one is that of PyTorch's own binary, where
//! GMLake does nothing else; of the others what must hold of any of them is tested.

use concertina_bench::{AllocatorName, Capacity, Case, DeviceSpec, Outcome, PolicyName, TraceFile};
use concertina_trace::LoadedTrace;

const MIB: u64 = 1 << 20;

fn load(name: &str) -> LoadedTrace {
    LoadedTrace::open(TraceFile::find(name).expect("bundled").path()).expect("a bundled trace is readable")
}

fn run(trace: &LoadedTrace, allocator: &str, capacity: Capacity) -> Outcome {
    let device = DeviceSpec { capacity, ..DeviceSpec::default() };
    let allocator: AllocatorName = allocator.parse().expect(allocator);
    let case = Case { trace, allocator, policy: PolicyName::Lean, device: &device };
    case.run().expect("it can be set up").outcome
}

fn ample(name: &str, allocator: &str) -> Outcome {
    run(&load(name), allocator, Capacity::Bytes(80 << 30))
}

/// Peak of mapped MiB; creates, maps and grants of access.
fn figures(outcome: &Outcome) -> (u64, [u64; 3]) {
    assert!(outcome.completed, "{:?}", outcome.error);
    (outcome.mapped_peak_bytes / MIB, ["create", "map", "set_access"].map(|call| outcome.driver_calls[call]))
}

#[test]
fn three_blocks_and_a_hole_in_the_middle() {
    // s1, in MiB: 100, 200, 300, the second one freed, 250.
    // There is one fragment, and stitching wants two: 850 in frames of 2.
    assert_eq!(figures(&ample("s1", "gmlake:fragLimit:0")), (850, [425, 425, 425]));
    // The paper creates the 50 that are missing, and maps all 250 of the new block.
    assert_eq!(figures(&ample("s1", "gmlake:fragLimit:0,reAlloc:1")), (650, [325, 450, 450]));
    // VPMM creates 50 and maps the 200 again, behind them: a grant for each of the four, and one for those 200.
    assert_eq!(figures(&ample("s1", "vpmm")), (650, [325, 425, 5]));
}

#[test]
fn a_large_block_and_every_other_of_eight() {
    // s2, in MiB: 4,096 and eight of 512, the first one freed, 3,584, four of the 512 freed, 2,048.
    // The first 3,584 of the 4,096 serve the second request; 512 of it and the four are free, and 2,048 are stitched.
    assert_eq!(figures(&ample("s2", "gmlake")), (8192, [4096, 4096 + 1024, 4096 + 1024]));
    // VPMM does the same with one grant instead of 1,024, beside those of the nine.
    assert_eq!(figures(&ample("s2", "vpmm")), (8192, [4096, 4096 + 1024, 9 + 1]));
}

#[test]
fn three_small_holes() {
    // s3, in MiB: 100, 50, 200, 30, 150, 20, the even ones freed, 80.
    // 80 are less than `fragLimit`; with a lower one the 50 and the 30 are stitched.
    assert_eq!(figures(&ample("s3", "gmlake")), (630, [315, 315, 315]));
    assert_eq!(figures(&ample("s3", "gmlake:fragLimit:0")), (550, [275, 315, 315]));
    // On 560 five frames are created in vain; then the three are given back, and 80 created of the 110.
    let tight = run(&load("s3"), "gmlake", Capacity::Bytes(560 * MIB));
    assert_eq!(figures(&tight), (560, [275 + 5 + 40, 315, 315]));
    assert_eq!((tight.driver_calls["release"], tight.driver_calls["unmap"]), (50 + 5, 3));
    assert_eq!(figures(&ample("s3", "vpmm")), (550, [275, 315, 7]));
}

#[test]
fn gmlake_is_pytorch_where_nothing_is_stitched() {
    // Sizes over 1 MiB in t1 are multiples of 2 MiB, so that PyTorch's native allocator rounds as GMLake does. These
    // are the figures of its binary (`pytorch.rs`): on 80 GiB, and on 1.02 times the live peak, where no two fragments
    // are enough.
    let trace = load("t1");
    let outcome = run(&trace, "gmlake", Capacity::Bytes(80 << 30));
    assert_eq!(outcome.mapped_peak_bytes, 42_662_363_136);
    let tight = run(&trace, "gmlake", "1.02x".parse().expect("a capacity"));
    assert_eq!((tight.completed, tight.failed_at_event), (false, Some(18_208)));
    let held = tight.error.expect("why it failed");
    assert!(held.contains(" 40189820928 held"), "{held}");
}

#[test]
fn all_traces_complete_where_there_is_enough() {
    for file in TraceFile::bundled() {
        let trace = LoadedTrace::open(file.path()).expect("a bundled trace is readable");
        let live = trace.live_peak().bytes;
        for allocator in ["gmlake", "gmlake:fragLimit:2097152,reAlloc:1", "vpmm"] {
            let outcome = run(&trace, allocator, Capacity::Bytes(80 << 30));
            let name = trace.name();
            assert!(outcome.completed, "{name}, {allocator}: {:?}", outcome.error);
            assert_eq!(outcome.live_peak_bytes, live, "{name}, {allocator}");
            assert!(outcome.mapped_peak_bytes >= live, "{name}, {allocator}");
            let count = |call: &str| outcome.driver_calls[call];
            if allocator == "vpmm" {
                // Only a malloc that stands in for a block of the driver's pool waits.
                assert_eq!(outcome.host_waits, count("free"), "{name}");
                assert_eq!(count("release"), 0, "{name}: pages are never given back");
                assert!(count("set_access") < count("map"), "{name}");
            } else {
                assert_eq!(outcome.host_waits, 0, "{name}, {allocator}");
                assert_eq!(count("map"), count("set_access"), "{name}, {allocator}: frame by frame");
                assert_eq!(count("release"), 0, "{name}, {allocator}");
            }
        }
    }
}

/// Blocks of a page and more waste less than a page each, and no page is stranded. In s5 and t7 there are more small
/// ones.
#[test]
fn vpmm_needs_little_more_than_what_is_live_where_blocks_are_large() {
    for name in ["s4", "s6", "s7", "t1", "t2", "t4", "t5", "t8"] {
        let outcome = run(&load(name), "vpmm", "1.02x".parse().expect("a capacity"));
        assert!(outcome.completed, "{name}: {:?}", outcome.error);
    }
}

#[test]
fn every_block_is_mapped_shares_no_byte_and_races_with_nothing() {
    for name in ["s5", "s7", "t5"] {
        let trace = load(name);
        for work in [None, Some(1)] {
            let capacity = "1.1x".parse().expect("a capacity");
            let device = DeviceSpec { capacity, work, ..DeviceSpec::default() };
            for allocator in ["gmlake:fragLimit:2097152", "vpmm"] {
                let allocator = allocator.parse().expect(allocator);
                let case = Case { trace: &trace, allocator, policy: PolicyName::Lean, device: &device };
                let run = case.check().expect("it can be set up");
                assert!(
                    !run.outcome.is_defect(),
                    "{name}, {allocator}, work {work:?}: {:?}",
                    run.outcome.error
                );
            }
        }
    }
}
