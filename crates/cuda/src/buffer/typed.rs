//! Typed device memory.
//!
//! Main type: [`Buffer`]. Neighbours: `view` has its parts, `guard` its uses on other streams, `owner` its memory.

use core::fmt;
use core::marker::PhantomData;
use core::ops::RangeBounds;
use std::sync::Arc;

use concertina_vmm::Address;
use cudarc::driver::{DeviceRepr, ValidAsZeroBits};

use super::error::BufferError;
use super::fill::{FillValue, Pattern};
use super::guard::{On, OnMut};
use super::home::Home;
use super::owner::{Bytes, Owner};
use super::uses::Claim;
use super::view::{Halves, View, ViewMut, checked_split, element};

/// Elements of type `T` on the device, of one owner. Dropping it frees the memory in the order of its home stream, the one
/// that it was made on: no call waits.
///
/// `&buffer` and `&mut buffer` are arguments of kernels *on the home stream*, and both ends of cudarc's copies, fills and
/// library calls *on any stream*. For a kernel on another stream, [`Buffer::on`] and [`Buffer::on_mut`] make an argument
/// that is in the right order with everything before and after it, whichever streams that is on.
///
/// A kernel that writes to a buffer is given `&mut buffer` or a guard of `on_mut`. A buffer of no elements has no memory,
/// and kernels get a null pointer for it.
pub struct Buffer<T, H: Home> {
    pub(super) owner: Owner<H>,
    pub(super) pointer: u64,
    pub(super) len: usize,
    // Plain bytes of the device: whether `T` may go to another thread is no matter.
    marker: PhantomData<fn() -> T>,
}

/// Bytes of so many elements, if they can be counted.
pub(super) fn bytes_of<T>(len: usize) -> Result<u64, BufferError> {
    let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
    let too_long = BufferError::TooLong { elements: len, element_bytes: size_of::<T>() };
    Ok(bytes.ok_or(too_long)? as u64)
}

impl<T, H: Home> fmt::Debug for Buffer<T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stream = self.owner.home().registered().clock().stream();
        write!(f, "Buffer({} elements at {:#x}, home {stream:?})", self.len, self.pointer)
    }
}

impl<T, H: Home> Buffer<T, H> {
    fn allocate(stream: &H::Stream, len: usize) -> Result<Self, H::Error> {
        let bytes = bytes_of::<T>(len)?;
        let home = Arc::clone(H::of(stream));
        let bytes = match bytes {
            0 => Bytes::None,
            _ => Bytes::Block(home.allocate(bytes, align_of::<T>() as u64)?),
        };
        Ok(Self::over(Owner::new(home, bytes), len))
    }

    /// The first `len` elements of what an owner has.
    pub(super) fn over(owner: Owner<H>, len: usize) -> Self {
        Self { pointer: owner.address(), owner, len, marker: PhantomData }
    }

    /// `len` elements with whatever the memory holds. Its home is `stream`.
    ///
    /// # Errors
    /// [`BufferError::TooLong`], and the allocator's.
    ///
    /// # Safety
    /// Elements are written before they are read as a `T` by the host.
    pub unsafe fn try_uninit(stream: &H::Stream, len: usize) -> Result<Self, H::Error> {
        Self::allocate(stream, len)
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all elements.
    pub fn bytes(&self) -> u64 {
        // It was allocated, so it can be counted.
        (self.len * size_of::<T>()) as u64
    }

    /// The address of the first element. Nothing orders what is done with it, except that it is freed in the order of the
    /// home stream.
    pub fn address(&self) -> Address {
        Address::new(self.pointer)
    }

    /// The stream in whose order it is freed.
    pub fn home(&self) -> &Arc<H> {
        self.owner.home()
    }

    /// Some of its elements, to be read.
    ///
    /// # Errors
    /// [`BufferError::Range`].
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<View<'_, T, H>, BufferError> {
        self.as_view().slice(range)
    }

    /// Some of its elements, to be written.
    ///
    /// # Errors
    /// [`BufferError::Range`].
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<ViewMut<'_, T, H>, BufferError> {
        let whole = View::<T, H>::new(&self.owner, self.pointer, self.len).slice(range)?;
        Ok(ViewMut::new(whole.owner, whole.pointer, whole.len, Claim::Whole))
    }

    /// All of its elements, to be read.
    pub fn as_view(&self) -> View<'_, T, H> {
        View::new(&self.owner, self.pointer, self.len)
    }

    /// All of its elements, to be written.
    pub fn as_view_mut(&mut self) -> ViewMut<'_, T, H> {
        ViewMut::new(&self.owner, self.pointer, self.len, Claim::Whole)
    }

    /// The elements before `at`, and those from `at` on.
    ///
    /// # Errors
    /// [`BufferError::Range`].
    pub fn split_at(&self, at: usize) -> Halves<View<'_, T, H>> {
        self.as_view().split_at(at)
    }

    /// The elements before `at`, and those from `at` on, to be written beside each other: see
    /// [`ViewMut::split_at_mut`].
    ///
    /// # Errors
    /// [`BufferError::Range`].
    pub fn split_at_mut(&mut self, at: usize) -> Halves<ViewMut<'_, T, H>> {
        let at = checked_split(at, self.len)?;
        let middle = element(self.pointer, at, size_of::<T>());
        let part = |pointer, len| ViewMut::new(&self.owner, pointer, len, Claim::Part);
        Ok((part(self.pointer, at), part(middle, self.len - at)))
    }

    /// The buffer as work on `stream` reads it. What is queued there while the guard lives comes after all writes before;
    /// writes that come later, and the memory's next owner, come after it.
    ///
    /// The first such use of a buffer waits for the point that the home stream has reached; later reads wait only for
    /// writes. Waits are made on the device.
    ///
    /// # Errors
    /// [`BufferError::ForeignStream`], [`BufferError::Order`].
    pub fn on<'a>(&'a self, stream: &'a H::Stream) -> Result<On<'a, T, H>, BufferError> {
        On::new(&self.owner, self.pointer, self.len, stream, Claim::Whole)
    }

    /// The buffer as work on `stream` writes it: as [`Buffer::on`], and it comes after all reads before, too.
    ///
    /// # Errors
    /// [`BufferError::ForeignStream`], [`BufferError::Order`].
    pub fn on_mut<'a>(&'a mut self, stream: &'a H::Stream) -> Result<OnMut<'a, T, H>, BufferError> {
        OnMut::new(&self.owner, self.pointer, self.len, stream, Claim::Whole)
    }
}

impl<T: DeviceRepr, H: Home> Buffer<T, H> {
    /// `len` elements whose bytes are all zero. Its home is `stream`.
    ///
    /// # Errors
    /// [`BufferError::TooLong`], [`BufferError::Transfer`], and the allocator's.
    pub fn try_zeroed(stream: &H::Stream, len: usize) -> Result<Self, H::Error>
    where
        T: ValidAsZeroBits,
    {
        let buffer = Self::allocate(stream, len)?;
        if buffer.bytes() > 0 {
            let (home, bytes) = (buffer.home(), buffer.bytes() as usize);
            // SAFETY: the memory is the buffer's, as long as said, and nobody else has it yet.
            unsafe {
                home.driver().fill(home.registered().stream(), buffer.pointer, Pattern::Byte(0), bytes)
            }?;
        }
        Ok(buffer)
    }

    /// A copy of a slice. Its home is `stream`, and the host waits for that stream. (Copy from pinned memory without a wait
    /// by [`Buffer::try_uninit`] and cudarc's `memcpy_htod`.)
    ///
    /// # Errors
    /// [`BufferError::TooLong`], [`BufferError::Transfer`], and the allocator's.
    pub fn try_from_slice(stream: &H::Stream, elements: &[T]) -> Result<Self, H::Error> {
        let mut buffer = Self::allocate(stream, elements.len())?;
        buffer.copy_from_slice(elements)?;
        Ok(buffer)
    }

    /// A copy of all elements in another buffer, made on the device: its home is `stream`, which waits there for the
    /// last write to this one, and the host waits for nothing.
    ///
    /// # Errors
    /// [`BufferError::ForeignStream`], [`BufferError::Transfer`], [`BufferError::Order`], and the allocator's.
    pub fn try_clone(&self, stream: &H::Stream) -> Result<Self, H::Error> {
        if !self.home().knows(stream) {
            return Err(BufferError::ForeignStream.into());
        }
        let mut copy = Self::allocate(stream, self.len)?;
        copy.copy_from(self)?;
        Ok(copy)
    }

    /// Copies a slice of the same length into it on the home stream; the host waits.
    ///
    /// # Errors
    /// [`BufferError::Length`], [`BufferError::Transfer`], [`BufferError::Order`].
    pub fn copy_from_slice(&mut self, elements: &[T]) -> Result<(), BufferError> {
        self.as_view_mut().copy_from_slice(elements)
    }

    /// Copies as many elements of another buffer into it, on the device and on this one's home stream. The order is
    /// that of a write here and a read there; the host doesn't wait.
    ///
    /// # Errors
    /// [`BufferError::Length`], [`BufferError::ForeignStream`] for a buffer of another allocator,
    /// [`BufferError::Transfer`], [`BufferError::Order`].
    pub fn copy_from<'s>(&mut self, source: impl Into<View<'s, T, H>>) -> Result<(), BufferError>
    where
        T: 's,
        H: 's,
    {
        self.as_view_mut().copy_from(source)
    }

    /// Sets all elements to a value, on the home stream; the host doesn't wait.
    ///
    /// # Errors
    /// [`BufferError::Transfer`], [`BufferError::Order`].
    pub fn fill(&mut self, value: T) -> Result<(), BufferError>
    where
        T: FillValue,
    {
        self.as_view_mut().fill(value)
    }

    /// A copy of all elements, made on the home stream; the host waits.
    ///
    /// # Errors
    /// [`BufferError::Transfer`], [`BufferError::Order`].
    pub fn to_vec(&self) -> Result<Vec<T>, BufferError> {
        self.as_view().to_vec()
    }
}
