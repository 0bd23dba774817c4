//! A baseline as an allocator that traces can be replayed on.
//!
//! Main types: [`BaselineTarget`]. Neighbours: `targets` makes it; `concertina_baselines` has the allocators.

use concertina_baselines::Baseline;
use concertina_trace::target::{ReplayTarget, TargetError};
use concertina_vmm::Address;

use crate::bench_device::{BenchDevice, StreamOf};

/// The baseline, and the streams of the trace.
#[derive(Debug)]
pub struct BaselineTarget<'a, D: BenchDevice, A> {
    device: &'a D,
    allocator: A,
    /// By the trace's number, which is the allocator's number too.
    streams: Vec<StreamOf<D>>,
}

impl<'a, D: BenchDevice, A: Baseline<Stream = StreamOf<D>>> BaselineTarget<'a, D, A> {
    /// The allocator, which was made on the device and has no stream yet.
    pub const fn new(device: &'a D, allocator: A) -> Self {
        Self { device, allocator, streams: Vec::new() }
    }

    /// The allocator behind it.
    pub const fn allocator(&self) -> &A {
        &self.allocator
    }

    /// Adds streams up to this number, if the trace has not met them before.
    fn meet(&mut self, stream: u32) -> Result<(), TargetError> {
        while self.streams.len() <= stream as usize {
            let device = self.device.new_stream(self.streams.len() as u32)?;
            self.allocator.add_stream(device.clone());
            self.streams.push(device);
        }
        Ok(())
    }
}

impl<D: BenchDevice, A: Baseline<Stream = StreamOf<D>>> ReplayTarget for BaselineTarget<'_, D, A> {
    type Block = A::Block;

    fn allocate(&mut self, bytes: u64, stream: u32) -> Result<A::Block, TargetError> {
        self.meet(stream)?;
        self.allocator.allocate(bytes, stream)
    }

    fn address(&self, block: &A::Block) -> Address {
        self.allocator.address(block)
    }

    fn block_bytes(&self, block: &A::Block) -> Option<u64> {
        self.allocator.block_bytes(block)
    }

    fn free(&mut self, block: A::Block) -> Result<(), TargetError> {
        self.allocator.free(block)
    }

    fn record_stream(&mut self, block: &mut A::Block, stream: u32) -> Result<(), TargetError> {
        self.meet(stream)?;
        self.allocator.record_stream(block, stream)
    }

    fn stream_wait(&mut self, stream: u32, on: u32) -> Result<(), TargetError> {
        self.meet(stream.max(on))?;
        self.allocator.stream_wait(stream, on)
    }

    fn synchronize(&mut self, stream: Option<u32>) -> Result<(), TargetError> {
        match stream {
            Some(number) => {
                self.meet(number)?;
                self.device.synchronize_stream(&self.streams[number as usize])?;
            }
            None => self.device.synchronize_device()?,
        }
        self.allocator.synchronized(stream)
    }

    fn release_cached(&mut self) -> Result<(), TargetError> {
        self.allocator.release_cached()
    }

    fn address_peak_bytes(&self) -> u64 {
        self.allocator.address_peak_bytes()
    }
}
