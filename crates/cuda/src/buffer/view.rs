//! Parts of a buffer.
//!
//! Main types: [`View`], [`ViewMut`]. Neighbours: `buffer` makes them; `argument` makes them kernel arguments.

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Bound, Range, RangeBounds};

use concertina_vmm::Address;

use super::error::BufferError;
use super::guard::{On, OnMut};
use super::home::Home;
use super::owner::Owner;
use super::uses::Claim;

/// A mutable borrow of elements that lie on the device, so that it is no matter whether `T` may go to another thread.
pub(super) type Unique<'a, T> = (&'a mut (), fn() -> T);

/// What a split gives.
pub(super) type Halves<V> = Result<(V, V), BufferError>;

/// Some of a buffer's elements, to be read. Uses are told apart by buffers, not by elements.
pub struct View<'a, T, H: Home> {
    pub(super) owner: &'a Owner<H>,
    pub(super) pointer: u64,
    pub(super) len: usize,
    marker: PhantomData<fn() -> T>,
}

/// Some of a buffer's elements, to be written: while it lives, the buffer is its alone.
pub struct ViewMut<'a, T, H: Home> {
    pub(super) owner: &'a Owner<H>,
    pub(super) pointer: u64,
    pub(super) len: usize,
    pub(super) claim: Claim,
    marker: PhantomData<Unique<'a, T>>,
}

impl<T, H: Home> Clone for View<'_, T, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, H: Home> Copy for View<'_, T, H> {}

impl<T, H: Home> fmt::Debug for View<'_, T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({} elements at {:#x})", self.len, self.pointer)
    }
}

impl<T, H: Home> fmt::Debug for ViewMut<'_, T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ViewMut({} elements at {:#x})", self.len, self.pointer)
    }
}

/// Where to split `len` elements.
pub(super) fn checked_split(at: usize, len: usize) -> Result<usize, BufferError> {
    if at <= len { Ok(at) } else { Err(BufferError::Range { start: at, end: len, len }) }
}

/// The address of an element, given that of the first.
pub(super) fn element(first: u64, index: usize, element_bytes: usize) -> u64 {
    // Inside a buffer, so it can be counted.
    first + (index * element_bytes) as u64
}

/// The elements that `range` means of a buffer of `len`.
fn within(range: impl RangeBounds<usize>, len: usize) -> Result<Range<usize>, BufferError> {
    let start = match range.start_bound() {
        Bound::Included(&at) => at,
        Bound::Excluded(&at) => at.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&at) => at.saturating_add(1),
        Bound::Excluded(&at) => at,
        Bound::Unbounded => len,
    };
    if start <= end && end <= len { Ok(start..end) } else { Err(BufferError::Range { start, end, len }) }
}

impl<'a, T, H: Home> View<'a, T, H> {
    pub(super) fn new(owner: &'a Owner<H>, pointer: u64, len: usize) -> Self {
        Self { owner, pointer, len, marker: PhantomData }
    }

    /// Some of its elements.
    ///
    /// # Errors
    /// [`BufferError::Range`].
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self, BufferError> {
        let Range { start, end } = within(range, self.len)?;
        Ok(Self::new(self.owner, element(self.pointer, start, size_of::<T>()), end - start))
    }

    /// As [`Buffer::on`](super::Buffer::on).
    ///
    /// # Errors
    /// As there.
    pub fn on(&self, stream: &'a H::Stream) -> Result<On<'a, T, H>, BufferError> {
        On::new(self.owner, self.pointer, self.len, stream, Claim::Whole)
    }

    /// The elements before `at`, and those from `at` on.
    ///
    /// # Errors
    /// [`BufferError::Range`].
    pub fn split_at(&self, at: usize) -> Halves<Self> {
        let at = checked_split(at, self.len)?;
        let part =
            |start: usize, len| Self::new(self.owner, element(self.pointer, start, size_of::<T>()), len);
        Ok((part(0, at), part(at, self.len - at)))
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first element.
    pub fn address(&self) -> Address {
        Address::new(self.pointer)
    }
}

impl<'a, T, H: Home> ViewMut<'a, T, H> {
    pub(super) fn new(owner: &'a Owner<H>, pointer: u64, len: usize, claim: Claim) -> Self {
        Self { owner, pointer, len, claim, marker: PhantomData }
    }

    /// Some of its elements, to be written.
    ///
    /// # Errors
    /// [`BufferError::Range`].
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<ViewMut<'_, T, H>, BufferError> {
        let Range { start, end } = within(range, self.len)?;
        let pointer = element(self.pointer, start, size_of::<T>());
        Ok(ViewMut::new(self.owner, pointer, end - start, self.claim))
    }

    /// The elements before `at`, and those from `at` on, to be written beside each other, also by two threads. Work on
    /// both is in the order in which it is queued: uses are told apart by buffers, not by elements.
    ///
    /// # Errors
    /// [`BufferError::Range`].
    pub fn split_at_mut(&mut self, at: usize) -> Halves<ViewMut<'_, T, H>> {
        let at = checked_split(at, self.len)?;
        let part = |start: usize, len| {
            ViewMut::new(self.owner, element(self.pointer, start, size_of::<T>()), len, Claim::Part)
        };
        Ok((part(0, at), part(at, self.len - at)))
    }

    /// As [`Buffer::on_mut`](super::Buffer::on_mut).
    ///
    /// # Errors
    /// As there.
    pub fn on_mut<'b>(&'b mut self, stream: &'b H::Stream) -> Result<OnMut<'b, T, H>, BufferError> {
        OnMut::new(self.owner, self.pointer, self.len, stream, self.claim)
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first element.
    pub fn address(&self) -> Address {
        Address::new(self.pointer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_inside_or_refused() {
        assert_eq!(within(.., 5), Ok(0..5));
        assert_eq!(within(2..=4, 5), Ok(2..5));
        assert_eq!(within(5.., 5), Ok(5..5));
        assert_eq!(within((Bound::Excluded(0), Bound::Unbounded), 5), Ok(1..5));
        for (start, end) in [(0, 6), (6, 6), (3, 2), (usize::MAX, usize::MAX)] {
            assert_eq!(within(start..end, 5), Err(BufferError::Range { start, end, len: 5 }));
        }
        assert!(within(0..=usize::MAX, 5).is_err());
        assert!(within((Bound::Excluded(usize::MAX), Bound::Unbounded), 5).is_err());
    }
}
