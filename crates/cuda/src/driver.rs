//! The driver calls, one function a call.
//!
//! Main types: none of its own; [`Cuda`] is a [`Driver`]. Neighbours: `context` makes each call;
//! `allocation` fills the driver's structures in.
//!
//! The driver checks addresses, sizes and handles itself, and refuses what breaks its rules. Checked here is only what it
//! would take otherwise: a map of the head of a handle, access for nobody, frames on another device,
//! an event or a stream of another context.

use concertina_vmm::{
    Accessor, Address, Call, Capabilities, CaptureStatus, Driver, DriverError, DriverErrorKind,
    FrameProperties, MemoryInfo, Returned,
};
use cudarc::driver::CudaContext;

use crate::allocation;
use crate::cuda::Cuda;
use crate::event::Event;
use crate::functions::{self, Answer};
use crate::handle::Handle;
use crate::stream::Stream;

fn invalid(call: Call, detail: impl Into<String>) -> DriverError {
    DriverError::new(DriverErrorKind::Invalid, call, detail.into())
}

/// A number of bytes as the driver's `size_t`.
pub(crate) fn size(call: Call, bytes: u64) -> Result<usize, DriverError> {
    usize::try_from(bytes)
        .map_err(|_| invalid(call, format!("{bytes} bytes are more than an address can count")))
}

impl Cuda {
    pub(crate) fn check_context(&self, call: Call, what: &str, of: &CudaContext) -> Result<(), DriverError> {
        if self.context.is_same(of) {
            return Ok(());
        }
        let (theirs, ours) = (of.ordinal(), self.context.ordinal());
        let why =
            format!("{what} of another context (device {theirs}); this driver's is one of device {ours}");
        Err(invalid(call, why))
    }

    fn check_event(&self, call: Call, event: &Event) -> Result<(), DriverError> {
        self.check_context(call, "an event", event.context().cuda())
    }

    pub(crate) fn check_stream(&self, call: Call, stream: &Stream) -> Result<(), DriverError> {
        self.check_context(call, "a stream", stream.context())?;
        match stream.foreign_thread() {
            None => Ok(()),
            Some(thread) => {
                let why = "the per-thread default stream of another thread can't be spoken of; use streams of new_stream";
                Err(invalid(call, format!("{why} ({thread:?})")))
            }
        }
    }

    pub(crate) fn synchronize_context(&self, call: Call) -> Result<(), DriverError> {
        self.context.call(call, format_args!("to synchronise the context before a second try"), || {
            // SAFETY: takes nothing; the context is current.
            unsafe { functions::cuCtxSynchronize() }
        })
    }
}

impl Driver for Cuda {
    type Handle = Handle;
    type Event = Event;
    type Stream = Stream;

    fn capabilities(&self) -> &Capabilities {
        self.known_capabilities()
    }

    fn granularity(&self, properties: &FrameProperties) -> Result<u64, DriverError> {
        self.check_device(Call::Create, properties)?;
        self.needs_virtual_memory(Call::Create)?;
        self.page_bytes()
    }

    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        let (mut free, mut total) = (0, 0);
        self.context.call(Call::MemoryInfo, format_args!("device {}", self.context.ordinal()), || {
            // SAFETY: both pointers are to values of ours that outlive the call; the context is current.
            unsafe { functions::cuMemGetInfo_v2(&raw mut free, &raw mut total) }
        })?;
        Ok(MemoryInfo { free_bytes: free as u64, total_bytes: total as u64 })
    }

    fn reserve(&self, bytes: u64, alignment: u64) -> Result<Address, DriverError> {
        let call = Call::Reserve;
        self.needs_virtual_memory(call)?;
        let (size, align) = (size(call, bytes)?, size(call, alignment)?);
        let mut address = 0;
        self.context.call(call, format_args!("{bytes} bytes aligned to {alignment}"), || {
            // SAFETY: `address` is ours and outlives the call. No place is asked for, so none that is in use.
            unsafe { functions::cuMemAddressReserve(&raw mut address, size, align, 0, 0) }
        })?;
        Ok(Address::new(address))
    }

    fn unreserve(&self, address: Address, bytes: u64) -> Result<(), DriverError> {
        let call = Call::Unreserve;
        self.needs_virtual_memory(call)?;
        let size = size(call, bytes)?;
        self.context.call(call, format_args!("{bytes} bytes at {address}"), || {
            // SAFETY: takes no memory of ours; the caller promises that nothing uses the addresses any more.
            unsafe { functions::cuMemAddressFree(address.get(), size) }
        })
    }

    fn create(&self, bytes: u64, properties: &FrameProperties) -> Result<Handle, DriverError> {
        let call = Call::Create;
        self.needs_virtual_memory(call)?;
        let size = size(call, bytes)?;
        self.check_device(call, properties)?;
        let device = properties.device;
        let properties = allocation::properties(call, device)?;
        let mut raw = 0;
        self.context.call(call, format_args!("{bytes} bytes on device {device}"), || {
            // SAFETY: both pointers are to values of ours that outlive the call.
            unsafe { functions::cuMemCreate(&raw mut raw, size, &raw const properties, 0) }
        })?;
        Ok(Handle::new(raw, bytes))
    }

    fn release(&self, handle: Handle) -> Result<(), Returned<Handle>> {
        let released = self.context.call(Call::Release, format_args!("{handle:?}"), || {
            // SAFETY: the handle came from a create, and as its only owner is here it was not released before. It goes
            // after this, unless the driver has refused.
            unsafe { functions::cuMemRelease(handle.raw()) }
        });
        released.map_err(|error| Returned { owner: handle, error })
    }

    fn map(&self, address: Address, bytes: u64, handle: &Handle) -> Result<(), DriverError> {
        let call = Call::Map;
        if bytes != handle.bytes() {
            // The driver would map the head of a handle.
            let why = format!(
                "{bytes} bytes at {address} of a handle of {}: a handle is mapped whole",
                handle.bytes()
            );
            return Err(invalid(call, why));
        }
        let size = size(call, bytes)?;
        self.context.call(call, format_args!("{bytes} bytes at {address}"), || {
            // SAFETY: the handle is alive, since we borrow its owner. The driver refuses addresses that are not reserved
            // or already mapped.
            unsafe { functions::cuMemMap(address.get(), size, 0, handle.raw(), 0) }
        })
    }

    fn unmap(&self, address: Address, bytes: u64) -> Result<(), DriverError> {
        let call = Call::Unmap;
        self.needs_virtual_memory(call)?;
        let size = size(call, bytes)?;
        self.context.call(call, format_args!("{bytes} bytes at {address}"), || {
            // SAFETY: takes no memory of ours; the caller promises that no work uses the range any more.
            unsafe { functions::cuMemUnmap(address.get(), size) }
        })
    }

    fn set_access(&self, address: Address, bytes: u64, accessors: &[Accessor]) -> Result<(), DriverError> {
        let call = Call::SetAccess;
        self.needs_virtual_memory(call)?;
        let size = size(call, bytes)?;
        if accessors.is_empty() {
            return Err(invalid(call, format!("{bytes} bytes at {address} for no device")));
        }
        let descriptors = accessors
            .iter()
            .map(|Accessor::Device(device)| allocation::read_write(*device))
            .collect::<Result<Vec<_>, _>>()?;
        let set = || {
            self.context.result(call, || {
                // SAFETY: the descriptors are ours, as many as said, and outlive the call.
                unsafe {
                    functions::cuMemSetAccess(address.get(), size, descriptors.as_ptr(), descriptors.len())
                }
            })
        };
        let mut result = set()?;
        if result == Answer::NOT_READY {
            // Seen while other work ran (forks of llama.cpp; WSL2): over once that work is.
            tracing::debug!(%address, bytes, "set access was not ready; synchronising the context");
            self.synchronize_context(call)?;
            result = set()?;
        }
        self.context.check(call, result, format_args!("{bytes} bytes at {address} for {accessors:?}"))
    }

    fn event_create(&self) -> Result<Event, DriverError> {
        Event::create(&self.context)
    }

    fn event_record(&self, event: &Event, stream: &Stream) -> Result<(), DriverError> {
        self.check_event(Call::EventRecord, event)?;
        self.check_stream(Call::EventRecord, stream)?;
        self.context.call(Call::EventRecord, format_args!("on {:?}", stream.raw()), || {
            // SAFETY: event and stream are alive, since we borrow their owners, and of this context.
            unsafe { functions::cuEventRecord(event.raw(), stream.raw()) }
        })
    }

    fn event_query(&self, event: &Event) -> Result<bool, DriverError> {
        self.check_event(Call::EventQuery, event)?;
        let result = self.context.result(Call::EventQuery, || {
            // SAFETY: the event is alive, since we borrow its owner.
            unsafe { functions::cuEventQuery(event.raw()) }
        })?;
        if result == Answer::NOT_READY {
            return Ok(false);
        }
        self.context.check(Call::EventQuery, result, format_args!("{:?}", event.raw()))?;
        Ok(true)
    }

    fn event_synchronize(&self, event: &Event) -> Result<(), DriverError> {
        self.check_event(Call::EventSynchronize, event)?;
        self.context.call(Call::EventSynchronize, format_args!("{:?}", event.raw()), || {
            // SAFETY: the event is alive, since we borrow its owner.
            unsafe { functions::cuEventSynchronize(event.raw()) }
        })
    }

    fn stream_wait(&self, stream: &Stream, event: &Event) -> Result<(), DriverError> {
        self.check_stream(Call::StreamWait, stream)?;
        self.check_event(Call::StreamWait, event)?;
        self.context.call(
            Call::StreamWait,
            format_args!("of {:?} for {:?}", stream.raw(), event.raw()),
            || {
                // SAFETY: event and stream are alive, since we borrow their owners, and of this context.
                unsafe { functions::cuStreamWaitEvent(stream.raw(), event.raw(), 0) }
            },
        )
    }

    fn capture_status(&self, stream: &Stream) -> Result<CaptureStatus, DriverError> {
        self.check_stream(Call::CaptureStatus, stream)?;
        let mut status = 0;
        self.context.call(Call::CaptureStatus, format_args!("of {:?}", stream.raw()), || {
            // SAFETY: `status` is ours and outlives the call; the stream is alive, since we borrow its owner.
            unsafe { functions::cuStreamIsCapturing(stream.raw(), &raw mut status) }
        })?;
        // `CUstreamCaptureStatus`, as a number for the same reason as answers.
        match status {
            0 => Ok(CaptureStatus::None),
            1 => Ok(CaptureStatus::Active),
            2 => Ok(CaptureStatus::Invalidated),
            other => Err(invalid(Call::CaptureStatus, format!("status {other}, which no version knows"))),
        }
    }

    fn malloc(&self, bytes: u64) -> Result<Address, DriverError> {
        let size = size(Call::Malloc, bytes)?;
        let mut address = 0;
        self.context.call(Call::Malloc, format_args!("{bytes} bytes"), || {
            // SAFETY: `address` is ours and outlives the call; the context is current.
            unsafe { functions::cuMemAlloc_v2(&raw mut address, size) }
        })?;
        Ok(Address::new(address))
    }

    fn free(&self, address: Address) -> Result<(), DriverError> {
        self.context.call(Call::Free, format_args!("{address}"), || {
            // SAFETY: takes no memory of ours; the driver refuses what no malloc gave, and waits for work on the rest.
            unsafe { functions::cuMemFree_v2(address.get()) }
        })
    }
}
