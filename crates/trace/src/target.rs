//! The small trait behind which every allocator stands that traces are replayed on.
//!
//! Main types: [`ReplayTarget`], [`TargetError`], [`TargetCounts`]. Neighbours: `replay` drives it; the baselines
//! and the benches' adapter of Concertina implement it.

use std::error::Error;

use concertina_vmm::Address;

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

/// What an allocator counts itself. What the driver can count (mapped bytes, driver calls) is read from the emulator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetCounts {
    /// Most bytes of addresses that were in use for placement at once: for each reservation, from its start to the
    /// end of its last page ever used. For `cudaMalloc`, the bytes allocated.
    pub address_peak_bytes: u64,
    /// Times that the host waited for the device.
    pub host_waits: u64,
}

/// An allocator as a trace sees it. Stream numbers are the trace's; 0 is the default stream.
pub trait ReplayTarget {
    /// What the allocator hands out; the replay keeps it while the block lives.
    type Block;

    /// Allocates `bytes` (1 or more) on `stream`.
    fn allocate(&mut self, bytes: u64, stream: u32) -> Result<Self::Block, TargetError>;

    /// Where the block begins.
    fn address(&self, block: &Self::Block) -> Address;

    /// Frees the block in the order of the stream that it was allocated on.
    fn free(&mut self, block: Self::Block) -> Result<(), TargetError>;

    /// Work queued on `stream` up to here also uses the block.
    fn record_stream(&mut self, block: &mut Self::Block, stream: u32) -> Result<(), TargetError>;

    /// The program made work queued on `stream` from here on wait for all work queued on `on` up to here.
    fn stream_wait(&mut self, stream: u32, on: u32) -> Result<(), TargetError>;

    /// The program made the host wait for `stream`, or for the whole device.
    fn synchronize(&mut self, stream: Option<u32>) -> Result<(), TargetError>;

    /// Gives cached memory back to the driver (`empty_cache`).
    fn release_cached(&mut self) -> Result<(), TargetError>;

    /// The allocator's own counts.
    fn counts(&self) -> TargetCounts;
}
