//! Memory whose frames are arranged on purpose, to be filled, copied and read by the device.
//!
//! Main types: [`Area`]. Neighbours: `raw` makes it; `kernel` reads from it at random.

use concertina_vmm::{Accessor, Address, Call, Driver as _, DriverError, DriverErrorKind, FrameProperties};

use crate::cuda::Cuda;
use crate::driver::size;
use crate::functions;
use crate::handle::Handle;
use crate::stream::Stream;

/// Device memory at one range of addresses: one malloc, or frames in an order of the caller's.
///
/// It owns all that it is made of. When it is dropped, the host waits for the context's work, and all of it goes back; what
/// the driver refuses is logged. [`Area::give_back`] tells it.
#[derive(Debug)]
#[must_use = "it goes back when it is dropped"]
pub struct Area {
    cuda: Cuda,
    address: Address,
    bytes: u64,
    parts: Parts,
}

#[derive(Debug)]
enum Parts {
    Malloc,
    /// Frames that are not released yet, and how many places from the first on are mapped.
    Frames {
        frame_bytes: u64,
        frames: Vec<Handle>,
        mapped: u64,
    },
    /// Nothing: it was given back.
    Gone,
}

impl Area {
    pub(super) fn of_malloc(cuda: &Cuda, address: Address, bytes: u64) -> Self {
        Self { cuda: cuda.clone(), address, bytes, parts: Parts::Malloc }
    }

    pub(super) fn of_frames(cuda: &Cuda, frame_bytes: u64, order: &[usize]) -> Result<Self, DriverError> {
        let count = order.len();
        if let Some(place) = order.iter().find(|place| **place >= count) {
            let why = format!("frame {place} of {count} frames of {frame_bytes} bytes");
            return Err(DriverError::new(DriverErrorKind::Invalid, Call::Map, why));
        }
        let bytes = frame_bytes.checked_mul(count as u64).ok_or_else(|| {
            let why = format!("{count} frames of {frame_bytes} bytes are more than an address can count");
            DriverError::new(DriverErrorKind::Invalid, Call::Reserve, why)
        })?;
        let device = cuda.ordinal();
        let address = cuda.reserve(bytes, 0)?;
        let parts = Parts::Frames { frame_bytes, frames: Vec::with_capacity(count), mapped: 0 };
        // From here on a failure drops it, which gives back what there is.
        let mut area = Self { cuda: cuda.clone(), address, bytes, parts };
        if let Parts::Frames { frames, mapped, .. } = &mut area.parts {
            for _ in 0..count {
                frames.push(cuda.create(frame_bytes, &FrameProperties { device })?);
            }
            for (place, &frame) in order.iter().enumerate() {
                cuda.map(address.add(place as u64 * frame_bytes), frame_bytes, &frames[frame])?;
                *mapped += 1;
            }
        }
        cuda.set_access(address, bytes, &[Accessor::Device(device)])?;
        Ok(area)
    }

    /// Its size in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it begins.
    pub const fn address(&self) -> Address {
        self.address
    }

    pub(super) const fn cuda(&self) -> &Cuda {
        &self.cuda
    }

    /// Queues on `stream` that all its bytes become `value`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn fill(&self, value: u8, stream: &Stream) -> Result<(), DriverError> {
        let call = Call::EventRecord;
        self.cuda.check_stream(call, stream)?;
        let size = size(call, self.bytes)?;
        self.cuda.context.call(
            call,
            format_args!("a memset of {} bytes at {}", self.bytes, self.address),
            || {
                // SAFETY: the range is ours, accessible, and stays until work is done: the drop waits.
                unsafe { functions::cuMemsetD8Async(self.address.get(), value, size, stream.raw()) }
            },
        )
    }

    /// Queues on `stream` a copy of its first half to its second, and returns how many bytes that are.
    ///
    /// # Errors
    /// What the driver says.
    pub fn copy_half(&self, stream: &Stream) -> Result<u64, DriverError> {
        let call = Call::EventRecord;
        self.cuda.check_stream(call, stream)?;
        let half = self.bytes / 2;
        let size = size(call, half)?;
        let (from, to) = (self.address, self.address.add(half));
        self.cuda.context.call(call, format_args!("a copy of {half} bytes from {from} to {to}"), || {
            // SAFETY: both ranges are ours, accessible, apart, and stay until work is done: the drop waits.
            unsafe { functions::cuMemcpyDtoDAsync_v2(to.get(), from.get(), size, stream.raw()) }
        })?;
        Ok(half)
    }

    /// The bytes from `at` on, behind the work of `stream`. The host waits.
    ///
    /// # Errors
    /// What the driver says; invalid if they are not all in it.
    pub fn read(&self, at: u64, bytes: &mut [u8], stream: &Stream) -> Result<(), DriverError> {
        let call = Call::EventSynchronize;
        self.cuda.check_stream(call, stream)?;
        let count = bytes.len();
        if at.checked_add(count as u64).is_none_or(|end| end > self.bytes) {
            let why = format!("{count} bytes from {at} on of an area of {}", self.bytes);
            return Err(DriverError::new(DriverErrorKind::Invalid, call, why));
        }
        let from = self.address.add(at);
        self.cuda.context.call(call, format_args!("a copy of {count} bytes from {from}"), || {
            // SAFETY: the source is ours and accessible; `bytes` is as long as said, and borrowed until the stream has been
            // waited for below.
            unsafe {
                functions::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), from.get(), count, stream.raw())
            }
        })?;
        self.cuda.context.call(call, format_args!("for a copy from {from}"), || {
            // SAFETY: the stream is alive, since we borrow its owner.
            unsafe { functions::cuStreamSynchronize(stream.raw()) }
        })
    }

    /// Waits for the context's work and gives everything back.
    ///
    /// # Errors
    /// The first refusal. What is left is tried once more as the value goes.
    pub fn give_back(mut self) -> Result<(), DriverError> {
        self.take_apart()
    }

    fn take_apart(&mut self) -> Result<(), DriverError> {
        let Self { cuda, address, bytes, parts } = self;
        if matches!(parts, Parts::Gone) {
            return Ok(());
        }
        cuda.raw_calls().synchronize()?;
        match parts {
            Parts::Gone => {}
            Parts::Malloc => cuda.free(*address)?,
            Parts::Frames { frame_bytes, frames, mapped } => {
                while *mapped > 0 {
                    cuda.unmap(address.add((*mapped - 1) * *frame_bytes), *frame_bytes)?;
                    *mapped -= 1;
                }
                while let Some(frame) = frames.pop() {
                    if let Err(returned) = cuda.release(frame) {
                        frames.push(returned.owner);
                        return Err(returned.error);
                    }
                }
                cuda.unreserve(*address, *bytes)?;
            }
        }
        self.parts = Parts::Gone;
        Ok(())
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        if self.cuda.context.is_closed() {
            return;
        }
        if let Err(error) = self.take_apart() {
            // Once more, in case it was only that call.
            if self.take_apart().is_err() {
                tracing::warn!(%error, bytes = self.bytes, "an area was not given back");
            }
        }
    }
}
