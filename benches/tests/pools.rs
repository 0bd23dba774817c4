//! The driver's pool, TensorFlow's allocator and one malloc cut up by hand on the bundled traces.
//!
//! Neighbours: `concertina_baselines` has the models and the tests of their rules. No binary stands behind these figures:
//! those of the small traces are worked out by hand, beside them; of the others what must hold of any of them is tested.

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

fn on_mib(name: &str, allocator: &str, mib: u64) -> Outcome {
    run(&load(name), allocator, Capacity::Bytes(mib * MIB))
}

#[test]
fn three_blocks_and_a_hole_in_the_middle() {
    // s1, in MiB: 100, 200, 300, the second one freed, 250.
    // The pool takes 4, 7 and 10 frames of 32; blocks begin where the last one ended. Of the hole of 200, five frames are
    // free as a whole, of the 72 at the end two. 250 need eight: seven move, and one is created.
    let pool = on_mib("s1", "driver-pool", 80 << 10);
    assert_eq!(pool.mapped_peak_bytes, 22 * 32 * MIB);
    assert_eq!(pool.driver_calls["create"], 22);
    assert_eq!(pool.driver_calls["map"], 21 + 8);
    assert_eq!(pool.driver_calls["unmap"], 7);
    assert_eq!(pool.driver_calls["set_access"], 4);
    // The first malloc of `bfc` is doubled from 2 to 128, and to 256 and 512. Only the last is split: 212 are over there.
    // 250 then take the 256 that were freed.
    let bfc = on_mib("s1", "bfc", 80 << 10);
    assert_eq!((bfc.mapped_peak_bytes, bfc.driver_calls["malloc"]), ((128 + 256 + 512) * MIB, 3));
    // 250 go behind the first 600.
    assert!(on_mib("s1", "fixed", 850).completed && !on_mib("s1", "fixed", 848).completed);
}

#[test]
fn a_large_block_and_every_other_of_eight() {
    // s2, in MiB: 4,096 and eight of 512, the first one freed, 3,584, four of the 512 freed, 2,048.
    // All are whole frames. The four, and the 512 that are left of the first, are five holes, two of them adjacent:
    // 2,048 are moved there.
    let pool = on_mib("s2", "driver-pool", 8 << 10);
    assert!(pool.completed);
    assert_eq!((pool.driver_calls["create"], pool.driver_calls["unmap"]), (256, 64));
    assert!(!on_mib("s2", "driver-pool:remap:never,retry:false", 8 << 10).completed);
    // 2,048 go behind the first 8,192.
    assert!(on_mib("s2", "fixed", 10_240).completed && !on_mib("s2", "fixed", 10_238).completed);
}

#[test]
fn three_small_holes() {
    // s3, in MiB: 100, 50, 200, 30, 150, 20, the even ones freed, 80.
    // `bfc` has 128 for the 100, and 128 that are split into 50, 30, 20 and a rest of 28; 256 for the 200 and 512 for the
    // 150. The 80 take the second 128.
    let bfc = on_mib("s3", "bfc", 80 << 10);
    assert_eq!((bfc.mapped_peak_bytes, bfc.driver_calls["malloc"]), ((128 + 128 + 256 + 512) * MIB, 4));
    // 80 begin where the last 20 did, at 530: those joined what is behind them.
    assert!(on_mib("s3", "fixed", 610).completed && !on_mib("s3", "fixed", 608).completed);
}

#[test]
fn all_traces_complete_where_there_is_enough() {
    for file in TraceFile::bundled() {
        let trace = LoadedTrace::open(file.path()).expect("a bundled trace is readable");
        let live = trace.live_peak().bytes;
        for allocator in ["driver-pool", "driver-pool:release_threshold_mb:max", "bfc", "fixed"] {
            let outcome = run(&trace, allocator, Capacity::Bytes(80 << 30));
            let name = trace.name();
            assert!(outcome.completed, "{name}, {allocator}: {:?}", outcome.error);
            assert_eq!(outcome.live_peak_bytes, live, "{name}, {allocator}");
            assert!(outcome.mapped_peak_bytes >= live, "{name}, {allocator}");
            assert_eq!(outcome.host_waits, 0, "{name}, {allocator}");
            if allocator.starts_with("driver-pool") {
                assert_eq!(outcome.mapped_peak_bytes % (32 * MIB), 0, "{name}, {allocator}");
            }
            if allocator == "fixed" {
                assert_eq!(outcome.mapped_peak_bytes, 80 << 30, "{name}");
                assert_eq!(outcome.driver_calls["malloc"], 1, "{name}");
            }
        }
    }
}

#[test]
fn every_block_is_mapped_shares_no_byte_and_races_with_nothing() {
    for name in ["s5", "s7", "t5"] {
        let trace = load(name);
        for work in [None, Some(1)] {
            let capacity = "1.1x".parse().expect("a capacity");
            let device = DeviceSpec { capacity, work, ..DeviceSpec::default() };
            for allocator in ["driver-pool", "bfc", "fixed"] {
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
