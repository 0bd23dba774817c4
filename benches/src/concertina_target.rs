//! Concertina as an allocator that traces can be replayed on.
//!
//! Main types: [`ConcertinaTarget`]. Neighbours: `targets` makes it; `concertina_trace` replays on it.

use concertina_emulator::Emulator;
use concertina_trace::target::{ReplayTarget, TargetError};
use concertina_vmm::Address;

use crate::catalogue::PolicyName;

/// An allocator, and the streams of the trace.
#[derive(Debug)]
pub struct ConcertinaTarget(());

#[derive(Debug, thiserror::Error)]
#[error("concertina is not here yet")]
struct NotHere;

impl ConcertinaTarget {
    /// An allocator of this policy on the device.
    ///
    /// # Errors
    /// What the allocator says.
    pub fn new(_: &Emulator, _: PolicyName) -> Result<Self, TargetError> {
        Err(TargetError::Failed(NotHere.into()))
    }
}

impl ReplayTarget for ConcertinaTarget {
    type Block = ();
    fn allocate(&mut self, _: u64, _: u32) -> Result<(), TargetError> {
        Ok(())
    }
    fn address(&self, (): &()) -> Address {
        Address::default()
    }
    fn free(&mut self, (): ()) -> Result<(), TargetError> {
        Ok(())
    }
    fn record_stream(&mut self, (): &mut (), _: u32) -> Result<(), TargetError> {
        Ok(())
    }
    fn stream_wait(&mut self, _: u32, _: u32) -> Result<(), TargetError> {
        Ok(())
    }
    fn synchronize(&mut self, _: Option<u32>) -> Result<(), TargetError> {
        Ok(())
    }
    fn release_cached(&mut self) -> Result<(), TargetError> {
        Ok(())
    }
    fn address_peak_bytes(&self) -> u64 {
        0
    }
}
