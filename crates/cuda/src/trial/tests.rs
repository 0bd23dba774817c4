//! The trial on the emulator: a device that works, and one on which each call fails in turn.
//!
//! Main types: none. Neighbours: `trial`.

use std::cell::Cell;

use concertina_emulator::{CallFilter, Emulator, EmulatorConfig, Fault};
use concertina_vmm::{Call, DriverErrorKind};

use super::*;

const PAGE: u64 = 2 << 20;

fn device(unmap_spans_mappings: bool) -> Emulator {
    let config =
        EmulatorConfig { unmap_spans_mappings, capacity_bytes: 4 * PAGE, ..EmulatorConfig::default() };
    Emulator::new(config).unwrap()
}

fn step_of(missing: &Missing) -> &'static str {
    match missing {
        Missing::Trial { step, .. } => step,
        other => panic!("not a step: {other}"),
    }
}

#[test]
fn two_addresses_of_one_frame_are_touched_and_nothing_stays() {
    let emulator = device(true);
    let touched = Cell::new(false);
    let spans = run(&emulator, 0, PAGE, |first, second| {
        assert_eq!(second.get() - first.get(), PAGE);
        let (one, other) = (emulator.resolve(first).unwrap(), emulator.resolve(second).unwrap());
        assert_eq!(one, other, "two frames");
        touched.set(true);
        Ok(())
    });
    assert_eq!(spans, Ok(Support::Available));
    assert!(touched.get());
    assert!(emulator.is_empty(), "{}", emulator.leaks());
    assert!(emulator.broken_rules().is_empty());
    assert_eq!(emulator.counts().of(Call::Unmap), 1);
}

#[test]
fn a_device_that_unmaps_one_by_one_is_found_out() {
    let emulator = device(false);
    let spans = run(&emulator, 0, PAGE, |_, _| Ok(())).unwrap();
    let Support::Missing(missing) = &spans else { panic!("{spans}") };
    assert_eq!(step_of(missing), "unmap two mappings with one call");
    assert!(emulator.is_empty(), "{}", emulator.leaks());
    assert_eq!(emulator.counts().of(Call::Unmap), 2);
}

/// The calls of a trial on a device that works, in order, and what the trial says when one fails.
#[test]
fn a_call_that_fails_once_is_named_and_nothing_stays() {
    let steps = [
        "reserve addresses",
        "create a frame",
        "map the frame",
        "map the frame a second time",
        "give access to two mappings with one call",
        "unmap two mappings with one call",
        "release the frame",
        "give the addresses back",
    ];
    for (nth, expected) in (1..).zip(steps) {
        let emulator = device(true);
        emulator.fail(Fault::once(CallFilter::Memory, nth, DriverErrorKind::NotReady));
        let missing = match run(&emulator, 0, PAGE, |_, _| Ok(())) {
            Err(missing) | Ok(Support::Missing(missing)) => missing,
            Ok(Support::Available) => panic!("call {nth} failed and nothing was said"),
        };
        assert_eq!(step_of(&missing), expected);
        assert!(emulator.is_empty(), "{expected}: {}", emulator.leaks());
        assert!(emulator.broken_rules().is_empty(), "{expected}");
    }
}

/// Only a refused spanning unmap leaves a device that Concertina can use.
#[test]
fn only_the_spanning_unmap_may_fail() {
    for nth in 1..=8 {
        let emulator = device(true);
        emulator.fail(Fault::once(CallFilter::Memory, nth, DriverErrorKind::Invalid));
        assert_eq!(run(&emulator, 0, PAGE, |_, _| Ok(())).is_ok(), nth == 6, "call {nth}");
    }
}

#[test]
fn a_device_lost_at_the_spanning_unmap_is_no_device() {
    let emulator = device(true);
    emulator.fail(Fault::once(Call::Unmap, 1, DriverErrorKind::Lost));
    let missing = run(&emulator, 0, PAGE, |_, _| Ok(())).unwrap_err();
    assert_eq!(step_of(&missing), "unmap two mappings with one call");
}

#[test]
fn other_bytes_are_reported_and_nothing_stays() {
    let emulator = device(true);
    let wrong = Missing::OtherBytes { wrote: 0xa7, read: 0, at: 5 };
    assert_eq!(run(&emulator, 0, PAGE, |_, _| Err(wrong.clone())), Err(wrong.clone()));
    assert!(emulator.is_empty(), "{}", emulator.leaks());
    assert!(wrong.to_string().contains("wrote 0xa7 to a frame and read 0x00 at byte 5"), "{wrong}");
}
