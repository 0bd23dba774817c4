//! What can go wrong with a buffer, beside the allocation.
//!
//! Main types: [`BufferError`], [`Transfer`]. Neighbours: all of `buffer` returns it.

use core::fmt;

use concertina_vmm::{DriverError, DriverErrorKind};

/// Why a call on a buffer failed. The buffer is as it was, except that a copy which failed may have written a part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// The elements together have more bytes than any program can address.
    #[error("{elements} elements of {element_bytes} bytes are 2^63 bytes or more: no device has as many")]
    TooLong {
        /// How many elements were asked for.
        elements: usize,
        /// Bytes of each.
        element_bytes: usize,
    },
    /// Growth over what was reserved.
    #[error("growth to {len} elements of a buffer for {max_len}: reserve as many when it is made")]
    OverMax {
        /// How many elements it would have.
        len: usize,
        /// Most elements that it can have.
        max_len: usize,
    },
    /// A range that is not inside the buffer.
    #[error("elements {start}..{end} of a buffer of {len}")]
    Range {
        /// First element asked for.
        start: usize,
        /// The one after the last.
        end: usize,
        /// Elements that there are.
        len: usize,
    },
    /// A copy between lengths that differ.
    #[error("a copy of {from} elements to {to}: take a slice of the longer one")]
    Length {
        /// Elements of the source.
        from: usize,
        /// Elements of the destination.
        to: usize,
    },
    /// The stream is registered with another allocator.
    #[error("the stream is registered with another allocator than the buffer is of: register it there, too")]
    ForeignStream,
    /// A fill or a copy.
    #[error("{transfer}: {detail}")]
    Transfer {
        /// Which.
        transfer: Transfer,
        /// What the caller can do.
        kind: DriverErrorKind,
        /// The driver's code and words, and what was asked.
        detail: String,
    },
    /// The streams could not be ordered; nothing was queued.
    #[error("driver: {0}")]
    Order(#[from] DriverError),
}

/// Work on the bytes of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Elements set to a value.
    Fill,
    /// A copy on the device.
    Copy,
    /// A copy from the host.
    Upload,
    /// A copy to the host.
    Download,
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fill => "the fill failed",
            Self::Copy => "the copy on the device failed",
            Self::Upload => "the copy to the device failed",
            Self::Download => "the copy from the device failed",
        })
    }
}
