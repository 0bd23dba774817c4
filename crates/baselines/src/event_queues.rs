//! Blocks that were freed while other streams may still use them, and the events that say when they are done.
//!
//! Main type: [`EventQueues`]. Neighbours: `pytorch` has its pending blocks here, `main_stream` those of allocators that
//! know one stream only.
//!
//! Source: PyTorch 2.11, `CUDACachingAllocator.cpp`: `insert_events`, `process_events`, `synchronize_and_free_events`,
//! `EventPool`. An event is recorded at the free, one for each other stream; each stream's events are looked at in the
//! order of their records, up to the first that is not complete. TensorFlow's `EventMgr` does the same.

use std::collections::{BTreeMap, VecDeque};

use concertina_vmm::{Driver, DriverError};

/// Blocks are of type `B`, by which their owner knows them.
#[derive(Debug)]
pub(crate) struct EventQueues<D: Driver, B> {
    /// By the number of the stream.
    queues: BTreeMap<u32, VecDeque<(D::Event, B)>>,
    /// Events to be recorded again.
    spare: Vec<D::Event>,
}

impl<D: Driver, B> EventQueues<D, B> {
    pub(crate) const fn new() -> Self {
        Self { queues: BTreeMap::new(), spare: Vec::new() }
    }

    /// Records an event behind all that `stream` has queued, for the block.
    pub(crate) fn record(
        &mut self,
        driver: &D,
        number: u32,
        stream: &D::Stream,
        block: B,
    ) -> Result<(), DriverError> {
        let event = match self.spare.pop() {
            Some(event) => event,
            None => driver.event_create()?,
        };
        if let Err(error) = driver.event_record(&event, stream) {
            self.spare.push(event);
            return Err(error);
        }
        self.queues.entry(number).or_default().push_back((event, block));
        Ok(())
    }

    /// The streams that have events outstanding.
    pub(crate) fn streams(&self) -> Vec<u32> {
        self.queues.keys().copied().collect()
    }

    /// Whether no event is outstanding.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// The block of the stream's oldest event, if that is complete; the event is spare then.
    pub(crate) fn pop_complete(&mut self, driver: &D, stream: u32) -> Result<Option<B>, DriverError> {
        match self.queues.get(&stream).and_then(VecDeque::front) {
            Some((event, _)) if driver.event_query(event)? => Ok(self.pop(stream)),
            _ => Ok(None),
        }
    }

    /// The same, waiting for the event.
    pub(crate) fn pop_waiting(&mut self, driver: &D, stream: u32) -> Result<Option<B>, DriverError> {
        if let Some((event, _)) = self.queues.get(&stream).and_then(VecDeque::front) {
            driver.event_synchronize(event)?;
        }
        Ok(self.pop(stream))
    }

    fn pop(&mut self, stream: u32) -> Option<B> {
        let queue = self.queues.get_mut(&stream)?;
        let popped = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&stream);
        }
        let (event, block) = popped?;
        self.spare.push(event);
        Some(block)
    }

    /// Makes the host wait for all that `stream` has queued: `cudaStreamSynchronize`, which the driver's trait lacks.
    pub(crate) fn synchronize(&mut self, driver: &D, stream: &D::Stream) -> Result<(), DriverError> {
        let event = match self.spare.pop() {
            Some(event) => event,
            None => driver.event_create()?,
        };
        let done = driver.event_record(&event, stream).and_then(|()| driver.event_synchronize(&event));
        self.spare.push(event);
        done
    }
}
