//! An owner comes back inside the error when a step fails, and gives itself back when it is dropped.
//!
//! Neighbours: `retries` has what happens when the driver refuses that, too.

use concertina_emulator::{Emulator, EmulatorConfig, Fault};
use concertina_vmm::{
    Access, Address, Call, CreateError, Device, Driver, DriverErrorKind, FrameProperties, FrameStore, Holder,
    Mapping, PageRange, PageState, ReleaseError, Reservation, Returned, Segment, SegmentId,
};

use crate::Setup;

const KINDS: [DriverErrorKind; 4] = [
    DriverErrorKind::OutOfMemory,
    DriverErrorKind::NotReady,
    DriverErrorKind::NotSupported,
    DriverErrorKind::Invalid,
];

/// Two blanket implementations that only a type without the trait can choose between.
macro_rules! assert_never {
    ($not:path: $($owner:ty),+) => {
        const _: () = {
            trait OnlyOne<A> {
                fn chosen() {}
            }
            struct HasTheTrait;
            impl<T: ?Sized> OnlyOne<()> for T {}
            impl<T: ?Sized + $not> OnlyOne<HasTheTrait> for T {}
            $(let _ = <$owner as OnlyOne<_>>::chosen;)+
        };
    };
}

// This compiles only while no owner can be cloned: a clone would be given back twice.
assert_never!(
    Clone: Reservation<Emulator>, concertina_vmm::Frame<Emulator>, Mapping<Emulator>, Segment<Emulator>,
    Device<Emulator>, FrameStore<Emulator>, <Emulator as Driver>::Handle
);

const fn goes_between_threads<T: Send + Sync>() {}
const _: () = {
    goes_between_threads::<Reservation<Emulator>>();
    goes_between_threads::<concertina_vmm::Frame<Emulator>>();
    goes_between_threads::<Mapping<Emulator>>();
    goes_between_threads::<Segment<Emulator>>();
    goes_between_threads::<FrameStore<Emulator>>();
    goes_between_threads::<concertina_vmm::Fences<Emulator>>();
};

#[test]
fn drop_gives_everything_back() {
    let setup = Setup::default();
    let store = setup.store();
    let reservation = Reservation::new(&setup.device, 4 * setup.page(), 0).unwrap();
    let frame = store.create().unwrap();
    let mapping = reservation.map(setup.page(), &frame).unwrap();
    assert_eq!(mapping.address(), reservation.address().add(setup.page()));
    assert_eq!((mapping.bytes(), mapping.frame()), (setup.page(), frame.id()));
    assert_eq!(mapping.access(), Access::None);
    let held = setup.emulator.leaks();
    assert_eq!((held.reservations, held.handles, held.mappings), (1, 1, 1));
    assert_eq!(setup.device.mappings(), 1);

    drop(mapping);
    assert_eq!(setup.emulator.leaks().mappings, 0);
    drop(frame);
    assert_eq!(setup.emulator.leaks().mapped_bytes, 0);
    drop(reservation);
    setup.assert_clean();
    let count = |call| setup.calls(call);
    assert_eq!([count(Call::Unmap), count(Call::Release), count(Call::Unreserve)], [1, 1, 1]);
}

#[test]
fn a_reservation_comes_back() {
    for kind in KINDS {
        let setup = Setup::default();
        let reservation = Reservation::new(&setup.device, 2 * setup.page(), 0).unwrap();
        let address = reservation.address();
        setup.emulator.fail(Fault::once(Call::Unreserve, 1, kind));
        let Err(Returned { owner, error }) = reservation.unreserve() else { panic!("told to fail") };
        assert_eq!((error.kind, error.call), (kind, Call::Unreserve));
        assert_eq!((owner.address(), owner.bytes()), (address, 2 * setup.page()));
        assert!(setup.device.unreturned().is_empty(), "its owner has it, not the retry list");
        owner.unreserve().unwrap();
        setup.assert_clean();
    }
}

#[test]
fn a_failed_reserve_leaves_nothing() {
    for kind in KINDS {
        let setup = Setup::default();
        setup.emulator.fail(Fault::once(Call::Reserve, 1, kind));
        assert_eq!(Reservation::new(&setup.device, setup.page(), 0).unwrap_err().kind, kind);
        setup.assert_clean();
    }
}

#[test]
fn a_mapping_comes_back() {
    for kind in KINDS {
        let setup = Setup::default();
        let store = setup.store();
        let reservation = Reservation::new(&setup.device, setup.page(), 0).unwrap();
        let frame = store.create().unwrap();
        setup.emulator.fail(Fault::once(Call::Map, 1, kind));
        assert_eq!(reservation.map(0, &frame).unwrap_err().kind, kind);
        assert_eq!(setup.device.mappings(), 0, "a map that failed is not counted");

        let mapping = reservation.map(0, &frame).unwrap();
        setup.emulator.fail(Fault::once(Call::Unmap, 1, kind));
        let Err(Returned { owner, error }) = mapping.unmap() else { panic!("told to fail") };
        assert_eq!((error.kind, error.call), (kind, Call::Unmap));
        assert_eq!((owner.address(), owner.frame()), (reservation.address(), frame.id()));
        assert_eq!((setup.device.mappings(), setup.emulator.leaks().mappings), (1, 1));
        assert!(setup.device.unreturned().is_empty());
        owner.unmap().unwrap();
        drop((frame, reservation));
        setup.assert_clean();
    }
}

#[test]
fn a_mapped_frame_comes_back_from_a_release() {
    let setup = Setup::default();
    let store = setup.store();
    let mut segment = Segment::new(SegmentId::new(0), &store, setup.page(), 0).unwrap();
    let frame = store.create().unwrap();
    let id = frame.id();
    segment.map(0, &frame).unwrap();
    let Err(ReleaseError::Mapped(frame)) = store.release(frame) else { panic!("it is mapped") };
    assert_eq!((frame.id(), store.mapped_bytes()), (id, setup.page()));
    assert_eq!(setup.calls(Call::Release), 0, "the driver is not asked");
    segment.unmap_stale(&[0]).unwrap();
    assert_eq!(store.release(frame).unwrap(), setup.page());
    segment.unreserve().unwrap();
    setup.assert_clean();
}

#[test]
fn a_frame_whose_release_fails_waits_in_the_store() {
    for kind in KINDS {
        let setup = Setup::default();
        let store = setup.store();
        let frame = store.create().unwrap();
        let id = frame.id();
        setup.emulator.fail(Fault::from_nth(Call::Release, 1, kind));
        let Err(ReleaseError::Driver(error)) = store.release(frame) else { panic!("told to fail") };
        assert_eq!((error.kind, error.call), (kind, Call::Release));
        assert_eq!(store.unreleased_frames(), 1);
        assert_eq!(store.mapped_bytes(), setup.page(), "it counts until it is gone");
        assert_eq!(store.free_frames(), 0, "it serves nobody");
        assert_eq!(store.retry(), 0);
        assert_eq!(store.unreleased_frames(), 1);
        setup.emulator.clear_faults();
        assert_eq!(store.retry(), setup.page());
        assert_eq!((store.unreleased_frames(), store.mapped_bytes()), (0, 0));
        assert_eq!(store.directory().holder(id), Holder::Nobody);
        setup.assert_clean();
    }
}

#[test]
fn a_failed_create_leaves_nothing() {
    for kind in KINDS {
        let setup = Setup::default();
        let store = FrameStore::new(&setup.device, Some(setup.page()));
        setup.emulator.fail(Fault::once(Call::Create, 1, kind));
        let error = store.create().unwrap_err();
        assert!(matches!(&error, CreateError::Driver(error) if error.kind == kind), "{error}");
        assert_eq!((store.mapped_bytes(), store.mapped_peak_bytes()), (0, 0));
        // The limit has room for one frame again.
        let frame = store.create().unwrap();
        store.release(frame).unwrap();
        setup.assert_clean();
    }
}

#[test]
fn a_segment_comes_back() {
    for kind in KINDS {
        let setup = Setup::default();
        let store = setup.store();
        let mut segment = Segment::new(SegmentId::new(7), &store, 2 * setup.page(), 0).unwrap();
        let frame = store.create().unwrap();
        let id = frame.id();
        segment.map(1, &frame).unwrap();

        setup.emulator.fail(Fault::once(Call::SetAccess, 1, kind));
        let pages = PageRange { first: 1, count: 1 };
        assert_eq!(segment.grant(pages).unwrap_err().kind, kind);
        assert_eq!(segment.mapping(1).unwrap().access(), Access::None);
        assert_eq!(segment.state(1), PageState::Stale(id), "a page without access does not look usable");
        segment.grant(pages).unwrap();
        segment.hold(1, frame);
        store.put(segment.take(1, None));

        setup.emulator.fail(Fault::once(Call::Unmap, 1, kind));
        assert_eq!(segment.unmap_stale(&[1]).unwrap_err().kind, kind);
        assert_eq!(segment.state(1), PageState::Stale(id));
        segment.unmap_stale(&[1]).unwrap();
        assert_eq!(segment.state(1), PageState::Unmapped);

        setup.emulator.fail(Fault::once(Call::Unreserve, 1, kind));
        let address = segment.address();
        assert_eq!(segment.unreserve().unwrap_err().kind, kind);
        assert_eq!((segment.address(), segment.pages()), (address, 2), "nothing was lost");
        segment.unreserve().unwrap();
        assert_eq!(
            (segment.address(), segment.pages(), segment.state(1)),
            (Address::new(0), 0, PageState::Unmapped)
        );
        segment.unreserve().expect("no call is made without addresses");
        store.release(store.take_frame(id, |_| true).unwrap()).unwrap();
        setup.assert_clean();
    }
}

#[test]
fn a_mapped_segment_can_not_be_unreserved() {
    let setup = Setup::default();
    let store = setup.store();
    let mut segment = Segment::new(SegmentId::new(0), &store, setup.page(), 0).unwrap();
    let frame = store.create().unwrap();
    segment.map(0, &frame).unwrap();
    assert_eq!(segment.unreserve().unwrap_err().kind, DriverErrorKind::Invalid);
    assert_eq!(segment.state(0), PageState::Stale(frame.id()), "nothing was lost");
    segment.unmap_stale(&[0]).unwrap();
    segment.unreserve().unwrap();
    store.release(frame).unwrap();
    setup.assert_clean();
}

#[test]
fn an_odd_device_is_refused() {
    let emulator = Emulator::new(EmulatorConfig { device: 3, ..EmulatorConfig::default() }).unwrap();
    let error = Device::new(emulator, FrameProperties { device: 0 }).unwrap_err();
    assert_eq!(error.kind, DriverErrorKind::Invalid);
}
