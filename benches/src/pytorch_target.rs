//! PyTorch's allocator as one that traces can be replayed on.
//!
//! Main types: [`PytorchTarget`]. Neighbours: `targets` makes it; `concertina_baselines` has the model.

use concertina_baselines::{Pytorch, PytorchBlock, PytorchConf, PytorchError};
use concertina_trace::target::{ReplayTarget, TargetError};
use concertina_vmm::Address;

use crate::bench_device::{BenchDevice, StreamOf};

/// The model, and the streams of the trace.
#[derive(Debug)]
pub struct PytorchTarget<'a, D: BenchDevice> {
    device: &'a D,
    allocator: Pytorch<D::Driver>,
    /// By the trace's number, which is the allocator's number too.
    streams: Vec<StreamOf<D>>,
}

impl<'a, D: BenchDevice> PytorchTarget<'a, D> {
    /// An allocator with these options on the device.
    ///
    /// # Errors
    /// What the allocator says.
    pub fn new(device: &'a D, conf: PytorchConf) -> Result<Self, TargetError> {
        let allocator = Pytorch::new(device.driver().clone(), conf).map_err(refused)?;
        Ok(Self { device, allocator, streams: Vec::new() })
    }

    /// The allocator behind it.
    pub const fn allocator(&self) -> &Pytorch<D::Driver> {
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

fn refused(error: PytorchError) -> TargetError {
    if error.is_out_of_memory() {
        TargetError::OutOfMemory(error.into())
    } else {
        TargetError::Failed(error.into())
    }
}

impl<D: BenchDevice> ReplayTarget for PytorchTarget<'_, D> {
    type Block = PytorchBlock;

    fn allocate(&mut self, bytes: u64, stream: u32) -> Result<PytorchBlock, TargetError> {
        self.meet(stream)?;
        self.allocator.allocate(bytes, stream).map_err(refused)
    }

    fn address(&self, block: &PytorchBlock) -> Address {
        block.address()
    }

    fn free(&mut self, block: PytorchBlock) -> Result<(), TargetError> {
        self.allocator.free(block).map_err(refused)
    }

    fn record_stream(&mut self, block: &mut PytorchBlock, stream: u32) -> Result<(), TargetError> {
        self.meet(stream)?;
        self.allocator.record_stream(block, stream).map_err(refused)
    }

    /// Nothing to learn: PyTorch does not look at the program's waits.
    fn stream_wait(&mut self, stream: u32, on: u32) -> Result<(), TargetError> {
        self.meet(stream.max(on))
    }

    /// Nothing to learn either: it asks its events.
    fn synchronize(&mut self, stream: Option<u32>) -> Result<(), TargetError> {
        match stream {
            Some(stream) => {
                self.meet(stream)?;
                self.device.synchronize_stream(&self.streams[stream as usize])
            }
            None => self.device.synchronize_device(),
        }
    }

    fn release_cached(&mut self) -> Result<(), TargetError> {
        self.allocator.empty_cache().map_err(refused)
    }

    fn address_peak_bytes(&self) -> u64 {
        self.allocator.stats().addresses.peak
    }
}
