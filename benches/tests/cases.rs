//! The public cases: Concertina completes each on a device of 1.02 times what lives at once, and on the one that its
//! report had. The allocators of the reports do there what the reports say. `docs/cases.md` tells the stories.
//!
//! Neighbours: `concertina_trace::PublicCase` makes the traces; `crates/concertina/tests/programs/cases.rs` has the
//! cases that are no traces. A new allocator to compare with is a few more rows in [`SHOWN`].

use concertina_baselines::{Pytorch, PytorchConf};
use concertina_bench::{AllocatorName, Capacity, Case, DeviceSpec, Outcome, PolicyName, Run, TraceFile};
use concertina_emulator::{Emulator, EmulatorConfig};
use concertina_trace::{LoadedTrace, PublicCase};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// A fiftieth more than lives at once.
const TIGHT: Capacity = Capacity::TimesLive(1.02);
/// More than any of the cases can use up.
const AMPLE: Capacity = Capacity::Bytes(128 * GIB);

/// How a case ends on a device of 1.02 times what lives at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tight {
    OutOfMemory,
    /// It completes after the allocator made the host wait so many times.
    Completes {
        host_waits: u64,
    },
}

/// What another allocator shows on a case.
struct Shown {
    case: PublicCase,
    /// As on the command line, with its options.
    allocator: &'static str,
    tight: Tight,
    /// Most bytes mapped at once on a device with plenty, where the report or a short sum says how many.
    ample_bytes: Option<u64>,
}

const fn fails(case: PublicCase, allocator: &'static str, ample_bytes: Option<u64>) -> Shown {
    Shown { case, allocator, tight: Tight::OutOfMemory, ample_bytes }
}

const fn completes(
    case: PublicCase,
    allocator: &'static str,
    host_waits: u64,
    ample_bytes: Option<u64>,
) -> Shown {
    Shown { case, allocator, tight: Tight::Completes { host_waits }, ample_bytes }
}

const PYTORCH: &str = "pytorch";
const EXPANDABLE: &str = "pytorch-expandable";

const SHOWN: &[Shown] = &[
    // Blocks of 32 KiB lie 64 a segment of 2 MiB; 4,766 of them live at the peak.
    completes(PublicCase::Kvcached359, PYTORCH, 2, Some(75 * 2 * MIB)),
    completes(PublicCase::Kvcached359, EXPANDABLE, 0, Some(75 * 2 * MIB)),
    fails(PublicCase::Mlx3886, PYTORCH, None),
    fails(PublicCase::Mlx3886, EXPANDABLE, None),
    // No cached block is handed out if it is larger by more than 20 MiB: as many waits as there are frees, nearly.
    completes(PublicCase::Mlx3886, "pytorch:max_split_size_mb:20", 10_087, None),
    // The large segment twice, and 305 × 2 MiB of weights.
    fails(PublicCase::Pytorch35901, PYTORCH, Some(2 * 11_643_387_904 + 305 * 2 * MIB)),
    fails(PublicCase::Pytorch35901, EXPANDABLE, None),
    completes(PublicCase::Pytorch35901, "pytorch:max_split_size_mb:20", 18, None),
    fails(PublicCase::Pytorch96995, PYTORCH, None),
    completes(PublicCase::Pytorch96995, EXPANDABLE, 0, None),
    // The report's error was an assertion, repaired since.
    completes(PublicCase::Pytorch123548, "pytorch-expandable:max_split_size_mb:128", 0, None),
    completes(PublicCase::Pytorch172056, PYTORCH, 200, None),
    completes(PublicCase::Pytorch172056, EXPANDABLE, 0, None),
    // What the report says, to the MiB: 14,060 reserved in the last of 101 cycles.
    fails(PublicCase::Pytorch193400, "pytorch-expandable:max_split_size_mb:128", Some(14_060 * MIB)),
    fails(PublicCase::Pytorch193400, EXPANDABLE, Some(21 * 20 * MIB)),
    fails(PublicCase::Pytorch193400, PYTORCH, None),
    // The report's 256 and 140 MiB.
    completes(PublicCase::PytorchDevlog, PYTORCH, 8, Some(256 * MIB)),
    fails(PublicCase::PytorchDevlog, EXPANDABLE, Some(140 * MIB)),
    // Nothing fits into a segment of before: 2 × (1.0 + 1.1 + … + 2.0 GB), each rounded up to 2 MiB.
    completes(PublicCase::Rmm35, PYTORCH, 20, Some(33_017_561_088)),
    completes(PublicCase::Rmm35, EXPANDABLE, 0, Some(191 * 20 * MIB)),
    completes(PublicCase::Rmm1245, PYTORCH, 419, None),
    fails(PublicCase::Rmm1245, EXPANDABLE, None),
    // Two blocks of 8 MiB in each segment of 20 MiB, and one of 2 MiB for the first block.
    fails(PublicCase::Rmm1664, PYTORCH, Some(82 * MIB)),
    fails(PublicCase::Rmm1664, EXPANDABLE, None),
    completes(PublicCase::Rmm1957, PYTORCH, 1, Some(2 * GIB + 512 * MIB)),
    completes(PublicCase::Rmm1957, EXPANDABLE, 0, Some(103 * 20 * MIB)),
    // The weights of 270 MiB lie in segments of 530 MiB: 36 times 260 MiB are lost.
    fails(PublicCase::Vllm41268, PYTORCH, Some(36 * 1_060 * MIB)),
    fails(PublicCase::Vllm41268, EXPANDABLE, Some(36 * 1_060 * MIB)),
    // The report's remedy.
    completes(PublicCase::Vllm41268, "pytorch:max_split_size_mb:20", 0, None),
    // 1 GiB on each of 32 streams, where two would do, and 3,815 × 2 MiB of weights.
    completes(PublicCase::Vllm52950, PYTORCH, 126, Some(32 * GIB + 3_815 * 2 * MIB)),
    completes(PublicCase::Vllm52950, EXPANDABLE, 0, None),
    // The report's 10, 1 and 11.
    fails(PublicCase::Vpmm, PYTORCH, Some(22 * GIB)),
    completes(PublicCase::Vpmm, EXPANDABLE, 0, None),
    // The reports' own allocators: the driver's pool with small live blocks all over it, a pool whose parts do not join.
    fails(PublicCase::Rmm1245, "driver-pool", None),
    fails(PublicCase::Rmm35, "rmm-pool", None),
    fails(PublicCase::Rmm1664, "rmm-pool", None),
    fails(PublicCase::Rmm1957, "rmm-pool", None),
    // Page remapping has no trouble with its own example, nor has stitching with the case that it was made for.
    completes(PublicCase::Vpmm, "vpmm", 0, None),
    completes(PublicCase::Vllm41268, "gmlake", 0, None),
];

fn load(case: PublicCase) -> LoadedTrace {
    LoadedTrace::open(TraceFile::of_case(case).path()).expect("a bundled trace is readable")
}

fn run(trace: &LoadedTrace, allocator: AllocatorName, capacity: Capacity) -> Run {
    let device = DeviceSpec { capacity, ..DeviceSpec::default() };
    let case = Case { trace, allocator, policy: PolicyName::Lean, device: &device };
    case.run().expect("the device can be made")
}

/// Concertina, with every block looked at.
fn concertina(trace: &LoadedTrace, policy: PolicyName, capacity: Capacity, event_lag: u64) -> Outcome {
    let device = DeviceSpec { capacity, event_lag, ..DeviceSpec::default() };
    let case = Case { trace, allocator: AllocatorName::Concertina, policy, device: &device };
    let outcome = case.check().expect("the device can be made").outcome;
    assert_eq!(
        (&outcome.error, outcome.host_waits),
        (&None, 0),
        "{} ({policy}, {capacity}, lag {event_lag})",
        trace.name()
    );
    outcome
}

#[test]
fn concertina_completes_each_case_on_a_fiftieth_more_than_lives() {
    for case in PublicCase::ALL.iter().copied() {
        let trace = load(case);
        for policy in PolicyName::ALL {
            concertina(&trace, *policy, TIGHT, 0);
        }
    }
}

#[test]
fn concertina_completes_each_case_when_events_complete_late() {
    for case in PublicCase::ALL.iter().copied() {
        let trace = load(case);
        // Blocks of at most 8 pages come between pages whose old mappings are still in use, so that no two share a page,
        // and the part of a page that is left over in each comes to more than a fiftieth.
        let capacity = if case == PublicCase::Mlx3886 { Capacity::TimesLive(1.06) } else { TIGHT };
        for policy in PolicyName::ALL {
            concertina(&trace, *policy, capacity, 1_000);
        }
    }
}

#[test]
fn concertina_completes_each_case_on_the_device_of_the_report() {
    let mut demanded = 0;
    for case in PublicCase::ALL.iter().copied() {
        let trace = load(case);
        let Some(capacity) = trace.capacity_bytes() else { continue };
        demanded += 1;
        for policy in PolicyName::ALL {
            concertina(&trace, *policy, Capacity::Bytes(capacity), 0);
        }
    }
    assert_eq!(demanded, 6, "cases that say how large the device is");
}

#[test]
fn lean_maps_hardly_more_than_lives() {
    for case in PublicCase::ALL.iter().copied() {
        let outcome = concertina(&load(case), PolicyName::Lean, AMPLE, 0);
        // 157,286,400 bytes of 75 pages for 156,172,288 live ones are the most.
        let most = (outcome.live_peak_bytes as f64 * 1.008) as u64;
        assert!(outcome.mapped_peak_bytes <= most, "{case}: {}", outcome.mapped_over_live);
    }
}

#[test]
fn balanced_stays_within_its_slack() {
    for case in PublicCase::ALL.iter().copied() {
        let outcome = concertina(&load(case), PolicyName::Balanced, AMPLE, 0);
        assert!(outcome.mapped_over_live <= 1.055, "{case}: {}", outcome.mapped_over_live);
    }
}

#[test]
fn other_allocators_show_what_the_reports_say() {
    let mut wrong = Vec::new();
    for shown in SHOWN {
        let trace = load(shown.case);
        let allocator: AllocatorName = shown.allocator.parse().expect("an allocator");
        let outcome = run(&trace, allocator, TIGHT).outcome;
        assert!(!outcome.is_defect(), "{}, {}: {:?}", shown.case, shown.allocator, outcome.error);
        let tight = if outcome.completed {
            Tight::Completes { host_waits: outcome.host_waits }
        } else {
            Tight::OutOfMemory
        };
        let ample = run(&trace, allocator, AMPLE).outcome;
        assert_eq!(ample.error, None, "{}, {}", shown.case, shown.allocator);
        let ample = shown.ample_bytes.map(|_| ample.mapped_peak_bytes);
        if (tight, ample) != (shown.tight, shown.ample_bytes) {
            wrong.push(format!(
                "{}, {}: {tight:?} and {ample:?}, not {:?} and {:?}",
                shown.case, shown.allocator, shown.tight, shown.ample_bytes
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_page_tells_the_story_of_each() {
    let page = include_str!("../../docs/cases.md");
    for case in PublicCase::ALL {
        assert!(page.contains(&format!("\n## {case}\n")), "{case} has no story");
        assert!(page.contains(case.report()), "{case}'s report is not linked");
    }
}

#[test]
fn direct_shows_that_the_memory_is_there_for_a_wait_at_every_free() {
    for case in PublicCase::ALL.iter().copied() {
        let outcome = run(&load(case), AllocatorName::Direct, TIGHT).outcome;
        assert_eq!(outcome.error, None, "{case}");
        assert_eq!(outcome.host_waits, outcome.driver_calls["free"], "{case}");
    }
}

/// kvcached #359: 73 pages are held for 1,000 blocks, which would fit in 16. No block moves here, either.
#[test]
fn an_idle_server_holds_the_pages_that_its_kept_blocks_lie_in() {
    let trace = load(PublicCase::Kvcached359);
    let idle = |allocator: &str| {
        let run = run(&trace, allocator.parse().expect("an allocator"), AMPLE);
        assert_eq!(run.end.live_bytes, 1_000 * (32 << 10));
        run.end.counts.mapped_bytes / (2 * MIB)
    };
    assert_eq!(idle(PYTORCH), 73);
    let pages = idle("concertina");
    assert!((16..=74).contains(&pages), "{pages} pages");
}

/// PyTorch pull request 192269: 9/8 of a device of 192 GiB reserved for each stream on eight devices exhaust 128 TiB of
/// addresses. On one device with its eighth of them, that is the 76th stream.
#[test]
fn fixed_reservations_exhaust_the_addresses() {
    let device = Emulator::new(
        EmulatorConfig { address_space_bytes: 16 << 40, ..EmulatorConfig::default() }
            .with_capacity(192 * GIB)
            .expect("a capacity"),
    )
    .expect("a device");
    let mut allocator = Pytorch::new(device.clone(), PytorchConf::expandable()).expect("an allocator");
    let mut blocks = Vec::new();
    for stream in 0..75 {
        allocator.add_stream(device.stream());
        blocks.push(allocator.allocate(2 * MIB, stream).expect("addresses are left"));
    }
    allocator.add_stream(device.stream());
    assert!(allocator.allocate(2 * MIB, 75).is_err(), "addresses for 216 GiB more");
}
