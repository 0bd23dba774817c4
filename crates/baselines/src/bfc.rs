//! TensorFlow's and JAX's allocator, best fit with coalescing (BFC), as a model.
//!
//! Main types: [`Bfc`], [`PoolBlock`]. Neighbours: `conf` has its options; `carving` has the blocks, `main_stream` says what
//! becomes of streams other than the first.
//!
//! What is modelled: `BFCAllocator` in XLA's `xla/tsl/framework/bfc_allocator.{h,cc}`
//! (<https://github.com/openxla/xla/blob/main/xla/tsl/framework/bfc_allocator.cc>, as of 2026), which TensorFlow's
//! `GPUBFCAllocator` and JAX use: sizes in steps of 256 bytes, which free block is taken and when it is split,
//! how mallocs grow, and what it does when memory is short. Its 21 bins by powers of two are an index: a request looks
//! through them from its own on, each ordered by size and address, so that it finds the smallest block and of equal
//! ones the lowest; one ordered set finds the same. Memory comes from `cudaMalloc`, and mallocs that happen to be
//! adjacent are not joined: TensorFlow's sub-allocator for virtual memory, whose parts would be, is switched off in its
//! source (`CreateSubAllocator` in `gpu_process_state.cc`).
//!
//! What is left out: the chunks with time stamps, the two ends (`enable_spatial_partitioning`), and what the frameworks
//! leave to others: TensorFlow's limit is all that is free but for some hundred MiB (`MinSystemMemory` in
//! `gpu_device.cc`), here it is `memory_fraction` of what is free. TensorFlow waits up to ten seconds for somebody's
//! free before it reports out of memory (`AllocatorRetry`); here the host waits for the frees that are outstanding.
//!
//! By default the model grows, so that its figures say what a program needs. TensorFlow's own default takes all at
//! once, `allow_growth:false`; JAX's is `allow_growth:false,memory_fraction:0.75`, with `garbage_collection:false`.

pub mod conf;

use concertina_trace::target::TargetError;
use concertina_vmm::{Address, Driver, DriverError};

use crate::baseline::Baseline;
use crate::carving::Carving;
use crate::main_stream::{MainStream, PoolBlock};
use crate::pool_error::PoolError;
use conf::BfcConf;

/// `kMinAllocationSize`: sizes are rounded up to this many bytes.
const STEP_BYTES: u64 = 256;
/// The first malloc of an allocator that grows, in bytes.
const FIRST_MALLOC_BYTES: u64 = 2 << 20;
/// `max_internal_fragmentation_bytes_` if no fraction is given: a block this much larger than the request is split.
const MOST_REST_BYTES: u64 = 128 << 20;
/// `kBackpedalFactor`: how much less is asked for after a refusal.
const BACKPEDAL: f32 = 0.9;

/// The allocator of one device.
///
/// ```
/// use concertina_baselines::{Baseline, Bfc, BfcConf};
/// use concertina_emulator::{Emulator, EmulatorConfig};
///
/// let device = Emulator::new(EmulatorConfig::default())?;
/// let mut allocator = Bfc::new(device.clone(), BfcConf::growing())?;
/// allocator.add_stream(device.stream());
/// // The first malloc would be 2 MiB: doubled until the request fits.
/// let block = allocator.allocate(3 << 20, 0)?;
/// assert_eq!(device.counts().mapped_bytes, 4 << 20);
/// allocator.free(block)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Bfc<D: Driver> {
    driver: D,
    conf: BfcConf,
    streams: MainStream<D>,
    carving: Carving,
    limit_bytes: u64,
    /// `curr_region_allocation_bytes_`: the next malloc.
    next_malloc_bytes: u64,
    most_rest_bytes: u64,
    held_bytes: u64,
    held_peak_bytes: u64,
    used_bytes: u64,
}

const fn rounded(bytes: u64) -> u64 {
    bytes.saturating_add(STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES
}

impl<D: Driver> Bfc<D> {
    /// An allocator that holds nothing yet: also one that takes all at once does so with the first request.
    ///
    /// # Errors
    /// What the driver says when it is asked for its memory.
    pub fn new(driver: D, conf: BfcConf) -> Result<Self, PoolError> {
        let limit_bytes = (driver.memory_info()?.free_bytes as f64 * conf.memory_fraction) as u64;
        let first_bytes = if conf.allow_growth { limit_bytes.min(FIRST_MALLOC_BYTES) } else { limit_bytes };
        let part = conf.internal_fragmentation_fraction;
        let most_rest_bytes = if part > 0.0 { (part * limit_bytes as f64) as u64 } else { MOST_REST_BYTES };
        Ok(Self {
            driver,
            conf,
            streams: MainStream::new(),
            carving: Carving::default(),
            limit_bytes,
            next_malloc_bytes: rounded(first_bytes).max(STEP_BYTES),
            most_rest_bytes,
            held_bytes: 0,
            held_peak_bytes: 0,
            used_bytes: 0,
        })
    }

    /// Bytes of its mallocs.
    pub const fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Bytes of live and pending blocks, rounding and what was not split off included.
    pub const fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// `AllocateRaw`.
    fn request(&mut self, requested_bytes: u64, stream: u32) -> Result<PoolBlock, PoolError> {
        self.streams.check(stream)?;
        if requested_bytes == 0 {
            return Err(PoolError::ZeroBytes);
        }
        self.streams.look(&self.driver)?;
        self.give_back_ready();
        let bytes = rounded(requested_bytes);
        let mut found = self.find_or_extend(bytes)?;
        if found.is_none() && self.streams.wait(&self.driver)? {
            self.give_back_ready();
            found = self.find_or_extend(bytes)?;
        }
        let Some((address, block_bytes)) = found else {
            let (held_bytes, used_bytes) = (self.held_bytes, self.used_bytes);
            return Err(PoolError::OutOfMemory { requested_bytes, held_bytes, used_bytes });
        };
        self.streams.enter(&self.driver, stream)?;
        let splits = block_bytes >= bytes * 2 || block_bytes - bytes >= self.most_rest_bytes;
        let taken_bytes = if splits { bytes } else { block_bytes };
        self.carving.take(address, taken_bytes);
        self.used_bytes += taken_bytes;
        Ok(PoolBlock::new(address, stream))
    }

    /// `AllocateRawInternal`: a free block, a new malloc, or a new malloc in the place of free ones.
    fn find_or_extend(&mut self, bytes: u64) -> Result<Option<(u64, u64)>, DriverError> {
        let found = self.carving.best_fit(bytes);
        if found.is_some() {
            return Ok(found);
        }
        if self.extend(bytes)? || (self.free_mallocs(bytes)? && self.extend(bytes)?) {
            return Ok(self.carving.best_fit(bytes));
        }
        Ok(None)
    }

    /// `Extend`: a malloc of the next size, doubled until the request fits and cut to what the limit leaves; smaller and
    /// smaller ones if the driver refuses. False if not even the request itself is to be had.
    fn extend(&mut self, bytes: u64) -> Result<bool, DriverError> {
        let available_bytes = self.limit_bytes.saturating_sub(self.held_bytes) / STEP_BYTES * STEP_BYTES;
        if bytes > available_bytes {
            return Ok(false);
        }
        let mut doubled = false;
        while bytes > self.next_malloc_bytes {
            self.next_malloc_bytes = self.next_malloc_bytes.saturating_mul(2);
            doubled = true;
        }
        let mut malloc_bytes = self.next_malloc_bytes.min(available_bytes);
        let address = loop {
            match self.driver.malloc(malloc_bytes) {
                Ok(address) => break address.get(),
                Err(error) if error.is_out_of_memory() => {
                    let less_bytes = rounded((malloc_bytes as f32 * BACKPEDAL) as u64);
                    malloc_bytes = less_bytes.min(malloc_bytes - STEP_BYTES);
                    if malloc_bytes < bytes {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(error),
            }
        };
        if !doubled {
            self.next_malloc_bytes = self.next_malloc_bytes.saturating_mul(2);
        }
        self.carving.add(address, malloc_bytes);
        self.held_bytes += malloc_bytes;
        self.held_peak_bytes = self.held_peak_bytes.max(self.held_bytes);
        Ok(true)
    }

    /// `DeallocateFreeRegions`: gives all free mallocs back, if the request could fit then. Whether there was one.
    fn free_mallocs(&mut self, bytes: u64) -> Result<bool, DriverError> {
        if !self.conf.garbage_collection {
            return Ok(false);
        }
        let mallocs = self.carving.free_mallocs();
        let free_bytes: u64 = mallocs.iter().map(|(_, bytes)| bytes).sum();
        let available_bytes = self.limit_bytes.saturating_sub(self.held_bytes) + free_bytes;
        if free_bytes == 0 || bytes > available_bytes {
            return Ok(false);
        }
        for (address, malloc_bytes) in mallocs {
            self.driver.free(Address::new(address))?;
            self.carving.remove(address);
            self.held_bytes -= malloc_bytes;
        }
        Ok(true)
    }

    fn give_back_ready(&mut self) {
        for address in self.streams.take_ready() {
            self.used_bytes -= self.carving.bytes(address);
            self.carving.give_back(address);
        }
    }
}

impl<D: Driver> Baseline for Bfc<D> {
    type Stream = D::Stream;
    type Block = PoolBlock;

    fn add_stream(&mut self, stream: D::Stream) {
        self.streams.add(stream);
    }

    fn allocate(&mut self, bytes: u64, stream: u32) -> Result<PoolBlock, TargetError> {
        Ok(self.request(bytes, stream)?)
    }

    fn address(&self, block: &PoolBlock) -> Address {
        block.address()
    }

    fn free(&mut self, block: PoolBlock) -> Result<(), TargetError> {
        let freed = self.streams.free(&self.driver, block);
        self.give_back_ready();
        Ok(freed?)
    }

    fn record_stream(&mut self, block: &mut PoolBlock, stream: u32) -> Result<(), TargetError> {
        self.streams.check(stream)?;
        block.used_on(stream);
        Ok(())
    }

    /// It has no such call: what it holds, it gives back when memory is short or at the end.
    fn release_cached(&mut self) -> Result<(), TargetError> {
        Ok(())
    }

    fn address_peak_bytes(&self) -> u64 {
        self.held_peak_bytes
    }
}

/// Gives all mallocs back, each of which waits for the whole device. What the driver refuses then is lost: nobody is left
/// to be told.
impl<D: Driver> Drop for Bfc<D> {
    fn drop(&mut self) {
        for address in self.carving.mallocs() {
            let _ = self.driver.free(Address::new(address));
        }
    }
}

#[cfg(test)]
mod tests;
