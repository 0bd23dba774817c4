//! Slots, streams, peaks and line numbers of loaded traces.

use super::{LoadedTrace, Mark, Peak, Step};
use crate::event::Event;
use crate::mistake::Mistake;
use crate::reader::{Trace, TraceReader};

fn load(text: &str) -> LoadedTrace {
    LoadedTrace::read(TraceReader::new(text.as_bytes(), "folder/test.trace.zst").unwrap()).unwrap()
}

#[test]
fn steps_carry_slots_and_numbered_streams() {
    let trace = load(
        "alloc-trace 1\n# capacity: 64\na 50 10 7\na 60 20 3\nu 50 900\nf 50\ni mark\na 70 5 7\nw 900 3\ny *\ny 3\ne\n",
    );
    let steps = [
        Step::Allocate { slot: 0, stream: 2, bytes: 10 },
        Step::Allocate { slot: 1, stream: 1, bytes: 20 },
        Step::RecordStream { slot: 0, stream: 3 },
        Step::Free { slot: 0 },
        Step::Mark { number: 0 },
        Step::Allocate { slot: 0, stream: 2, bytes: 5 },
        Step::StreamWait { stream: 3, on: 1 },
        Step::Synchronize { stream: None },
        Step::Synchronize { stream: Some(1) },
        Step::ReleaseCached,
    ];
    assert_eq!(trace.steps(), steps);
    assert_eq!(trace.streams(), [0, 3, 7, 900]);
    assert_eq!(trace.slot_count(), 2);
    assert_eq!(trace.live_peak(), Peak { bytes: 30, event: 1 });
    assert_eq!(trace.marks(), [Mark { label: "mark".into(), event: 4 }]);
    assert_eq!(trace.line_of(4), 7);
    assert_eq!(trace.capacity_bytes(), Some(64));
    assert_eq!(trace.name(), "test");
}

#[test]
fn an_empty_trace_has_the_default_stream_and_nothing_else() {
    let trace = load("alloc-trace 1\n# name: nothing\n");
    assert_eq!(trace.steps(), []);
    assert_eq!(trace.streams(), [0]);
    assert_eq!(trace.live_peak(), Peak::default());
    assert_eq!(trace.name(), "nothing");
}

#[test]
fn a_trace_from_memory_is_checked_like_a_file() {
    let mut trace = Trace::default();
    trace.header.push("name", "made").unwrap();
    trace.events = vec![Event::ReleaseCached, Event::Free { id: 1 }];
    let error = LoadedTrace::from_trace(&trace).unwrap_err();
    assert!(matches!(error.mistake(), Some(Mistake::NotLive { id: 1, .. })), "{error}");
    assert_eq!((&*error.file, error.line), ("made", Some(4)));
    trace.events = vec![Event::Allocate { id: 1, bytes: 0, stream: 0 }];
    assert!(LoadedTrace::from_trace(&trace).is_err());
}

#[test]
fn to_the_peak_and_one_request_more() {
    // 10 bytes, 30 at the third event, 25 at the end.
    let trace = load("alloc-trace 1\na 1 10 0\ni here\na 2 20 7\nf 1\ni there\na 1 5 0\n");
    assert_eq!(trace.live_peak(), Peak { bytes: 30, event: 2 });
    let more = trace.to_peak_and(100);
    let request = Step::Allocate { slot: 2, stream: 1, bytes: 100 };
    assert_eq!(more.steps(), [&trace.steps()[..3], &[request]].concat());
    assert_eq!((more.slot_count(), more.live_peak()), (3, Peak { bytes: 130, event: 3 }));
    assert_eq!(more.marks().iter().map(|mark| &*mark.label).collect::<Vec<_>>(), ["here"]);
    assert_eq!(more.streams(), [0, 7]);

    let empty = load("alloc-trace 1\ni nothing\n").to_peak_and(1);
    assert_eq!(empty.steps(), [Step::Allocate { slot: 0, stream: 0, bytes: 1 }]);
    assert_eq!((empty.marks().len(), empty.live_peak()), (0, Peak { bytes: 1, event: 0 }));
}
