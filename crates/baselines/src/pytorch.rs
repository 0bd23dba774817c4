//! PyTorch's CUDA caching allocator, native and with expandable segments, as a model.
//!
//! Main types: [`Pytorch`], [`PytorchBlock`]. Neighbours: `conf` has its options; `request` is the way of a request,
//! `grow` asks the driver for more, `give_back` frees blocks and gives cached ones back; `block`, `pool`,
//! `expandable_segment` and the crate's `event_queues` are what it has.
//!
//! What is modelled: `DeviceCachingAllocator` of PyTorch 2.11, `c10/cuda/CUDACachingAllocator.cpp`
//! (<https://github.com/pytorch/pytorch/tree/v2.11.0/c10/cuda>), on one device: rounding, the two pools, best fit,
//! splitting, joining, blocks that other streams use, what it does when memory is short, and all options that change
//! memory. Each file names the functions that it follows. What is left out: private pools and graph capture, sharing
//! with other devices and processes, traces and snapshots, and the pinned memory of the host.
//!
//! It is a model in bytes, calls and addresses, not in time. On the bundled traces it reserves what PyTorch's binary
//! reserves, to the byte: the tests have the figures.

#[cfg(test)]
mod audit;
mod block;
pub mod conf;
mod conf_parser;
pub mod error;
mod expandable_segment;
mod give_back;
mod grow;
mod pool;
mod request;
pub mod rounding;
pub mod stats;

use concertina_trace::target::TargetError;
use concertina_vmm::{Address, Driver, DriverError, FrameProperties};

use crate::baseline::Baseline;
use crate::event_queues::EventQueues;
use block::{BlockId, BlockState, Blocks};
use conf::PytorchConf;
use error::PytorchError;
use expandable_segment::ExpandableSegment;
use pool::Pool;
use rounding::{PoolKind, SMALL_SEGMENT_BYTES};
use stats::PytorchStats;

/// The allocator of one device.
///
/// Streams are numbered by whoever uses it: 0 is the first that was added. Blocks are reused on their own stream only.
///
/// ```
/// use concertina_baselines::{Pytorch, PytorchConf};
/// use concertina_emulator::{Emulator, EmulatorConfig};
///
/// let device = Emulator::new(EmulatorConfig::default())?;
/// let mut allocator = Pytorch::new(device.clone(), "max_split_size_mb:128".parse::<PytorchConf>()?)?;
/// let stream = allocator.add_stream(device.stream());
/// let block = allocator.allocate(3 << 20, stream)?;
/// // 3 MiB are cut off a segment of 20.
/// assert_eq!(allocator.stats().reserved.current, 20 << 20);
/// allocator.free(block)?;
/// allocator.empty_cache()?;
/// assert_eq!(allocator.stats().reserved.current, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pytorch<D: Driver> {
    driver: D,
    conf: PytorchConf,
    streams: Vec<D::Stream>,
    blocks: Blocks,
    small: Pool,
    large: Pool,
    /// By the number that blocks have; vacant places are filled again.
    segments: Vec<Option<ExpandableSegment<D>>>,
    events: EventQueues<D, BlockId>,
    /// Pending blocks with streams whose event could not be recorded yet.
    unrecorded: Vec<BlockId>,
    device_bytes: u64,
    limit_bytes: Option<u64>,
    stats: PytorchStats,
}

/// A block that the program has. To be freed: dropping it does not.
#[derive(Debug)]
#[must_use = "the block stays live until it is given to `Pytorch::free`"]
pub struct PytorchBlock {
    id: BlockId,
    address: Address,
}

impl PytorchBlock {
    /// Where it begins.
    pub const fn address(&self) -> Address {
        self.address
    }
}

impl<D: Driver> Pytorch<D> {
    /// An allocator with nothing in it.
    ///
    /// # Errors
    /// [`PytorchError::FrameSize`] if expandable segments can't have their frames on this device; what the driver says
    /// when it is asked for its memory and granularity.
    pub fn new(driver: D, conf: PytorchConf) -> Result<Self, PytorchError> {
        let device_bytes = driver.memory_info()?.total_bytes;
        if conf.expandable_segments {
            let granularity_bytes = driver.granularity(&FrameProperties::default())?.max(1);
            for frame_bytes in [SMALL_SEGMENT_BYTES, conf.large_segment_bytes] {
                if !frame_bytes.is_multiple_of(granularity_bytes) {
                    return Err(PytorchError::FrameSize { frame_bytes, granularity_bytes });
                }
            }
        }
        // As in PyTorch: cut off to whole bytes.
        let limit_bytes = (conf.memory_fraction * device_bytes as f64) as u64;
        Ok(Self {
            driver,
            conf,
            streams: Vec::new(),
            blocks: Blocks::default(),
            small: Pool::default(),
            large: Pool::default(),
            segments: Vec::new(),
            events: EventQueues::new(),
            unrecorded: Vec::new(),
            device_bytes,
            limit_bytes: (conf.memory_fraction < 1.0).then_some(limit_bytes),
            stats: PytorchStats::default(),
        })
    }

    /// Makes a stream known; the number that stands for it from now on.
    ///
    /// # Panics
    /// At the 2^32nd stream.
    pub fn add_stream(&mut self, stream: D::Stream) -> u32 {
        self.streams.push(stream);
        u32::try_from(self.streams.len() - 1).expect("fewer than 2^32 streams")
    }

    /// Its options.
    pub const fn conf(&self) -> &PytorchConf {
        &self.conf
    }

    /// What it has counted so far.
    pub const fn stats(&self) -> &PytorchStats {
        &self.stats
    }

    /// Work queued on `stream` up to here also uses the block (`record_stream`): its memory comes back when that is
    /// done.
    ///
    /// # Errors
    /// [`PytorchError::UnknownStream`].
    pub fn record_stream(&mut self, block: &PytorchBlock, stream: u32) -> Result<(), PytorchError> {
        self.check_stream(stream)?;
        let block = self.blocks.at_mut(block.id);
        if block.stream != stream && !block.used_on.contains(&stream) {
            block.used_on.push(stream);
        }
        Ok(())
    }

    /// Frees the block in the order of its own stream.
    ///
    /// # Errors
    /// What the driver says when an event is recorded. The block is freed all the same, and the next request records
    /// what is missing.
    pub fn free(&mut self, block: PytorchBlock) -> Result<(), PytorchError> {
        let record = self.blocks.at_mut(block.id);
        record.state = BlockState::Pending;
        self.stats.allocated.sub(record.bytes);
        if record.used_on.is_empty() {
            self.free_block(block.id);
            return Ok(());
        }
        Ok(self.record_events(block.id)?)
    }

    /// Gives everything back that can go (`empty_cache`), after a wait for all outstanding events.
    ///
    /// # Errors
    /// What the driver says. What it did not take is still cached.
    pub fn empty_cache(&mut self) -> Result<(), PytorchError> {
        Ok(self.release_cached()?)
    }

    fn check_stream(&self, stream: u32) -> Result<(), PytorchError> {
        let streams = self.streams.len();
        if stream as usize >= streams {
            return Err(PytorchError::UnknownStream { stream, streams });
        }
        Ok(())
    }

    /// One event for each stream that used a freed block.
    fn record_events(&mut self, id: BlockId) -> Result<(), DriverError> {
        while let Some(&number) = self.blocks.at(id).used_on.last() {
            let stream = &self.streams[number as usize];
            if let Err(error) = self.events.record(&self.driver, number, stream, id) {
                self.unrecorded.push(id);
                return Err(error);
            }
            let block = self.blocks.at_mut(id);
            block.used_on.pop();
            block.outstanding_events += 1;
        }
        Ok(())
    }

    const fn pool(&mut self, kind: PoolKind) -> &mut Pool {
        match kind {
            PoolKind::Small => &mut self.small,
            PoolKind::Large => &mut self.large,
        }
    }

    /// Puts a block into its pool.
    fn insert(&mut self, id: BlockId) {
        let pool = match self.blocks.at(id).pool {
            PoolKind::Small => &mut self.small,
            PoolKind::Large => &mut self.large,
        };
        pool.insert(&mut self.blocks, id);
    }

    /// Takes a block out of its pool.
    fn remove(&mut self, id: BlockId) {
        let block = self.blocks.at(id);
        let (kind, stream, bytes, address, state) =
            (block.pool, block.stream, block.bytes, block.address, block.state);
        self.pool(kind).remove(stream, bytes, address, state);
    }

    /// The frames of expandable segments of this kind, in bytes.
    const fn frame_bytes(&self, kind: PoolKind) -> u64 {
        match kind {
            PoolKind::Small => SMALL_SEGMENT_BYTES,
            PoolKind::Large => self.conf.large_segment_bytes,
        }
    }
}

/// PyTorch looks neither at the program's waits between streams nor at those of the host: it asks its events.
impl<D: Driver> Baseline for Pytorch<D> {
    type Stream = D::Stream;
    type Block = PytorchBlock;

    fn add_stream(&mut self, stream: D::Stream) {
        Self::add_stream(self, stream);
    }

    fn allocate(&mut self, bytes: u64, stream: u32) -> Result<PytorchBlock, TargetError> {
        Ok(Self::allocate(self, bytes, stream)?)
    }

    fn address(&self, block: &PytorchBlock) -> Address {
        block.address()
    }

    fn free(&mut self, block: PytorchBlock) -> Result<(), TargetError> {
        Ok(Self::free(self, block)?)
    }

    fn record_stream(&mut self, block: &mut PytorchBlock, stream: u32) -> Result<(), TargetError> {
        Ok(Self::record_stream(self, block, stream)?)
    }

    fn release_cached(&mut self) -> Result<(), TargetError> {
        Ok(self.empty_cache()?)
    }

    fn address_peak_bytes(&self) -> u64 {
        self.stats.addresses.peak
    }
}

/// Gives everything back, also what is live. PyTorch itself leaves that to the end of the process. What the driver
/// refuses then is lost: nobody is left to be told.
impl<D: Driver> Drop for Pytorch<D> {
    fn drop(&mut self) {
        let _ = self.synchronize_events();
        for (_, block) in self.blocks.iter() {
            if block.expandable.is_none() && block.prev.is_none() {
                let _ = self.driver.free(Address::new(block.address));
            }
        }
        for mut segment in std::mem::take(&mut self.segments).into_iter().flatten() {
            let _ = self.events.synchronize(&self.driver, &self.streams[segment.stream as usize]);
            let _ = segment.close(&self.driver);
        }
    }
}

#[cfg(test)]
mod tests;
