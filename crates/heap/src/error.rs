//! What can go wrong with a request, by what the caller can do about it.
//!
//! Main types: [`RequestError`], [`AllocateError`], [`CaptureError`], [`GrowError`], [`FreeError`]. Neighbours: `out_of_memory` has the report.

use concertina_vmm::{DriverError, StreamId};

use crate::block_id::BlockId;
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
    /// The stream captures a graph, and the request would have to do what a capture forbids.
    #[error(transparent)]
    Capture(CaptureError),
}

impl From<CaptureError> for AllocateError {
    fn from(error: CaptureError) -> Self {
        match error {
            CaptureError::Driver(error) => Self::Driver(error),
            error => Self::Capture(error),
        }
    }
}

/// What a capture forbids. Nothing was changed, and the capture is not broken by it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// Memory was asked for on a stream that captures, and the allocator was not told of the capture.
    #[error(
        "stream {} captures a graph that the allocator was not told of: open a scope with `Stream::capture` and a \
         graph pool, whose memory stays as long as the graph needs it", .stream.get()
    )]
    NoScope {
        /// The stream.
        stream: StreamId,
    },
    /// Memory that is not of the capture's pool would have to grow.
    #[error("stream {} captures a graph: memory that is not of its graph pool grows before or after", .stream.get())]
    OtherPool {
        /// The stream.
        stream: StreamId,
    },
    /// The pool may not grow in a capture, and holds no free place for the request.
    #[error(
        "{asked_bytes} bytes in a capture on stream {}: its pool holds {held_bytes} bytes there, has no such place free, \
         and may not grow. Reserve {needed_bytes} bytes on the stream before the capture, or allow `Growth::Create`",
        .stream.get()
    )]
    NotHeld {
        /// The stream.
        stream: StreamId,
        /// What was asked for, in bytes.
        asked_bytes: u64,
        /// Bytes that the pool holds on the stream, used and free.
        held_bytes: u64,
        /// What to reserve: all that the capture uses so far, and the request, in whole pages.
        needed_bytes: u64,
    },
    /// The stream has a scope already.
    #[error("stream {} captures into a graph pool already: drop the first scope", .stream.get())]
    Twice {
        /// The stream.
        stream: StreamId,
    },
    /// The stream's capture was broken by an illegal call.
    #[error("the capture on stream {} is broken: end it, and begin again", .stream.get())]
    Broken {
        /// The stream.
        stream: StreamId,
    },
    /// The scope ended before the capture did. The stream counts as capturing until the driver says otherwise.
    #[error("stream {} still captures: end the capture before its scope", .stream.get())]
    NotEnded {
        /// The stream.
        stream: StreamId,
    },
    /// Something that runs on the stream, or that it waits for, was asked for in the middle of a capture there.
    #[error("{what} on stream {}, which captures a graph: do it before or after", .stream.get())]
    InCapture {
        /// The stream.
        stream: StreamId,
        /// What was asked for.
        what: &'static str,
    },
    /// A driver call about the capture failed, or something can't be waited for while another stream captures.
    #[error("driver: {0}")]
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

impl FreeError {
    /// No live block has this id.
    pub fn not_live(id: BlockId) -> Self {
        Self::NotLive { block: id.number(), generation: id.generation() }
    }
}
