//! Mallocs as owned values: in a segment, in the store, refused by the driver.
//!
//! Neighbours: `retries` has the other owners that the driver would not take back.

use concertina_emulator::{Emulator, EmulatorConfig, Fault};
use concertina_vmm::{
    Address, Call, CreateError, Device, DriverErrorKind, FrameProperties, FrameStore, MALLOC_PAGE_BYTES,
    MallocCounts, PageRange, PageState, Segment, SegmentId, SegmentKind, StreamId, Unreturned, Use,
};

use crate::Setup;

const PAGE: u64 = MALLOC_PAGE_BYTES;
const REFUSED: DriverErrorKind = DriverErrorKind::NotReady;

#[test]
fn a_device_without_virtual_memory_has_pages_of_2_mib_and_no_reserved_segments() {
    let setup = Setup::of_mallocs();
    assert_eq!((setup.device.segment_kind(), setup.page()), (SegmentKind::Malloc, 2 << 20));
    let error = Device::new(setup.emulator.clone(), FrameProperties::default()).unwrap_err();
    assert_eq!(error.kind, DriverErrorKind::NotSupported);
    assert!(error.detail.contains("without virtual memory"), "{error}");
    let error = Device::with_mallocs(setup.emulator.clone(), FrameProperties { device: 1 }).unwrap_err();
    assert_eq!(error.kind, DriverErrorKind::Invalid);
    // A device that has virtual memory can do without.
    let emulator =
        Emulator::new(EmulatorConfig { granularity_bytes: 64 << 10, ..EmulatorConfig::default() }).unwrap();
    assert_eq!(Device::with_mallocs(emulator, FrameProperties::default()).unwrap().granularity(), PAGE);
}

#[test]
fn a_malloc_gives_itself_back() {
    let setup = Setup::of_mallocs();
    let store = setup.store();
    let malloc = store.malloc(3 * PAGE).unwrap();
    assert_eq!((malloc.bytes(), store.mapped_bytes()), (3 * PAGE, 3 * PAGE));
    drop(malloc);
    setup.assert_clean();

    // What the driver would not take is on the device's list, and goes later.
    let malloc = store.malloc(PAGE).unwrap();
    setup.emulator.fail(Fault::once(Call::Free, 1, REFUSED));
    drop(malloc);
    let owed = Unreturned { mallocs: 1, malloc_bytes: PAGE, ..Unreturned::default() };
    assert_eq!(setup.device.unreturned(), owed);
    assert_eq!(setup.device.retry(), PAGE);
    setup.assert_clean();
}

#[test]
fn a_store_counts_what_it_has_and_keeps_to_its_limit() {
    let setup = Setup::of_mallocs();
    let store = FrameStore::new(&setup.device, Some(10 * PAGE));
    let first = store.malloc(6 * PAGE).unwrap();
    let over = CreateError::OverLimit { mapped_bytes: 6 * PAGE, limit_bytes: 10 * PAGE };
    assert_eq!(store.malloc(5 * PAGE).unwrap_err(), over);
    assert!(matches!(store.malloc(u64::MAX), Err(CreateError::OverLimit { .. })));
    let second = store.malloc(4 * PAGE).unwrap();
    assert_eq!(setup.calls(Call::Malloc), 2, "the driver is not asked beyond the limit");
    assert_eq!(store.free(first), Ok(6 * PAGE));
    assert_eq!((store.mapped_bytes(), store.mapped_peak_bytes()), (4 * PAGE, 10 * PAGE));

    // A refused free leaves it counted: no malloc may take its place under the limit.
    setup.emulator.fail(Fault::once(Call::Free, 1, REFUSED));
    assert_eq!(store.free(second).unwrap_err().kind, REFUSED);
    assert_eq!((store.mapped_bytes(), store.unfreed_mallocs()), (4 * PAGE, vec![4 * PAGE]));
    assert!(matches!(store.malloc(7 * PAGE), Err(CreateError::OverLimit { .. })));
    assert_eq!(store.retry(), 4 * PAGE);
    assert_eq!(store.malloc_counts(), MallocCounts { mallocs: 2, frees: 2 });

    // A refused malloc claims nothing.
    setup.emulator.fail(Fault::once(Call::Malloc, 1, REFUSED));
    assert!(matches!(store.malloc(10 * PAGE), Err(CreateError::Driver(error)) if error.kind == REFUSED));
    drop(store.malloc(10 * PAGE).unwrap());
    setup.assert_clean();
}

#[test]
fn a_store_hands_out_the_smallest_that_is_wanted() {
    let setup = Setup::of_mallocs();
    let store = setup.store();
    for pages in [4, 2, 6, 3] {
        store.put_malloc(store.malloc(pages * PAGE).unwrap());
    }
    let taken = store.take_malloc(|malloc| malloc.bytes() >= 3 * PAGE).unwrap();
    assert_eq!(taken.bytes(), 3 * PAGE);
    assert!(store.take_malloc(|malloc| malloc.bytes() > 6 * PAGE).is_none());
    let mut spare = store.spare_mallocs(|_| true);
    spare.sort_unstable();
    assert_eq!(spare, [2 * PAGE, 4 * PAGE, 6 * PAGE]);
    drop((taken, store));
    setup.assert_clean();
}

#[test]
fn every_page_of_a_malloc_segment_is_held_while_it_is_there() {
    let setup = Setup::of_mallocs();
    let store = setup.store();
    let malloc = store.malloc(5 * PAGE).unwrap();
    let address = malloc.address();
    let mut segment = Segment::of_malloc(SegmentId::new(7), &store, malloc);
    let all = PageRange::between(0, 5);
    assert_eq!((segment.address(), segment.pages(), segment.held_pages()), (address, 5, 5));
    assert!(segment.all_held(all) && !segment.all_held(PageRange::between(4, 6)));
    assert_eq!((segment.mapped_pages(), segment.state(2)), (0, PageState::Unmapped));
    // Nothing can be taken from it but the whole.
    assert!(segment.take(2, None).is_none() && segment.stale(2).is_none());
    segment.clear().unwrap();
    assert_eq!(segment.unreserve().unwrap_err().kind, DriverErrorKind::Invalid);
    assert_eq!((segment.address(), segment.held_pages()), (address, 5), "nothing was lost");
    let mut malloc = segment.take_malloc().unwrap();
    assert_eq!((segment.address(), segment.pages(), segment.held_pages()), (Address::new(0), 0, 0));
    assert!(!segment.is_held(0) && segment.take_malloc().is_none());

    let use_ = Use { stream: StreamId::new(3), tick: 9 };
    malloc.set_uses([use_].into_iter().collect());
    assert_eq!(malloc.uses()[..], [use_]);
    segment.put_malloc(malloc);
    assert!(segment.all_held(all));
    drop(segment);
    setup.assert_clean();
}

#[test]
fn no_call_is_made_on_a_lost_device() {
    let setup = Setup::of_mallocs();
    let store = setup.store();
    let [kept, lost] = [(); 2].map(|()| store.malloc(PAGE).unwrap());
    setup.emulator.fail(Fault::once(Call::Free, 1, DriverErrorKind::Lost));
    assert_eq!(store.free(lost).unwrap_err().kind, DriverErrorKind::Lost);
    drop(kept);
    assert!(
        matches!(store.malloc(PAGE), Err(CreateError::Driver(error)) if error.kind == DriverErrorKind::Lost)
    );
    assert_eq!((store.retry(), setup.device.retry()), (0, 0));
    assert_eq!(setup.counts().calls_after_lost, 0);
    assert_eq!(store.mapped_bytes(), 2 * PAGE, "leaked with the device");
}
