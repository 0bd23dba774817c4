//! A driver that can be made to lie: the allocator on it behaves as one that forgot a rule.
//!
//! Main types: [`Mutation`], [`MutantDriver`]. Neighbours: every program runs on it, with [`Mutation::None`] but in
//! `mutants`.
//!
//! The lies are told between allocator and device, so that no switch is needed in the library: `docs/decisions` says more.

use concertina_emulator::{EmulatedEvent, EmulatedHandle, EmulatedStream, Emulator};
use concertina_vmm::{
    Accessor, Address, Capabilities, CaptureStatus, Driver, DriverError, FrameProperties, MemoryInfo,
    Returned,
};

/// What the allocator is made to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// Nothing.
    None,
    /// The wait on the device at a steal, or when a pending block is taken back: queued nowhere, and said to be.
    DropStreamWaits,
    /// To look whether work is done: every event is said to be.
    SayDone,
    /// To record an event behind what it is to cover: it stays where it was, or nowhere.
    DropRecords,
    /// To wait on the host: it goes on at once.
    DropHostWaits,
    /// Access to what was mapped.
    DropSetAccess,
    /// That blocks are used on other streams: not a lie of the driver, but `record_stream` is not called.
    ForgetUses,
}

/// The emulated device, with a mutation in between.
#[derive(Clone)]
pub(crate) struct MutantDriver {
    pub(crate) emulator: Emulator,
    pub(crate) mutation: Mutation,
}

impl MutantDriver {
    fn lies(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }
}

impl Driver for MutantDriver {
    type Handle = EmulatedHandle;
    type Event = EmulatedEvent;
    type Stream = EmulatedStream;

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
        if self.lies(Mutation::DropSetAccess) {
            return Ok(());
        }
        self.emulator.set_access(address, bytes, accessors)
    }

    fn event_create(&self) -> Result<EmulatedEvent, DriverError> {
        self.emulator.event_create()
    }

    fn event_record(&self, event: &EmulatedEvent, stream: &EmulatedStream) -> Result<(), DriverError> {
        if self.lies(Mutation::DropRecords) {
            return Ok(());
        }
        self.emulator.event_record(event, stream)
    }

    fn event_query(&self, event: &EmulatedEvent) -> Result<bool, DriverError> {
        // What is done is seen done: only the rest is a lie.
        let done = self.emulator.event_query(event)?;
        Ok(done || self.lies(Mutation::SayDone))
    }

    fn event_synchronize(&self, event: &EmulatedEvent) -> Result<(), DriverError> {
        if self.lies(Mutation::DropHostWaits) {
            return Ok(());
        }
        self.emulator.event_synchronize(event)
    }

    fn stream_wait(&self, stream: &EmulatedStream, event: &EmulatedEvent) -> Result<(), DriverError> {
        if self.lies(Mutation::DropStreamWaits) {
            return Ok(());
        }
        self.emulator.stream_wait(stream, event)
    }

    fn capture_status(&self, stream: &EmulatedStream) -> Result<CaptureStatus, DriverError> {
        self.emulator.capture_status(stream)
    }

    fn malloc(&self, bytes: u64) -> Result<Address, DriverError> {
        self.emulator.malloc(bytes)
    }

    fn free(&self, address: Address) -> Result<(), DriverError> {
        self.emulator.free(address)
    }
}
