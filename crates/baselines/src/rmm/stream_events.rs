//! The events of the pool's streams, one each.
//!
//! Main types: [`StreamEvents`], [`EventNumber`]. Neighbours: `pool` records one at each free.
//!
//! Source: RMM 25.4, `detail/stream_ordered_memory_resource.hpp`: `get_event`. A stream gets its event when it is met first.

use concertina_vmm::{Driver, DriverError};

/// The number of an event. RMM orders its lists by the events' handles, which nothing orders; here the older comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EventNumber(u32);

#[derive(Debug)]
struct StreamEvent<D: Driver> {
    event: D::Event,
    stream: u32,
    /// A record failed: it is made up for before anybody waits. RMM takes no notice.
    is_late: bool,
}

#[derive(Debug)]
pub(crate) struct StreamEvents<D: Driver> {
    events: Vec<StreamEvent<D>>,
    by_stream: Vec<Option<EventNumber>>,
}

impl<D: Driver> StreamEvents<D> {
    pub(crate) const fn new() -> Self {
        Self { events: Vec::new(), by_stream: Vec::new() }
    }

    /// The event of a stream, which need not have been added yet.
    pub(crate) fn of(&mut self, driver: &D, stream: u32) -> Result<EventNumber, DriverError> {
        let place = stream as usize;
        if let Some(Some(number)) = self.by_stream.get(place) {
            return Ok(*number);
        }
        let event = driver.event_create()?;
        let number = EventNumber(u32::try_from(self.events.len()).expect("fewer than 2^32 streams"));
        self.events.push(StreamEvent { event, stream, is_late: false });
        self.by_stream.resize(self.by_stream.len().max(place + 1), None);
        self.by_stream[place] = Some(number);
        Ok(number)
    }

    /// Puts the event behind all that its stream has queued.
    pub(crate) fn record(
        &mut self,
        driver: &D,
        streams: &[D::Stream],
        number: EventNumber,
    ) -> Result<(), DriverError> {
        let event = &mut self.events[number.0 as usize];
        let recorded = driver.event_record(&event.event, &streams[event.stream as usize]);
        event.is_late = recorded.is_err();
        recorded
    }

    /// Makes `stream` wait for the event, on the device.
    pub(crate) fn wait(
        &mut self,
        driver: &D,
        streams: &[D::Stream],
        stream: u32,
        on: EventNumber,
    ) -> Result<(), DriverError> {
        if self.events[on.0 as usize].is_late {
            self.record(driver, streams, on)?;
        }
        driver.stream_wait(&streams[stream as usize], &self.events[on.0 as usize].event)
    }

    /// Makes the host wait for each of them.
    pub(crate) fn synchronize(&self, driver: &D) -> Result<(), DriverError> {
        self.events.iter().try_for_each(|event| driver.event_synchronize(&event.event))
    }
}
