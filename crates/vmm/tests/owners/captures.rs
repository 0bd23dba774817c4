//! Fences while streams capture: which calls are made, counted by hand.
//!
//! Main types: none. Neighbours: `fences` has the streams that don't.

use std::sync::Arc;

use concertina_emulator::{EmulatedStream, Emulator, EmulatorConfig, EventCompletion};
use concertina_vmm::{
    BeginCapture, CaptureStatus, CrossStream, Device, DriverErrorKind, FenceCounts, Fences, FrameProperties,
    StreamClock,
};

struct Bench {
    emulator: Emulator,
    fences: Fences<Emulator>,
    streams: Vec<(Arc<StreamClock>, EmulatedStream)>,
}

impl Bench {
    fn new() -> Self {
        let config = EmulatorConfig::default().with_event_completion(EventCompletion::ByHand);
        let emulator = Emulator::new(config).unwrap();
        let device = Device::new(emulator.clone(), FrameProperties::default()).unwrap();
        let fences = Fences::new(&device);
        let streams = (0..3)
            .map(|_| emulator.stream())
            .map(|stream| (fences.register(stream.clone(), CrossStream::DeviceWait), stream))
            .collect();
        Self { emulator, fences, streams }
    }

    fn set(&self, stream: usize, status: CaptureStatus) {
        self.emulator.set_capture_status(&self.streams[stream].1, status);
    }

    fn clock(&self, stream: usize) -> &StreamClock {
        &self.streams[stream].0
    }

    fn counts(&self) -> (u64, u64, u64) {
        let FenceCounts { records, waits, host_waits } = self.fences.counts();
        (records, waits, host_waits)
    }
}

#[test]
fn a_capture_hides_what_comes_after_its_begin() {
    let bench = Bench::new();
    let (capturing, other) = (bench.clock(0).stream(), bench.clock(1).stream());
    let before = bench.clock(0).now();
    assert_eq!(bench.fences.begin_capture(capturing).unwrap(), BeginCapture::Begun);
    assert_eq!(bench.counts(), (1, 0, 0), "one event for what was before");
    bench.set(0, CaptureStatus::Active);
    let inside = bench.clock(0).now();
    assert_eq!(bench.fences.that_runs(inside), before);

    bench.fences.cover(inside).unwrap();
    bench.fences.poll(capturing).unwrap();
    assert_eq!(bench.counts(), (1, 0, 0));
    // Others may wait for what was before, by themselves; not for what is in it.
    assert_eq!(bench.fences.wait(other, &[inside]).unwrap_err().kind, DriverErrorKind::NotReady);
    assert_eq!(bench.fences.host_wait_for(inside).unwrap_err().kind, DriverErrorKind::NotReady);
    assert!(bench.fences.can_wait_for(before) && !bench.fences.can_wait_for(inside));
    bench.fences.wait(other, &[before]).unwrap();
    assert_eq!(bench.counts(), (1, 1, 0));
    // The host may say what it likes: what is captured does not run.
    bench.fences.note_synchronized(capturing);
    assert!(!bench.fences.is_done(inside));

    bench.set(0, CaptureStatus::None);
    assert!(bench.fences.end_capture(capturing).unwrap());
    bench.fences.wait(other, &[inside]).unwrap();
    assert_eq!(bench.counts(), (2, 2, 0));
    assert_eq!(bench.emulator.broken_rules(), Vec::new());
}

#[test]
fn a_capturing_stream_takes_what_is_done_and_waits_for_nothing() {
    let bench = Bench::new();
    let (capturing, own, late) = (bench.clock(0).stream(), bench.clock(0).now(), bench.clock(1).now());
    let done = bench.clock(2).now();
    bench.fences.host_wait_for(done).unwrap();
    // It comes after this one, which means nothing for a graph.
    bench.fences.wait(capturing, &[late]).unwrap();
    let takes =
        || bench.fences.with_order(capturing, |order| [own, late, done].map(|use_| order.may_take(use_)));
    assert_eq!(takes(), [true; 3]);
    bench.fences.begin_capture(capturing).unwrap();
    assert_eq!(takes(), [false, false, true]);
    assert_eq!(bench.fences.wait(capturing, &[late]).unwrap_err().kind, DriverErrorKind::NotReady);
    bench.fences.wait(capturing, &[done]).unwrap();
    assert!(!bench.fences.with_order(capturing, |order| order.may_follow(late)));
    bench.fences.end_capture(capturing).unwrap();
    assert_eq!(takes(), [true; 3], "it still comes after the late one");
}

#[test]
fn waits_between_capturing_streams_are_forgotten_at_the_end() {
    let bench = Bench::new();
    let [first, second, outside] = [0, 1, 2].map(|stream| bench.clock(stream).stream());
    bench.fences.begin_capture(first).unwrap();
    bench.fences.begin_capture(second).unwrap();
    let use_ = bench.clock(0).now();
    bench.fences.note_wait(second, first);
    bench.fences.note_wait(outside, first);
    assert!(bench.fences.is_ordered(second, use_));
    assert!(!bench.fences.is_ordered(outside, use_), "that would have joined the capture");
    bench.fences.end_capture(second).unwrap();
    assert!(!bench.fences.is_ordered(second, use_));
}

#[test]
fn a_capture_that_goes_on_is_asked_about_before_each_event() {
    let bench = Bench::new();
    let stream = bench.clock(0).stream();
    bench.set(0, CaptureStatus::Active);
    assert_eq!(bench.fences.begin_capture(stream).unwrap(), BeginCapture::Begun);
    assert_eq!(bench.counts(), (0, 0, 0), "it captures already: no event");
    assert_eq!(bench.fences.begin_capture(stream).unwrap(), BeginCapture::Twice);
    assert!(!bench.fences.end_capture(stream).unwrap());
    bench.fences.cover(bench.clock(0).now()).unwrap();
    assert_eq!(bench.counts(), (0, 0, 0));
    bench.set(0, CaptureStatus::None);
    bench.fences.cover(bench.clock(0).now()).unwrap();
    assert_eq!(bench.counts(), (1, 0, 0));
    assert!(!bench.fences.captures(stream));
    bench.set(0, CaptureStatus::Invalidated);
    assert_eq!(bench.fences.begin_capture(stream).unwrap(), BeginCapture::Broken);
}
