//! Cases about map, unmap and set access.
//!
//! Main types: none; one function a case. Neighbours: `contract` lists them.

use super::{ContractSetup, done, refused};
use crate::driver::{Accessor, Driver};
use crate::units::Address;

/// A map goes to whole pages inside one reservation.
pub fn maps_lie_in_one_reservation<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, page) = (&setup.driver, setup.page());
    let address = setup.reserve(4);
    let handle = setup.create(2);
    refused(driver.map(address.add(3 * page), 2 * page, &handle), "past the end of the reservation");
    refused(driver.map(address.add(page / 2), 2 * page, &handle), "in the middle of a page");
    setup.unreserve(address, 4);
    refused(driver.map(address, 2 * page, &handle), "where nothing is reserved");
    setup.release(handle);
}

/// A map takes the handle from its start to its end.
pub fn a_map_takes_the_whole_handle<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, page) = (&setup.driver, setup.page());
    let address = setup.reserve(4);
    let handle = setup.create(2);
    refused(driver.map(address, 0, &handle), "0 bytes");
    refused(driver.map(address, page, &handle), "half of a handle");
    refused(driver.map(address, page + page / 2, &handle), "three quarters of a handle");
    refused(driver.map(address, 3 * page, &handle), "more than a handle");
    setup.map(address, 2, &handle);
    setup.unmap(address, 2);
    setup.release(handle);
    setup.unreserve(address, 4);
}

/// A page has one mapping at most; not even the same frame goes over itself.
pub fn a_map_over_a_mapping_is_refused<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, page) = (&setup.driver, setup.page());
    let address = setup.reserve(6);
    let lower = setup.create(2);
    let other = setup.create(3);
    setup.map(address.add(2 * page), 2, &lower);
    refused(driver.map(address.add(2 * page), 2 * page, &lower), "over itself");
    refused(driver.map(address, 3 * page, &other), "over the head of a mapping");
    refused(driver.map(address.add(3 * page), 3 * page, &other), "over the tail of a mapping");
    setup.unmap(address.add(2 * page), 2);
    setup.map(address.add(3 * page), 3, &other);
    setup.unmap(address.add(3 * page), 3);
    setup.release(lower);
    setup.release(other);
    setup.unreserve(address, 6);
}

/// One handle may be mapped many times, in one reservation or several; its mappings come and go on their own.
pub fn a_handle_maps_at_many_places<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, page) = (&setup.driver, setup.page());
    let before = setup.free_bytes();
    let here = setup.reserve(2);
    let there = setup.reserve(1);
    let handle = setup.create(1);
    for address in [here, here.add(page), there] {
        setup.map(address, 1, &handle);
        setup.set_access(address, 1);
    }
    assert_eq!(setup.free_bytes(), before - page, "aliases take no memory");
    setup.unmap(here.add(page), 1);
    setup.set_access(here, 1);
    setup.set_access(there, 1);
    setup.release(handle);
    setup.unmap(there, 1);
    refused(driver.unmap(there, page), "twice");
    setup.set_access(here, 1);
    setup.unmap(here, 1);
    setup.unreserve(here, 2);
    setup.unreserve(there, 1);
    assert_eq!(setup.free_bytes(), before);
}

/// An unmap takes whole mappings and nothing else.
pub fn unmap_needs_whole_mappings<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, page) = (&setup.driver, setup.page());
    let address = setup.reserve(6);
    let handle = setup.create(2);
    let at = address.add(2 * page);
    refused(driver.unmap(at, 2 * page), "before anything is mapped");
    setup.map(at, 2, &handle);
    refused(driver.unmap(at, 0), "0 bytes");
    refused(driver.unmap(at, page), "the head of a mapping");
    refused(driver.unmap(at.add(page), page), "the tail of a mapping");
    refused(driver.unmap(at, 3 * page), "a mapping and an unmapped page");
    refused(driver.unmap(address.add(page), 3 * page), "an unmapped page and a mapping");
    refused(driver.unmap(at.add(page / 2), 2 * page), "in the middle of pages");
    setup.unmap(at, 2);
    refused(driver.unmap(at, 2 * page), "twice");
    setup.release(handle);
    setup.unreserve(address, 6);
}

/// Where the device says so, one unmap takes several adjacent whole mappings; else it takes one.
pub fn unmap_spans_mappings_where_it_may<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, page) = (&setup.driver, setup.page());
    let address = setup.reserve(3);
    let one = setup.create(1);
    let two = setup.create(2);
    setup.map(address, 1, &one);
    setup.map(address.add(page), 2, &two);
    refused(driver.unmap(address, 2 * page), "one mapping and half of the next");
    if driver.capabilities().unmap_spans_mappings {
        setup.unmap(address, 3);
    } else {
        refused(driver.unmap(address, 3 * page), "two mappings on a device that unmaps one by one");
        setup.unmap(address, 1);
        setup.unmap(address.add(page), 2);
    }
    setup.release(one);
    setup.release(two);
    setup.unreserve(address, 3);
}

/// Access is given to whole mappings without a gap.
pub fn access_needs_whole_mappings<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, page, accessors) = (&setup.driver, setup.page(), setup.accessors());
    let address = setup.reserve(5);
    let handle = setup.create(2);
    refused(driver.set_access(address, 2 * page, &accessors), "before anything is mapped");
    setup.map(address, 2, &handle);
    setup.map(address.add(3 * page), 2, &handle);
    refused(driver.set_access(address, 0, &accessors), "0 bytes");
    refused(driver.set_access(address, page, &accessors), "the head of a mapping");
    refused(driver.set_access(address.add(page), page, &accessors), "the tail of a mapping");
    refused(driver.set_access(address, 3 * page, &accessors), "a mapping and an unmapped page");
    refused(driver.set_access(address, 5 * page, &accessors), "two mappings with a gap between");
    setup.set_access(address, 2);
    setup.set_access(address.add(3 * page), 2);
    setup.unmap(address, 2);
    refused(driver.set_access(address, 2 * page, &accessors), "after the unmap");
    setup.unmap(address.add(3 * page), 2);
    setup.release(handle);
    setup.unreserve(address, 5);
}

/// One set access covers many adjacent mappings, also again, and those that have access already.
pub fn access_spans_mappings<D: Driver>(setup: &ContractSetup<D>) {
    let page = setup.page();
    let address = setup.reserve(4);
    let handles = [1, 2, 1].map(|pages| (pages, setup.create(pages)));
    let mut at = address;
    for (pages, handle) in &handles {
        setup.map(at, *pages, handle);
        at = at.add(pages * page);
    }
    setup.set_access(address.add(page), 2);
    setup.set_access(address, 4);
    setup.set_access(address, 4);
    let mut at = address;
    for (pages, handle) in handles {
        setup.unmap(at, pages);
        setup.release(handle);
        at = at.add(pages * page);
    }
    setup.unreserve(address, 4);
}

/// Access is given to a device, and to one that exists.
pub fn access_needs_an_accessor<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, page) = (&setup.driver, setup.page());
    let address = setup.reserve(1);
    let handle = setup.create(1);
    setup.map(address, 1, &handle);
    refused(driver.set_access(address, page, &[]), "for none");
    refused(driver.set_access(address, page, &[Accessor::Device(9_999)]), "for device 9999");
    setup.set_access(address, 1);
    setup.unmap(address, 1);
    setup.release(handle);
    setup.unreserve(address, 1);
}

/// After one refusal of each kind, in the middle of things, everything is as it was and can be given back.
pub fn refused_calls_change_nothing<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, page) = (&setup.driver, setup.page());
    let before = setup.free_bytes();
    let address = setup.reserve(4);
    let handle = setup.create(2);
    setup.map(address, 2, &handle);
    setup.set_access(address, 2);
    let during = setup.free_bytes();

    refused(driver.reserve(0, 0), "a reservation of nothing");
    refused(driver.unreserve(address, 4 * page), "a reservation with a mapping");
    refused(driver.create(1, &setup.properties()), "a frame of a byte");
    refused(driver.map(address.add(page), 2 * page, &handle), "a map over a mapping");
    refused(driver.unmap(address.add(page), page), "an unmap of a part");
    refused(driver.set_access(address, 4 * page, &setup.accessors()), "access where nothing is mapped");
    refused(driver.free(Address::new(address.get())), "a free of a reservation");

    assert_eq!(setup.free_bytes(), during);
    done(driver.set_access(address, 2 * page, &setup.accessors()));
    setup.map(address.add(2 * page), 2, &handle);
    setup.unmap(address.add(2 * page), 2);
    setup.unmap(address, 2);
    setup.release(handle);
    setup.unreserve(address, 4);
    assert_eq!(setup.free_bytes(), before);
}
