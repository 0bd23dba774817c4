//! Blocks that were freed while other streams may still use them.
//!
//! Main type: [`Pending`]. Neighbours: `give_back` puts them here and frees what comes out; `event_queues` has the
//! events.
//!
//! Source: GMLake, `CUDACachingAllocator.cpp`: `insert_events`, `process_events`, `synchronize_and_free_events`; as in
//! PyTorch.

use std::collections::BTreeMap;

use concertina_vmm::{Driver, DriverError};

use crate::event_queues::EventQueues;

/// What stands between a block and its pool.
#[derive(Debug)]
struct Uses {
    /// Streams that have no event yet.
    unrecorded: Vec<u32>,
    /// Events that are not seen complete.
    outstanding: u32,
}

/// Blocks are of type `B`.
#[derive(Debug)]
pub(crate) struct Pending<D: Driver, B> {
    events: EventQueues<D, B>,
    uses: BTreeMap<B, Uses>,
    /// Those with a stream whose event could not be recorded yet.
    again: Vec<B>,
}

impl<D: Driver, B: Copy + Ord> Pending<D, B> {
    pub(crate) const fn new() -> Self {
        Self { events: EventQueues::new(), uses: BTreeMap::new(), again: Vec::new() }
    }

    /// The block was freed, and these streams used it. What could not be recorded is by the next look.
    pub(crate) fn insert(
        &mut self,
        driver: &D,
        streams: &[D::Stream],
        block: B,
        used_on: Vec<u32>,
    ) -> Result<(), DriverError> {
        self.uses.insert(block, Uses { unrecorded: used_on, outstanding: 0 });
        self.record(driver, streams, block)
    }

    fn record(&mut self, driver: &D, streams: &[D::Stream], block: B) -> Result<(), DriverError> {
        let Some(uses) = self.uses.get_mut(&block) else { return Ok(()) };
        while let Some(&number) = uses.unrecorded.last() {
            if let Err(error) = self.events.record(driver, number, &streams[number as usize], block) {
                self.again.push(block);
                return Err(error);
            }
            uses.unrecorded.pop();
            uses.outstanding += 1;
        }
        Ok(())
    }

    /// Moves the blocks whose uses are over to `done`. Makes no call when there are none pending.
    ///
    /// # Errors
    /// What the driver says; what is in `done` by then is done.
    pub(crate) fn look(
        &mut self,
        driver: &D,
        streams: &[D::Stream],
        done: &mut Vec<B>,
    ) -> Result<(), DriverError> {
        self.each(driver, streams, done, EventQueues::pop_complete)
    }

    /// The same with all of them, for which the host waits.
    ///
    /// # Errors
    /// As [`look`](Self::look).
    pub(crate) fn wait(
        &mut self,
        driver: &D,
        streams: &[D::Stream],
        done: &mut Vec<B>,
    ) -> Result<(), DriverError> {
        self.each(driver, streams, done, EventQueues::pop_waiting)
    }

    fn each(
        &mut self,
        driver: &D,
        streams: &[D::Stream],
        done: &mut Vec<B>,
        pop: impl Fn(&mut EventQueues<D, B>, &D, u32) -> Result<Option<B>, DriverError>,
    ) -> Result<(), DriverError> {
        while let Some(block) = self.again.pop() {
            self.record(driver, streams, block)?;
        }
        for stream in self.events.streams() {
            while let Some(block) = pop(&mut self.events, driver, stream)? {
                if let Some(uses) = self.uses.get_mut(&block) {
                    uses.outstanding -= 1;
                    if uses.outstanding == 0 && uses.unrecorded.is_empty() {
                        self.uses.remove(&block);
                        done.push(block);
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes the host wait for all that the stream has queued.
    pub(crate) fn synchronize(&mut self, driver: &D, stream: &D::Stream) -> Result<(), DriverError> {
        self.events.synchronize(driver, stream)
    }
}
