//! When kernels are done, by each way to complete; what blocks them; and hosts that would wait without end.
//!
//! Main types: none. Neighbours: `events` has records and waits, `src/timeline.rs` the code.

use concertina_emulator::{
    CallCost, CostTable, EmulatedStream, Emulator, EmulatorConfig, EventCompletion, Hang, HangLink, Queued,
    WaitOrigin, Work,
};
use concertina_vmm::{Call, Driver, DriverErrorKind};

fn device(completion: EventCompletion) -> Emulator {
    Emulator::new(EmulatorConfig::default().with_event_completion(completion)).unwrap()
}

fn kernel(emulator: &Emulator, stream: &EmulatedStream, name: &'static str) -> Queued {
    emulator.queue(stream, Work::new(name))
}

#[test]
fn at_once_and_after_operations() {
    let emulator = device(EventCompletion::AtOnce);
    let stream = emulator.stream();
    assert!(emulator.is_done(&kernel(&emulator, &stream, "k")));

    let emulator = device(EventCompletion::AfterOperations(2));
    let stream = emulator.stream();
    let first = kernel(&emulator, &stream, "first");
    emulator.advance(1);
    let second = kernel(&emulator, &stream, "second");
    emulator.advance(1);
    assert!(emulator.is_done(&first) && !emulator.is_done(&second));
    emulator.catch_up(&second).unwrap();
    assert!(emulator.is_done(&second));
    assert_eq!(emulator.counts().host_waits, 0);
}

#[test]
fn by_hand() {
    let emulator = device(EventCompletion::ByHand);
    let [left, right] = [(); 2].map(|()| emulator.stream());
    let first = kernel(&emulator, &left, "first");
    let behind = kernel(&emulator, &left, "behind");
    emulator.queue_wait(&right, &left);
    let other = kernel(&emulator, &right, "other");
    emulator.advance(1_000);
    emulator.catch_up(&first).unwrap();
    assert!(emulator.is_done(&first) && !emulator.is_done(&behind) && !emulator.is_done(&other));
    emulator.complete_stream(&right);
    assert!(emulator.is_done(&behind) && emulator.is_done(&other));
}

/// Which of three kernels on three streams are done, after so many operations.
fn drawn(seed: u64) -> Vec<[bool; 3]> {
    let emulator = device(EventCompletion::BySeed(seed));
    let streams = [(); 3].map(|()| emulator.stream());
    let kernels = [0, 1, 2].map(|at: usize| kernel(&emulator, &streams[at], "k"));
    let look = |_| {
        emulator.advance(1);
        [0, 1, 2].map(|at: usize| emulator.is_done(&kernels[at]))
    };
    (0..20).map(look).collect()
}

#[test]
fn by_seed_orders_differ_and_repeat() {
    assert_eq!(drawn(7), drawn(7));
    let seen: std::collections::BTreeSet<[bool; 3]> = (0..50).flat_map(drawn).collect();
    for last in [[false, true, true], [true, false, true], [true, true, false]] {
        assert!(seen.contains(&last), "each of them is the last one at times: {seen:?}");
    }
    assert!((0..50).all(|seed| drawn(seed)[19] == [true; 3]), "in the end all of it is done");
}

/// A table in which only creating events costs: 100 ns.
fn cheap() -> CostTable {
    CostTable::free_of_charge().with(Call::EventCreate, CallCost::flat(100))
}

#[test]
fn by_clock_kernels_take_their_time() {
    let config = EmulatorConfig::default().with_event_completion(EventCompletion::ByClock);
    let emulator = Emulator::new(config.with_cost_table(cheap())).unwrap();
    let [left, right] = [(); 2].map(|()| emulator.stream());
    let times = || (emulator.clock().host_ns, emulator.clock().device_ns);
    // 0..1000 on the left, 0..300 on the right; then 1000..1500 on the right, behind the left.
    let long = emulator.queue(&left, Work::new("long").lasting(1_000));
    let short = emulator.queue(&right, Work::new("short").lasting(300));
    emulator.queue_wait(&right, &left);
    let last = emulator.queue(&right, Work::new("last").lasting(500));
    assert_eq!(times(), (0, 1_500));
    assert!(!emulator.is_done(&short));
    emulator.advance(1_000_000);
    assert_eq!(times().0, 0, "operations take no time");

    // Driver calls take the host's time: three of 100 ns.
    let event = emulator.event_create().unwrap();
    emulator.event_record(&event, &left).unwrap();
    let other = emulator.event_create().unwrap();
    emulator.event_record(&other, &right).unwrap();
    assert!(!emulator.is_done(&short));
    drop(emulator.event_create().unwrap());
    assert_eq!(times().0, 300);
    assert!(emulator.is_done(&short) && !emulator.is_done(&long));

    // A wait moves the host on.
    assert!(!emulator.event_query(&event).unwrap());
    emulator.event_synchronize(&event).unwrap();
    assert_eq!((times(), emulator.counts().host_waits), ((1_000, 1_500), 1));
    assert!(emulator.is_done(&long) && !emulator.is_done(&last));
    assert_eq!(emulator.ns_in_calls(), 1_000, "what the calls cost, and what they waited");
    // What is queued on an idle stream begins now.
    let late = emulator.queue(&left, Work::new("late").lasting(10));
    emulator.catch_up(&late).unwrap();
    assert_eq!(times(), (1_010, 1_500));
    assert_eq!(emulator.ns_in_calls(), 1_000, "the program's own wait is in no call");
    let address = emulator.malloc(1).unwrap();
    emulator.free(address).unwrap();
    assert_eq!(times(), (1_500, 1_500), "a free waits for the device");
    assert_eq!(emulator.ns_in_calls(), 1_490);
    emulator.restart_counts();
    assert_eq!((emulator.ns_in_calls(), times().0), (0, 1_500));
    assert_eq!(device(EventCompletion::AtOnce).clock().host_ns, 0);
}

#[test]
fn by_clock_a_signal_holds_a_kernel_up() {
    let config = EmulatorConfig::default().with_event_completion(EventCompletion::ByClock);
    let emulator = Emulator::new(config.with_cost_table(cheap())).unwrap();
    let [left, right] = [(); 2].map(|()| emulator.stream());
    let signal = emulator.signal();
    let waiting = emulator.queue(&left, Work::new("waits").lasting(50).awaiting(&signal));
    let behind = emulator.queue(&left, Work::new("behind").lasting(5));
    assert_eq!(emulator.clock().device_ns, 0, "no end is known");
    emulator.queue(&right, Work::new("long").lasting(700));
    // Sent when it begins, at 700; it takes 40 itself.
    emulator.queue(&right, Work::new("sends").lasting(40).sending(&signal));
    assert_eq!(emulator.clock().device_ns, 755);
    emulator.catch_up(&waiting).unwrap();
    assert_eq!(emulator.clock().host_ns, 750);
    assert!(!emulator.is_done(&behind));
    emulator.synchronize_device().unwrap();
    assert_eq!(emulator.clock().host_ns, 755);
}

const ALL: [EventCompletion; 5] = [
    EventCompletion::AtOnce,
    EventCompletion::AfterOperations(5),
    EventCompletion::ByHand,
    EventCompletion::BySeed(3),
    EventCompletion::ByClock,
];

#[test]
fn a_kernel_blocks_its_stream_until_the_host_signals() {
    for completion in ALL {
        let emulator = device(completion);
        let [left, right] = [(); 2].map(|()| emulator.stream());
        let signal = emulator.signal();
        let waiting = emulator.queue(&left, Work::new("poll").awaiting(&signal));
        let behind = kernel(&emulator, &left, "behind");
        let event = emulator.event_create().unwrap();
        emulator.event_record(&event, &left).unwrap();
        let free = kernel(&emulator, &right, "free");
        emulator.complete_all();
        emulator.advance(10);
        assert!(emulator.is_done(&free), "{completion:?}");
        assert!(!emulator.is_done(&waiting) && !emulator.is_done(&behind), "{completion:?}");
        assert!(!emulator.event_query(&event).unwrap());
        emulator.send(&signal);
        emulator.send(&signal);
        assert!(emulator.is_done(&waiting) && emulator.is_done(&behind), "{completion:?}");
        emulator.synchronize_device().unwrap();
        assert_eq!(emulator.hangs(), []);
    }
}

#[test]
fn two_kernels_that_wait_for_each_other_meet() {
    for completion in ALL {
        let emulator = device(completion);
        let streams = [(); 2].map(|()| emulator.stream());
        let signals = [(); 2].map(|()| emulator.signal());
        let ranks = [0, 1].map(|rank: usize| {
            let work = Work::new("all reduce").sending(&signals[rank]).awaiting(&signals[1 - rank]);
            emulator.queue(&streams[rank], work)
        });
        emulator.synchronize_stream(&streams[0]).unwrap();
        assert!(emulator.is_done(&ranks[0]), "{completion:?}");
        emulator.synchronize_stream(&streams[1]).unwrap();
        assert!(emulator.is_done(&ranks[1]), "{completion:?}");
    }
}

#[test]
fn a_ring_of_waits_is_told_and_not_waited_for() {
    for completion in ALL {
        let emulator = device(completion);
        let [left, right] = [(); 2].map(|()| emulator.stream());
        let signal = emulator.signal();
        emulator.queue(&left, Work::new("all reduce, rank 0").awaiting(&signal));
        let event = emulator.event_create().unwrap();
        emulator.event_record(&event, &left).unwrap();
        emulator.stream_wait(&right, &event).unwrap();
        emulator.queue(&right, Work::new("all reduce, rank 1").sending(&signal));

        let hang = emulator.synchronize_stream(&right).unwrap_err();
        let links = vec![
            HangLink::Wait { stream: right.number(), on: left.number(), origin: WaitOrigin::DriverCall },
            HangLink::Signal {
                kernel: "all reduce, rank 0".to_owned(),
                stream: left.number(),
                signal: signal.number(),
                sender: Some(("all reduce, rank 1".to_owned(), right.number())),
            },
        ];
        assert_eq!(hang, Hang { stream: right.number(), links }, "{completion:?}");
        assert!(hang.is_cycle());
        assert_eq!(
            hang.to_string(),
            "hang: the host waits for stream 1 without end; stream 1 waits for stream 0, as queued by a driver call of \
             the allocator; kernel `all reduce, rank 0` on stream 0 blocks until signal 0, which kernel `all reduce, \
             rank 1` on stream 1 would send; and that is held up by one of these. Let the allocator take only frames \
             whose use is over"
        );
        // Every wait of the host says so, and none is counted as one.
        let error = emulator.event_synchronize(&event).unwrap_err();
        assert_eq!((error.kind, error.call), (DriverErrorKind::NotReady, Call::EventSynchronize));
        assert!(error.detail.contains("all reduce, rank 0"), "{error}");
        assert!(emulator.synchronize_device().is_err());
        let address = emulator.malloc(1).unwrap();
        assert_eq!(emulator.free(address).unwrap_err().kind, DriverErrorKind::NotReady);
        assert_eq!((emulator.hangs().len(), emulator.counts().host_waits), (4, 0));
        assert_eq!(emulator.hangs()[0], hang);
        assert_eq!(emulator.leaks().mallocs, 1, "a free that failed has changed nothing");
        // The host can break the ring.
        emulator.send(&signal);
        emulator.synchronize_device().unwrap();
        emulator.free(address).unwrap();
    }
}

#[test]
fn a_signal_that_nothing_sends_is_told() {
    for completion in ALL {
        let emulator = device(completion);
        let [left, right] = [(); 2].map(|()| emulator.stream());
        let signal = emulator.signal();
        emulator.queue(&left, Work::new("wait for a value").awaiting(&signal));
        emulator.queue_wait(&right, &left);
        let last = kernel(&emulator, &right, "last");
        let hang = emulator.catch_up(&last).unwrap_err();
        assert!(!hang.is_cycle());
        assert_eq!(hang.links.len(), 2);
        assert!(matches!(hang.links[0], HangLink::Wait { origin: WaitOrigin::Program, .. }), "{hang}");
        assert!(hang.to_string().contains("which nothing that is queued sends"), "{hang}");
        // A kernel that is queued later may send it, from a stream that is not held up.
        emulator.queue(&emulator.stream(), Work::new("write the value").sending(&signal));
        emulator.catch_up(&last).unwrap();
        assert!(emulator.is_done(&last), "{completion:?}");
    }
}

#[test]
fn a_kernel_that_waits_for_what_is_behind_itself() {
    let emulator = device(EventCompletion::AtOnce);
    let stream = emulator.stream();
    let signal = emulator.signal();
    emulator.queue(&stream, Work::new("first").awaiting(&signal));
    emulator.queue(&stream, Work::new("second").sending(&signal));
    let hang = emulator.synchronize_stream(&stream).unwrap_err();
    assert!(hang.is_cycle() && hang.links.len() == 1, "{hang}");
}

#[test]
fn streams_by_number() {
    let emulator = device(EventCompletion::AtOnce);
    let made = emulator.stream();
    assert_eq!(emulator.nth_stream(0), made);
    let third = emulator.nth_stream(2);
    assert_eq!(third.number(), 2);
    assert_eq!(emulator.stream().number(), 3);
    let clone = third.clone();
    assert_eq!(third.holders(), 2);
    drop(clone);
    assert_eq!(third.holders(), 1);
}

#[test]
#[should_panic(expected = "a stream of another emulator")]
fn a_kernel_on_a_foreign_stream() {
    let (emulator, other) = (device(EventCompletion::AtOnce), device(EventCompletion::AtOnce));
    emulator.queue(&other.stream(), Work::new("k"));
}
