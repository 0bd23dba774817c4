//! When events complete: at once, after operations, by hand; and what makes the host wait.
//!
//! Main types: none. Neighbours: `src/timeline.rs`.

use concertina_emulator::{EmulatedEvent, EmulatedStream, Emulator, EmulatorConfig, EventCompletion};
use concertina_vmm::Driver;

fn device(completion: EventCompletion) -> Emulator {
    Emulator::new(EmulatorConfig::default().with_event_completion(completion)).unwrap()
}

fn record(emulator: &Emulator, stream: &EmulatedStream) -> EmulatedEvent {
    let event = emulator.event_create().unwrap();
    emulator.event_record(&event, stream).unwrap();
    event
}

fn is_done(emulator: &Emulator, event: &EmulatedEvent) -> bool {
    emulator.event_query(event).unwrap()
}

#[test]
fn at_once() {
    let emulator = device(EventCompletion::AtOnce);
    let (left, right) = (emulator.stream(), emulator.stream());
    let event = record(&emulator, &left);
    assert!(is_done(&emulator, &event));
    emulator.stream_wait(&right, &event).unwrap();
    assert!(is_done(&emulator, &record(&emulator, &right)));
    emulator.event_synchronize(&event).unwrap();
    assert_eq!(emulator.counts().host_waits, 0);
}

#[test]
fn after_operations_of_the_program_and_not_of_the_driver() {
    let emulator = device(EventCompletion::AfterOperations(3));
    let stream = emulator.stream();
    let first = record(&emulator, &stream);
    emulator.advance(2);
    let second = record(&emulator, &stream);
    for _ in 0..10 {
        let address = emulator.reserve(2 << 20, 0).unwrap();
        emulator.unreserve(address, 2 << 20).unwrap();
        assert!(!is_done(&emulator, &first), "driver calls are no operations");
    }
    emulator.advance(1);
    assert!(is_done(&emulator, &first));
    assert!(!is_done(&emulator, &second));
    emulator.advance(1);
    assert!(!is_done(&emulator, &second));
    emulator.advance(1);
    assert!(is_done(&emulator, &second));
}

#[test]
fn a_wait_for_another_stream_delays_what_comes_after_it() {
    let emulator = device(EventCompletion::AfterOperations(10));
    let (left, right, third) = (emulator.stream(), emulator.stream(), emulator.stream());
    let before_wait = record(&emulator, &right);
    emulator.advance(5);
    // Due at 15.
    let slow = record(&emulator, &left);
    emulator.stream_wait(&right, &slow).unwrap();
    let behind = record(&emulator, &right);
    emulator.stream_wait(&third, &behind).unwrap();
    emulator.advance(5);
    assert!(is_done(&emulator, &before_wait), "due at 10, recorded before the wait");
    assert!(!is_done(&emulator, &behind));
    emulator.advance(5);
    assert!(is_done(&emulator, &slow) && is_done(&emulator, &behind));
    // A wait for what is done delays nothing.
    emulator.stream_wait(&third, &slow).unwrap();
    let last = record(&emulator, &third);
    emulator.advance(10);
    assert!(is_done(&emulator, &last));
}

#[test]
fn a_program_that_waits_for_a_stream_waits_for_what_that_waits_for() {
    let emulator = device(EventCompletion::AfterOperations(10));
    let (left, right) = (emulator.stream(), emulator.stream());
    let early = record(&emulator, &right);
    emulator.advance(5);
    let slow = record(&emulator, &left);
    emulator.synchronize_stream(&right).unwrap();
    assert!(is_done(&emulator, &early) && !is_done(&emulator, &slow));
    emulator.stream_wait(&right, &slow).unwrap();
    emulator.synchronize_stream(&right).unwrap();
    assert!(is_done(&emulator, &slow));
}

#[test]
fn a_wait_of_the_host_moves_time_and_is_counted_once() {
    let emulator = device(EventCompletion::AfterOperations(1_000));
    let (left, right) = (emulator.stream(), emulator.stream());
    let first = record(&emulator, &left);
    emulator.advance(400);
    let second = record(&emulator, &right);
    emulator.event_synchronize(&first).unwrap();
    assert_eq!(emulator.counts().host_waits, 1);
    assert!(is_done(&emulator, &first));
    assert!(!is_done(&emulator, &second), "due 400 operations later");
    emulator.event_synchronize(&first).unwrap();
    assert_eq!(emulator.counts().host_waits, 1, "it was done already");
    emulator.advance(399);
    assert!(!is_done(&emulator, &second));
    emulator.advance(1);
    assert!(is_done(&emulator, &second));
    emulator.event_synchronize(&second).unwrap();
    assert_eq!(emulator.counts().host_waits, 1);
}

#[test]
fn a_free_waits_for_the_device() {
    for completion in [EventCompletion::AfterOperations(1_000), EventCompletion::ByHand] {
        let emulator = device(completion);
        let streams = [emulator.stream(), emulator.stream()];
        let events = [record(&emulator, &streams[0]), record(&emulator, &streams[1])];
        let address = emulator.malloc(1).unwrap();
        assert!(!is_done(&emulator, &events[0]) && !is_done(&emulator, &events[1]));
        emulator.free(address).unwrap();
        assert!(is_done(&emulator, &events[0]) && is_done(&emulator, &events[1]), "{completion:?}");
        assert_eq!(emulator.counts().host_waits, 1);
        let later = record(&emulator, &streams[0]);
        assert!(!is_done(&emulator, &later), "{completion:?}");
    }
}

#[test]
fn waits_of_the_program_complete_and_are_not_counted() {
    for completion in [EventCompletion::AfterOperations(1_000), EventCompletion::ByHand] {
        let emulator = device(completion);
        let (left, right) = (emulator.stream(), emulator.stream());
        let event = record(&emulator, &left);
        emulator.synchronize_stream(&left).unwrap();
        assert!(is_done(&emulator, &event), "{completion:?}");
        let events = [record(&emulator, &left), record(&emulator, &right)];
        assert!(!is_done(&emulator, &events[0]) && !is_done(&emulator, &events[1]));
        emulator.synchronize_device().unwrap();
        assert!(is_done(&emulator, &events[0]) && is_done(&emulator, &events[1]), "{completion:?}");
        assert_eq!(emulator.counts().host_waits, 0);
    }
}

#[test]
fn by_hand_nothing_completes_by_itself() {
    let emulator = device(EventCompletion::ByHand);
    let (left, right) = (emulator.stream(), emulator.stream());
    let first = record(&emulator, &left);
    let other = record(&emulator, &right);
    emulator.advance(u64::MAX);
    assert!(!is_done(&emulator, &first));
    emulator.complete_stream(&left);
    assert!(is_done(&emulator, &first));
    assert!(!is_done(&emulator, &other));
    let second = record(&emulator, &left);
    assert!(!is_done(&emulator, &second), "recorded after the stream was completed");
    emulator.complete_all();
    assert!(is_done(&emulator, &second) && is_done(&emulator, &other));
}

#[test]
fn by_hand_an_event_completes_those_before_it_only() {
    let emulator = device(EventCompletion::ByHand);
    let stream = emulator.stream();
    let events: Vec<_> = (0..4).map(|_| record(&emulator, &stream)).collect();
    emulator.complete_event(&events[1]);
    let done: Vec<bool> = events.iter().map(|event| is_done(&emulator, event)).collect();
    assert_eq!(done, [true, true, false, false]);
    emulator.event_synchronize(&events[2]).unwrap();
    assert_eq!(emulator.counts().host_waits, 1);
    let done: Vec<bool> = events.iter().map(|event| is_done(&emulator, event)).collect();
    assert_eq!(done, [true, true, true, false]);
}

#[test]
fn by_hand_completion_runs_back_along_waits() {
    let emulator = device(EventCompletion::ByHand);
    let streams = [(); 4].map(|()| emulator.stream());
    let [a, b, c, unrelated] = &streams;
    let on_a = record(&emulator, a);
    let later_on_a = record(&emulator, a);
    let before_wait = record(&emulator, b);
    emulator.stream_wait(b, &on_a).unwrap();
    let on_b = record(&emulator, b);
    emulator.stream_wait(c, &on_b).unwrap();
    let on_c = record(&emulator, c);
    let elsewhere = record(&emulator, unrelated);

    emulator.complete_event(&before_wait);
    assert!(!is_done(&emulator, &on_a), "it came before the wait");
    emulator.complete_event(&on_c);
    for event in [&on_a, &on_b, &on_c] {
        assert!(is_done(&emulator, event));
    }
    assert!(!is_done(&emulator, &later_on_a), "nobody waited for it");
    assert!(!is_done(&emulator, &elsewhere));
}

#[test]
fn by_hand_a_wait_takes_the_record_as_it_was() {
    let emulator = device(EventCompletion::ByHand);
    let (left, right, third) = (emulator.stream(), emulator.stream(), emulator.stream());
    let event = record(&emulator, &left);
    let witness = record(&emulator, &left);
    emulator.stream_wait(&right, &event).unwrap();
    // Recording it again, or dropping it, changes nothing for the stream that waits.
    emulator.event_record(&event, &third).unwrap();
    let behind = record(&emulator, &right);
    emulator.complete_event(&behind);
    assert!(!is_done(&emulator, &event), "the new record on the third stream");
    assert!(!is_done(&emulator, &witness));
    emulator.complete_event(&event);
    assert!(is_done(&emulator, &event));
    assert!(!is_done(&emulator, &witness));
    drop(event);
    emulator.complete_stream(&left);
    assert!(is_done(&emulator, &witness));
}

#[test]
fn by_hand_a_stream_with_a_wait_and_no_record_behind_it() {
    let emulator = device(EventCompletion::ByHand);
    let (left, right) = (emulator.stream(), emulator.stream());
    let event = record(&emulator, &left);
    emulator.stream_wait(&right, &event).unwrap();
    emulator.synchronize_stream(&right).unwrap();
    assert!(is_done(&emulator, &event), "the host waited for a stream that waits for it");
}

#[test]
fn events_are_counted_and_given_again() {
    let emulator = device(EventCompletion::ByHand);
    let stream = emulator.stream();
    let event = record(&emulator, &stream);
    assert_eq!(emulator.leaks().events, 1);
    assert!(!emulator.is_empty());
    drop(event);
    assert!(emulator.is_empty());
    let fresh = emulator.event_create().unwrap();
    assert!(is_done(&emulator, &fresh), "the record of the one before is forgotten");
    let survivor = emulator.clone();
    drop(emulator);
    drop(fresh);
    assert!(survivor.is_empty());
}
