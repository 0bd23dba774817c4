//! Every allocation is a `cudaMalloc`, every free a `cudaFree`.
//!
//! Main types: [`Direct`], [`DirectBlock`]. Neighbours: the driver does all the work (`malloc` and `free`); what the
//! emulated one makes of it is modelled, and `concertina-emulator` says how: requests of 1 MiB or more take whole
//! granules, smaller ones share granules in steps of 256 bytes. No driver documents what it does.

use concertina_trace::target::{ReplayTarget, TargetError};
use concertina_vmm::{Address, Driver};

/// No allocator between the program and the driver.
///
/// It fragments nothing, since the driver may put each allocation on any granules that are free. It pays in time:
/// both calls go to the driver, and `cudaFree` waits until the device has finished all work (CUDA Runtime API,
/// "implicit synchronization"). That wait also settles every question of streams: a block that is freed is used by
/// nobody.
#[derive(Debug)]
pub struct Direct<D> {
    driver: D,
    live_bytes: u64,
    peak_bytes: u64,
}

/// One `cudaMalloc`.
#[derive(Debug)]
pub struct DirectBlock {
    address: Address,
    bytes: u64,
}

impl<D: Driver> Direct<D> {
    /// Passes everything on to `driver`.
    pub const fn new(driver: D) -> Self {
        Self { driver, live_bytes: 0, peak_bytes: 0 }
    }
}

impl<D: Driver> ReplayTarget for Direct<D> {
    type Block = DirectBlock;

    fn allocate(&mut self, bytes: u64, _stream: u32) -> Result<DirectBlock, TargetError> {
        let address = self.driver.malloc(bytes)?;
        self.live_bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        Ok(DirectBlock { address, bytes })
    }

    fn address(&self, block: &DirectBlock) -> Address {
        block.address
    }

    fn free(&mut self, block: DirectBlock) -> Result<(), TargetError> {
        self.driver.free(block.address)?;
        self.live_bytes -= block.bytes;
        Ok(())
    }

    /// Nothing to do: the free will wait for all streams.
    fn record_stream(&mut self, _block: &mut DirectBlock, _stream: u32) -> Result<(), TargetError> {
        Ok(())
    }

    /// Nothing to learn.
    fn stream_wait(&mut self, _stream: u32, _on: u32) -> Result<(), TargetError> {
        Ok(())
    }

    /// Nothing to pass on: no event was recorded.
    fn synchronize(&mut self, _stream: Option<u32>) -> Result<(), TargetError> {
        Ok(())
    }

    /// Nothing is kept.
    fn release_cached(&mut self) -> Result<(), TargetError> {
        Ok(())
    }

    fn address_peak_bytes(&self) -> u64 {
        self.peak_bytes
    }
}
