//! Cases about addresses and physical memory.
//!
//! Main types: none; one function a case. Neighbours: `contract` lists them.

use super::{ContractSetup, done, refused, runs_out};
use crate::driver::{Driver, FrameProperties};

/// The granularity is a power of two of at least a host's page.
pub fn granularity_is_a_power_of_two<D: Driver>(setup: &ContractSetup<D>) {
    let page = setup.page();
    assert!(page.is_power_of_two(), "{page}");
    assert!(page >= 4096, "{page}");
}

/// A reservation has the alignment asked for, 0 meaning the granularity, and shares no address with another.
pub fn reservations_are_aligned_and_apart<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, page) = (&setup.driver, setup.page());
    let mut taken = Vec::new();
    for (pages, alignment) in [(1, 0), (3, page), (1, 8 * page), (5, 4 * page), (2, 0)] {
        let bytes = pages * page;
        let address = done(driver.reserve(bytes, alignment));
        assert!(address.is_aligned_to(alignment.max(page)), "{address} for an alignment of {alignment}");
        assert_ne!(address.get(), 0);
        for &(other, other_bytes) in &taken {
            assert!(
                address.get() + bytes <= other || other + other_bytes <= address.get(),
                "{bytes} bytes at {address} overlap {other_bytes} bytes at {other:#x}"
            );
        }
        taken.push((address.get(), bytes));
    }
    for (address, bytes) in taken {
        done(driver.unreserve(crate::Address::new(address), bytes));
    }
}

/// No reservation of 0 bytes, of a part of a page, or aligned to what is no power of two.
pub fn reservations_of_odd_size_or_alignment_are_refused<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, page) = (&setup.driver, setup.page());
    refused(driver.reserve(0, 0), "0 bytes");
    refused(driver.reserve(page / 2, 0), "half a page");
    refused(driver.reserve(page + 1, 0), "a page and a byte");
    refused(driver.reserve(page, 3 * page), "an alignment of three pages");
}

/// An unreserve takes what one reserve gave: no part of it, no more, no two, and not twice.
pub fn an_unreserve_takes_exactly_one_reservation<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, page) = (&setup.driver, setup.page());
    let address = setup.reserve(4);
    let neighbour = setup.reserve(4);
    refused(driver.unreserve(address, 3 * page), "the head of a reservation");
    refused(driver.unreserve(address.add(page), 3 * page), "the tail of a reservation");
    refused(driver.unreserve(address.add(page), 2 * page), "the middle of a reservation");
    refused(driver.unreserve(address, 5 * page), "more than a reservation");
    refused(driver.unreserve(address.min(neighbour), 8 * page), "two reservations");
    setup.unreserve(address, 4);
    refused(driver.unreserve(address, 4 * page), "a reservation that is gone");
    setup.unreserve(neighbour, 4);
}

/// Addresses with something mapped in them are not given back.
pub fn a_mapped_reservation_stays<D: Driver>(setup: &ContractSetup<D>) {
    let address = setup.reserve(4);
    let handle = setup.create(1);
    setup.map(address.add(2 * setup.page()), 1, &handle);
    refused(setup.driver.unreserve(address, 4 * setup.page()), "a reservation with a mapping");
    setup.unmap(address.add(2 * setup.page()), 1);
    setup.unreserve(address, 4);
    setup.release(handle);
}

/// No frame of 0 bytes or of a part of a page.
pub fn a_create_of_odd_size_is_refused<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, page, properties) = (&setup.driver, setup.page(), setup.properties());
    let before = setup.free_bytes();
    refused(driver.create(0, &properties), "0 bytes");
    refused(driver.create(page / 2, &properties), "half a page");
    refused(driver.create(page + page / 2, &properties), "a page and a half");
    assert_eq!(setup.free_bytes(), before);
}

/// No frame, and no granularity, on a device that isn't there.
pub fn a_create_on_no_device_is_refused<D: Driver>(setup: &ContractSetup<D>) {
    let nowhere = FrameProperties { device: 9_999 };
    refused(setup.driver.granularity(&nowhere), "the granularity of device 9999");
    refused(setup.driver.create(setup.page(), &nowhere), "a frame on device 9999");
}

/// The device is finite, and a create that it has no room for takes nothing.
pub fn a_create_over_the_device_runs_out<D: Driver>(setup: &ContractSetup<D>) {
    let page = setup.page();
    let free = setup.free_bytes();
    let over = (free / page + 1) * page;
    runs_out(setup.driver.create(over, &setup.properties()), "a page more than is free");
    assert_eq!(setup.free_bytes(), free);
}

/// A frame takes its bytes, mapped or not, and gives them back when it is released.
pub fn memory_is_counted<D: Driver>(setup: &ContractSetup<D>) {
    let info = done(setup.driver.memory_info());
    assert!(info.free_bytes <= info.total_bytes, "{info:?}");
    let before = info.free_bytes;
    let one = setup.create(1);
    let three = setup.create(3);
    assert_eq!(setup.free_bytes(), before - 4 * setup.page());
    let address = setup.reserve(1);
    setup.map(address, 1, &one);
    assert_eq!(setup.free_bytes(), before - 4 * setup.page());
    setup.unmap(address, 1);
    assert_eq!(setup.free_bytes(), before - 4 * setup.page());
    setup.release(one);
    assert_eq!(setup.free_bytes(), before - 3 * setup.page());
    setup.release(three);
    assert_eq!(setup.free_bytes(), before);
    setup.unreserve(address, 1);
}

/// A released handle's memory is free only when its last mapping has gone: most of the device, mapped twice, leaves no
/// room for as much again until then.
pub fn a_released_handle_counts_while_mapped<D: Driver>(setup: &ContractSetup<D>) {
    let page = setup.page();
    let before = setup.free_bytes();
    let pages = before / page * 3 / 4;
    let bytes = pages * page;
    let address = setup.reserve(2 * pages);
    let second = address.add(bytes);
    let handle = setup.create(pages);
    setup.map(address, pages, &handle);
    setup.map(second, pages, &handle);
    setup.release(handle);
    runs_out(setup.driver.create(bytes, &setup.properties()), "released, and mapped twice");
    setup.unmap(address, pages);
    runs_out(setup.driver.create(bytes, &setup.properties()), "released, and mapped once");
    assert_eq!(setup.free_bytes(), before - bytes);
    setup.unmap(second, pages);
    assert_eq!(setup.free_bytes(), before);
    let again = setup.create(pages);
    setup.release(again);
    setup.unreserve(address, 2 * pages);
}
