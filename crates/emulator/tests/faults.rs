//! Calls that fail on command: they change nothing, break no rule, and fail where they were told to.
//!
//! Main types: none. Neighbours: `src/fault.rs`.

use concertina_emulator::{CallFilter, EmulatedHandle, Emulator, EmulatorConfig, EventCompletion, Fault};
use concertina_vmm::{Accessor, Address, Call, Driver, DriverError, DriverErrorKind, FrameProperties};

const PAGE: u64 = 2 << 20;
const PROPERTIES: FrameProperties = FrameProperties { device: 0 };

fn device() -> Emulator {
    Emulator::new(EmulatorConfig::default()).unwrap()
}

fn create(emulator: &Emulator) -> Result<EmulatedHandle, DriverError> {
    emulator.create(PAGE, &PROPERTIES)
}

/// Which of 10 creates fail.
fn failing_creates(emulator: &Emulator) -> Vec<u64> {
    (1..=10).filter(|_| create(emulator).is_err()).collect()
}

#[test]
fn the_nth_once() {
    let emulator = device();
    emulator.fail(Fault::once(Call::Create, 3, DriverErrorKind::OutOfMemory));
    // Calls of other kinds don't count.
    emulator.reserve(PAGE, 0).unwrap();
    assert_eq!(failing_creates(&emulator), [3]);
    let counts = emulator.counts();
    assert_eq!((counts.of(Call::Create), counts.failed(Call::Create)), (9, 1));
    assert_eq!(counts.mapped_bytes, 9 * PAGE);
    assert!(emulator.broken_rules().is_empty());
}

#[test]
fn from_the_nth_until_cleared() {
    let emulator = device();
    emulator.fail(Fault::from_nth(Call::Create, 8, DriverErrorKind::NotReady));
    assert_eq!(failing_creates(&emulator), [8, 9, 10]);
    assert_eq!(create(&emulator).unwrap_err().kind, DriverErrorKind::NotReady);
    emulator.clear_faults();
    create(&emulator).unwrap();
}

#[test]
fn filters_count_the_calls_they_take() {
    let emulator = device();
    emulator.fail(Fault::once(CallFilter::Memory, 2, DriverErrorKind::OutOfMemory));
    emulator.memory_info().unwrap();
    let address = emulator.reserve(PAGE, 0).unwrap();
    emulator.event_create().unwrap();
    assert_eq!(emulator.unreserve(address, PAGE).unwrap_err().call, Call::Unreserve);
    emulator.fail(Fault::once(CallFilter::Every, 2, DriverErrorKind::NotReady));
    emulator.memory_info().unwrap();
    assert_eq!(emulator.memory_info().unwrap_err().kind, DriverErrorKind::NotReady);
    emulator.unreserve(address, PAGE).unwrap();
}

#[test]
fn several_at_once() {
    let emulator = device();
    emulator.fail(Fault::once(Call::Create, 2, DriverErrorKind::OutOfMemory));
    emulator.fail(Fault::once(Call::Create, 5, DriverErrorKind::Invalid));
    emulator.fail(Fault::once(Call::Create, 2, DriverErrorKind::NotReady));
    let kinds: Vec<_> = (1..=6).map(|_| create(&emulator).err().map(|error| error.kind)).collect();
    // The third was due with the first, which came before it, and so strikes at the next call.
    let expected = [
        None,
        Some(DriverErrorKind::OutOfMemory),
        Some(DriverErrorKind::NotReady),
        None,
        Some(DriverErrorKind::Invalid),
        None,
    ];
    assert_eq!(kinds, expected);
    assert!(emulator.broken_rules().is_empty(), "told to be invalid is no broken rule");
}

#[test]
fn by_seed() {
    let run = |seed, parts_per_million| {
        let emulator = device();
        emulator.fail(Fault::random(Call::Reserve, parts_per_million, seed, DriverErrorKind::OutOfMemory));
        (0..2_000).map(|_| emulator.reserve(PAGE, 0).is_err()).collect::<Vec<_>>()
    };
    let failed = |outcome: &[bool]| outcome.iter().filter(|&&failed| failed).count();
    let first = run(7, 250_000);
    assert_eq!(first, run(7, 250_000), "the same seed");
    assert_ne!(first, run(8, 250_000));
    // 500 expected of 2,000; the standard deviation is 19.
    assert!((400..600).contains(&failed(&first)), "{}", failed(&first));
    assert_eq!(failed(&run(7, 0)), 0);
    assert_eq!(failed(&run(7, 1_000_000)), 2_000);
    assert_eq!(failed(&run(7, u32::MAX)), 2_000);
}

/// One call of each kind that would do something.
struct Program {
    emulator: Emulator,
    mapped: Address,
    unmapped: Address,
    malloc: Address,
    handle: EmulatedHandle,
    event: concertina_emulator::EmulatedEvent,
    stream: concertina_emulator::EmulatedStream,
}

impl Program {
    fn new() -> Self {
        let config = EmulatorConfig::default().with_event_completion(EventCompletion::ByHand);
        let emulator = Emulator::new(config).unwrap();
        let mapped = emulator.reserve(PAGE, 0).unwrap();
        let unmapped = emulator.reserve(PAGE, 0).unwrap();
        let handle = create(&emulator).unwrap();
        emulator.map(mapped, PAGE, &handle).unwrap();
        let malloc = emulator.malloc(5 * PAGE).unwrap();
        let event = emulator.event_create().unwrap();
        let stream = emulator.stream();
        emulator.event_record(&event, &stream).unwrap();
        Self { emulator, mapped, unmapped, malloc, handle, event, stream }
    }

    fn make(self, call: Call) -> Result<(), DriverError> {
        let emulator = &self.emulator;
        match call {
            Call::Reserve => emulator.reserve(PAGE, 0).map(drop),
            Call::Unreserve => emulator.unreserve(self.unmapped, PAGE),
            Call::Create => create(emulator).map(drop),
            Call::Release => emulator.release(self.handle).map_err(|returned| returned.error),
            Call::Map => emulator.map(self.unmapped, PAGE, &self.handle),
            Call::Unmap => emulator.unmap(self.mapped, PAGE),
            Call::SetAccess => emulator.set_access(self.mapped, PAGE, &[Accessor::Device(0)]),
            Call::MemoryInfo => emulator.memory_info().map(drop),
            Call::EventCreate => emulator.event_create().map(std::mem::forget),
            Call::EventRecord => emulator.event_record(&self.event, &self.stream),
            Call::EventQuery => emulator.event_query(&self.event).map(drop),
            Call::EventSynchronize => emulator.event_synchronize(&self.event),
            Call::StreamWait => emulator.stream_wait(&self.stream, &self.event),
            Call::CaptureStatus => emulator.capture_status(&self.stream).map(drop),
            Call::Malloc => emulator.malloc(PAGE).map(drop),
            Call::Free => emulator.free(self.malloc),
        }
    }
}

#[test]
fn every_kind_can_fail_and_changes_nothing() {
    for &call in Call::ALL {
        let program = Program::new();
        let (emulator, event) = (program.emulator.clone(), program.emulator.event_create().unwrap());
        emulator.event_record(&event, &program.stream).unwrap();
        let (held, counts, mapped) = (emulator.leaks(), emulator.counts(), program.mapped);
        emulator.fail(Fault::once(call, 1, DriverErrorKind::NotReady));
        let error = program.make(call).unwrap_err();
        assert_eq!((error.kind, error.call), (DriverErrorKind::NotReady, call));
        // The event that `program` had goes with it.
        let events = held.events - 1;
        assert_eq!(emulator.leaks(), concertina_emulator::Held { events, ..held }, "{call}");
        assert_eq!(emulator.recount(), emulator.leaks(), "{call}");
        assert!(!emulator.resolve(mapped).unwrap().accessible, "{call}");
        let after = emulator.counts();
        assert_eq!(after.failed(call), 1);
        assert_eq!(after.of(call), counts.of(call));
        assert_eq!(after.modelled_ns, counts.modelled_ns, "a call told to fail costs nothing");
        assert_eq!(after.host_waits, 0, "{call}");
        assert!(!emulator.event_query(&event).unwrap(), "{call}: nothing completed");

        // Without the fault each of them succeeds.
        let program = Program::new();
        let emulator = program.emulator.clone();
        let done = emulator.counts().of(call);
        program.make(call).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(emulator.counts().of(call), done + 1);
    }
}

#[test]
fn a_lost_device_stays_lost() {
    let emulator = device();
    let handle = create(&emulator).unwrap();
    let event = emulator.event_create().unwrap();
    emulator.fail(Fault::once(Call::Reserve, 1, DriverErrorKind::Lost));
    assert_eq!(emulator.reserve(PAGE, 0).unwrap_err().kind, DriverErrorKind::Lost);
    assert_eq!(emulator.counts().calls_after_lost, 0, "the call that lost it came before");
    emulator.clear_faults();
    assert_eq!(emulator.memory_info().unwrap_err().kind, DriverErrorKind::Lost);
    assert_eq!(emulator.event_query(&event).unwrap_err().kind, DriverErrorKind::Lost);
    let returned = emulator.release(handle).unwrap_err();
    assert_eq!(returned.error.kind, DriverErrorKind::Lost);
    let counts = emulator.counts();
    assert_eq!(counts.calls_after_lost, 3);
    assert_eq!((counts.handles, counts.mapped_bytes), (1, PAGE), "nothing changed");
    drop(event);
    assert_eq!(emulator.counts().calls_after_lost, 3, "a drop is no call");
}
