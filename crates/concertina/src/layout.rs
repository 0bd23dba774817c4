//! What is asked for: a size and an alignment.
//!
//! Main type: [`Layout`]. Neighbours: `allocator` checks it at each request.

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

impl From<core::alloc::Layout> for Layout {
    fn from(layout: core::alloc::Layout) -> Self {
        Self { bytes: layout.size() as u64, alignment: layout.align() as u64 }
    }
}
