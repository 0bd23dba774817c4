//! A driver over the emulator that knows what work is ordered: it finds accesses to the same memory that nothing
//! orders, and unmaps under work that may still run.
//!
//! Main types: [`Ordered`], [`Work`]. Neighbours: `world` queues work on every block that it gets.
//!
//! Vector clocks over streams: each piece of work on a stream is a number; an event carries what its stream comes after;
//! a wait on the device or of the host hands that on. The locks here are `std`'s and are never held across a call of the
//! library, so that a scheduler which switches at the library's locks can't be blocked by them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use concertina_emulator::{BackingId, EmulatedEvent, EmulatedHandle, EmulatedStream, Emulator};
use concertina_vmm::{
    Accessor, Address, Capabilities, CaptureStatus, Driver, DriverError, FrameProperties, MemoryInfo,
    Returned,
};

/// What is known to be over, by stream: all work up to this number.
#[derive(Clone, Debug, Default)]
struct Clock(Vec<u64>);

impl Clock {
    fn of(&self, stream: usize) -> u64 {
        self.0.get(stream).copied().unwrap_or(0)
    }

    fn raise(&mut self, stream: usize, work: u64) {
        if self.0.len() <= stream {
            self.0.resize(stream + 1, 0);
        }
        self.0[stream] = self.0[stream].max(work);
    }

    fn join(&mut self, other: &Self) {
        for (stream, work) in other.0.iter().enumerate() {
            self.raise(stream, *work);
        }
    }
}

/// A piece of work: its number on its stream, and the memory or addresses that it touches.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    stream: usize,
    number: u64,
    bytes: Range<u64>,
}

impl Work {
    fn overlaps(&self, bytes: &Range<u64>) -> bool {
        self.bytes.start < bytes.end && bytes.start < self.bytes.end
    }
}

#[derive(Debug, Default)]
struct State {
    /// What each stream's next work comes after.
    streams: Vec<Clock>,
    /// What the host has seen done.
    host: Clock,
    /// Last accesses to each memory.
    memory: HashMap<BackingId, Vec<Work>>,
    /// Last accesses through addresses.
    addresses: Vec<Work>,
    races: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct OrderedStream {
    stream: EmulatedStream,
    number: usize,
}

#[derive(Debug)]
pub(crate) struct OrderedEvent {
    event: EmulatedEvent,
    after: Mutex<Clock>,
}

/// The emulator and the order of the work on it. A clone is the same device.
#[derive(Clone, Debug)]
pub(crate) struct Ordered {
    pub(crate) emulator: Emulator,
    state: Arc<Mutex<State>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ordered {
    pub(crate) fn new(emulator: Emulator) -> Self {
        Self { emulator, state: Arc::default() }
    }

    pub(crate) fn stream(&self) -> OrderedStream {
        let mut state = lock(&self.state);
        state.streams.push(Clock::default());
        OrderedStream { stream: self.emulator.stream(), number: state.streams.len() - 1 }
    }

    /// Queues work on the stream that reads and writes these addresses.
    pub(crate) fn work(&self, stream: &OrderedStream, address: Address, bytes: u64) {
        let pieces = self.emulator.resolve_range(address, bytes);
        let mut state = lock(&self.state);
        let state = &mut *state;
        let number = state.streams[stream.number].of(stream.number) + 1;
        state.streams[stream.number].raise(stream.number, number);
        let mut before = state.streams[stream.number].clone();
        before.join(&state.host);
        for piece in pieces {
            let Some(backing) = piece.backing.filter(|backing| backing.accessible) else {
                state.races.push(format!("stream {} works on unmapped {}", stream.number, piece.address));
                continue;
            };
            let bytes = backing.offset_bytes..backing.offset_bytes + piece.bytes;
            let earlier = state.memory.entry(backing.memory).or_default();
            for work in earlier.iter().filter(|work| work.overlaps(&bytes)) {
                if work.number > before.of(work.stream) {
                    let line = format!(
                        "stream {} works on {:?} {bytes:?} at {}, not ordered after work {} of stream {}",
                        stream.number, backing.memory, piece.address, work.number, work.stream
                    );
                    state.races.push(line);
                }
            }
            earlier.retain(|work| !(bytes.start <= work.bytes.start && work.bytes.end <= bytes.end));
            earlier.push(Work { stream: stream.number, number, bytes });
        }
        let bytes = address.get()..address.get() + bytes;
        state.addresses.retain(|work| {
            work.stream != stream.number || work.bytes.start < bytes.start || bytes.end < work.bytes.end
        });
        state.addresses.push(Work { stream: stream.number, number, bytes });
    }

    /// What was not ordered so far.
    pub(crate) fn races(&self) -> Vec<String> {
        lock(&self.state).races.clone()
    }

    /// The program makes the host wait for the whole device.
    pub(crate) fn synchronize_device(&self) {
        self.emulator.synchronize_device();
        let mut state = lock(&self.state);
        for stream in state.streams.clone() {
            state.host.join(&stream);
        }
    }

    fn saw_done(&self, event: &OrderedEvent) {
        lock(&self.state).host.join(&lock(&event.after));
    }
}

impl Driver for Ordered {
    type Handle = EmulatedHandle;
    type Event = OrderedEvent;
    type Stream = OrderedStream;

    fn capabilities(&self) -> &Capabilities {
        self.emulator.capabilities()
    }

    fn granularity(&self, properties: &FrameProperties) -> Result<u64, DriverError> {
        self.emulator.granularity(properties)
    }

    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        self.emulator.memory_info()
    }

    fn reserve(&self, bytes: u64, alignment: u64) -> Result<Address, DriverError> {
        self.emulator.reserve(bytes, alignment)
    }

    fn unreserve(&self, address: Address, bytes: u64) -> Result<(), DriverError> {
        self.emulator.unreserve(address, bytes)
    }

    fn create(&self, bytes: u64, properties: &FrameProperties) -> Result<EmulatedHandle, DriverError> {
        self.emulator.create(bytes, properties)
    }

    fn release(&self, handle: EmulatedHandle) -> Result<(), Returned<EmulatedHandle>> {
        self.emulator.release(handle)
    }

    fn map(&self, address: Address, bytes: u64, handle: &EmulatedHandle) -> Result<(), DriverError> {
        self.emulator.map(address, bytes, handle)
    }

    fn unmap(&self, address: Address, bytes: u64) -> Result<(), DriverError> {
        let range = address.get()..address.get() + bytes;
        let mut state = lock(&self.state);
        let state = &mut *state;
        for work in state.addresses.iter().filter(|work| work.overlaps(&range)) {
            if work.number > state.host.of(work.stream) {
                state.races.push(format!("unmap of {address} under {work:?}"));
            }
        }
        // What was touched beyond the range stays: a block may cover several mappings.
        let kept = std::mem::take(&mut state.addresses).into_iter().flat_map(|work| {
            let Range { start, end } = work.bytes;
            let left = start..end.min(range.start);
            let right = start.max(range.end)..end;
            [left, right].map(|bytes| Work { bytes, ..work.clone() })
        });
        state.addresses = kept.filter(|work| work.bytes.start < work.bytes.end).collect();
        self.emulator.unmap(address, bytes)
    }

    fn set_access(&self, address: Address, bytes: u64, accessors: &[Accessor]) -> Result<(), DriverError> {
        self.emulator.set_access(address, bytes, accessors)
    }

    fn event_create(&self) -> Result<OrderedEvent, DriverError> {
        Ok(OrderedEvent { event: self.emulator.event_create()?, after: Mutex::default() })
    }

    fn event_record(&self, event: &OrderedEvent, stream: &OrderedStream) -> Result<(), DriverError> {
        self.emulator.event_record(&event.event, &stream.stream)?;
        *lock(&event.after) = lock(&self.state).streams[stream.number].clone();
        Ok(())
    }

    fn event_query(&self, event: &OrderedEvent) -> Result<bool, DriverError> {
        let done = self.emulator.event_query(&event.event)?;
        if done {
            self.saw_done(event);
        }
        Ok(done)
    }

    fn event_synchronize(&self, event: &OrderedEvent) -> Result<(), DriverError> {
        self.emulator.event_synchronize(&event.event)?;
        self.saw_done(event);
        Ok(())
    }

    fn stream_wait(&self, stream: &OrderedStream, event: &OrderedEvent) -> Result<(), DriverError> {
        self.emulator.stream_wait(&stream.stream, &event.event)?;
        lock(&self.state).streams[stream.number].join(&lock(&event.after));
        Ok(())
    }

    fn capture_status(&self, stream: &OrderedStream) -> Result<CaptureStatus, DriverError> {
        self.emulator.capture_status(&stream.stream)
    }
}
