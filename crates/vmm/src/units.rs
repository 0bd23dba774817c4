//! Units and identities as types, so that an address can't be taken for a size or a frame for a page.
//!
//! Main types: [`Address`], [`PageRange`], [`FrameId`], [`StreamId`]. Byte counts are plain `u64` with `bytes` in
//! their name. Neighbours: everything above uses these words.

use core::fmt;
use core::ops::Range;

/// A device address, in bytes. Only the driver and kernels may follow it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Address(u64);

impl Address {
    /// The address `raw`, in bytes.
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The number itself, in bytes: what a kernel argument carries.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The address `bytes` further on.
    ///
    /// # Panics
    /// If the sum leaves 64 bits, in builds with overflow checks.
    #[must_use]
    pub const fn add(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }

    /// Whether the address is a multiple of `alignment` bytes (a power of two).
    pub const fn is_aligned_to(self, alignment: u64) -> bool {
        self.0 & (alignment - 1) == 0
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A run of pages of one segment: the first page's number in the segment, and how many pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// Number of the first page in its segment.
    pub first: u32,
    /// Number of pages.
    pub count: u32,
}

impl PageRange {
    /// The pages `first..end`; empty when `end <= first`.
    pub const fn between(first: u32, end: u32) -> Self {
        Self { first, count: end.saturating_sub(first) }
    }

    /// The number after the last page's.
    pub const fn end(self) -> u32 {
        self.first + self.count
    }

    /// Whether there is no page in it.
    pub const fn is_empty(self) -> bool {
        self.count == 0
    }

    /// Whether `page` is one of them.
    pub const fn contains(self, page: u32) -> bool {
        page >= self.first && page < self.end()
    }

    /// The pages, in order.
    pub fn iter(self) -> Range<u32> {
        self.first..self.end()
    }

    /// The same as indices of an array or a bitmap.
    pub const fn indices(self) -> Range<usize> {
        self.first as usize..self.end() as usize
    }
}

impl fmt::Debug for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pages {}..{}", self.first, self.end())
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($int);

        impl $name {
            /// The identity with this number.
            pub const fn new(number: $int) -> Self {
                Self(number)
            }

            /// Its number.
            pub const fn get(self) -> $int {
                self.0
            }

            /// Its number as an index.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

id!(
    /// A frame of one frame store. Given again after the frame was released.
    FrameId(u32)
);
id!(
    /// A registered stream: our own number, never a raw handle, since drivers give handles again.
    StreamId(u32)
);
id!(
    /// A segment of one allocator.
    SegmentId(u32)
);
