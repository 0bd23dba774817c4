//! A write and a read by the device, for the trial.
//!
//! Main types: [`OwnStream`]. Neighbours: `trial` says where.
//!
//! A stream of its own, that doesn't wait for the default stream, is used: the program may have work queued that never
//! ends by itself.

use core::ptr;

use concertina_vmm::{Address, Call, DriverError};
use cudarc::driver::sys;

use crate::context::Context;
use crate::functions;
use crate::probe::Missing;

/// No value that memory is likely to hold by itself.
const PATTERN: u8 = 0xa7;

/// Bytes read back at either end of the page.
const SAMPLE: usize = 16;

/// Fills the page at `write_at` and reads both its ends through `read_at`.
pub(crate) fn write_and_read(
    context: &Context,
    write_at: Address,
    read_at: Address,
    page: u64,
) -> Result<(), Missing> {
    let failed = |step| move |error| Missing::Trial { step, error };
    let stream = OwnStream::create(context).map_err(failed("make a stream"))?;
    stream.fill(write_at, page).map_err(failed("write to the page"))?;
    for at in [0, page.saturating_sub(SAMPLE as u64)] {
        let bytes = stream.read(read_at.add(at)).map_err(failed("read from the page"))?;
        if let Some((index, &read)) = bytes.iter().enumerate().find(|(_, byte)| **byte != PATTERN) {
            return Err(Missing::OtherBytes { wrote: PATTERN, read, at: at + index as u64 });
        }
    }
    Ok(())
}

struct OwnStream<'a> {
    context: &'a Context,
    raw: sys::CUstream,
}

impl<'a> OwnStream<'a> {
    fn create(context: &'a Context) -> Result<Self, DriverError> {
        let mut raw = ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        context.call(Call::EventCreate, format_args!("creation of a stream"), || {
            // SAFETY: `raw` is ours and outlives the call; the context is current.
            unsafe { functions::cuStreamCreate(&raw mut raw, flags) }
        })?;
        Ok(Self { context, raw })
    }

    fn fill(&self, at: Address, page: u64) -> Result<(), DriverError> {
        self.context.call(Call::SetAccess, format_args!("a memset of {page} bytes at {at}"), || {
            // SAFETY: the trial has mapped the page and given access to it; nobody else knows the address.
            unsafe { functions::cuMemsetD8Async(at.get(), PATTERN, page as usize, self.raw) }
        })
    }

    fn read(&self, at: Address) -> Result<[u8; SAMPLE], DriverError> {
        let mut bytes = [0; SAMPLE];
        self.context.call(Call::SetAccess, format_args!("a copy of {SAMPLE} bytes from {at}"), || {
            // SAFETY: the source is mapped and accessible as above; `bytes` is ours and outlives the synchronise below,
            // before which nobody reads it.
            unsafe { functions::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), at.get(), SAMPLE, self.raw) }
        })?;
        self.synchronize()?;
        Ok(bytes)
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        self.context.call(Call::EventSynchronize, format_args!("work of the trial"), || {
            // SAFETY: the stream is ours and alive.
            unsafe { functions::cuStreamSynchronize(self.raw) }
        })
    }
}

impl Drop for OwnStream<'_> {
    fn drop(&mut self) {
        if self.context.is_closed() {
            return;
        }
        // Work that a failed step has left queued must not outlive the page.
        let idle = self.synchronize();
        let destroyed = self.context.call(Call::EventCreate, format_args!("destruction of a stream"), || {
            // SAFETY: the stream is ours, destroyed here only, and not used after.
            unsafe { functions::cuStreamDestroy_v2(self.raw) }
        });
        if let Err(error) = idle.and(destroyed) {
            tracing::warn!(%error, "the stream of the trial of virtual memory was not given back");
        }
    }
}
