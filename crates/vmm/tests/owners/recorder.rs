//! A driver that passes every call on to the emulator and writes down those about events.
//!
//! Main types: [`Recorder`], [`EventCall`]. Neighbours: `fences` compares what is written with what a model expects.

use std::sync::{Arc, Mutex};

use concertina_emulator::{EmulatedEvent, EmulatedHandle, EmulatedStream, Emulator};
use concertina_vmm::{
    Accessor, Address, Capabilities, CaptureStatus, Driver, DriverError, FrameProperties, MemoryInfo,
    Returned,
};

/// Which record on which stream an event stands for: streams by the number that the test gave them, records from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) stream: usize,
    pub(crate) nth: usize,
}

/// A call about events as it reached the driver, failed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventCall {
    Create,
    /// On this stream.
    Record(usize),
    Query(Record),
    Synchronize(Record),
    Wait {
        waiter: usize,
        on: Record,
    },
}

/// A stream with the number that the test gave it.
#[derive(Clone, Debug)]
pub(crate) struct NumberedStream {
    pub(crate) number: usize,
    pub(crate) stream: EmulatedStream,
}

#[derive(Debug)]
pub(crate) struct RecordedEvent {
    event: EmulatedEvent,
    stands_for: Mutex<Option<Record>>,
}

type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Notes {
    calls: Vec<EventCall>,
    /// Successful records of each stream.
    records: Vec<usize>,
    during_next_record: Option<Hook>,
}

/// The emulator, watched. A clone is the same one.
#[derive(Clone)]
pub(crate) struct Recorder {
    pub(crate) emulator: Emulator,
    notes: Arc<Mutex<Notes>>,
}

impl Recorder {
    pub(crate) fn new(emulator: &Emulator) -> Self {
        Self { emulator: emulator.clone(), notes: Arc::default() }
    }

    /// A new stream with the next number.
    pub(crate) fn stream(&self) -> NumberedStream {
        let mut notes = self.notes.lock().unwrap();
        notes.records.push(0);
        NumberedStream { number: notes.records.len() - 1, stream: self.emulator.stream() }
    }

    /// The calls since the last time.
    pub(crate) fn take_calls(&self) -> Vec<EventCall> {
        std::mem::take(&mut self.notes.lock().unwrap().calls)
    }

    /// Runs `hook` when the next record has reached the driver, before it is done.
    pub(crate) fn during_next_record(&self, hook: impl FnOnce() + Send + 'static) {
        self.notes.lock().unwrap().during_next_record = Some(Box::new(hook));
    }

    fn note(&self, call: EventCall) {
        self.notes.lock().unwrap().calls.push(call);
    }
}

fn record_of(event: &RecordedEvent) -> Record {
    event.stands_for.lock().unwrap().expect("nobody asks about an event that was never recorded")
}

impl Driver for Recorder {
    type Handle = EmulatedHandle;
    type Event = RecordedEvent;
    type Stream = NumberedStream;

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
        self.emulator.unmap(address, bytes)
    }

    fn set_access(&self, address: Address, bytes: u64, accessors: &[Accessor]) -> Result<(), DriverError> {
        self.emulator.set_access(address, bytes, accessors)
    }

    fn event_create(&self) -> Result<RecordedEvent, DriverError> {
        self.note(EventCall::Create);
        Ok(RecordedEvent { event: self.emulator.event_create()?, stands_for: Mutex::default() })
    }

    fn event_record(&self, event: &RecordedEvent, stream: &NumberedStream) -> Result<(), DriverError> {
        self.note(EventCall::Record(stream.number));
        let hook = self.notes.lock().unwrap().during_next_record.take();
        if let Some(hook) = hook {
            hook();
        }
        self.emulator.event_record(&event.event, &stream.stream)?;
        let records = &mut self.notes.lock().unwrap().records[stream.number];
        *event.stands_for.lock().unwrap() = Some(Record { stream: stream.number, nth: *records });
        *records += 1;
        Ok(())
    }

    fn event_query(&self, event: &RecordedEvent) -> Result<bool, DriverError> {
        self.note(EventCall::Query(record_of(event)));
        self.emulator.event_query(&event.event)
    }

    fn event_synchronize(&self, event: &RecordedEvent) -> Result<(), DriverError> {
        self.note(EventCall::Synchronize(record_of(event)));
        self.emulator.event_synchronize(&event.event)
    }

    fn stream_wait(&self, stream: &NumberedStream, event: &RecordedEvent) -> Result<(), DriverError> {
        self.note(EventCall::Wait { waiter: stream.number, on: record_of(event) });
        self.emulator.stream_wait(&stream.stream, &event.event)
    }

    fn capture_status(&self, stream: &NumberedStream) -> Result<CaptureStatus, DriverError> {
        self.emulator.capture_status(&stream.stream)
    }

    fn malloc(&self, bytes: u64) -> Result<Address, DriverError> {
        self.emulator.malloc(bytes)
    }

    fn free(&self, address: Address) -> Result<(), DriverError> {
        self.emulator.free(address)
    }
}
