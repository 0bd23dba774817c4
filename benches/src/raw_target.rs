//! Concertina without handles, as an allocator that traces can be replayed on: blocks are freed by their stream.
//!
//! Main types: [`RawTarget`]. Neighbours: `concertina_target` is the same with handles, and does everything here that is no
//! allocation or free; `passes` times both.

use concertina::{Address, Layout, OnStream, RawAllocation};
use concertina_heap::STEP_BYTES;
use concertina_trace::target::{ReplayTarget, TargetError};

use crate::bench_device::BenchDevice;
use crate::catalogue::PolicyName;
use crate::concertina_target::{ConcertinaTarget, refused};

/// An allocator as an embedder holds it that keeps its own handles.
#[derive(Debug)]
pub struct RawTarget<'a, D: BenchDevice> {
    target: ConcertinaTarget<'a, D>,
    /// By the trace's number, which is the allocator's, too: no other stream is registered.
    on_streams: Vec<OnStream<D::Driver>>,
}

impl<'a, D: BenchDevice> RawTarget<'a, D> {
    /// An allocator of this policy on the device, otherwise with the default settings.
    ///
    /// # Errors
    /// What the allocator says.
    pub fn new(device: &'a D, policy: PolicyName) -> Result<Self, TargetError> {
        Ok(Self { target: ConcertinaTarget::new(device, policy)?, on_streams: Vec::new() })
    }

    #[inline]
    fn on(&mut self, stream: u32) -> Result<&OnStream<D::Driver>, TargetError> {
        if self.on_streams.len() <= stream as usize {
            self.meet(stream)?;
        }
        Ok(&self.on_streams[stream as usize])
    }

    #[cold]
    fn meet(&mut self, stream: u32) -> Result<(), TargetError> {
        for number in self.on_streams.len() as u32..=stream {
            let on_stream = self.target.on(number)?;
            self.on_streams.push(on_stream);
        }
        Ok(())
    }
}

impl<D: BenchDevice> ReplayTarget for RawTarget<'_, D> {
    type Block = RawAllocation;

    fn allocate(&mut self, bytes: u64, stream: u32) -> Result<Self::Block, TargetError> {
        self.on(stream)?.allocate_raw(Layout::new(bytes)).map_err(refused)
    }

    fn address(&self, block: &Self::Block) -> Address {
        block.address()
    }

    fn block_bytes(&self, block: &Self::Block) -> Option<u64> {
        Some(block.bytes().next_multiple_of(STEP_BYTES))
    }

    fn free(&mut self, block: Self::Block) -> Result<(), TargetError> {
        self.on_streams[block.stream().index()].free_raw(block).map_err(refused)
    }

    fn record_stream(&mut self, block: &mut Self::Block, stream: u32) -> Result<(), TargetError> {
        self.target.record_stream_raw(*block, stream)
    }

    fn stream_wait(&mut self, stream: u32, on: u32) -> Result<(), TargetError> {
        self.target.stream_wait(stream, on)
    }

    fn synchronize(&mut self, stream: Option<u32>) -> Result<(), TargetError> {
        self.target.synchronize(stream)
    }

    fn release_cached(&mut self) -> Result<(), TargetError> {
        self.target.release_cached()
    }

    fn address_peak_bytes(&self) -> u64 {
        self.target.address_peak_bytes()
    }
}
