//! Streams for allocators that know one stream only: what their users do for the others.
//!
//! Main types: [`MainStream`], [`PoolBlock`]. Neighbours: `bfc` and `fixed` ask it when a block may go back; `event_queues`
//! has the events.
//!
//! Source: TensorFlow and JAX, whose BFC allocator has one pool for all streams. Its memory is in the order of one
//! stream, the compute stream (`LocalDeviceState::kComputeSynchronized` in XLA's `xla/pjrt/local_device_state.h`):
//! a block that only this one used is free for its next work at once. Another stream that is given a block waits first
//! for the compute stream (`WaitFor` in `AllocateDestinationBuffer` of `pjrt_stream_executor_client.cc`; TensorFlow's
//! `gpu_util.cc` does so for its copies), and a block that another stream used goes back when an event behind that use
//! is seen complete (`TrackedDeviceBuffer`'s release there; `EventMgr` in TensorFlow). The traces' stream 0 is the
//! compute stream here. Of events XLA waits for by a callback, TensorFlow by a thread that polls: here they are
//! looked at with each request.

use std::collections::BTreeMap;

use concertina_vmm::{Address, Driver, DriverError};

use crate::event_queues::EventQueues;
use crate::pool_error::PoolError;

/// A block that the program has. To be freed: dropping it does not.
#[derive(Debug)]
#[must_use = "the block stays live until it is freed"]
pub struct PoolBlock {
    pub(crate) address: u64,
    pub(crate) stream: u32,
    /// Other streams that used it.
    pub(crate) used_on: Vec<u32>,
}

impl PoolBlock {
    pub(crate) const fn new(address: u64, stream: u32) -> Self {
        Self { address, stream, used_on: Vec::new() }
    }

    /// Where it begins.
    pub const fn address(&self) -> Address {
        Address::new(self.address)
    }

    pub(crate) fn used_on(&mut self, stream: u32) {
        if stream != self.stream && !self.used_on.contains(&stream) {
            self.used_on.push(stream);
        }
    }
}

/// The number of the stream in whose order memory comes back.
const MAIN: u32 = 0;

#[derive(Debug)]
struct Pending {
    /// Streams that have no event yet.
    unrecorded: Vec<u32>,
    /// Events that are not seen complete.
    outstanding: u32,
}

#[derive(Debug)]
pub(crate) struct MainStream<D: Driver> {
    streams: Vec<D::Stream>,
    events: EventQueues<D, u64>,
    /// Recorded on the main stream when another one is given a block.
    gate: Option<D::Event>,
    /// Freed blocks that other streams may still use, by address.
    pending: BTreeMap<u64, Pending>,
    /// Those of them with an event that could not be recorded.
    unrecorded: Vec<u64>,
    /// Those that are nobody's any more.
    ready: Vec<u64>,
}

impl<D: Driver> MainStream<D> {
    pub(crate) const fn new() -> Self {
        Self {
            streams: Vec::new(),
            events: EventQueues::new(),
            gate: None,
            pending: BTreeMap::new(),
            unrecorded: Vec::new(),
            ready: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, stream: D::Stream) -> u32 {
        self.streams.push(stream);
        u32::try_from(self.streams.len() - 1).expect("fewer than 2^32 streams")
    }

    /// Whether there is a stream of this number.
    pub(crate) fn check(&self, stream: u32) -> Result<(), PoolError> {
        let streams = self.streams.len();
        if stream as usize >= streams {
            return Err(PoolError::UnknownStream { stream, streams });
        }
        Ok(())
    }

    /// Puts `stream` behind all that the main stream has queued, before it is given a block.
    pub(crate) fn enter(&mut self, driver: &D, stream: u32) -> Result<(), DriverError> {
        if stream == MAIN {
            return Ok(());
        }
        let gate = match self.gate.take() {
            Some(gate) => gate,
            None => driver.event_create()?,
        };
        let entered = driver
            .event_record(&gate, &self.streams[MAIN as usize])
            .and_then(|()| driver.stream_wait(&self.streams[stream as usize], &gate));
        self.gate = Some(gate);
        entered
    }

    /// A block is freed. It is ready now, or when the other streams are done with it.
    ///
    /// # Errors
    /// A failed record; it is made up for with the next look.
    pub(crate) fn free(&mut self, driver: &D, block: PoolBlock) -> Result<(), DriverError> {
        let mut unrecorded = block.used_on;
        unrecorded.push(block.stream);
        unrecorded.retain(|&stream| stream != MAIN);
        if unrecorded.is_empty() {
            self.ready.push(block.address);
            return Ok(());
        }
        self.pending.insert(block.address, Pending { unrecorded, outstanding: 0 });
        self.record(driver, block.address)
    }

    fn record(&mut self, driver: &D, address: u64) -> Result<(), DriverError> {
        let Some(pending) = self.pending.get_mut(&address) else { return Ok(()) };
        while let Some(&stream) = pending.unrecorded.last() {
            if let Err(error) = self.events.record(driver, stream, &self.streams[stream as usize], address) {
                self.unrecorded.push(address);
                return Err(error);
            }
            pending.unrecorded.pop();
            pending.outstanding += 1;
        }
        Ok(())
    }

    fn record_again(&mut self, driver: &D) -> Result<(), DriverError> {
        while let Some(address) = self.unrecorded.pop() {
            self.record(driver, address)?;
        }
        Ok(())
    }

    fn seen(&mut self, address: u64) {
        let Some(pending) = self.pending.get_mut(&address) else { return };
        pending.outstanding -= 1;
        if pending.outstanding == 0 && pending.unrecorded.is_empty() {
            self.pending.remove(&address);
            self.ready.push(address);
        }
    }

    /// Looks which pending blocks are done with. Makes no call when there are none.
    pub(crate) fn look(&mut self, driver: &D) -> Result<(), DriverError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.record_again(driver)?;
        for stream in self.events.streams() {
            while let Some(address) = self.events.pop_complete(driver, stream)? {
                self.seen(address);
            }
        }
        Ok(())
    }

    /// Makes the host wait until all pending blocks are done with. False if there were none.
    pub(crate) fn wait(&mut self, driver: &D) -> Result<bool, DriverError> {
        if self.pending.is_empty() {
            return Ok(false);
        }
        self.record_again(driver)?;
        for stream in self.events.streams() {
            while let Some(address) = self.events.pop_waiting(driver, stream)? {
                self.seen(address);
            }
        }
        Ok(true)
    }

    /// The blocks that are ready, once.
    pub(crate) fn take_ready(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.ready)
    }
}
