//! Typed device memory that grows and shrinks in place.
//!
//! Main type: [`GrowableBuffer`]. Neighbours: it is a [`Buffer`] whose length changes; `owner` has the bytes behind
//! both.

use core::fmt;
use core::ops::{Deref, RangeBounds};
use std::sync::Arc;

use cudarc::driver::{DeviceRepr, ValidAsZeroBits};

use super::error::BufferError;
use super::fill::Pattern;
use super::guard::OnMut;
use super::home::Home;
use super::owner::{Bytes, Owner};
use super::typed::{Buffer, bytes_of};
use super::view::ViewMut;

/// Elements of type `T` on the device, as many as there are by now: addresses are reserved for the most that there may
/// be, once, and memory is taken as it grows. Elements never move and are never copied, and what a shrink cuts off
/// serves others. For caches of keys and values, logs, results of unknown number.
///
/// It is a [`Buffer`] for all that reads, and an argument wherever a buffer is one. It can grow and shrink while nobody
/// borrows it, so that no view or guard outlives a change of its length; work that is queued already may still run. Its
/// home stream orders growth: new elements are there for what is queued afterwards, and on other streams for what
/// guards and copies put behind that.
pub struct GrowableBuffer<T, H: Home> {
    // Not to be had mutably as a whole: it could be swapped with a buffer that can't grow.
    buffer: Buffer<T, H>,
    max_len: usize,
}

impl<T, H: Home> fmt::Debug for GrowableBuffer<T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GrowableBuffer({:?}, at most {})", self.buffer, self.max_len)
    }
}

impl<T, H: Home> Deref for GrowableBuffer<T, H> {
    type Target = Buffer<T, H>;

    fn deref(&self) -> &Buffer<T, H> {
        &self.buffer
    }
}

impl<T, H: Home> GrowableBuffer<T, H> {
    /// No elements, and addresses for up to `max_len`. Takes no memory. Its home is `stream`.
    ///
    /// # Errors
    /// [`BufferError::TooLong`], and the allocator's: among others, a maximum of no bytes.
    pub fn try_with_max_len(stream: &H::Stream, max_len: usize) -> Result<Self, H::Error> {
        let max_bytes = bytes_of::<T>(max_len)?;
        let home = Arc::clone(H::of(stream));
        let growable = home.reserve(max_bytes)?;
        Ok(Self { buffer: Buffer::over(Owner::new(home, Bytes::Growable(growable)), 0), max_len })
    }

    /// Most elements that it can have.
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// Grows to `len` elements; the new ones are whatever the memory holds. Nothing happens if there are as many
    /// already.
    ///
    /// No driver call is made as long as it grows into pages that it has. The host waits for the home stream only where
    /// pages that a shrink gave up serve others now, and work that was queued before the shrink is not over.
    ///
    /// # Errors
    /// [`BufferError::OverMax`], and the allocator's. It is as long as before then.
    ///
    /// # Safety
    /// Elements are written before they are read as a `T` by the host.
    pub unsafe fn try_grow_uninit(&mut self, len: usize) -> Result<(), H::Error> {
        self.grow(len)
    }

    fn grow(&mut self, len: usize) -> Result<(), H::Error> {
        if len > self.max_len {
            return Err(BufferError::OverMax { len, max_len: self.max_len }.into());
        }
        if len > self.buffer.len {
            // The bytes of the maximum were counted.
            self.buffer.owner.grow_to((len * size_of::<T>()) as u64)?;
            self.buffer.len = len;
        }
        Ok(())
    }

    /// Grows, and has the new elements written; if that fails, they are gone again.
    fn grow_with(
        &mut self,
        len: usize,
        write: impl FnOnce(&Self, u64, usize) -> Result<(), BufferError>,
    ) -> Result<(), H::Error> {
        let before = self.buffer.len;
        if len <= before {
            return Ok(());
        }
        self.grow(len)?;
        let start = self.buffer.pointer + (before * size_of::<T>()) as u64;
        write(self, start, (len - before) * size_of::<T>()).map_err(|error| {
            self.shrink_to(before);
            error.into()
        })
    }

    /// Cuts all elements from `len` on off, in the order of the home stream: work that was queued before still has
    /// them. Pages with nothing left in them serve others. Nothing happens if there are as few already.
    pub fn shrink_to(&mut self, len: usize) {
        if len < self.buffer.len {
            self.buffer.owner.shrink_to((len * size_of::<T>()) as u64);
            self.buffer.len = len;
        }
    }

    /// Shrinks to no elements. The addresses stay reserved.
    pub fn clear(&mut self) {
        self.shrink_to(0);
    }

    /// Some of its elements, to be written.
    ///
    /// # Errors
    /// [`BufferError::Range`].
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<ViewMut<'_, T, H>, BufferError> {
        self.buffer.slice_mut(range)
    }

    /// As [`Buffer::on_mut`].
    ///
    /// # Errors
    /// As there.
    pub fn on_mut<'a>(&'a mut self, stream: &'a H::Stream) -> Result<OnMut<'a, T, H>, BufferError> {
        self.buffer.on_mut(stream)
    }
}

impl<T: DeviceRepr, H: Home> GrowableBuffer<T, H> {
    /// Grows to `len` elements; the bytes of the new ones are all zero. Nothing happens if there are as many already.
    ///
    /// # Errors
    /// [`BufferError::OverMax`], [`BufferError::Transfer`], and the allocator's. It is as long as before then.
    pub fn try_grow_to(&mut self, len: usize) -> Result<(), H::Error>
    where
        T: ValidAsZeroBits,
    {
        self.grow_with(len, |this, start, bytes| {
            let home = this.home();
            // SAFETY: the bytes are the new elements', which nobody else has yet; the home stream is behind what others
            // did with them before.
            unsafe { home.driver().fill(home.registered().stream(), start, Pattern::Byte(0), bytes) }
        })
    }

    /// Grows by the elements of a slice, copied on the home stream; the host waits for it.
    ///
    /// # Errors
    /// [`BufferError::OverMax`], [`BufferError::Transfer`], and the allocator's. It is as long as before then.
    pub fn try_extend_from_slice(&mut self, elements: &[T]) -> Result<(), H::Error> {
        self.grow_with(self.buffer.len.saturating_add(elements.len()), |this, start, _| {
            let home = this.home();
            // SAFETY: as above; the new elements are as many as the slice has.
            unsafe { home.driver().upload(home.registered().stream(), start, elements) }
        })
    }

    /// As [`Buffer::copy_from_slice`].
    ///
    /// # Errors
    /// As there.
    pub fn copy_from_slice(&mut self, elements: &[T]) -> Result<(), BufferError> {
        self.buffer.copy_from_slice(elements)
    }
}
