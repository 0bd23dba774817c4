//! Every kind of event reaches the allocator, and the figures are those worked out by hand.

use concertina_emulator::{CostTable, Detection, Emulator, EmulatorConfig, EventCompletion, Race};
use concertina_vmm::Call;

use super::toy::{Defect, PAGE, Toy, load, small_device};
use super::{PROGRESS_EVENTS, Progress, Replay};
use crate::report::{AtLivePeak, FailureCause};
use crate::target::TargetError;
use crate::work::Workload;

#[test]
fn every_event_reaches_the_allocator_in_order() {
    let trace = load("i start\na 7 100 0\na 8 70000 9\nu 7 9\nw 9 0\ny 9\ny *\nf 7\ne\ni end\n");
    let emulator = small_device();
    let mut toy = Toy::new(&emulator, Defect::None);
    let report = Replay::new(&trace, &emulator).checked(512).run(&mut toy);
    let heard = [
        "a 100 0",
        "a 70000 1",
        "u page 0 1",
        "w 1 0",
        "y Some(1)",
        "y None",
        "f page 0",
        "e 1 of 1",
        "f page 1",
    ];
    assert_eq!(toy.heard, heard, "streams 0 and 9 are 0 and 1; the last free is the replay's own");
    assert!(report.completed() && report.cleanup_failure.is_none());
    assert_eq!(report.events, 10);
}

#[test]
fn every_event_but_a_mark_is_one_operation() {
    let late = EventCompletion::AfterOperations(3);
    let config = EmulatorConfig::default().with_granularity(PAGE).with_capacity(64 * PAGE).unwrap();
    let heard = |text: &str| {
        let emulator = Emulator::new(config.clone().with_event_completion(late)).unwrap();
        let mut toy = Toy::new(&emulator, Defect::None);
        assert!(Replay::new(&load(text), &emulator).run(&mut toy).completed());
        toy.heard.retain(|heard| heard.starts_with('e'));
        toy.heard
    };
    // The third operation after the `u` finds it done.
    assert_eq!(
        heard("a 1 1 0\nu 1 1\ni mark\ne\ni mark\ne\ni mark\ne\n"),
        ["e 0 of 1", "e 0 of 1", "e 1 of 1"]
    );
    // A wait of the host does so at once, if it is for this stream.
    assert_eq!(heard("a 1 1 0\nu 1 1\ny *\ne\n"), ["e 1 of 1"]);
    assert_eq!(heard("a 1 1 0\nu 1 1\ny 1\ne\n"), ["e 1 of 1"]);
    assert_eq!(heard("a 1 1 0\nu 1 1\ny 0\ne\n"), ["e 0 of 1"]);
}

#[test]
fn figures_are_taken_before_the_rest_is_freed() {
    // Pages: 1, then 2, then the 1 goes, then 3.
    let trace = load("i zero\na 1 100 0\ni one\na 2 65537 0\nf 1\ni two\na 1 196608 0\nu 1 3\n");
    let emulator = small_device();
    let mut toy = Toy::new(&emulator, Defect::None);
    let report = Replay::new(&trace, &emulator).run(&mut toy);
    assert!(report.completed());
    assert_eq!(report.events, 8);
    assert_eq!(report.live_peak_bytes, 65_537 + 196_608);
    assert_eq!(report.live_bytes, 65_537 + 196_608);
    assert_eq!(report.mapped_peak_bytes(), 5 * PAGE);
    assert_eq!(report.counts.mapped_bytes, 5 * PAGE);
    assert_eq!(report.address_peak_bytes, 6 * PAGE);
    assert_eq!(report.reserved_address_peak_bytes(), 1024 * PAGE);
    assert_eq!(report.counts.of(Call::Map), 6);
    assert_eq!(report.counts.of(Call::Unmap), 1, "those of the replay's own frees are not counted");
    assert_eq!((report.event_records(), report.device_waits(), report.host_waits()), (1, 0, 0));
    assert!(report.host_ns.is_some());
    // Allocations of 1, 2 and 3 pages at 28.5 + 3.3 + 60 microseconds each, for a create, a map and an access.
    let times = [0, 33, 34, 50, 66, 67, 100].map(|percent| report.latencies.percentile(percent));
    assert_eq!(times, [0, 91_800, 183_600, 183_600, 183_600, 275_400, 275_400]);
    assert_eq!((report.latencies.count(), report.latencies.longest()), (3, 275_400));
    // Live bytes reach their peak with the last allocation; the blocks are of whole pages.
    let at_live_peak = AtLivePeak { mapped_bytes: 5 * PAGE, block_bytes: Some(5 * PAGE) };
    assert_eq!(report.at_live_peak, Some(at_live_peak));
    assert_eq!(report.allocation_retries(), 0);
    // Running totals. A page costs create, map and access; its free an unmap and a release; the toy itself a reserve.
    let marks: Vec<_> = report
        .marks
        .iter()
        .map(|mark| (&*mark.label, mark.event, mark.live_bytes, mark.memory_calls()))
        .collect();
    assert_eq!(marks, [("zero", 0, 0, 1), ("one", 2, 100, 4), ("two", 5, 65_537, 12)]);
    assert_eq!(report.marks[2].mapped_bytes(), 2 * PAGE);
    // Everything went back, but for the toy's reservation.
    let left = emulator.leaks();
    assert_eq!((left.frames, left.mappings, left.reservations), (0, 0, 1));
    assert!(emulator.broken_rules().is_empty());
}

#[test]
fn out_of_memory_ends_the_replay_at_its_event() {
    // 64 pages; the second request needs one too many.
    let trace = load(&format!("a 1 {} 0\ni mark\na 2 {} 0\nf 1\n", 60 * PAGE, 5 * PAGE));
    let emulator = small_device();
    let report = Replay::new(&trace, &emulator).run(&mut Toy::new(&emulator, Defect::None));
    // The create of the fifth page was refused. What failed has no time, and the trace's peak was not reached.
    assert_eq!((report.allocation_retries(), report.latencies.count(), report.at_live_peak), (1, 1, None));
    let failure = report.failure.expect("5 pages do not fit");
    assert!(failure.cause.is_out_of_memory());
    assert_eq!((failure.event, failure.line), (2, 4));
    assert_eq!(report.events, 2);
    assert_eq!(report.live_peak_bytes, 60 * PAGE);
    let text = failure.to_string();
    assert!(text.starts_with("event 2 (line 4): out of memory: create failed: out of memory"), "{text}");
}

#[test]
fn a_failing_allocator_is_not_out_of_memory() {
    let trace = load("a 1 1 0\na 2 1 0\nf 1\nf 2\n");
    let emulator = small_device();
    let report = Replay::new(&trace, &emulator).run(&mut Toy::new(&emulator, Defect::Refuses));
    let failure = report.failure.expect("it refuses");
    assert_eq!(failure.event, 1);
    assert!(matches!(failure.cause, FailureCause::Target(TargetError::Failed(_))));
    assert!(!failure.cause.is_out_of_memory());

    let emulator = small_device();
    let report = Replay::new(&trace, &emulator).run(&mut Toy::new(&emulator, Defect::KeepsBlock));
    assert_eq!(report.failure.expect("it keeps the block").event, 3);

    let trace = load("a 1 1 0\na 2 1 0\n");
    let emulator = small_device();
    let report = Replay::new(&trace, &emulator).run(&mut Toy::new(&emulator, Defect::KeepsBlock));
    assert!(report.completed() && report.cleanup_failure.is_some());
}

#[test]
fn progress_adds_up() {
    struct Sum(Vec<usize>);
    impl Progress for Sum {
        fn advanced(&mut self, events: usize) {
            self.0.push(events);
        }
    }
    let trace = load(&"a 1 1 0\nf 1\n".repeat(500));
    let long = load(&"e\n".repeat(PROGRESS_EVENTS + 3));
    for (trace, expected) in [(trace, vec![1_000]), (long, vec![PROGRESS_EVENTS, 3])] {
        let emulator = small_device();
        let mut sum = Sum(Vec::new());
        Replay::new(&trace, &emulator).run_with_progress(&mut Toy::new(&emulator, Defect::None), &mut sum);
        assert_eq!(sum.0, expected);
    }
}

/// A small device by the clock on which driver calls take no time.
fn by_the_clock(detection: Detection) -> Emulator {
    let config = EmulatorConfig::default()
        .with_event_completion(EventCompletion::ByClock)
        .with_detection(detection)
        .with_cost_table(CostTable::free_of_charge())
        .with_granularity(PAGE);
    Emulator::new(config.with_capacity(64 * PAGE).unwrap()).unwrap()
}

/// What the device took for a trace, and what raced on it.
fn worked(text: &str, seed: u64) -> (u64, Vec<Race>) {
    let trace = load(text);
    let [ns, unwatched] = [Detection::On, Detection::Off].map(|detection| {
        let emulator = by_the_clock(detection);
        let workload = Workload { emulator: &emulator, seed };
        let replay = Replay::new(&trace, &emulator).with_work(workload);
        let report = replay.run(&mut Toy::new(&emulator, Defect::None));
        assert!(report.completed(), "{:?}", report.failure);
        (report.device_ns.unwrap(), emulator.races())
    });
    assert_eq!((ns.0, &unwatched.1), (unwatched.0, &Vec::new()), "the detector takes no time of the device");
    ns
}

#[test]
fn work_takes_the_time_of_its_kernels_and_waits() {
    // The toy unmaps at the free: not before the host has waited.
    let (one, races) = worked("a 1 100 0\ny *\n", 5);
    assert!((2_000..200_000).contains(&one), "{one}");
    assert_eq!(races, []);
    assert_ne!(one, worked("a 1 100 0\ny *\n", 6).0, "another seed, another duration");
    let (two, _) = worked("a 1 100 0\na 2 100 0\ny *\n", 5);
    let (apart, _) = worked("a 1 100 0\na 2 100 1\ny *\n", 5);
    assert!(two > one && apart < two && apart >= two - one, "{one}, {two}, {apart}");
    let (behind, _) = worked("a 1 100 0\nw 1 0\na 2 100 1\ny *\n", 5);
    assert_eq!(behind, two, "the second stream waits for the first");
    let (hosted, _) = worked("a 1 100 0\ny 0\na 2 100 1\ny *\n", 5);
    assert_eq!(hosted, two, "the host waits for the first stream");
}

#[test]
fn a_host_is_a_thousand_kernels_ahead_and_no_more() {
    let text = |events: usize| (0..events).map(|id| format!("a {id} 1 0\nf {id}\n")).collect::<String>();
    for (blocks, most_ahead) in [(500, 1_000), (1_000, 1_000)] {
        let emulator = by_the_clock(Detection::Off);
        let workload = Workload { emulator: &emulator, seed: 1 };
        let report = Replay::new(&load(&text(blocks)), &emulator)
            .with_work(workload)
            .run(&mut Toy::new(&emulator, Defect::None));
        assert!(report.completed());
        let clock = emulator.clock();
        assert_eq!(clock.host_ns == 0, blocks * 2 <= most_ahead, "{clock:?}");
        assert!(clock.host_ns < clock.device_ns);
    }
}

#[test]
fn what_the_toy_gets_wrong_about_streams_is_found() {
    // It unmaps at the free, whatever is queued.
    let (_, races) = worked("a 1 100 0\nf 1\n", 1);
    assert!(races.iter().all(|race| matches!(race, Race::Unmapped { .. })) && !races.is_empty(), "{races:?}");
    let text = races[0].to_string();
    assert!(text.contains("the block of line 2") && text.contains("`read`"), "{text}");
    // The program's own fault: nothing orders the use on stream 1.
    let (_, races) = worked("a 1 100 0\nu 1 1\n", 1);
    assert!(matches!(races[0], Race::Unordered { .. }), "{races:?}");
    assert_eq!(worked("a 1 100 0\nw 1 0\nu 1 1\ny *\n", 1).1, []);
}
