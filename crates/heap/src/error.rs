//! What can go wrong with a request, by what the caller can do about it.
//!
//! Main types: [`RequestError`], [`AllocateError`], [`GrowError`], [`FreeError`]. Neighbours: `out_of_memory` has the report.

use concertina_vmm::DriverError;

use crate::out_of_memory::OutOfMemory;

/// A request that no device could satisfy: fix the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A size of 0.
    #[error("a request of 0 bytes: ask for 1 byte or more")]
    Empty,
    /// The alignment is no power of two.
    #[error("an alignment of {alignment} bytes: it must be a power of two")]
    Alignment {
        /// The alignment in bytes.
        alignment: u64,
    },
    /// Size or alignment is beyond what an address can hold.
    #[error(
        "a request of {bytes} bytes aligned to {alignment}: at most {} bytes and half of that as an alignment",
        crate::step::LARGEST_BYTES
    )]
    TooLarge {
        /// The size in bytes.
        bytes: u64,
        /// The alignment in bytes.
        alignment: u64,
    },
}

/// Why an allocation failed. Whichever it is, all live blocks are as they were and the request may be made again.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// The request itself is wrong.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// There is not enough memory: the report says of what kind, and what would help.
    #[error(transparent)]
    OutOfMemory(Box<OutOfMemory>),
    /// A driver call failed for another reason than memory.
    #[error("a driver call failed while allocating: {0}")]
    Driver(#[from] DriverError),
}

/// Why a growable did not grow. It is as it was, and so are all live blocks; the call may be made again.
#[derive(Debug, thiserror::Error)]
pub enum GrowError {
    /// It has fewer addresses than that.
    #[error("growth to {bytes} bytes of a growable for {max_bytes}: reserve as many when it is made")]
    OverMax {
        /// Bytes asked for, in all.
        bytes: u64,
        /// Most bytes that it can have.
        max_bytes: u64,
    },
    /// No memory for the bytes that it would have more.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
}

/// Why a block was not freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FreeError {
    /// No live block has this number: it was freed before, or it is another allocator's.
    #[error("block {block} (generation {generation}) is not live: freed twice, or not of this allocator")]
    NotLive {
        /// The block's number.
        block: u32,
        /// The generation that the caller knew.
        generation: u32,
    },
}
