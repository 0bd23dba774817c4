//! What the driver would not take back when its owner was dropped: the device keeps it, and tries again.
//!
//! Neighbours: `returns` has the failures that hand an owner back.

use concertina_emulator::{CallFilter, Fault};
use concertina_vmm::{
    Call, CreateError, CrossStream, DriverErrorKind, Fences, Frame, PageRange, Reservation, Segment,
    SegmentId, Unreturned,
};

use crate::Setup;

const REFUSED: DriverErrorKind = DriverErrorKind::NotReady;

#[test]
fn each_owner_lands_on_the_list_and_goes_later() {
    let setup = Setup::default();
    let page = setup.page();
    let store = setup.store();
    let reservation = Reservation::new(&setup.device, 4 * page, 0).unwrap();
    let frame = store.create().unwrap();
    let mapping = reservation.map(2 * page, &frame).unwrap();

    setup.emulator.fail(Fault::once(Call::Unmap, 1, REFUSED));
    setup.emulator.fail(Fault::once(Call::Release, 1, REFUSED));
    drop(mapping);
    assert_eq!(setup.device.unreturned(), Unreturned { mappings: 1, ..Unreturned::default() });
    drop(frame);
    let so_far =
        Unreturned { mappings: 1, frames: 1, frame_bytes: page, reservations: 0, ..Unreturned::default() };
    assert_eq!(setup.device.unreturned(), so_far);
    drop(reservation);
    assert_eq!(setup.device.unreturned(), Unreturned { reservations: 1, ..so_far });
    assert_eq!(setup.device.mappings(), 1, "a mapping on the list exists");
    let held = setup.emulator.leaks();
    assert_eq!((held.mappings, held.handles, held.reservations), (1, 1, 1));

    // Mappings before reservations, or the last call would break a rule.
    assert_eq!(setup.device.retry(), page);
    setup.assert_clean();
    let calls = setup.counts().memory_calls();
    assert_eq!(setup.device.retry(), 0);
    assert_eq!(setup.counts().memory_calls(), calls, "nothing is owed, nothing is called");
}

#[test]
fn whatever_fails_again_stays_on_the_list() {
    let setup = Setup::default();
    let page = setup.page();
    let store = setup.store();
    let reservation = Reservation::new(&setup.device, 4 * page, 0).unwrap();
    let frames: Vec<Frame<_>> = (0..3).map(|_| store.create().unwrap()).collect();
    let mappings: Vec<_> =
        (0..3).map(|at| reservation.map(at * page, &frames[at as usize]).unwrap()).collect();
    setup.emulator.fail(Fault::from_nth(CallFilter::Memory, 1, REFUSED));
    drop((mappings, frames, reservation));
    let all = Unreturned {
        mappings: 3,
        frames: 3,
        frame_bytes: 3 * page,
        reservations: 1,
        ..Unreturned::default()
    };
    assert_eq!(setup.device.unreturned(), all);
    assert_eq!(setup.device.retry(), 0);
    assert_eq!(setup.device.unreturned(), all);

    // One unmap of three goes wrong: the reservation has to wait for it, and must not be tried.
    setup.emulator.clear_faults();
    setup.emulator.fail(Fault::once(Call::Unmap, 2, REFUSED));
    assert_eq!(setup.device.retry(), 3 * page);
    let left = Unreturned { mappings: 1, reservations: 1, ..Unreturned::default() };
    assert_eq!(setup.device.unreturned(), left);
    assert_eq!(setup.device.retry(), 0);
    setup.assert_clean();
}

#[test]
fn a_dropped_segment_gives_back_what_it_can() {
    let setup = Setup::default();
    let page = setup.page();
    let store = setup.store();
    let mut segment = Segment::new(SegmentId::new(0), &store, 8 * page, 0).unwrap();
    for at in [1, 2, 5] {
        let frame = store.create().unwrap();
        segment.map(at, &frame).unwrap();
        segment.grant(PageRange { first: at, count: 1 }).unwrap();
        segment.hold(at, frame);
    }
    setup.emulator.fail(Fault::once(Call::Unmap, 3, REFUSED));
    drop(segment);
    // The reservation waits with the one mapping that is left in it.
    let left = Unreturned { mappings: 1, reservations: 1, ..Unreturned::default() };
    assert_eq!(setup.device.unreturned(), left);
    assert_eq!(setup.broken(), [], "a reservation with a mapping in it is not tried");
    setup.device.retry();
    setup.assert_clean();
}

#[test]
fn a_reservation_elsewhere_does_not_wait() {
    let setup = Setup::default();
    let store = setup.store();
    let stuck = Reservation::new(&setup.device, setup.page(), 0).unwrap();
    let free = Reservation::new(&setup.device, setup.page(), 0).unwrap();
    let frame = store.create().unwrap();
    let mapping = stuck.map(0, &frame).unwrap();
    setup.emulator.fail(Fault::once(Call::Unmap, 1, REFUSED));
    drop((mapping, frame));
    drop(free);
    assert_eq!(setup.device.unreturned().reservations, 0);
    drop(stuck);
    assert_eq!(setup.device.unreturned().reservations, 1);
    setup.device.retry();
    setup.assert_clean();
}

#[test]
fn the_last_owner_of_the_device_tries_once_more() {
    let setup = Setup::default();
    let reservation = Reservation::new(&setup.device, setup.page(), 0).unwrap();
    setup.emulator.fail(Fault::once(Call::Unreserve, 1, REFUSED));
    drop(reservation);
    assert_eq!(setup.device.unreturned().reservations, 1);
    let Setup { emulator, device } = setup;
    drop(device);
    assert!(emulator.is_empty(), "{}", emulator.leaks());
}

#[test]
fn a_lost_device_is_left_alone() {
    let setup = Setup::default();
    let page = setup.page();
    let store = setup.store();
    let fences = Fences::new(&setup.device);
    let clock = fences.register(setup.emulator.stream(), CrossStream::DeviceWait);
    let mut segment = Segment::new(SegmentId::new(0), &store, 4 * page, 0).unwrap();
    let frame = store.create().unwrap();
    segment.map(0, &frame).unwrap();
    let reservation = Reservation::new(&setup.device, page, 0).unwrap();
    let mapping = reservation.map(0, &frame).unwrap();

    setup.emulator.fail(Fault::once(Call::SetAccess, 1, DriverErrorKind::Lost));
    assert!(!setup.device.is_lost());
    let pages = PageRange { first: 0, count: 1 };
    assert_eq!(segment.grant(pages).unwrap_err().kind, DriverErrorKind::Lost);
    assert!(setup.device.is_lost());

    // Every step is refused without a call, and every owner comes back or leaks.
    assert_eq!(segment.grant(pages).unwrap_err().kind, DriverErrorKind::Lost);
    assert_eq!(segment.unmap_stale(&[0]).unwrap_err().kind, DriverErrorKind::Lost);
    assert_eq!(segment.map(1, &frame).unwrap_err().kind, DriverErrorKind::Lost);
    assert!(matches!(store.create(), Err(CreateError::Driver(error)) if error.kind == DriverErrorKind::Lost));
    assert_eq!(Reservation::new(&setup.device, page, 0).unwrap_err().kind, DriverErrorKind::Lost);
    assert_eq!(setup.device.memory_info().unwrap_err().kind, DriverErrorKind::Lost);
    assert_eq!(fences.cover(clock.now()).unwrap_err().kind, DriverErrorKind::Lost);
    assert_eq!(fences.host_wait(clock.stream()).unwrap_err().kind, DriverErrorKind::Lost);
    let mapping = mapping.unmap().unwrap_err().owner;
    let reservation = reservation.unreserve().unwrap_err().owner;
    assert_eq!(setup.device.retry(), 0);
    drop((mapping, reservation, segment, frame, store, fences));
    assert_eq!(setup.device.retry(), 0);
    let all =
        Unreturned { mappings: 2, frames: 1, frame_bytes: page, reservations: 2, ..Unreturned::default() };
    assert_eq!(setup.device.unreturned(), all);
    let Setup { emulator, device } = setup;
    drop(device);
    assert_eq!(emulator.counts().calls_after_lost, 0);
    assert_eq!(emulator.leaks().mappings, 2, "leaked: the device is gone for this process");
}

#[test]
fn losing_the_device_in_a_release_counts_too() {
    let setup = Setup::default();
    let store = setup.store();
    let frame = store.create().unwrap();
    setup.emulator.fail(Fault::once(Call::Release, 1, DriverErrorKind::Lost));
    assert!(store.release(frame).is_err());
    assert!(setup.device.is_lost());
    assert_eq!((store.retry(), store.unreleased_frames()), (0, 1));
    drop(store);
    assert_eq!(setup.counts().calls_after_lost, 0);
}
