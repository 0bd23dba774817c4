//! The driver calls: whose handles, events and streams they are, and then on to the device.
//!
//! Main types: none of its own; `Emulator` is a [`Driver`]. Neighbours: `device` checks,
//! changes and charges.

use std::sync::Arc;

use concertina_vmm::{
    Accessor, Address, Call, Capabilities, CaptureStatus, Driver, DriverError, FrameProperties, MemoryInfo,
    Returned,
};

use crate::device::{Device, Done};
use crate::emulator::{EmulatedEvent, EmulatedHandle, EmulatedStream, Emulator};
use crate::rule::{Refusal, Rule};

impl Emulator {
    fn call<T>(&self, call: Call, body: impl FnOnce(&mut Device) -> Done<T>) -> Result<T, DriverError> {
        let mut device = self.shared.lock();
        let start_ns = device.host_ns();
        let result = device.call(call, body);
        self.shared.add_ns_in_calls(device.host_ns().saturating_sub(start_ns));
        result
    }

    fn check_handle(&self, handle: &EmulatedHandle) -> Result<(), Refusal> {
        if handle.instance == self.shared.instance {
            return Ok(());
        }
        Rule::HandleOfAnotherDevice.broken(|| format!("{handle:?}"))
    }

    fn check_event(&self, event: &EmulatedEvent) -> Result<(), Refusal> {
        if Arc::ptr_eq(&self.shared, &event.shared) {
            return Ok(());
        }
        Rule::EventOfAnotherDevice.broken(|| format!("{event:?}"))
    }

    /// [`Driver::event_query`] for whoever knows that the event is not done, whatever this device would say: counted and
    /// charged, and the host learns nothing.
    ///
    /// # Errors
    /// As that.
    pub fn event_query_in_vain(&self, event: &EmulatedEvent) -> Result<(), DriverError> {
        self.call(Call::EventQuery, |device| {
            self.check_event(event)?;
            Ok(((), device.flat(Call::EventQuery)))
        })
    }

    fn check_stream(&self, stream: &EmulatedStream) -> Result<(), Refusal> {
        if stream.instance == self.shared.instance {
            return Ok(());
        }
        Rule::StreamOfAnotherDevice.broken(|| format!("{stream:?}"))
    }
}

impl Driver for Emulator {
    type Handle = EmulatedHandle;
    type Event = EmulatedEvent;
    type Stream = EmulatedStream;

    fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    fn granularity(&self, properties: &FrameProperties) -> Result<u64, DriverError> {
        self.shared.lock().granularity(properties)
    }

    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        let (free_bytes, total_bytes) = self.call(Call::MemoryInfo, Device::memory_info)?;
        Ok(MemoryInfo { free_bytes, total_bytes })
    }

    fn reserve(&self, bytes: u64, alignment: u64) -> Result<Address, DriverError> {
        self.call(Call::Reserve, |device| device.reserve(bytes, alignment)).map(Address::new)
    }

    fn unreserve(&self, address: Address, bytes: u64) -> Result<(), DriverError> {
        self.call(Call::Unreserve, |device| device.unreserve(address.get(), bytes))
    }

    fn create(&self, bytes: u64, properties: &FrameProperties) -> Result<EmulatedHandle, DriverError> {
        let key = self.call(Call::Create, |device| device.create(bytes, properties))?;
        Ok(EmulatedHandle { instance: self.shared.instance, key })
    }

    fn release(&self, handle: EmulatedHandle) -> Result<(), Returned<EmulatedHandle>> {
        let released = self.call(Call::Release, |device| {
            self.check_handle(&handle)?;
            device.release(handle.key)
        });
        released.map_err(|error| Returned { owner: handle, error })
    }

    fn map(&self, address: Address, bytes: u64, handle: &EmulatedHandle) -> Result<(), DriverError> {
        self.call(Call::Map, |device| {
            self.check_handle(handle)?;
            device.map(address.get(), bytes, handle.key)
        })
    }

    fn unmap(&self, address: Address, bytes: u64) -> Result<(), DriverError> {
        self.call(Call::Unmap, |device| device.unmap(address.get(), bytes))
    }

    fn set_access(&self, address: Address, bytes: u64, accessors: &[Accessor]) -> Result<(), DriverError> {
        self.call(Call::SetAccess, |device| device.set_access(address.get(), bytes, accessors))
    }

    fn event_create(&self) -> Result<EmulatedEvent, DriverError> {
        let slot = self.call(Call::EventCreate, Device::event_create)?;
        Ok(EmulatedEvent { shared: Arc::clone(&self.shared), slot })
    }

    fn event_record(&self, event: &EmulatedEvent, stream: &EmulatedStream) -> Result<(), DriverError> {
        self.call(Call::EventRecord, |device| {
            self.check_event(event)?;
            self.check_stream(stream)?;
            device.event_record(event.slot, stream.index)
        })
    }

    fn event_query(&self, event: &EmulatedEvent) -> Result<bool, DriverError> {
        self.call(Call::EventQuery, |device| {
            self.check_event(event)?;
            device.event_query(event.slot)
        })
    }

    fn event_synchronize(&self, event: &EmulatedEvent) -> Result<(), DriverError> {
        self.call(Call::EventSynchronize, |device| {
            self.check_event(event)?;
            device.event_synchronize(event.slot)
        })
    }

    fn stream_wait(&self, stream: &EmulatedStream, event: &EmulatedEvent) -> Result<(), DriverError> {
        self.call(Call::StreamWait, |device| {
            self.check_stream(stream)?;
            self.check_event(event)?;
            device.stream_wait(stream.index, event.slot)
        })
    }

    fn capture_status(&self, stream: &EmulatedStream) -> Result<CaptureStatus, DriverError> {
        self.call(Call::CaptureStatus, |device| {
            self.check_stream(stream)?;
            device.capture_status(stream.index)
        })
    }

    fn malloc(&self, bytes: u64) -> Result<Address, DriverError> {
        self.call(Call::Malloc, |device| device.malloc(bytes)).map(Address::new)
    }

    fn free(&self, address: Address) -> Result<(), DriverError> {
        self.call(Call::Free, |device| device.free(address.get()))
    }
}
