//! What a buffer needs of the allocator that its memory is from.
//!
//! Main types: [`Home`], [`Registered`]. Neighbours: the crate `concertina` implements it; `buffer` and `uses` call it.

use std::sync::Arc;

use concertina_vmm::{Address, Fences, StreamClock, Use};
use cudarc::driver::CudaStream;

use super::error::BufferError;
use crate::cuda::Cuda;
use crate::exit::UnlessExiting;
use crate::stream::Stream;

/// Seals [`Home`]. It is public since the implementation lies in another crate of this project, and no part of the
/// interface: to implement it is to promise that each block's addresses are its own from the allocation to the drop, as
/// many bytes as were asked for, in memory of the driver's context.
#[doc(hidden)]
pub trait Sealed {}

/// A stream with the clock that it is registered under.
#[derive(Clone, Debug)]
pub struct Registered {
    cuda_stream: UnlessExiting<Arc<CudaStream>>,
    stream: Stream,
    clock: Arc<StreamClock>,
}

impl Registered {
    /// Joins a stream and its clock.
    pub fn new(stream: &Arc<CudaStream>, clock: Arc<StreamClock>) -> Self {
        Self { cuda_stream: UnlessExiting::new(Arc::clone(stream)), stream: stream.into(), clock }
    }

    /// The stream, as cudarc has it.
    pub fn cuda_stream(&self) -> &Arc<CudaStream> {
        &self.cuda_stream
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Its clock: the allocator's number for it, and the time there.
    pub fn clock(&self) -> &Arc<StreamClock> {
        &self.clock
    }
}

/// A stream of an allocator as the owner of memory: where buffers come from, in whose order they are freed, and how other
/// streams are ordered with it. Programs use the one in `concertina::cuda`.
///
/// Sealed: the driver follows the addresses that an implementation gives, so that a wrong one would let safe code write
/// to memory of others.
pub trait Home: Sealed + Send + Sync + Sized {
    /// A block of memory; dropping it frees it in the order of this stream.
    type Block: Send + Sync;
    /// Memory that grows in place; dropping it frees it in the order of this stream.
    type Growable: Send + Sync;
    /// A handle of any stream of the same program.
    type Stream: AsRef<Registered> + Send + Sync;
    /// Why there is no buffer.
    type Error: From<BufferError>;

    /// The home of memory that is allocated on `stream`.
    fn of(stream: &Self::Stream) -> &Arc<Self>;

    /// Allocates a block of `bytes`, not 0, at a multiple of `alignment`.
    ///
    /// # Errors
    /// The allocator's.
    fn allocate(&self, bytes: u64, alignment: u64) -> Result<Self::Block, Self::Error>;

    /// The first address of a block.
    fn address(block: &Self::Block) -> Address;

    /// The block is not used again before what is queued on the stream of `clock` is done.
    fn record_use(block: &Self::Block, clock: &StreamClock);

    /// Reserves addresses for up to `max_bytes`, not 0, at a multiple of a page. There are no bytes yet.
    ///
    /// # Errors
    /// The allocator's.
    fn reserve(&self, max_bytes: u64) -> Result<Self::Growable, Self::Error>;

    /// The first address of a growable: always the same.
    fn growable_address(growable: &Self::Growable) -> Address;

    /// Makes a growable longer. What is queued on this stream from now on may use the new bytes.
    ///
    /// # Errors
    /// The allocator's; it is as long as before then.
    fn grow_to(growable: &mut Self::Growable, bytes: u64) -> Result<(), Self::Error>;

    /// Makes a growable shorter, in the order of this stream. What is cut off is not used again before `uses` are done.
    fn shrink_to(growable: &mut Self::Growable, bytes: u64, uses: &[Use]);

    /// The stream itself.
    fn registered(&self) -> &Registered;

    /// The driver that the allocator is on.
    fn driver(&self) -> &Cuda;

    /// The fences that all streams of the allocator are registered with.
    fn fences(&self) -> &Fences<Cuda>;

    /// Whether a stream is registered with the same allocator.
    fn knows(&self, stream: &Self::Stream) -> bool;

    /// The registration of a stream of the driver, if it has one with the same allocator. It lasts as long as the handle.
    fn find(&self, stream: &CudaStream) -> Option<Self::Stream>;
}
