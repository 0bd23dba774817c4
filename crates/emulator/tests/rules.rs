//! Every rule by name: a call that breaks it is refused, logged, and changes nothing.
//!
//! Main types: [`Bench`], a small device. Neighbours: `src/rule.rs` has the rules. `HandleReleased` can't be broken
//! through the traits, since a release takes the handle: its test stands beside `EmulatedHandle`.

use std::collections::BTreeSet;
use std::fmt::Debug;

use concertina_emulator::{EmulatedHandle, Emulator, EmulatorConfig, EventCompletion, Rule};
use concertina_vmm::{
    Accessor, Address, CaptureStatus, Driver, DriverError, DriverErrorKind, FrameProperties, Returned,
};

const PAGE: u64 = 2 << 20;
const PROPERTIES: FrameProperties = FrameProperties { device: 0 };
const ACCESSORS: [Accessor; 1] = [Accessor::Device(0)];

struct Bench {
    emulator: Emulator,
    broken: BTreeSet<Rule>,
}

impl Bench {
    fn new(config: EmulatorConfig) -> Self {
        Self { emulator: Emulator::new(config).unwrap(), broken: BTreeSet::new() }
    }

    fn small() -> Self {
        Self::new(EmulatorConfig { capacity_bytes: 16 * PAGE, ..EmulatorConfig::default() })
    }

    /// Makes a call that breaks `rule` and nothing else, and looks that it did nothing but be refused.
    #[track_caller]
    fn breaks<T: Debug>(&mut self, rule: Rule, call: impl FnOnce(&Emulator) -> Result<T, DriverError>) {
        let (held, logged) = (self.emulator.leaks(), self.emulator.broken_rules().len());
        let mapped_peak = self.emulator.counts().mapped_peak_bytes;
        let time = self.emulator.counts().modelled_ns;
        let error = call(&self.emulator).expect_err(rule.name());
        assert_eq!(error.kind, DriverErrorKind::Invalid, "{error}");
        assert!(error.detail.starts_with(&format!("{rule}: ")), "{error}");
        let log = self.emulator.broken_rules();
        assert_eq!(log.len(), logged + 1);
        assert_eq!((log[logged].rule, log[logged].call), (rule, error.call));
        assert_eq!(self.emulator.leaks(), held);
        assert_eq!(self.emulator.recount(), held);
        assert_eq!(self.emulator.counts().mapped_peak_bytes, mapped_peak);
        assert_eq!(self.emulator.counts().modelled_ns, time, "refused calls cost nothing");
        self.broken.insert(rule);
    }

    fn reserve(&self, pages: u64) -> Address {
        self.emulator.reserve(pages * PAGE, 0).unwrap()
    }

    fn create(&self, pages: u64) -> EmulatedHandle {
        self.emulator.create(pages * PAGE, &PROPERTIES).unwrap()
    }

    /// A mapping of `pages` in the middle of a reservation of six.
    fn mapped(&self, pages: u64) -> Address {
        let address = self.reserve(6).add(2 * PAGE);
        self.emulator.map(address, pages * PAGE, &self.create(pages)).unwrap();
        address
    }
}

fn unreturned(result: Result<(), Returned<EmulatedHandle>>) -> Result<(), DriverError> {
    result.map_err(|returned| returned.error)
}

fn sizes_and_alignments(bench: &mut Bench) {
    let address = bench.mapped(2);
    let handle = bench.create(1);
    bench.breaks(Rule::SizeZero, |e| e.reserve(0, 0));
    bench.breaks(Rule::SizeZero, |e| e.create(0, &PROPERTIES));
    bench.breaks(Rule::SizeZero, |e| e.map(address.add(2 * PAGE), 0, &handle));
    bench.breaks(Rule::SizeZero, |e| e.unmap(address, 0));
    bench.breaks(Rule::SizeZero, |e| e.set_access(address, 0, &ACCESSORS));
    bench.breaks(Rule::SizeZero, |e| e.malloc(0));
    bench.breaks(Rule::SizeNotGranular, |e| e.reserve(PAGE + 4096, 0));
    bench.breaks(Rule::SizeNotGranular, |e| e.create(PAGE / 2, &PROPERTIES));
    bench.breaks(Rule::SizeNotGranular, |e| e.map(address.add(2 * PAGE), PAGE / 2, &handle));
    bench.breaks(Rule::SizeNotGranular, |e| e.unmap(address, PAGE + 1));
    bench.breaks(Rule::SizeNotGranular, |e| e.set_access(address, 2 * PAGE - 512, &ACCESSORS));
    bench.breaks(Rule::AddressNotGranular, |e| e.map(address.add(2 * PAGE + 4096), PAGE, &handle));
    bench.breaks(Rule::AddressNotGranular, |e| e.unmap(address.add(1), 2 * PAGE));
    bench.breaks(Rule::AddressNotGranular, |e| e.set_access(address.add(512), 2 * PAGE, &ACCESSORS));
    bench.breaks(Rule::AlignmentNotPowerOfTwo, |e| e.reserve(PAGE, 3 * PAGE));
    bench.breaks(Rule::AlignmentNotPowerOfTwo, |e| e.reserve(PAGE, 3));
}

fn reservations(bench: &mut Bench) {
    let address = bench.reserve(4);
    let next = bench.reserve(4);
    assert_eq!(next, address.add(4 * PAGE), "the reservations touch");
    let handle = bench.create(2);
    bench.breaks(Rule::OutsideReservation, |e| e.map(address.add(3 * PAGE), 2 * PAGE, &handle));
    bench.breaks(Rule::OutsideReservation, |e| e.map(next.add(4 * PAGE), 2 * PAGE, &handle));
    bench.breaks(Rule::OutsideReservation, |e| e.map(Address::new(0), 2 * PAGE, &handle));
    bench.breaks(Rule::OutsideReservation, |e| e.unmap(Address::new(u64::MAX - PAGE + 1), PAGE));
    bench.breaks(Rule::OutsideReservation, |e| e.set_access(next, u64::MAX - PAGE + 1, &ACCESSORS));
    bench.breaks(Rule::OutsideReservation, |e| e.unreserve(next.add(4 * PAGE), PAGE));
    bench.breaks(Rule::UnreserveNotExact, |e| e.unreserve(address, 3 * PAGE));
    bench.breaks(Rule::UnreserveNotExact, |e| e.unreserve(address, 8 * PAGE));
    bench.breaks(Rule::UnreserveNotExact, |e| e.unreserve(address.add(PAGE), 3 * PAGE));
    bench.breaks(Rule::UnreserveNotExact, |e| e.unreserve(address, 0));
    bench.emulator.map(address.add(PAGE), 2 * PAGE, &handle).unwrap();
    bench.breaks(Rule::UnreserveMapped, |e| e.unreserve(address, 4 * PAGE));
    bench.emulator.unmap(address.add(PAGE), 2 * PAGE).unwrap();
    bench.emulator.unreserve(address, 4 * PAGE).unwrap();
    bench.breaks(Rule::OutsideReservation, |e| e.unreserve(address, 4 * PAGE));
}

fn devices(bench: &mut Bench) {
    let elsewhere = FrameProperties { device: 1 };
    let address = bench.mapped(1);
    bench.breaks(Rule::UnknownDevice, |e| e.granularity(&elsewhere));
    bench.breaks(Rule::UnknownDevice, |e| e.create(PAGE, &elsewhere));
    bench.breaks(Rule::UnknownDevice, |e| {
        e.set_access(address, PAGE, &[Accessor::Device(0), Accessor::Device(7)])
    });
    assert!(!bench.emulator.resolve(address).unwrap().accessible);
}

fn maps(bench: &mut Bench) {
    let address = bench.mapped(2);
    let handle = bench.create(2);
    bench.breaks(Rule::MapNotWhole, |e| e.map(address.add(2 * PAGE), PAGE, &handle));
    let one = bench.create(1);
    bench.breaks(Rule::MapNotWhole, |e| e.map(address.add(2 * PAGE), 2 * PAGE, &one));
    bench.breaks(Rule::MapOverMapped, |e| e.map(address, 2 * PAGE, &handle));
    bench.breaks(Rule::MapOverMapped, |e| e.map(address.add(PAGE), 2 * PAGE, &handle));
    bench.breaks(Rule::MapOverMapped, |e| e.map(Address::new(address.get() - PAGE), 2 * PAGE, &handle));
    let stranger = Emulator::new(EmulatorConfig::default()).unwrap();
    let foreign = stranger.create(PAGE, &PROPERTIES).unwrap();
    bench.breaks(Rule::HandleOfAnotherDevice, |e| e.map(address.add(2 * PAGE), PAGE, &foreign));
    let returned = bench.emulator.release(foreign).unwrap_err();
    bench.breaks(Rule::HandleOfAnotherDevice, |e| unreturned(e.release(returned.owner)));
}

fn unmaps_and_access(bench: &mut Bench) {
    let address = bench.mapped(3);
    let before = Address::new(address.get() - PAGE);
    bench.breaks(Rule::UnmapUnmapped, |e| e.unmap(before, PAGE));
    bench.breaks(Rule::UnmapUnmapped, |e| e.unmap(before, 4 * PAGE));
    bench.breaks(Rule::UnmapUnmapped, |e| e.unmap(address, 4 * PAGE));
    bench.breaks(Rule::UnmapPart, |e| e.unmap(address, 2 * PAGE));
    bench.breaks(Rule::UnmapPart, |e| e.unmap(address.add(PAGE), PAGE));
    bench.breaks(Rule::UnmapPart, |e| e.unmap(address.add(2 * PAGE), 2 * PAGE));
    bench.breaks(Rule::AccessUnmapped, |e| e.set_access(before, PAGE, &ACCESSORS));
    bench.breaks(Rule::AccessUnmapped, |e| e.set_access(address, 4 * PAGE, &ACCESSORS));
    bench.breaks(Rule::AccessPart, |e| e.set_access(address, PAGE, &ACCESSORS));
    bench.breaks(Rule::AccessPart, |e| e.set_access(address.add(PAGE), 2 * PAGE, &ACCESSORS));
    bench.breaks(Rule::AccessForNone, |e| e.set_access(address, 3 * PAGE, &[]));
    assert!(!bench.emulator.resolve(address).unwrap().accessible, "no refused call gave access");
}

fn one_unmap_a_mapping(bench: &mut Bench) {
    let mut hip = Bench::new(EmulatorConfig { unmap_spans_mappings: false, ..EmulatorConfig::default() });
    let address = hip.mapped(1);
    let second = hip.create(1);
    hip.emulator.map(address.add(PAGE), PAGE, &second).unwrap();
    hip.breaks(Rule::UnmapSpansMappings, |e| e.unmap(address, 2 * PAGE));
    hip.emulator.set_access(address, 2 * PAGE, &ACCESSORS).unwrap();
    hip.emulator.unmap(address, PAGE).unwrap();
    hip.emulator.unmap(address.add(PAGE), PAGE).unwrap();
    bench.broken.extend(hip.broken);
}

fn frees(bench: &mut Bench) {
    let (small, large) = (bench.emulator.malloc(100).unwrap(), bench.emulator.malloc(3 * PAGE).unwrap());
    let reserved = bench.reserve(1);
    bench.breaks(Rule::FreeNotOneMalloc, |e| e.free(small.add(1)));
    bench.breaks(Rule::FreeNotOneMalloc, |e| e.free(small.add(256)));
    bench.breaks(Rule::FreeNotOneMalloc, |e| e.free(large.add(PAGE)));
    bench.breaks(Rule::FreeNotOneMalloc, |e| e.free(reserved));
    bench.breaks(Rule::FreeNotOneMalloc, |e| e.free(Address::new(0)));
    bench.breaks(Rule::FreeNotOneMalloc, |e| e.free(Address::new(u64::MAX)));
    assert_eq!(bench.emulator.counts().host_waits, 0, "a refused free waits for nothing");
    bench.emulator.free(small).unwrap();
    bench.breaks(Rule::FreeNotOneMalloc, |e| e.free(small));
    bench.emulator.free(large).unwrap();
    bench.breaks(Rule::FreeNotOneMalloc, |e| e.free(large));
}

fn events_and_streams(bench: &mut Bench) {
    let stranger = Emulator::new(EmulatorConfig::default()).unwrap();
    let (event, stream) = (bench.emulator.event_create().unwrap(), bench.emulator.stream());
    let (foreign_event, foreign_stream) = (stranger.event_create().unwrap(), stranger.stream());
    bench.breaks(Rule::EventOfAnotherDevice, |e| e.event_record(&foreign_event, &stream));
    bench.breaks(Rule::EventOfAnotherDevice, |e| e.event_query(&foreign_event));
    bench.breaks(Rule::EventOfAnotherDevice, |e| e.event_synchronize(&foreign_event));
    bench.breaks(Rule::EventOfAnotherDevice, |e| e.stream_wait(&stream, &foreign_event));
    bench.breaks(Rule::StreamOfAnotherDevice, |e| e.event_record(&event, &foreign_stream));
    bench.breaks(Rule::StreamOfAnotherDevice, |e| e.stream_wait(&foreign_stream, &event));
    bench.breaks(Rule::StreamOfAnotherDevice, |e| e.capture_status(&foreign_stream));

    bench.emulator.set_capture_status(&stream, CaptureStatus::Active);
    assert_eq!(bench.emulator.capture_status(&stream).unwrap(), CaptureStatus::Active);
    bench.emulator.event_record(&event, &stream).unwrap();
    bench.breaks(Rule::EventCaptured, |e| e.event_query(&event));
    bench.breaks(Rule::EventCaptured, |e| e.event_synchronize(&event));
    bench.emulator.set_capture_status(&stream, CaptureStatus::None);
    bench.breaks(Rule::EventCaptured, |e| e.event_query(&event));
    bench.emulator.event_record(&event, &stream).unwrap();
    assert!(bench.emulator.event_query(&event).unwrap());
}

#[test]
fn each_rule_is_refused_by_name() {
    let mut broken = BTreeSet::new();
    let groups = [
        sizes_and_alignments,
        reservations,
        devices,
        maps,
        unmaps_and_access,
        one_unmap_a_mapping,
        frees,
        events_and_streams,
    ];
    for group in groups {
        let mut bench = Bench::small();
        group(&mut bench);
        broken.extend(bench.broken);
    }
    let all: BTreeSet<Rule> =
        Rule::ALL.iter().copied().filter(|&rule| rule != Rule::HandleReleased).collect();
    assert_eq!(broken, all, "every rule is broken once here");
}

#[test]
fn names_are_distinct_and_in_kebab_case() {
    let names: BTreeSet<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
    assert_eq!(names.len(), Rule::ALL.len());
    for name in names {
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'), "{name}");
    }
}

#[test]
fn a_mapping_budget_is_enforced_by_set_access() {
    let config = EmulatorConfig { max_mappings: Some(3), ..EmulatorConfig::default() };
    let bench = Bench::new(config);
    let (emulator, handle) = (&bench.emulator, bench.create(1));
    assert_eq!(emulator.capabilities().max_mappings, Some(3));
    let address = bench.reserve(8);
    for page in 0..4 {
        emulator.map(address.add(page * PAGE), PAGE, &handle).unwrap();
    }
    let error = emulator.set_access(address, PAGE, &ACCESSORS).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    assert!(error.detail.contains("at most 3"), "{error}");
    assert!(!emulator.resolve(address).unwrap().accessible);
    emulator.unmap(address.add(3 * PAGE), PAGE).unwrap();
    emulator.set_access(address, 3 * PAGE, &ACCESSORS).unwrap();
    assert!(emulator.broken_rules().is_empty(), "a full table is no broken rule");
}

#[test]
fn addresses_run_out() {
    let config = EmulatorConfig { address_space_bytes: 8 * PAGE, ..EmulatorConfig::default() };
    let bench = Bench::new(config);
    let emulator = &bench.emulator;
    let first = bench.reserve(3);
    let second = bench.reserve(3);
    let third = bench.reserve(2);
    assert!(emulator.reserve(PAGE, 0).unwrap_err().is_out_of_memory());
    emulator.unreserve(second, 3 * PAGE).unwrap();
    emulator.unreserve(third, 2 * PAGE).unwrap();
    // The lowest place that fits: behind the first, but aligned to four pages.
    let aligned = emulator.reserve(PAGE, 4 * PAGE).unwrap();
    assert_eq!(aligned, first.add(4 * PAGE));
    assert_eq!(bench.reserve(1), first.add(3 * PAGE));
    assert!(emulator.reserve(4 * PAGE, 0).unwrap_err().is_out_of_memory(), "three in a row are left");
    assert_eq!(bench.reserve(3), first.add(5 * PAGE));
    assert!(emulator.reserve(u64::MAX - PAGE + 1, 0).unwrap_err().is_out_of_memory());
    assert!(emulator.reserve(PAGE, 1 << 63).unwrap_err().is_out_of_memory());
    assert_eq!(emulator.counts().reserved_bytes, 8 * PAGE);
    assert_eq!(emulator.counts().reserved_peak_bytes, 8 * PAGE);
    assert!(emulator.broken_rules().is_empty());
}

#[test]
fn clones_are_the_same_device_and_two_emulators_are_not() {
    let bench =
        Bench::new(EmulatorConfig { event_completion: EventCompletion::ByHand, ..Default::default() });
    let clone = bench.emulator.clone();
    let handle = bench.create(1);
    assert_eq!(clone.counts().mapped_bytes, PAGE);
    clone.release(handle).unwrap();
    assert!(bench.emulator.is_empty());
    let other = Emulator::new(EmulatorConfig::default()).unwrap();
    other.reserve(PAGE, 0).unwrap();
    assert!(bench.emulator.is_empty());
}

/// The emulator must go wherever a driver goes.
#[test]
fn types_are_send_and_sync() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Emulator>();
    shared::<EmulatedHandle>();
    shared::<concertina_emulator::EmulatedEvent>();
    shared::<concertina_emulator::EmulatedStream>();
}
