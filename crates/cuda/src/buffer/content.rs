//! What is in a buffer: copies from and to the host, copies on the device, fills. All on the home stream of what is
//! written, or of what the host reads.
//!
//! Main types: none; methods of [`View`] and [`ViewMut`]. Neighbours: `typed` has the same for whole buffers;
//! `transfer` makes the calls.

use cudarc::driver::DeviceRepr;

use super::error::BufferError;
use super::fill::{FillValue, pattern_of};
use super::home::Home;
use super::owner::Owner;
use super::typed::Buffer;
use super::uses::{Access, Claim};
use super::view::{View, ViewMut};
use crate::stream::Stream;

impl<'a, T, H: Home> From<&'a Buffer<T, H>> for View<'a, T, H> {
    fn from(buffer: &'a Buffer<T, H>) -> Self {
        buffer.as_view()
    }
}

/// Puts the home stream behind everything that a use of this kind has to come after.
fn begin_at_home<H: Home>(owner: &Owner<H>, access: Access, claim: Claim) -> Result<&Stream, BufferError> {
    let home = owner.home().registered();
    owner.begin(home.clock(), access, claim)?;
    Ok(home.stream())
}

impl<T: DeviceRepr, H: Home> View<'_, T, H> {
    /// A copy of all elements, made on the home stream; the host waits.
    ///
    /// # Errors
    /// [`BufferError::Transfer`], [`BufferError::Order`].
    pub fn to_vec(&self) -> Result<Vec<T>, BufferError> {
        let mut elements = Vec::<T>::with_capacity(self.len);
        let bytes = self.len * size_of::<T>();
        if bytes > 0 {
            let stream = begin_at_home(self.owner, Access::Read, Claim::Whole)?;
            let driver = self.owner.home().driver();
            let to = elements.as_mut_ptr().cast();
            // SAFETY: the vector has room for all elements; the memory is the buffer's, and the stream is behind all
            // writes to it.
            unsafe { driver.download(stream, to, self.pointer, bytes) }?;
        }
        // SAFETY: all of them were copied, and the device holds values of `T`, by the promises of `try_uninit` and of
        // whoever launches kernels; or an element has no bytes.
        unsafe { elements.set_len(self.len) };
        Ok(elements)
    }
}

impl<T: DeviceRepr, H: Home> ViewMut<'_, T, H> {
    /// Copies a slice of the same length into it on the home stream; the host waits.
    ///
    /// # Errors
    /// [`BufferError::Length`], [`BufferError::Transfer`], [`BufferError::Order`].
    pub fn copy_from_slice(&mut self, elements: &[T]) -> Result<(), BufferError> {
        self.check_length(elements.len())?;
        if self.bytes() == 0 {
            return Ok(());
        }
        let stream = begin_at_home(self.owner, Access::Write, self.claim)?;
        // SAFETY: the memory is the buffer's, as long as the slice, and the stream is behind all other uses of it.
        unsafe { self.owner.home().driver().upload(stream, self.pointer, elements) }
    }

    /// Copies as many elements of another buffer into it, on the device: see [`Buffer::copy_from`].
    ///
    /// # Errors
    /// As there.
    pub fn copy_from<'s>(&mut self, source: impl Into<View<'s, T, H>>) -> Result<(), BufferError>
    where
        T: 's,
        H: 's,
    {
        let source: View<'s, T, H> = source.into();
        self.check_length(source.len)?;
        if self.bytes() == 0 {
            return Ok(());
        }
        let home = self.owner.home();
        if !core::ptr::eq(home.fences(), source.owner.home().fences()) {
            return Err(BufferError::ForeignStream);
        }
        let clock = home.registered().clock();
        let stream = begin_at_home(self.owner, Access::Write, self.claim)?;
        source.owner.begin(clock, Access::Read, Claim::Whole)?;
        // SAFETY: both are memory of buffers, as long as each other, and the stream is behind all other uses of the one
        // and all writes to the other. They don't overlap: one of them is borrowed mutably.
        let copied = unsafe { home.driver().copy(stream, self.pointer, source.pointer, self.bytes()) };
        source.owner.end(clock, Access::Read);
        copied
    }

    /// Sets all elements to a value, on the home stream; the host doesn't wait.
    ///
    /// # Errors
    /// [`BufferError::Transfer`], [`BufferError::Order`].
    pub fn fill(&mut self, value: T) -> Result<(), BufferError>
    where
        T: FillValue,
    {
        if self.len == 0 {
            return Ok(());
        }
        let stream = begin_at_home(self.owner, Access::Write, self.claim)?;
        // SAFETY: the memory is the buffer's, so many elements of the pattern's size long, and the stream is behind all
        // other uses of it.
        unsafe { self.owner.home().driver().fill(stream, self.pointer, pattern_of(value), self.len) }
    }

    fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    fn check_length(&self, from: usize) -> Result<(), BufferError> {
        if from == self.len { Ok(()) } else { Err(BufferError::Length { from, to: self.len }) }
    }
}
