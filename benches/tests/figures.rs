//! What the bundled traces must show: bounds on memory and addresses, no driver call in the steady state, the worked
//! examples on devices of their size. Neighbours: `cargo xtask bench` prints the same figures.
//!
//! The bounds are those that the project promises, not the figures of the day. Counts only: no test of time.

use concertina_bench::{AllocatorName, Capacity, Case, DeviceSpec, Outcome, PolicyName, Run, TraceFile};
use concertina_trace::LoadedTrace;

/// Events that complete at once, and late.
const LAGS: [u64; 2] = [0, 1_000];
/// Seeds of the work that is queued.
const SEEDS: [u64; 3] = [1, 2, 3];
/// Memory that none of the traces can use up.
const AMPLE: Capacity = Capacity::Bytes(80 << 30);

fn load(file: &TraceFile) -> LoadedTrace {
    LoadedTrace::open(file.path()).expect("a bundled trace is readable")
}

fn device(event_lag: u64) -> DeviceSpec {
    DeviceSpec { event_lag, ..DeviceSpec::default() }
}

fn run(trace: &LoadedTrace, policy: PolicyName, device: &DeviceSpec) -> Run {
    let case = Case { trace, allocator: AllocatorName::Concertina, policy, device };
    case.run().expect("the device can be made")
}

/// Runs all bundled traces and hands each outcome to `bound`, which names what is wrong with it.
fn assert_all(policy: PolicyName, event_lag: u64, bound: impl Fn(&Outcome) -> Option<String>) {
    let device = device(event_lag);
    let mut wrong = Vec::new();
    for file in TraceFile::bundled() {
        let outcome = run(&load(&file), policy, &device).outcome;
        let found = match &outcome.error {
            Some(error) => Some(error.clone()),
            None => bound(&outcome),
        };
        wrong.extend(found.map(|found| format!("{} ({policy}, lag {event_lag}): {found}", outcome.trace)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn mapped_at_most(ratio: f64) -> impl Fn(&Outcome) -> Option<String> {
    move |outcome| {
        // Exact in whole bytes: the quotient in `outcome` is rounded.
        let most = (outcome.live_peak_bytes as f64 * ratio) as u64;
        let addresses = outcome.address_peak_bytes > 8 * outcome.live_peak_bytes;
        let mapped = outcome.mapped_peak_bytes > most;
        (mapped || addresses).then(|| {
            let (mapped, addresses) = (outcome.mapped_over_live, outcome.address_over_live);
            format!(
                "mapped {mapped:.4} × live (at most {ratio}), addresses {addresses:.2} × live (at most 8)"
            )
        })
    }
}

#[test]
fn lean_maps_little_more_than_lives() {
    assert_all(PolicyName::Lean, 0, mapped_at_most(1.012));
}

#[test]
fn lean_maps_little_more_than_lives_when_events_complete_late() {
    assert_all(PolicyName::Lean, 1_000, mapped_at_most(1.014));
}

#[test]
fn balanced_stays_within_its_slack() {
    for lag in LAGS {
        assert_all(PolicyName::Balanced, lag, mapped_at_most(1.055));
    }
}

#[test]
fn every_block_is_mapped_and_shares_no_byte() {
    for file in TraceFile::bundled() {
        let trace = load(&file);
        for (policy, lag) in [(PolicyName::Lean, 1_000), (PolicyName::Balanced, 0)] {
            let device = device(lag);
            let case = Case { trace: &trace, allocator: AllocatorName::Concertina, policy, device: &device };
            let outcome = case.check().expect("the device can be made").outcome;
            assert_eq!(outcome.error, None, "{} ({policy}, lag {lag})", trace.name());
        }
    }
}

#[test]
fn training_that_repeats_makes_no_driver_call_from_the_sixth_mark_on() {
    let trace = load(&TraceFile::find("t1").expect("bundled"));
    assert!(trace.marks().len() > 20, "the trace goes on long after its sixth mark");
    for policy in PolicyName::ALL {
        for lag in LAGS {
            let run = run(&trace, *policy, &device(lag));
            assert_eq!(run.outcome.error, None);
            let at_the_sixth = run.outcome.driver_calls_by_mark[5];
            let later = run.end.counts.memory_calls() - at_the_sixth;
            assert_eq!(later, 0, "{policy}, lag {lag}: by mark {:?}", run.outcome.driver_calls_by_mark);
        }
    }
}

#[test]
fn the_worked_examples_complete_on_a_device_of_their_size() {
    for word in ["s1", "s2", "s3"] {
        let trace = load(&TraceFile::find(word).expect("bundled"));
        let capacity = Capacity::Bytes(trace.capacity_bytes().expect("the header has the device's size"));
        for policy in PolicyName::ALL {
            for event_lag in LAGS {
                let device = DeviceSpec { capacity, event_lag, ..DeviceSpec::default() };
                let outcome = run(&trace, *policy, &device).outcome;
                assert_eq!(outcome.error, None, "{word} ({policy}, lag {event_lag})");
            }
        }
    }
}

/// On malloc segments of the same sizes the worked examples need what PyTorch's native allocator needs, to the byte:
/// `docs/worked-examples.md` has the figures of its binary.
#[test]
fn on_malloc_the_worked_examples_need_what_a_block_cache_needs() {
    for (word, expected) in [("s1", 891_289_600), ("s2", 10_737_418_240), ("s3", 660_602_880)] {
        let trace = load(&TraceFile::find(word).expect("bundled"));
        for (policy, lag) in [(PolicyName::Lean, 0), (PolicyName::Balanced, 1_000)] {
            let device = device(lag);
            let case = Case { trace: &trace, allocator: AllocatorName::OnMalloc, policy, device: &device };
            let outcome = case.check().expect("the device can be made").outcome;
            assert_eq!(
                (outcome.error, outcome.mapped_peak_bytes),
                (None, expected),
                "{word} ({policy}, lag {lag})"
            );
        }
    }
}

#[test]
fn streams_that_share_memory_map_less_than_once_an_allocation() {
    let trace = load(&TraceFile::find("s7").expect("bundled"));
    for policy in PolicyName::ALL {
        for lag in LAGS {
            let outcome = run(&trace, *policy, &device(lag)).outcome;
            assert_eq!((outcome.error, outcome.host_waits), (None, 0), "{policy}, lag {lag}");
            let maps = outcome.driver_calls["map"];
            assert!(maps < 92_468, "{policy}, lag {lag}: {maps} maps for 92,468 allocations");
        }
    }
}

#[test]
fn a_device_of_a_fiftieth_more_than_lives_is_enough() {
    for event_lag in LAGS {
        for file in TraceFile::bundled() {
            let trace = load(&file);
            let device =
                DeviceSpec { capacity: Capacity::TimesLive(1.02), event_lag, ..DeviceSpec::default() };
            let outcome = run(&trace, PolicyName::Balanced, &device).outcome;
            assert_eq!((outcome.error, outcome.host_waits), (None, 0), "{}, lag {event_lag}", trace.name());
        }
    }
}

#[test]
fn the_same_run_gives_the_same_counts() {
    let trace = load(&TraceFile::find("s7").expect("bundled"));
    let device = device(1_000);
    let [first, second] = [(), ()].map(|()| {
        let mut outcome = run(&trace, PolicyName::Balanced, &device).outcome;
        // The one figure that is timed.
        outcome.host_ns_per_event = 0.0;
        outcome
    });
    assert_eq!(first, second);
}

#[test]
fn direct_waits_at_every_free_and_maps_whole_granules() {
    let trace = load(&TraceFile::find("s1").expect("bundled"));
    let device = device(0);
    let case =
        Case { trace: &trace, allocator: AllocatorName::Direct, policy: PolicyName::Lean, device: &device };
    let outcome = case.run().expect("the device can be made").outcome;
    // 100 + 200 + 300 MiB, the middle freed, 250: all multiples of 2 MiB.
    assert_eq!(outcome.mapped_peak_bytes, 650 << 20);
    assert_eq!((outcome.driver_calls["malloc"], outcome.driver_calls["free"], outcome.host_waits), (4, 1, 1));
    assert_eq!(outcome.policy, None);
}

/// A run with kernels of this seed, under the race detector and the checker of blocks.
fn checked_with_work(trace: &LoadedTrace, policy: PolicyName, capacity: Capacity, seed: u64) -> Outcome {
    let device = DeviceSpec { capacity, work: Some(seed), ..DeviceSpec::default() };
    let case = Case { trace, allocator: AllocatorName::Concertina, policy, device: &device };
    let outcome = case.check().expect("the device can be made").outcome;
    assert_eq!(outcome.error, None, "{} ({policy}, {capacity}, work of seed {seed})", trace.name());
    outcome
}

#[test]
fn lean_maps_what_three_streams_need_with_work_and_without() {
    let trace = load(&TraceFile::find("s7").expect("bundled"));
    let idle = run(&trace, PolicyName::Lean, &device(0)).outcome;
    assert_eq!((&idle.error, mapped_at_most(1.005)(&idle)), (&None, None));
    for seed in SEEDS {
        let busy = checked_with_work(&trace, PolicyName::Lean, AMPLE, seed);
        assert_eq!((mapped_at_most(1.02)(&busy), busy.host_waits), (None, 0), "seed {seed}");
        assert_eq!(busy.device_waits, busy.fences.waits);
    }
}

#[test]
fn balanced_holds_up_three_streams_no_more_than_an_unlimited_device_does() {
    let trace = load(&TraceFile::find("s7").expect("bundled"));
    for seed in SEEDS {
        let device = DeviceSpec { work: Some(seed), ..DeviceSpec::default() };
        let outcome = run(&trace, PolicyName::Balanced, &device).outcome;
        assert_eq!((&outcome.error, mapped_at_most(1.055)(&outcome)), (&None, None), "seed {seed}");
        assert_eq!(outcome.host_waits, 0, "seed {seed}");
        let ratio = outcome.device_ns_over_unlimited.expect("it ran to its end");
        assert!(ratio <= 1.02, "seed {seed}: {ratio} times as long");
        let ratio = outcome.device_ns_over_kernels.expect("it ran to its end");
        assert!(ratio >= 1.0, "seed {seed}: {ratio}: no device is faster than one without an allocator");
        if seed == SEEDS[0] {
            let checked = checked_with_work(&trace, PolicyName::Balanced, AMPLE, seed);
            assert_eq!(
                outcome.modelled_device_ns, checked.modelled_device_ns,
                "whether somebody looks or not"
            );
        }
    }
}

#[test]
fn a_device_of_a_fiftieth_more_than_lives_is_enough_with_work() {
    for file in TraceFile::bundled() {
        let trace = load(&file);
        for seed in SEEDS {
            let outcome = checked_with_work(&trace, PolicyName::Balanced, Capacity::TimesLive(1.02), seed);
            // Three streams on a device with nothing to spare: seldom the work of one must end before another goes on.
            let most = if trace.name() == "s7_streams" { outcome.events / 1_000 } else { 0 };
            let waits = outcome.host_waits;
            assert!(waits <= most, "{}, seed {seed}: the host waited {waits} times", trace.name());
        }
    }
}
