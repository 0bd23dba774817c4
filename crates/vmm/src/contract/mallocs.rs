//! Cases about malloc and free.
//!
//! Main types: none; one function a case. Neighbours: `contract` lists them.

use super::{ContractSetup, done, refused, runs_out};
use crate::driver::Driver;
use crate::units::Address;

/// Mallocs of any size are aligned to 256 bytes, and no two live ones share a byte.
pub fn mallocs_are_aligned_and_apart<D: Driver>(setup: &ContractSetup<D>) {
    let driver = &setup.driver;
    let page = setup.page();
    let sizes = [1, 255, 256, 257, 4_096, 100_000, 1 << 19, (1 << 20) - 1, 1 << 20, page, page + 1, 3 * page];
    let mut live: Vec<(Address, u64)> = Vec::new();
    for bytes in sizes.into_iter().chain(sizes.into_iter().rev()) {
        let address = done(driver.malloc(bytes));
        assert!(address.is_aligned_to(256), "{bytes} bytes at {address}");
        for &(other, other_bytes) in &live {
            assert!(
                address.get() + bytes <= other.get() || other.get() + other_bytes <= address.get(),
                "{bytes} bytes at {address} overlap {other_bytes} bytes at {other}"
            );
        }
        live.push((address, bytes));
        if live.len().is_multiple_of(5) {
            let (address, _) = live.swap_remove(live.len() / 2);
            done(driver.free(address));
        }
    }
    for (address, _) in live {
        done(driver.free(address));
    }
}

/// A malloc of 0 bytes is refused.
pub fn a_malloc_of_nothing_is_refused<D: Driver>(setup: &ContractSetup<D>) {
    refused(setup.driver.malloc(0), "0 bytes");
}

/// A free takes the address that one malloc gave, once.
pub fn a_free_takes_exactly_one_malloc<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, page) = (&setup.driver, setup.page());
    for bytes in [1_024, 4 * page] {
        let address = done(driver.malloc(bytes));
        refused(driver.free(address.add(256)), "inside a malloc");
        done(driver.free(address));
        refused(driver.free(address), "twice");
    }
    let reserved = setup.reserve(1);
    refused(driver.free(reserved), "an address that is only reserved");
    setup.unreserve(reserved, 1);
}

/// A malloc that the device has no room for takes nothing.
pub fn a_malloc_over_the_device_runs_out<D: Driver>(setup: &ContractSetup<D>) {
    let free = setup.free_bytes();
    runs_out(setup.driver.malloc(free + 1), "a byte more than is free");
    runs_out(setup.driver.malloc(u64::MAX), "all bytes there are");
    assert_eq!(setup.free_bytes(), free);
}

/// Mallocs and frames take from the same memory.
pub fn mallocs_and_frames_share_the_device<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, page) = (&setup.driver, setup.page());
    let before = setup.free_bytes();
    let most = before / page * 3 / 4;
    let address = done(driver.malloc(most * page));
    assert!(setup.free_bytes() <= before - most * page);
    runs_out(driver.create(most * page, &setup.properties()), "a frame where a malloc has the memory");
    done(driver.free(address));
    assert_eq!(setup.free_bytes(), before);
    let handle = setup.create(most);
    runs_out(driver.malloc(most * page), "a malloc where a frame has the memory");
    setup.release(handle);
    assert_eq!(setup.free_bytes(), before);
}
