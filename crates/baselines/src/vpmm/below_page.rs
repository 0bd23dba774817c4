//! Requests below a page: a `cudaMalloc` each, where the source asks `cudaMallocAsync`.
//!
//! Main type: [`BelowPage`]. Neighbours: `vpmm` hands such requests on; a model of the driver's pool would go here.
//!
//! Source: stark-backend, `memory_manager/mod.rs`: `d_malloc`, `d_free`.

use std::collections::BTreeSet;

use concertina_vmm::{Address, Driver, DriverError};

#[derive(Debug, Default)]
pub(crate) struct BelowPage {
    live: BTreeSet<u64>,
    /// What the driver would not take back.
    unfreed: Vec<u64>,
    /// Of live ones, as asked.
    bytes: u64,
}

impl BelowPage {
    /// Bytes of live ones, as asked.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn allocate<D: Driver>(&mut self, driver: &D, bytes: u64) -> Result<u64, DriverError> {
        self.unfreed.retain(|&address| driver.free(Address::new(address)).is_err());
        let address = driver.malloc(bytes)?.get();
        self.live.insert(address);
        self.bytes += bytes;
        Ok(address)
    }

    /// Frees one; if the driver refuses, it tries again with the next request.
    pub(crate) fn free<D: Driver>(
        &mut self,
        driver: &D,
        address: u64,
        bytes: u64,
    ) -> Result<(), DriverError> {
        self.live.remove(&address);
        self.bytes -= bytes;
        driver.free(Address::new(address)).inspect_err(|_| self.unfreed.push(address))
    }

    /// Gives everything back, also what is live.
    pub(crate) fn close<D: Driver>(&mut self, driver: &D) {
        for &address in self.live.iter().chain(&self.unfreed) {
            let _ = driver.free(Address::new(address));
        }
    }
}
