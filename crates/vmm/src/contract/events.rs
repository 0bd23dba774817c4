//! Cases about events and streams.
//!
//! Main types: none; one function a case. Neighbours: `contract` lists them.
//!
//! A driver may complete events when it likes, so these look only at what must be so after the host has waited.

use super::{ContractSetup, done};
use crate::driver::{CaptureStatus, Driver};

/// An event that was never recorded stands for no work.
pub fn an_event_never_recorded_is_done<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, [stream, _]) = (&setup.driver, &setup.streams);
    let event = done(driver.event_create());
    assert!(done(driver.event_query(&event)));
    done(driver.event_synchronize(&event));
    done(driver.stream_wait(stream, &event));
    assert!(done(driver.event_query(&event)));
}

/// When the host has waited for an event, it is done and stays so, until it is recorded again.
pub fn an_event_waited_for_is_done<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, [stream, other]) = (&setup.driver, &setup.streams);
    let event = done(driver.event_create());
    for stream in [stream, other, stream] {
        done(driver.event_record(&event, stream));
        done(driver.event_synchronize(&event));
        assert!(done(driver.event_query(&event)));
        done(driver.event_synchronize(&event));
        assert!(done(driver.event_query(&event)));
    }
}

/// When an event is done, so are those recorded before it on its stream.
pub fn events_of_a_stream_complete_in_order<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, [stream, _]) = (&setup.driver, &setup.streams);
    let events = [(); 3].map(|()| done(driver.event_create()));
    for event in &events {
        done(driver.event_record(event, stream));
    }
    let [first, second, third] = &events;
    done(driver.event_synchronize(second));
    assert!(done(driver.event_query(first)));
    assert!(done(driver.event_query(second)));
    done(driver.event_synchronize(third));
    assert!(done(driver.event_query(third)));
}

/// When an event behind a wait is done, so is the event that was waited for, also over two waits.
pub fn waits_between_streams_carry_over<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, [left, right]) = (&setup.driver, &setup.streams);
    let [first, second, third] = [(); 3].map(|()| done(driver.event_create()));
    done(driver.event_record(&first, left));
    done(driver.stream_wait(right, &first));
    done(driver.event_record(&second, right));
    done(driver.stream_wait(left, &second));
    done(driver.event_record(&third, left));
    done(driver.event_synchronize(&third));
    for event in [&first, &second, &third] {
        assert!(done(driver.event_query(event)));
    }
}

/// Events may be dropped unrecorded, recorded and waited for, in any order, and new ones are as good.
pub fn events_go_in_any_order<D: Driver>(setup: &ContractSetup<D>) {
    let (driver, [left, right]) = (&setup.driver, &setup.streams);
    let [unused, recorded, awaited] = [(); 3].map(|()| done(driver.event_create()));
    done(driver.event_record(&recorded, left));
    done(driver.event_record(&awaited, right));
    done(driver.stream_wait(left, &awaited));
    drop(recorded);
    drop(awaited);
    drop(unused);
    let event = done(driver.event_create());
    assert!(done(driver.event_query(&event)), "a new event was recorded already");
    done(driver.event_record(&event, left));
    done(driver.event_synchronize(&event));
    assert!(done(driver.event_query(&event)));
}

/// The streams of the setup run, and record no graph.
pub fn streams_do_not_capture<D: Driver>(setup: &ContractSetup<D>) {
    for stream in &setup.streams {
        assert_eq!(done(setup.driver.capture_status(stream)), CaptureStatus::None);
    }
}
