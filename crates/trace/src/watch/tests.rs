//! Samples against a loop over the trace, and against a replay in which every event is sampled.
//! Neighbours: `replay/toy` is the allocator; `picture/tests` looks at pictures.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::{Observation, Sample, Watch};
use crate::loaded::LoadedTrace;
use crate::replay::Replay;
use crate::replay::toy::{Defect, PAGE, Toy, load, small_device};
use crate::report::ReplayReport;

fn watched(trace: &LoadedTrace, watch: &Watch, defect: Defect) -> ReplayReport {
    let device = small_device();
    let mut toy = Toy::new(&device, defect);
    Replay::new(trace, &device).watched(watch).run(&mut toy)
}

fn observed(trace: &LoadedTrace, watch: &Watch) -> Observation {
    watched(trace, watch, Defect::None).observation.expect("somebody watched")
}

#[test]
fn each_window_gives_its_lowest_and_its_highest_and_marks_come_too() {
    // Live after each event, in pages: 1, 3, 2, 2 (a mark), 6 | 4, 4 (a wait), 0, 1, 0.
    let pages = |pages: u64| pages * PAGE;
    let (one, two, four) = (pages(1), pages(2), pages(4));
    let trace = load(&format!(
        "a 1 {one} 0\na 2 {two} 0\nf 1\ni half\na 3 {four} 0\nf 2\nw 1 0\nf 3\na 4 {one} 0\nf 4\n"
    ));
    let watch = Watch::evenly(&trace, 2);
    assert_eq!(watch.events(), [0, 3, 4, 5, 7, 9]);
    let samples = observed(&trace, &watch).samples;
    let seen: Vec<_> = samples.iter().map(|sample| (sample.event, sample.live_bytes / PAGE)).collect();
    // The toy gives a page back at its free, so live is mapped, and event 8 (one page) lies above 7 and 9.
    assert_eq!(seen, [(0, 1), (1, 3), (3, 2), (4, 6), (5, 4), (7, 0), (8, 1), (9, 0)]);
    assert!(samples.iter().all(|sample| sample.mapped_bytes == sample.live_bytes));
    assert!(samples.iter().all(|sample| sample.reserved_bytes == 1024 * PAGE));
}

#[test]
fn a_replay_that_stops_ends_its_samples_there_and_shows_what_it_left() {
    let trace = load(&format!("a 1 {PAGE} 0\nw 1 0\na 2 {PAGE} 0\nf 1\nf 2\n"));
    let watch = Watch::evenly(&trace, 1).with_picture(3);
    let report = watched(&trace, &watch, Defect::Refuses);
    assert_eq!((report.events, report.host_ns), (2, None));
    let observation = report.observation.expect("somebody watched");
    let end = Sample { event: 1, live_bytes: PAGE, mapped_bytes: PAGE, reserved_bytes: 1024 * PAGE };
    assert_eq!(observation.samples.last(), Some(&end));
    let picture = observation.picture.expect("of the end");
    assert_eq!((picture.event, picture.live_bytes(), picture.mapped_bytes), (1, PAGE, PAGE));
}

#[test]
fn a_replay_that_fails_at_once_has_no_samples() {
    let trace = load(&format!("a 1 {} 0\nf 1\n", 65 * PAGE));
    let report = watched(&trace, &Watch::evenly(&trace, 3).with_picture(0), Defect::None);
    let observation = report.observation.expect("somebody watched");
    assert_eq!((report.events, observation.samples), (0, Vec::new()));
    assert!(observation.picture.expect("of the end").blocks().is_empty());
    let nothing = load("");
    assert!(Watch::evenly(&nothing, 3).events().is_empty());
    assert_eq!(observed(&nothing, &Watch::evenly(&nothing, 3).with_picture(0)).samples, []);
}

/// A trace by dice: allocations of 1 to 3 pages, frees of a live block, marks.
fn traces() -> impl Strategy<Value = String> {
    prop::collection::vec((0..8_u8, 1..4_u64, any::<prop::sample::Index>()), 0..60).prop_map(|dice| {
        let (mut text, mut live) = (String::new(), Vec::new());
        for (id, (kind, pages, which)) in dice.into_iter().enumerate() {
            match kind {
                0 => writeln!(text, "i mark {id}"),
                1..=4 if live.len() < 20 => {
                    live.push(id);
                    writeln!(text, "a {id} {} {}", pages * PAGE - 7, id % 3)
                }
                _ if !live.is_empty() => writeln!(text, "f {}", live.swap_remove(which.index(live.len()))),
                _ => writeln!(text, "y *"),
            }
            .expect("a string takes it");
        }
        text
    })
}

proptest! {
    #[test]
    fn few_samples_tell_the_same_peaks_as_all(text in traces(), windows in 1..12_usize) {
        let trace = load(&text);
        let events = trace.steps().len();
        let all = observed(&trace, &Watch::evenly(&trace, events)).samples;
        // Windows of one event: all of them.
        prop_assert_eq!(all.iter().map(|sample| sample.event).collect::<Vec<_>>(), (0..events).collect::<Vec<_>>());
        let watch = Watch::evenly(&trace, windows);
        let some = observed(&trace, &watch).samples;
        prop_assert!(watch.events().len() <= 2 * windows + trace.marks().len() + 1);
        for event in watch.events() {
            prop_assert!(some.contains(&all[*event]), "event {} in {:?}", event, some);
        }
        prop_assert!(some.is_sorted_by(|a, b| a.event < b.event));
        prop_assert!(some.iter().all(|sample| all[sample.event] == *sample));
        let most = |samples: &[Sample], of: fn(&Sample) -> u64| samples.iter().map(of).max();
        prop_assert_eq!(most(&some, |s| s.live_bytes), most(&all, |s| s.live_bytes));
        prop_assert_eq!(most(&some, |s| s.mapped_bytes), most(&all, |s| s.mapped_bytes));
        prop_assert_eq!(most(&all, |s| s.live_bytes).unwrap_or(0), trace.live_peak().bytes);
    }
}
