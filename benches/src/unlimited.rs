//! No allocator: memory that costs nothing and never ends, to see what a program's kernels take alone.
//!
//! Main types: [`Unlimited`]. Neighbours: `case` replays on it for the figure to compare with.

use concertina_trace::target::{ReplayTarget, TargetError};
use concertina_vmm::Address;

/// Addresses without memory, each given once.
#[derive(Debug, Default)]
pub(crate) struct Unlimited {
    bytes: u64,
}

impl ReplayTarget for Unlimited {
    type Block = Address;

    fn allocate(&mut self, bytes: u64, _stream: u32) -> Result<Address, TargetError> {
        let address = Address::new(self.bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(address)
    }

    fn address(&self, block: &Address) -> Address {
        *block
    }

    fn free(&mut self, _block: Address) -> Result<(), TargetError> {
        Ok(())
    }

    fn record_stream(&mut self, _block: &mut Address, _stream: u32) -> Result<(), TargetError> {
        Ok(())
    }

    fn stream_wait(&mut self, _stream: u32, _on: u32) -> Result<(), TargetError> {
        Ok(())
    }

    fn synchronize(&mut self, _stream: Option<u32>) -> Result<(), TargetError> {
        Ok(())
    }

    fn release_cached(&mut self) -> Result<(), TargetError> {
        Ok(())
    }

    fn address_peak_bytes(&self) -> u64 {
        self.bytes
    }
}
