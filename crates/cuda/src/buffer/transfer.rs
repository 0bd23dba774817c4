//! Zeroes, and copies between host and device, in the order of a stream.
//!
//! Main types: none; methods of [`Cuda`]. Neighbours: `buffer` makes them on its own memory.
//!
//! cudarc's own functions would do, but for the error that an earlier drop may have left in the context: they return it as
//! theirs, and it is the program's to see.

use concertina_vmm::{Call, DriverError};
use cudarc::driver::sys::{self, CUresult};

use super::error::{BufferError, Transfer};
use crate::cuda::Cuda;
use crate::stream::Stream;

impl Cuda {
    fn transfer(
        &self,
        transfer: Transfer,
        stream: &Stream,
        bytes: usize,
        address: u64,
        body: impl FnOnce() -> CUresult,
    ) -> Result<(), BufferError> {
        // The driver's calls that are told apart are those of the allocator; the label doesn't get out of here.
        let call = Call::EventRecord;
        let failed = |error: DriverError| BufferError::Transfer {
            transfer,
            kind: error.kind,
            detail: error.detail.to_string(),
        };
        self.check_stream(call, stream).map_err(failed)?;
        self.context.call(call, format_args!("{bytes} bytes at {address:#x}"), body).map_err(failed)
    }

    /// Sets bytes to zero.
    ///
    /// # Safety
    /// The bytes are memory of the device that the caller alone may write, in the order of the stream.
    pub(crate) unsafe fn zero(&self, stream: &Stream, address: u64, bytes: usize) -> Result<(), BufferError> {
        self.transfer(Transfer::Zero, stream, bytes, address, || {
            // SAFETY: the caller says so of the bytes; the stream is alive, since we borrow its owner.
            unsafe { sys::cuMemsetD8Async(address, 0, bytes, stream.raw()) }
        })
    }

    /// Copies to the device. The source has been read when this returns.
    ///
    /// # Safety
    /// As of [`Cuda::zero`].
    pub(crate) unsafe fn upload<T>(
        &self,
        stream: &Stream,
        address: u64,
        from: &[T],
    ) -> Result<(), BufferError> {
        let bytes = size_of_val(from);
        self.transfer(Transfer::Upload, stream, bytes, address, || {
            // SAFETY: the source is a slice, which is borrowed until the synchronise below, or the copy was refused; the
            // caller says so of the destination.
            unsafe { sys::cuMemcpyHtoDAsync_v2(address, from.as_ptr().cast(), bytes, stream.raw()) }
        })?;
        // Of pageable memory the driver has made a copy by now. But a slice may be of pinned memory.
        self.finish(Transfer::Upload, stream, bytes, address)
    }

    /// Copies to the host, and waits for it.
    ///
    /// # Safety
    /// `to` has room for `bytes`; as many at `address` are memory of the device that the caller may read.
    pub(crate) unsafe fn download(
        &self,
        stream: &Stream,
        to: *mut u8,
        address: u64,
        bytes: usize,
    ) -> Result<(), BufferError> {
        self.transfer(Transfer::Download, stream, bytes, address, || {
            // SAFETY: the caller says so of both sides, and keeps them until the synchronise below.
            unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), address, bytes, stream.raw()) }
        })?;
        self.finish(Transfer::Download, stream, bytes, address)
    }

    fn finish(
        &self,
        transfer: Transfer,
        stream: &Stream,
        bytes: usize,
        address: u64,
    ) -> Result<(), BufferError> {
        self.transfer(transfer, stream, bytes, address, || {
            // SAFETY: the stream is alive, since we borrow its owner.
            unsafe { sys::cuStreamSynchronize(stream.raw()) }
        })
    }
}
