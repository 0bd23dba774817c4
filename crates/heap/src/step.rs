//! Steps: the unit of blocks, and what a request is in them.
//!
//! Main types: [`Kind`], [`Request`]. Neighbours: every file of this crate counts bytes inside a segment in steps.

use crate::error::RequestError;

/// Bytes of a step: blocks begin and end at multiples of it. 512, as in PyTorch's caching allocator (`kMinBlockSize`),
/// which is also the largest alignment that `cudaMalloc` is relied on for.
pub const STEP_BYTES: u64 = 512;

/// Largest request in bytes that goes to a small heap: 1 MiB, as in PyTorch's caching allocator (`kSmallSize`).
pub const SMALL_BYTES: u64 = 1 << 20;

/// Largest request in bytes, so that a block's steps fit 31 bits with room for its alignment: 1 TiB.
pub const LARGEST_BYTES: u64 = 1 << 40;

/// What size of blocks a heap holds. Kept apart so that a small block that lives long does not sit on a page that a
/// large one would need whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Up to [`SMALL_BYTES`].
    Small,
    /// Everything larger.
    Large,
}

impl Kind {
    /// The kind of a request of so many bytes.
    pub const fn of(bytes: u64) -> Self {
        if bytes <= SMALL_BYTES { Self::Small } else { Self::Large }
    }
}

/// A checked request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes as asked.
    pub bytes: u64,
    /// The same in steps, rounded up.
    pub steps: u32,
    /// Alignment in bytes: a power of two, at least a step.
    pub alignment: u64,
}

impl Request {
    /// Checks a size and an alignment, both in bytes. An alignment under a step costs nothing and is raised to it.
    ///
    /// # Errors
    /// A size of 0; an alignment that is no power of two; either of them larger than any device.
    #[inline]
    pub fn new(bytes: u64, alignment: u64) -> Result<Self, RequestError> {
        if bytes == 0 {
            return Err(RequestError::Empty);
        }
        if !alignment.is_power_of_two() {
            return Err(RequestError::Alignment { alignment });
        }
        if bytes > LARGEST_BYTES || alignment > LARGEST_BYTES / 2 {
            return Err(RequestError::TooLarge { bytes, alignment });
        }
        // At most 2^31 steps by the check above.
        let steps = bytes.div_ceil(STEP_BYTES) as u32;
        Ok(Self { bytes, steps, alignment: alignment.max(STEP_BYTES) })
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        Kind::of(self.bytes)
    }
}
