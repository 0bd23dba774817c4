//! The contract of [`Driver`]: tests that every implementation must pass.
//!
//! Main types: [`ContractSetup`], [`Case`]; and the macro [`driver_contract!`](crate::driver_contract), which makes a
//! test of each case. Neighbours: the test files of the emulator and of the CUDA driver use it.
//!
//! The cases use nothing but the traits, so they run on a real device too. They look at three things: what the driver
//! must refuse is refused as [`DriverErrorKind::Invalid`], a refused call has changed nothing, and what it must do it
//! does. What only kernels can see (access before set access, content) is not theirs.

mod events;
mod mallocs;
mod mappings;
mod memory;

use core::fmt::Debug;

pub use events::{
    an_event_never_recorded_is_done, an_event_waited_for_is_done, events_go_in_any_order,
    events_of_a_stream_complete_in_order, streams_do_not_capture, waits_between_streams_carry_over,
};
pub use mallocs::{
    a_free_takes_exactly_one_malloc, a_malloc_of_nothing_is_refused, a_malloc_over_the_device_runs_out,
    mallocs_and_frames_share_the_device, mallocs_are_aligned_and_apart,
};
pub use mappings::{
    a_handle_maps_at_many_places, a_map_over_a_mapping_is_refused, a_map_takes_the_whole_handle,
    access_needs_an_accessor, access_needs_whole_mappings, access_spans_mappings,
    maps_lie_in_one_reservation, refused_calls_change_nothing, unmap_needs_whole_mappings,
    unmap_spans_mappings_where_it_may,
};
pub use memory::{
    a_create_of_odd_size_is_refused, a_create_on_no_device_is_refused, a_create_over_the_device_runs_out,
    a_mapped_reservation_stays, a_released_handle_counts_while_mapped,
    an_unreserve_takes_exactly_one_reservation, granularity_is_a_power_of_two, memory_is_counted,
    reservations_are_aligned_and_apart, reservations_of_odd_size_or_alignment_are_refused,
};

use crate::driver::{Accessor, Driver, FrameProperties};
use crate::error::{DriverError, DriverErrorKind, Returned};
use crate::units::Address;

/// A driver to be tested, fresh for each case. Nothing else uses its device meanwhile.
#[derive(Debug)]
pub struct ContractSetup<D: Driver> {
    /// The driver.
    pub driver: D,
    /// The ordinal of its device.
    pub device: u32,
    /// Two streams on which no work is queued and no capture runs.
    pub streams: [D::Stream; 2],
}

/// One test of the contract.
#[derive(Debug)]
pub struct Case<D: Driver> {
    /// Its name: what it shows.
    pub name: &'static str,
    /// The test; it panics where the driver breaks the contract, and leaves nothing on the device where it doesn't.
    pub run: fn(&ContractSetup<D>),
}

macro_rules! contract_cases {
    (($dollar:tt) $($name:ident,)*) => {
        /// Every case.
        pub fn cases<D: Driver>() -> Vec<Case<D>> {
            vec![$(Case { name: stringify!($name), run: $name::<D> },)*]
        }

        /// Makes a test of each case of the contract. The argument is an expression that makes a fresh
        /// [`ContractSetup`](crate::contract::ContractSetup).
        #[macro_export]
        macro_rules! driver_contract {
            ($dollar setup:expr) => {
                $(
                    #[test]
                    fn $name() {
                        $crate::contract::$name(&$dollar setup);
                    }
                )*
            };
        }
    };
}

contract_cases! { ($)
    granularity_is_a_power_of_two,
    reservations_are_aligned_and_apart,
    reservations_of_odd_size_or_alignment_are_refused,
    an_unreserve_takes_exactly_one_reservation,
    a_mapped_reservation_stays,
    a_create_of_odd_size_is_refused,
    a_create_on_no_device_is_refused,
    a_create_over_the_device_runs_out,
    memory_is_counted,
    a_released_handle_counts_while_mapped,
    maps_lie_in_one_reservation,
    a_map_takes_the_whole_handle,
    a_map_over_a_mapping_is_refused,
    a_handle_maps_at_many_places,
    unmap_needs_whole_mappings,
    unmap_spans_mappings_where_it_may,
    access_needs_whole_mappings,
    access_spans_mappings,
    access_needs_an_accessor,
    refused_calls_change_nothing,
    an_event_never_recorded_is_done,
    an_event_waited_for_is_done,
    events_of_a_stream_complete_in_order,
    waits_between_streams_carry_over,
    events_go_in_any_order,
    streams_do_not_capture,
    mallocs_are_aligned_and_apart,
    a_malloc_of_nothing_is_refused,
    a_free_takes_exactly_one_malloc,
    a_malloc_over_the_device_runs_out,
    mallocs_and_frames_share_the_device,
}

impl<D: Driver> ContractSetup<D> {
    fn properties(&self) -> FrameProperties {
        FrameProperties { device: self.device }
    }

    fn accessors(&self) -> [Accessor; 1] {
        [Accessor::Device(self.device)]
    }

    fn page(&self) -> u64 {
        done(self.driver.granularity(&self.properties()))
    }

    fn free_bytes(&self) -> u64 {
        done(self.driver.memory_info()).free_bytes
    }

    fn reserve(&self, pages: u64) -> Address {
        done(self.driver.reserve(pages * self.page(), 0))
    }

    fn unreserve(&self, address: Address, pages: u64) {
        done(self.driver.unreserve(address, pages * self.page()));
    }

    fn create(&self, pages: u64) -> D::Handle {
        done(self.driver.create(pages * self.page(), &self.properties()))
    }

    fn release(&self, handle: D::Handle) {
        released(self.driver.release(handle));
    }

    fn map(&self, address: Address, pages: u64, handle: &D::Handle) {
        done(self.driver.map(address, pages * self.page(), handle));
    }

    fn unmap(&self, address: Address, pages: u64) {
        done(self.driver.unmap(address, pages * self.page()));
    }

    fn set_access(&self, address: Address, pages: u64) {
        done(self.driver.set_access(address, pages * self.page(), &self.accessors()));
    }
}

#[track_caller]
fn done<T>(result: Result<T, DriverError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("a call that keeps all rules failed: {error}"),
    }
}

#[track_caller]
fn released<T: Debug>(result: Result<(), Returned<T>>) {
    if let Err(returned) = result {
        panic!("a release that keeps all rules failed: {returned}");
    }
}

#[track_caller]
fn fails<T>(result: Result<T, DriverError>, kind: DriverErrorKind, why: &str) {
    match result {
        Ok(_) => panic!("not refused: {why}"),
        Err(error) => assert_eq!(error.kind, kind, "{why}: {error}"),
    }
}

#[track_caller]
fn refused<T>(result: Result<T, DriverError>, why: &str) {
    fails(result, DriverErrorKind::Invalid, why);
}

#[track_caller]
fn runs_out<T>(result: Result<T, DriverError>, why: &str) {
    fails(result, DriverErrorKind::OutOfMemory, why);
}
