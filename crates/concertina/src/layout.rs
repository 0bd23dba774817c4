//! What is asked for: a size and an alignment.
//!
//! Main types: [`Layout`], [`GrantedLayout`]. Neighbours: `allocator` checks it at each request.

use core::num::NonZeroU64;

/// Size and alignment of a request, in bytes. Unlike `core::alloc::Layout` it counts in 64 bits on every host, and is
/// checked when it is used: a size of 0 or an alignment that is no power of two is an error of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    bytes: u64,
    alignment: u64,
}

impl Layout {
    /// `bytes` with the alignment that every block has anyway: 512 bytes.
    pub const fn new(bytes: u64) -> Self {
        Self { bytes, alignment: concertina_heap::STEP_BYTES }
    }

    /// The same size aligned to `alignment` bytes: a power of two, up to a page and beyond.
    #[must_use]
    pub const fn aligned_to(self, alignment: u64) -> Self {
        Self { alignment, ..self }
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// The alignment in bytes.
    pub const fn alignment(self) -> u64 {
        self.alignment
    }
}

/// A layout that was granted, in one word that is not 0: fewer than 2^56 bytes, as blocks have, and the exponent of an alignment
/// that is a power of two, before a last bit that is set.
#[derive(Clone, Copy)]
pub(crate) struct GrantedLayout(NonZeroU64);

/// Bits below the size.
const LOW_BITS: u32 = 8;

impl GrantedLayout {
    #[inline(always)]
    pub(crate) fn new(layout: Layout) -> Self {
        let exponent = u64::from(layout.alignment.trailing_zeros());
        Self(NonZeroU64::MIN | layout.bytes << LOW_BITS | exponent << 1)
    }

    /// The size in bytes.
    #[inline(always)]
    pub(crate) fn bytes(self) -> u64 {
        self.0.get() >> LOW_BITS
    }

    pub(crate) fn layout(self) -> Layout {
        let exponent = (self.0.get() % (1 << LOW_BITS)) >> 1;
        Layout { bytes: self.bytes(), alignment: 1 << exponent }
    }
}

impl From<core::alloc::Layout> for Layout {
    fn from(layout: core::alloc::Layout) -> Self {
        Self { bytes: layout.size() as u64, alignment: layout.align() as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::{GrantedLayout, Layout};

    #[test]
    fn a_granted_layout_is_the_one_that_was_asked_for() {
        for bytes in [1, 511, 512, (1 << 40) + 7, (1 << 56) - 1] {
            for alignment in [1, 512, 1 << 21, 1 << 40, 1 << 63] {
                let layout = Layout::new(bytes).aligned_to(alignment);
                let granted = GrantedLayout::new(layout);
                assert_eq!((granted.layout(), granted.bytes()), (layout, bytes));
            }
        }
    }
}
