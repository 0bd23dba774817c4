//! Fills and copies, in the order of a stream.
//!
//! Main types: none; methods of [`Cuda`]. Neighbours: `buffer` makes them on its own memory.
//!
//! cudarc's own functions would do, but for the error that an earlier drop may have left in the context: they return it as
//! theirs, and it is the program's to see.

use concertina_vmm::{Call, DriverError};

use super::error::{BufferError, Transfer};
use super::fill::Pattern;
use crate::cuda::Cuda;
use crate::functions::{self, Answer};
use crate::stream::Stream;

impl Cuda {
    fn transfer(
        &self,
        transfer: Transfer,
        stream: &Stream,
        bytes: usize,
        address: u64,
        body: impl FnOnce() -> Answer,
    ) -> Result<(), BufferError> {
        self.transfer_as(Call::EventRecord, transfer, stream, bytes, address, body)
    }

    /// The driver's calls that are told apart are those of the allocator. So the call is named by one of them that
    /// captures treat alike; the name doesn't get out of here.
    fn transfer_as(
        &self,
        call: Call,
        transfer: Transfer,
        stream: &Stream,
        bytes: usize,
        address: u64,
        body: impl FnOnce() -> Answer,
    ) -> Result<(), BufferError> {
        let failed = |error: DriverError| BufferError::Transfer {
            transfer,
            kind: error.kind,
            detail: error.detail.to_string(),
        };
        self.check_stream(call, stream).map_err(failed)?;
        self.context.call(call, format_args!("{bytes} bytes at {address:#x}"), body).map_err(failed)
    }

    /// Repeats a pattern.
    ///
    /// # Safety
    /// So many patterns at `address`, a multiple of their size, are memory of the device that the caller alone may
    /// write, in the order of the stream.
    pub(crate) unsafe fn fill(
        &self,
        stream: &Stream,
        address: u64,
        pattern: Pattern,
        count: usize,
    ) -> Result<(), BufferError> {
        let bytes = count.saturating_mul(pattern.bytes());
        self.transfer(Transfer::Fill, stream, bytes, address, || match pattern {
            // SAFETY: the caller says so of the memory; the stream is alive, since we borrow its owner.
            Pattern::Byte(value) => unsafe {
                functions::cuMemsetD8Async(address, value, count, stream.raw())
            },
            // SAFETY: as above.
            Pattern::Pair(value) => unsafe {
                functions::cuMemsetD16Async(address, value, count, stream.raw())
            },
            // SAFETY: as above.
            Pattern::Quad(value) => unsafe {
                functions::cuMemsetD32Async(address, value, count, stream.raw())
            },
        })
    }

    /// Copies from one place on the device to another.
    ///
    /// # Safety
    /// The bytes at `to` are as of [`Cuda::fill`]; those at `from` are memory that the caller may read, and don't
    /// overlap them.
    pub(crate) unsafe fn copy(
        &self,
        stream: &Stream,
        to: u64,
        from: u64,
        bytes: usize,
    ) -> Result<(), BufferError> {
        self.transfer(Transfer::Copy, stream, bytes, to, || {
            // SAFETY: the caller says so of both; the stream is alive, since we borrow its owner.
            unsafe { functions::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.raw()) }
        })
    }

    /// Copies to the device. The source has been read when this returns.
    ///
    /// # Safety
    /// The bytes at `address` are as of [`Cuda::fill`].
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
            unsafe { functions::cuMemcpyHtoDAsync_v2(address, from.as_ptr().cast(), bytes, stream.raw()) }
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
            unsafe { functions::cuMemcpyDtoHAsync_v2(to.cast(), address, bytes, stream.raw()) }
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
        self.transfer_as(Call::EventSynchronize, transfer, stream, bytes, address, || {
            // SAFETY: the stream is alive, since we borrow its owner.
            unsafe { functions::cuStreamSynchronize(stream.raw()) }
        })
    }
}
