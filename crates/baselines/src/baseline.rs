//! The trait behind which the baselines stand that manage streams themselves.
//!
//! Main types: [`Baseline`]. Neighbours: `options` reads their options; the benches' `BaselineTarget` makes anything that
//! implements this a [`ReplayTarget`](concertina_trace::target::ReplayTarget): it owns the streams of the trace, and it
//! waits where the program waits.

use concertina_trace::target::TargetError;
use concertina_vmm::Address;

/// An allocator of one device, on a driver whose streams are of one type.
///
/// Streams are numbered by whoever uses it: 0 is the first that was added. After any error all live blocks are what
/// they were. Whoever drops it gives everything back to the driver, also what is live.
pub trait Baseline {
    /// A stream of the driver.
    type Stream;
    /// What it hands out; to be freed, dropping it does not.
    type Block;

    /// Makes a stream known; the number that stands for it from now on is one more than the last.
    fn add_stream(&mut self, stream: Self::Stream);

    /// Allocates `bytes` (1 or more) on `stream`.
    ///
    /// # Errors
    /// [`TargetError::OutOfMemory`] if memory is short, [`TargetError::Failed`] for a stream that was not added, and what
    /// the driver says.
    fn allocate(&mut self, bytes: u64, stream: u32) -> Result<Self::Block, TargetError>;

    /// Where the block begins.
    fn address(&self, block: &Self::Block) -> Address;

    /// Bytes that the block takes of the allocator's, rounding included, if it is one that knows.
    fn block_bytes(&self, _block: &Self::Block) -> Option<u64> {
        None
    }

    /// Frees the block in the order of the stream that it was allocated on.
    ///
    /// # Errors
    /// What the driver says.
    fn free(&mut self, block: Self::Block) -> Result<(), TargetError>;

    /// Work queued on `stream` up to here also uses the block.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate), and what the driver says.
    fn record_stream(&mut self, block: &mut Self::Block, stream: u32) -> Result<(), TargetError>;

    /// The program made work queued on `stream` from here on wait for all that was queued on `on` up to here. Most
    /// allocators do not learn of it.
    ///
    /// # Errors
    /// What the driver says.
    fn stream_wait(&mut self, _stream: u32, _on: u32) -> Result<(), TargetError> {
        Ok(())
    }

    /// The program made the host wait for `stream`, or for the whole device, and that is done. Most allocators do not
    /// learn of it.
    ///
    /// # Errors
    /// What the driver says.
    fn synchronized(&mut self, _stream: Option<u32>) -> Result<(), TargetError> {
        Ok(())
    }

    /// Gives cached memory back to the driver (`empty_cache`), if it is one that can.
    ///
    /// # Errors
    /// What the driver says.
    fn release_cached(&mut self) -> Result<(), TargetError>;

    /// Most bytes of addresses that were in use for placement at once: for each reservation, from its start to the end
    /// of its last page ever used. For `cudaMalloc`, the bytes allocated.
    fn address_peak_bytes(&self) -> u64;
}
