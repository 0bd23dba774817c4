//! The driver's own pool, `cudaMallocAsync`, as a model.
//!
//! Main types: [`DriverPool`], [`PoolBlock`]. Neighbours: `conf` has its options; `reuse` is the way of a request, `grow`
//! takes memory of the driver and gives it back; `ranges` and `frames` are what it has.
//!
//! **What is documented** is modelled as it is written in the CUDA Programming Guide, "Stream-Ordered Memory Allocator"
//! (<https://docs.nvidia.com/cuda/cuda-programming-guide/04-special-topics/stream-ordered-memory-allocation.html>): whose
//! memory a request may have, with a switch for each of the three reuse policies; that a synchronisation makes what it
//! covers free for everyone and gives back what is over the release threshold; `cuMemPoolTrimTo`.
//!
//! **What is not documented is a guess**: sizes are multiples of 512 bytes; the smallest free range that fits is taken, of
//! equal ones the lowest, wherever in the pool it is; the pool grows, moves and gives back memory in frames of 32 MiB
//! (`frame_mb`), and only those with no byte in use. NVIDIA says that the driver remaps unused memory when a
//! request does not fit, and that it does so rather than take more (blog, "Using the NVIDIA CUDA Stream-Ordered Memory
//! Allocator, Part 1"); `remap` turns that off. Against a remapping of single pages speak
//! <https://github.com/rapidsai/rmm/issues/1245> (53,514,136,688 bytes in use, 84,490,059,776 reserved, 132,870,728
//! refused, with many live blocks of 256 to 512 KiB all over the pool) and
//! <https://github.com/pytorch/pytorch/issues/110194> (54 GiB in use on 79 GiB, 686 MiB refused): frames of 32 MiB that
//! such blocks hold down explain both, frames of 2 MiB would take some ten thousand blocks, each in a place of its own. The
//! figure of the former is 2,518 × 32 MiB to the byte. A device that is no multiple of the frame leaves a rest that this
//! model does not use.
//!
//! Every free is marked by an event as soon as there is a second stream: the driver has marks of its own, which cost it
//! less and which no count shows. The calls `cudaMallocAsync` and `cudaFreeAsync` themselves (1 to 2 µs) are in no figure.
//!
//! **Around it** stands PyTorch's backend `cudaMallocAsync` (`c10/cuda/CUDAMallocAsyncAllocator.cpp`): a block with
//! `record_stream` is freed where all its streams come together, a stream of nobody's, so that no policy but
//! the opportunistic one and the wait of its own finds it; `empty_cache` synchronises and trims to nothing; and, as of
//! June 2026 (PyTorch PR 188110), a request that fails trims and tries once more, before which the host waits here.
//! PyTorch also sets the threshold to its maximum: that is `release_threshold_mb:max`.

pub mod conf;
mod frames;
mod grow;
mod ranges;
mod reuse;

use std::collections::BTreeMap;
use std::sync::Arc;

use concertina_trace::target::TargetError;
use concertina_vmm::{
    Address, CrossStream, Device, Driver, DriverError, Fences, FrameProperties, StreamClock, StreamId, Uses,
};

use crate::baseline::Baseline;
use crate::main_stream::PoolBlock;
use crate::pool_error::PoolError;
use conf::DriverPoolConf;
use frames::Frames;
use ranges::{Ranges, State};

/// Sizes are rounded up to this many bytes. A guess.
const STEP_BYTES: u64 = 512;

/// A reservation.
#[derive(Debug)]
struct Segment {
    bytes: u64,
    /// Bytes from its start to the end of the last frame that was ever in it.
    extent_bytes: u64,
}

/// The pool of one device.
///
/// ```
/// use concertina_baselines::{Baseline, DriverPool, DriverPoolConf};
/// use concertina_emulator::{Emulator, EmulatorConfig};
///
/// let device = Emulator::new(EmulatorConfig::default())?;
/// let mut pool = DriverPool::new(device.clone(), DriverPoolConf::plain())?;
/// pool.add_stream(device.stream());
/// let block = pool.allocate(3 << 20, 0)?;
/// assert_eq!(pool.held_bytes(), 32 << 20);
/// pool.free(block)?;
/// // The default threshold keeps nothing over a synchronisation.
/// pool.synchronized(None)?;
/// assert_eq!(pool.held_bytes(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DriverPool<D: Driver> {
    driver: Arc<Device<D>>,
    conf: DriverPoolConf,
    fences: Fences<D>,
    /// By the number that the caller has.
    streams: Vec<Arc<StreamClock>>,
    ranges: Ranges,
    frames: Frames<D>,
    /// By address.
    segments: BTreeMap<u64, Segment>,
    /// Addresses that are reserved at once.
    segment_bytes: u64,
    used_bytes: u64,
}

impl<D: Driver> DriverPool<D> {
    /// A pool with nothing in it.
    ///
    /// # Errors
    /// [`PoolError::FrameSize`] if such frames can't be created on the device; what the driver says when it is asked for its
    /// memory and granularity.
    pub fn new(driver: D, conf: DriverPoolConf) -> Result<Self, PoolError> {
        let (frame_bytes, device_bytes) = (conf.frame_bytes, driver.memory_info()?.total_bytes);
        let device = Device::new(driver, FrameProperties::default())?;
        let granularity_bytes = device.granularity();
        if !frame_bytes.is_multiple_of(granularity_bytes) {
            return Err(PoolError::FrameSize { frame_bytes, granularity_bytes });
        }
        Ok(Self {
            fences: Fences::new(&device),
            driver: device,
            conf,
            streams: Vec::new(),
            ranges: Ranges::default(),
            frames: Frames::new(frame_bytes),
            segments: BTreeMap::new(),
            segment_bytes: device_bytes.saturating_mul(2),
            used_bytes: 0,
        })
    }

    /// `cudaMemPoolAttrReservedMemCurrent`: bytes of its frames.
    pub fn held_bytes(&self) -> u64 {
        self.frames.held_bytes()
    }

    /// `cudaMemPoolAttrUsedMemCurrent`: bytes of live blocks.
    pub const fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    fn stream(&self, number: u32) -> Result<StreamId, PoolError> {
        let clock = self.streams.get(number as usize);
        let streams = self.streams.len();
        Ok(clock.ok_or(PoolError::UnknownStream { stream: number, streams })?.stream())
    }

    fn request(&mut self, requested_bytes: u64, number: u32) -> Result<PoolBlock, PoolError> {
        let stream = self.stream(number)?;
        if requested_bytes == 0 {
            return Err(PoolError::ZeroBytes);
        }
        let (held_bytes, used_bytes) = (self.held_bytes(), self.used_bytes);
        let out_of_memory = PoolError::OutOfMemory { requested_bytes, held_bytes, used_bytes };
        // More than there are addresses for: the driver would be asked in vain.
        if requested_bytes > self.segment_bytes {
            return Err(out_of_memory);
        }
        let bytes = requested_bytes.next_multiple_of(STEP_BYTES);
        let mut found = self.find(stream, bytes)?;
        if found.is_none() && self.conf.retry {
            self.wait_for_all()?;
            self.trim_to(0)?;
            found = self.find(stream, bytes)?;
        }
        let address = found.ok_or(out_of_memory)?;
        self.ranges.recast(address, bytes, State::Live);
        self.used_bytes += bytes;
        Ok(PoolBlock::new(address, number))
    }

    fn free_block(&mut self, block: &PoolBlock) -> Result<(), PoolError> {
        let numbers = [block.stream].into_iter().chain(block.used_on.iter().copied());
        let uses: Uses = numbers.map(|number| self.streams[number as usize].now()).collect();
        let bytes = self.ranges.bytes(block.address);
        self.ranges.recast(block.address, bytes, State::Free(uses.clone()));
        self.used_bytes -= bytes;
        if self.streams.len() > 1 {
            // What is not marked now is when it is looked at.
            uses.iter().try_for_each(|&use_| self.fences.cover(use_))?;
        }
        Ok(())
    }

    /// The host has waited for streams: what that covers is free for everyone, and what is over the threshold goes.
    fn note_synchronized(&mut self, streams: &[StreamId]) -> Result<(), DriverError> {
        streams.iter().for_each(|&stream| self.fences.note_synchronized(stream));
        self.settle();
        self.trim_to(self.conf.release_threshold_bytes)
    }
}

impl<D: Driver> Baseline for DriverPool<D> {
    type Stream = D::Stream;
    type Block = PoolBlock;

    fn add_stream(&mut self, stream: D::Stream) {
        self.streams.push(self.fences.register(stream, CrossStream::DeviceWait));
    }

    fn allocate(&mut self, bytes: u64, stream: u32) -> Result<PoolBlock, TargetError> {
        Ok(self.request(bytes, stream)?)
    }

    fn address(&self, block: &PoolBlock) -> Address {
        block.address()
    }

    fn free(&mut self, block: PoolBlock) -> Result<(), TargetError> {
        Ok(self.free_block(&block)?)
    }

    fn record_stream(&mut self, block: &mut PoolBlock, stream: u32) -> Result<(), TargetError> {
        self.stream(stream)?;
        block.used_on(stream);
        Ok(())
    }

    /// The driver sees all events and waits of the program.
    fn stream_wait(&mut self, stream: u32, on: u32) -> Result<(), TargetError> {
        self.fences.note_wait(self.stream(stream)?, self.stream(on)?);
        Ok(())
    }

    fn synchronized(&mut self, stream: Option<u32>) -> Result<(), TargetError> {
        let streams = match stream {
            Some(number) => vec![self.stream(number)?],
            None => self.fences.streams(),
        };
        Ok(self.note_synchronized(&streams)?)
    }

    fn release_cached(&mut self) -> Result<(), TargetError> {
        self.wait_for_all()?;
        Ok(self.trim_to(0)?)
    }

    fn address_peak_bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.extent_bytes).sum()
    }
}

/// Waits for the streams and gives everything back, also what is live. What the driver refuses then is lost: nobody is left
/// to be told.
impl<D: Driver> Drop for DriverPool<D> {
    fn drop(&mut self) {
        for clock in &self.streams {
            let _ = self.fences.host_wait(clock.stream());
        }
        self.frames.close(self.driver.driver());
        for (&address, segment) in &self.segments {
            let _ = self.driver.driver().unreserve(Address::new(address), segment.bytes);
        }
    }
}
