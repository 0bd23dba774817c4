//! The small trait behind which every allocator stands that traces are replayed on.
//!
//! Main types: [`ReplayTarget`], [`TargetError`]. Neighbours: `replay` drives it; the baselines and the benches'
//! adapter of Concertina implement it.

use std::error::Error;

use concertina_vmm::{Address, DriverError};

/// Why an allocator refused.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The device, or the allocator's limit, is too small: the trace does not complete.
    #[error("out of memory: {0}")]
    OutOfMemory(#[source] Box<dyn Error + Send + Sync>),
    /// Anything else: a mistake in the allocator or a failed driver.
    #[error("allocator failed: {0}")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
}

/// A driver's refusal, passed on as it is.
impl From<DriverError> for TargetError {
    fn from(error: DriverError) -> Self {
        if error.is_out_of_memory() { Self::OutOfMemory(error.into()) } else { Self::Failed(error.into()) }
    }
}

/// An allocator as a trace sees it.
///
/// Stream numbers are those of [`Step`](crate::Step): from 0 on without gaps, 0 the default stream. Whoever
/// implements this owns the emulator's streams and makes one when a number is met first: the emulator's stream of
/// that number (`Emulator::nth_stream`), to which the program's work goes.
///
/// What the driver can count is read from the emulator: mapped bytes, driver calls, events, waits of the host,
/// modelled time. So a target makes no driver call on behalf of the program, which would be counted as the
/// allocator's.
pub trait ReplayTarget {
    /// What the allocator hands out; the replay keeps it while the block lives.
    type Block;

    /// Allocates `bytes` (1 or more) on `stream`.
    ///
    /// # Errors
    /// [`TargetError`]; the replay ends there.
    fn allocate(&mut self, bytes: u64, stream: u32) -> Result<Self::Block, TargetError>;

    /// Where the block begins.
    fn address(&self, block: &Self::Block) -> Address;

    /// Bytes that the allocator set aside for the block, rounding included; none if it does not tell, which it does for
    /// all its blocks or for none.
    fn block_bytes(&self, _block: &Self::Block) -> Option<u64> {
        None
    }

    /// Frees the block in the order of the stream that it was allocated on.
    ///
    /// # Errors
    /// [`TargetError`]; the replay ends there.
    fn free(&mut self, block: Self::Block) -> Result<(), TargetError>;

    /// Work queued on `stream` up to here also uses the block.
    ///
    /// # Errors
    /// [`TargetError`]; the replay ends there.
    fn record_stream(&mut self, block: &mut Self::Block, stream: u32) -> Result<(), TargetError>;

    /// The program made work queued on `stream` from here on wait for all work queued on `on` up to here. An
    /// allocator may use what it learns. The emulator need not be told: its events complete a fixed number of
    /// operations after their record, so whatever is recorded on `stream` from here on completes after all that was
    /// recorded on `on` before.
    ///
    /// # Errors
    /// [`TargetError`]; the replay ends there.
    fn stream_wait(&mut self, stream: u32, on: u32) -> Result<(), TargetError>;

    /// The program made the host wait for `stream`, or for the whole device. The target passes it on to the emulator
    /// (`Emulator::synchronize_stream`, `Emulator::synchronize_device`), if it has recorded events there, and may use
    /// what it learns.
    ///
    /// # Errors
    /// [`TargetError`]; the replay ends there.
    fn synchronize(&mut self, stream: Option<u32>) -> Result<(), TargetError>;

    /// Gives cached memory back to the driver (`empty_cache`).
    ///
    /// # Errors
    /// [`TargetError`]; the replay ends there.
    fn release_cached(&mut self) -> Result<(), TargetError>;

    /// Most bytes of addresses that were in use for placement at once: for each reservation, from its start to the
    /// end of its last page ever used. For `cudaMalloc`, the bytes allocated.
    fn address_peak_bytes(&self) -> u64;
}
