//! Fences: counts worked out by hand, the race that the order of their steps rules out, and random programs against a
//! model.
//!
//! Main types: [`Fixture`], [`Step`]. Neighbours: `fence_model` is the model, `recorder` sees which calls are made.

use std::sync::{Arc, Mutex};

use concertina_emulator::{CallFilter, Emulator, EmulatorConfig, EventCompletion, Fault};
use concertina_vmm::{
    Call, CrossStream, Device, Driver, DriverErrorKind, FenceCounts, Fences, FrameProperties, StreamClock,
    StreamId, Use,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::fence_model::{History, Model, ModelUse};
use crate::recorder::{EventCall, NumberedStream, Record, Recorder};

const REFUSED: DriverErrorKind = DriverErrorKind::NotReady;

/// Fences over a watched emulator.
struct Fixture {
    emulator: Emulator,
    recorder: Recorder,
    fences: Fences<Recorder>,
    streams: Vec<NumberedStream>,
    clocks: Vec<Arc<StreamClock>>,
}

impl Fixture {
    fn new(completion: EventCompletion, streams: usize) -> Self {
        let emulator = Emulator::new(EmulatorConfig::default().with_event_completion(completion)).unwrap();
        let recorder = Recorder::new(&emulator);
        let device = Device::new(recorder.clone(), FrameProperties::default()).unwrap();
        let fences = Fences::new(&device);
        let mut fixture = Self { emulator, recorder, fences, streams: Vec::new(), clocks: Vec::new() };
        (0..streams).for_each(|_| fixture.register());
        fixture
    }

    fn register(&mut self) {
        let stream = self.recorder.stream();
        self.streams.push(stream.clone());
        self.clocks.push(self.fences.register(stream, CrossStream::DeviceWait));
    }

    fn id(&self, stream: usize) -> StreamId {
        self.clocks[stream].stream()
    }

    /// A use that ends now.
    fn use_on(&self, stream: usize) -> Use {
        self.clocks[stream].now()
    }

    fn complete(&self, stream: usize) {
        self.emulator.complete_stream(&self.streams[stream].stream);
    }

    fn counts(&self) -> (u64, u64, u64) {
        let FenceCounts { records, waits, host_waits } = self.fences.counts();
        (records, waits, host_waits)
    }
}

// --- worked out by hand -------------------------------------------------------------------------------------------------

#[test]
fn any_number_of_frees_costs_one_event() {
    let fixture = Fixture::new(EventCompletion::ByHand, 2);
    let uses: Vec<Use> = (0..1_000).map(|_| fixture.use_on(0)).collect();
    assert_eq!(fixture.recorder.take_calls(), [], "a free asks nothing of the driver");
    uses.iter().for_each(|use_| fixture.fences.cover(*use_).unwrap());
    assert_eq!(fixture.recorder.take_calls(), [EventCall::Create, EventCall::Record(0)]);
    // One use more is not covered by that event.
    fixture.fences.cover(fixture.use_on(0)).unwrap();
    assert_eq!(fixture.counts(), (2, 0, 0));
    fixture.complete(0);
    fixture.fences.poll(fixture.id(0)).unwrap();
    assert!(uses.iter().all(|use_| fixture.fences.is_done(*use_)));
    // Both events were seen done, and serve again.
    fixture.recorder.take_calls();
    fixture.fences.cover(fixture.use_on(0)).unwrap();
    assert_eq!(fixture.recorder.take_calls(), [EventCall::Record(0)]);
}

#[test]
fn a_wait_takes_the_earliest_event_that_covers_the_use() {
    let fixture = Fixture::new(EventCompletion::ByHand, 2);
    let uses: Vec<Use> = (0..3)
        .map(|_| {
            let use_ = fixture.use_on(0);
            fixture.fences.cover(use_).unwrap();
            use_
        })
        .collect();
    fixture.recorder.take_calls();
    let waits = |nth| [EventCall::Wait { waiter: 1, on: Record { stream: 0, nth } }];
    fixture.fences.wait(fixture.id(1), &uses[1..2]).unwrap();
    assert_eq!(fixture.recorder.take_calls(), waits(1));
    // Who comes after the second use comes after the first.
    fixture.fences.wait(fixture.id(1), &uses[..2]).unwrap();
    assert_eq!(fixture.recorder.take_calls(), []);
    fixture.fences.wait(fixture.id(1), &uses).unwrap();
    assert_eq!(fixture.recorder.take_calls(), waits(2));
    assert_eq!(fixture.counts(), (3, 2, 0));
}

#[test]
fn nothing_is_waited_for_twice_nor_on_the_own_stream() {
    let fixture = Fixture::new(EventCompletion::ByHand, 3);
    let (own, other) = (fixture.use_on(0), fixture.use_on(1));
    for _ in 0..3 {
        fixture.fences.wait(fixture.id(0), &[own, other]).unwrap();
        assert_eq!(fixture.counts(), (1, 1, 0));
        assert!(fixture.fences.is_ordered(fixture.id(0), other));
        assert!(!fixture.fences.is_done(other), "ordered on the device, not done");
    }
    // A third stream knows nothing of it, but needs no event of its own.
    assert!(!fixture.fences.is_ordered(fixture.id(2), other));
    fixture.fences.wait(fixture.id(2), &[other]).unwrap();
    assert_eq!(fixture.counts(), (1, 2, 0));
    // Nor does anybody once it is seen done.
    let late = fixture.use_on(1);
    fixture.fences.cover(late).unwrap();
    fixture.complete(1);
    fixture.fences.poll(fixture.id(1)).unwrap();
    fixture.fences.wait(fixture.id(0), &[late]).unwrap();
    assert_eq!(fixture.counts(), (2, 2, 0));
}

#[test]
fn what_the_program_tells_costs_nothing() {
    let fixture = Fixture::new(EventCompletion::ByHand, 2);
    let before = fixture.use_on(1);
    fixture.fences.note_wait(fixture.id(0), fixture.id(1));
    let after = fixture.use_on(1);
    assert!(fixture.fences.is_ordered(fixture.id(0), before));
    assert!(!fixture.fences.is_ordered(fixture.id(0), after), "only what was queued so far");
    assert!(!fixture.fences.is_ordered(fixture.id(1), fixture.use_on(0)), "only in one direction");
    fixture.fences.note_synchronized(fixture.id(1));
    let later = fixture.use_on(1);
    assert!(fixture.fences.is_done(before) && fixture.fences.is_done(after));
    assert!(!fixture.fences.is_done(later));
    assert_eq!(fixture.recorder.take_calls(), []);
    assert_eq!(fixture.counts(), (0, 0, 0));
}

/// The program waits for a stream and tells it a moment later. In between, another thread's request makes that stream wait for
/// a third one: what is behind that was not waited for.
#[test]
fn what_is_told_does_not_hold_behind_an_unasked_wait() {
    let fixture = Fixture::new(EventCompletion::ByHand, 3);
    let (home, reader, other) = (fixture.id(0), fixture.id(1), fixture.id(2));
    let (early, used) = (fixture.use_on(0), fixture.use_on(1));
    // The program's own wait for `home` ends here.
    fixture.fences.wait_unasked(home, &[used]).unwrap();
    let behind = fixture.use_on(0);
    fixture.fences.note_wait(other, home);
    assert!(fixture.fences.is_ordered(other, early) && !fixture.fences.is_ordered(other, behind));
    fixture.fences.note_synchronized(home);
    assert!(fixture.fences.is_done(early) && !fixture.fences.is_done(behind));
    // However often it is told.
    fixture.fences.note_synchronized(home);
    assert!(!fixture.fences.is_done(behind) && !fixture.fences.is_done(used));
    // Until what `home` waits for is done: a program that waited for it sees to that.
    fixture.complete(1);
    fixture.fences.note_synchronized(home);
    assert!(fixture.fences.is_done(behind) && fixture.fences.is_done(used));
    // A wait that was made already is not unasked.
    fixture.fences.note_wait(home, reader);
    fixture.fences.wait_unasked(home, &[used]).unwrap();
    let last = fixture.use_on(0);
    fixture.fences.note_synchronized(home);
    assert!(fixture.fences.is_done(last));
}

#[test]
fn an_unasked_wait_that_failed_takes_nothing_from_what_is_told() {
    for (call, recorded) in [(Call::EventRecord, 0), (Call::StreamWait, 1)] {
        let fixture = Fixture::new(EventCompletion::ByHand, 3);
        let home = fixture.id(0);
        let uses = [fixture.use_on(1), fixture.use_on(2)];
        fixture.emulator.fail(Fault::once(call, 1, REFUSED));
        assert_eq!(fixture.fences.wait_unasked(home, &uses[..1]).unwrap_err().call, call);
        assert_eq!(fixture.counts(), (recorded, 0, 0));
        let behind = fixture.use_on(0);
        fixture.fences.note_synchronized(home);
        assert!(fixture.fences.is_done(behind) && !fixture.fences.is_done(uses[0]), "{call}");
        // Of two, the first was put in: it holds, the other does not.
        fixture.emulator.fail(Fault::once(Call::StreamWait, 2, REFUSED));
        assert!(fixture.fences.wait_unasked(home, &uses).is_err());
        let behind = fixture.use_on(0);
        fixture.fences.note_synchronized(home);
        assert!(!fixture.fences.is_done(behind), "{call}");
        fixture.complete(1);
        fixture.fences.note_synchronized(home);
        assert!(fixture.fences.is_done(behind) && !fixture.fences.is_done(uses[1]), "{call}");
    }
}

#[test]
fn the_host_waits_only_for_what_is_not_done() {
    let fixture = Fixture::new(EventCompletion::ByHand, 1);
    let use_ = fixture.use_on(0);
    fixture.fences.host_wait(fixture.id(0)).unwrap();
    assert!(fixture.fences.is_done(use_));
    assert_eq!(fixture.counts(), (1, 0, 1));
    assert_eq!(fixture.emulator.counts().host_waits, 1);

    let fixture = Fixture::new(EventCompletion::AtOnce, 1);
    fixture.fences.host_wait(fixture.id(0)).unwrap();
    assert_eq!(fixture.counts(), (1, 0, 0));
    assert_eq!(fixture.emulator.counts().of(Call::EventSynchronize), 0);
}

#[test]
fn a_stream_is_forgotten_when_its_last_use_is_seen_done() {
    let fixture = Fixture::new(EventCompletion::ByHand, 2);
    let use_ = fixture.use_on(0);
    fixture.fences.cover(use_).unwrap();
    // One event behind all of it, once.
    fixture.fences.leave(fixture.id(0)).unwrap();
    fixture.fences.leave(fixture.id(0)).unwrap();
    assert_eq!(fixture.counts(), (2, 0, 0));
    fixture.fences.forget(fixture.id(0));
    fixture.fences.poll_leaving().unwrap();
    assert!(!fixture.fences.is_done(use_), "its work may still run");
    assert_eq!(fixture.fences.streams().len(), 2);

    fixture.complete(0);
    fixture.fences.poll_leaving().unwrap();
    assert_eq!(fixture.fences.streams(), [fixture.id(1)]);
    assert_eq!(fixture.fences.now(fixture.id(0)), None);
    fixture.fences.forget(fixture.id(0));
    fixture.recorder.take_calls();
    assert!(fixture.fences.is_done(use_) && fixture.fences.is_ordered(fixture.id(1), use_));
    fixture.fences.cover(use_).unwrap();
    fixture.fences.wait(fixture.id(1), &[use_]).unwrap();
    fixture.fences.wait(fixture.id(0), &[fixture.use_on(1)]).unwrap();
    fixture.fences.poll(fixture.id(0)).unwrap();
    fixture.fences.host_wait(fixture.id(0)).unwrap();
    fixture.fences.note_wait(fixture.id(1), fixture.id(0));
    fixture.fences.note_synchronized(fixture.id(0));
    fixture.fences.leave(fixture.id(0)).unwrap();
    assert_eq!(fixture.recorder.take_calls(), []);
    // A number is never given twice.
    let clock = fixture.fences.register(fixture.recorder.stream(), CrossStream::DeviceWait);
    assert_eq!(clock.stream(), StreamId::new(2));
    let Fixture { emulator, fences, .. } = fixture;
    drop(fences);
    assert_eq!(emulator.leaks().events, 0, "events are destroyed with the fences");
}

/// A free that comes between the end of a tick and the record of its event: the event may have been recorded before the
/// work that the free follows, so it must not cover it.
#[test]
fn a_free_during_the_record_is_not_covered_by_it() {
    let fixture = Fixture::new(EventCompletion::ByHand, 2);
    let before = fixture.use_on(0);
    let between = Arc::new(Mutex::new(None));
    let (clock, note) = (Arc::clone(&fixture.clocks[0]), Arc::clone(&between));
    fixture.recorder.during_next_record(move || *note.lock().unwrap() = Some(clock.now()));
    fixture.fences.cover(before).unwrap();
    let between = between.lock().unwrap().expect("the hook ran");
    fixture.complete(0);
    fixture.fences.poll(fixture.id(0)).unwrap();
    assert!(fixture.fences.is_done(before));
    assert!(!fixture.fences.is_done(between));
    // It needs an event of its own.
    fixture.fences.wait(fixture.id(1), &[between]).unwrap();
    assert_eq!(fixture.counts(), (2, 1, 0));
}

#[test]
fn a_failed_record_is_made_up_for() {
    for call in [Call::EventCreate, Call::EventRecord] {
        let fixture = Fixture::new(EventCompletion::AtOnce, 2);
        let use_ = fixture.use_on(0);
        fixture.emulator.fail(Fault::once(call, 1, REFUSED));
        assert_eq!(fixture.fences.cover(use_).unwrap_err().call, call);
        assert_eq!(fixture.counts(), (0, 0, 0));
        let created = fixture.emulator.leaks().events;
        fixture.fences.poll(fixture.id(0)).unwrap();
        assert!(!fixture.fences.is_done(use_), "no event covers it");
        fixture.fences.cover(use_).unwrap();
        assert_eq!(fixture.emulator.leaks().events, created.max(1), "the event of the failed record serves");
        fixture.fences.poll(fixture.id(0)).unwrap();
        assert!(fixture.fences.is_done(use_));
    }
}

#[test]
fn a_failed_wait_promises_nothing() {
    let fixture = Fixture::new(EventCompletion::ByHand, 3);
    let uses = [fixture.use_on(1), fixture.use_on(2)];
    fixture.emulator.fail(Fault::once(Call::StreamWait, 2, REFUSED));
    assert!(fixture.fences.wait(fixture.id(0), &uses).is_err());
    assert!(fixture.fences.is_ordered(fixture.id(0), uses[0]));
    assert!(!fixture.fences.is_ordered(fixture.id(0), uses[1]));
    fixture.fences.wait(fixture.id(0), &uses).unwrap();
    assert!(fixture.fences.is_ordered(fixture.id(0), uses[1]));
    assert_eq!(fixture.counts(), (2, 2, 0), "nothing is asked for twice");
}

// --- random programs ----------------------------------------------------------------------------------------------------

/// Streams and uses are taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    Use { stream: usize },
    Advance { operations: u64 },
    Complete { stream: usize },
    Poll { stream: usize },
    Cover { nth: usize },
    Wait { waiter: usize, uses: Vec<usize> },
    WaitUnasked { waiter: usize, uses: Vec<usize> },
    NoteWait { waiter: usize, on: usize },
    NoteSynchronized { stream: usize },
    HostWait { stream: usize },
    Register,
    Leave { stream: usize },
    Forget { stream: usize },
    PollLeaving,
}

fn step() -> impl Strategy<Value = (Step, Option<u64>)> {
    let stream = || 0..5_usize;
    let nth = || 0..200_usize;
    let step = prop_oneof![
        12 => stream().prop_map(|stream| Step::Use { stream }),
        4 => (0..6_u64).prop_map(|operations| Step::Advance { operations }),
        3 => stream().prop_map(|stream| Step::Complete { stream }),
        4 => stream().prop_map(|stream| Step::Poll { stream }),
        4 => nth().prop_map(|nth| Step::Cover { nth }),
        8 => (stream(), prop::collection::vec(nth(), 0..4))
            .prop_map(|(waiter, uses)| Step::Wait { waiter, uses }),
        1 => (stream(), prop::collection::vec(nth(), 0..4))
            .prop_map(|(waiter, uses)| Step::WaitUnasked { waiter, uses }),
        2 => (stream(), stream()).prop_map(|(waiter, on)| Step::NoteWait { waiter, on }),
        1 => stream().prop_map(|stream| Step::NoteSynchronized { stream }),
        1 => stream().prop_map(|stream| Step::HostWait { stream }),
        1 => Just(Step::Register),
        1 => stream().prop_map(|stream| Step::Leave { stream }),
        1 => stream().prop_map(|stream| Step::Forget { stream }),
        1 => Just(Step::PollLeaving),
    ];
    (step, prop_oneof![6 => Just(None), 1 => (1..4_u64).prop_map(Some)])
}

struct Run {
    fixture: Fixture,
    model: Model,
    uses: Vec<(Use, ModelUse)>,
}

impl Run {
    fn new(completion: EventCompletion) -> Self {
        let mut model = Model::new(completion);
        model.streams.resize(3, History::default());
        Self { fixture: Fixture::new(completion, 3), model, uses: Vec::new() }
    }

    fn step(&mut self, step: &Step, failing: Option<u64>) -> Result<(), TestCaseError> {
        if let Some(nth) = failing {
            self.fixture.emulator.fail(Fault::once(CallFilter::Every, nth, REFUSED));
        }
        self.model.failing = failing;
        let (real, expected) = self.both(step);
        self.fixture.emulator.clear_faults();
        prop_assert_eq!(real, expected);
        prop_assert_eq!(self.fixture.recorder.take_calls(), std::mem::take(&mut self.model.calls));
        self.compare()
    }

    /// Whether the step fails: really, and in the model.
    fn both(&mut self, step: &Step) -> (bool, bool) {
        let Self { fixture, model, uses } = self;
        let Fixture { emulator, fences, .. } = &*fixture;
        let streams = fixture.streams.len();
        let id = |stream: usize| fixture.id(stream % streams);
        match *step {
            Step::Use { stream } => {
                let stream = stream % streams;
                if model.streams[stream].left.is_none() {
                    uses.push((fixture.use_on(stream), model.use_now(stream)));
                }
            }
            Step::Advance { operations } => {
                emulator.advance(operations);
                model.advance(operations);
            }
            Step::Complete { stream } => {
                fixture.complete(stream % streams);
                model.complete_stream(stream % streams);
            }
            Step::Poll { stream } => {
                return (fences.poll(id(stream)).is_err(), model.poll(stream % streams).is_err());
            }
            Step::Cover { nth } => {
                if let Some(&(use_, known)) = uses.get(nth % uses.len().max(1)) {
                    return (fences.cover(use_).is_err(), model.cover(known).is_err());
                }
            }
            Step::Wait { waiter, uses: ref chosen } | Step::WaitUnasked { waiter, uses: ref chosen } => {
                let chosen = chosen.iter().filter_map(|nth| uses.get(nth % uses.len().max(1)));
                let (real, known): (Vec<Use>, Vec<ModelUse>) = chosen.copied().unzip();
                let at = waiter % streams;
                if matches!(step, Step::Wait { .. }) {
                    return (fences.wait(id(waiter), &real).is_err(), model.wait(at, &known).is_err());
                }
                return (
                    fences.wait_unasked(id(waiter), &real).is_err(),
                    model.wait_unasked(at, &known).is_err(),
                );
            }
            Step::NoteWait { waiter, on } => {
                let (waiter, on) = (waiter % streams, on % streams);
                let left = |stream: usize| model.streams[stream].left.is_some();
                if waiter != on && !left(waiter) && !left(on) {
                    emulator.clear_faults();
                    model.failing = None;
                    let event = emulator.event_create().unwrap();
                    emulator.event_record(&event, &fixture.streams[on].stream).unwrap();
                    emulator.stream_wait(&fixture.streams[waiter].stream, &event).unwrap();
                    fences.note_wait(id(waiter), id(on));
                    model.note_wait(waiter, on);
                }
            }
            Step::NoteSynchronized { stream } => {
                emulator.synchronize_stream(&fixture.streams[stream % streams].stream).unwrap();
                fences.note_synchronized(id(stream));
                model.note_synchronized(stream % streams);
            }
            Step::HostWait { stream } => {
                return (fences.host_wait(id(stream)).is_err(), model.host_wait(stream % streams).is_err());
            }
            Step::Register => {
                if streams < 5 {
                    fixture.register();
                    model.streams.push(History::default());
                }
            }
            Step::Leave { stream } => {
                return (fences.leave(id(stream)).is_err(), model.leave(stream % streams).is_err());
            }
            Step::Forget { stream } => {
                fences.forget(id(stream));
                model.forget(stream % streams);
            }
            Step::PollLeaving => return (fences.poll_leaving().is_err(), model.poll_leaving().is_err()),
        }
        (false, false)
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        let Self { fixture, model, uses } = self;
        let fences = &fixture.fences;
        prop_assert_eq!(fences.counts(), model.counts);
        let registered: Vec<StreamId> = (0..model.streams.len())
            .filter(|stream| !model.streams[*stream].forgotten)
            .map(|stream| fixture.id(stream))
            .collect();
        prop_assert_eq!(fences.streams(), registered);
        for stream in 0..model.streams.len() {
            let forgotten = model.streams[stream].forgotten;
            prop_assert_eq!(fences.now(fixture.id(stream)).is_none(), forgotten);
        }
        for &(use_, known) in uses {
            prop_assert_eq!(fences.is_done(use_), model.is_done(known), "{:?}, {:?}", use_, known);
        }
        for waiter in 0..model.streams.len() {
            let asked = fences.with_order(fixture.id(waiter), |order| {
                let answers = uses.iter().map(|(use_, _)| (order.is_done(*use_), order.is_before(*use_)));
                answers.collect::<Vec<_>>()
            });
            for (answer, &(use_, known)) in asked.into_iter().zip(uses) {
                let expected = (model.is_done(known), model.is_ordered(waiter, known));
                prop_assert_eq!(answer, expected, "stream {} after {:?}, {:?}", waiter, use_, known);
                prop_assert_eq!(fences.is_ordered(fixture.id(waiter), use_), answer.1);
            }
        }
        prop_assert!(fixture.emulator.broken_rules().is_empty());
        Ok(())
    }
}

fn completion() -> impl Strategy<Value = EventCompletion> {
    prop_oneof![
        Just(EventCompletion::AtOnce),
        (1..20_u64).prop_map(EventCompletion::AfterOperations),
        Just(EventCompletion::ByHand),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn agree_with_the_history(
        completion in completion(),
        steps in prop::collection::vec(step(), 1..100),
    ) {
        let mut run = Run::new(completion);
        for (index, (step, failing)) in steps.iter().enumerate() {
            let at = |error| TestCaseError::fail(format!("step {index}, {step:?}, failing {failing:?}: {error}"));
            run.step(step, *failing).map_err(at)?;
        }
        let Run { fixture: Fixture { emulator, fences, .. }, .. } = run;
        drop(fences);
        prop_assert_eq!(emulator.leaks().events, 0);
    }
}
