//! GMLake, PyTorch's caching allocator with stitched blocks, as a model.
//!
//! Main types: [`Gmlake`], [`GmlakeBlock`], [`GmlakeStats`]. Neighbours: `conf` has its options; `request` is the way
//! of a request, `stitch` puts fragments together, `grow` asks the driver for frames, `give_back` frees and drops;
//! `segments`, `pblocks`, `sblocks`, `ranges` and `pending` are what it has. The small pool is that of `pytorch`.
//!
//! What is modelled: the paper (GMLake, ASPLOS'24, <https://arxiv.org/abs/2401.08156>) as it became code: the patched
//! `CUDACachingAllocator.cpp` and `include/cuda_vmm_allocator.h` below `GMLake/` of
//! <https://github.com/intelligent-machine-learning/glake>, commits 392d840a and e16f31d8. Requests over 1 MiB are
//! multiples of 2 MiB, the size of each frame. A *segment* has addresses of its own and a frame for each step;
//! *pBlocks* are what it is cut into. An *sBlock* is stitched: other addresses, to which frames of several free pBlocks
//! are mapped as well. A frame has one user at a time, so that a pBlock and the sBlocks over it become busy and free
//! together. Served is, on each stream by itself,
//!
//! 1. by the smallest free pBlock that fits, the rest of which stays free;
//! 2. by the smallest free sBlock that fits, if it is not too large (`reuseLimit`); its end stays free for others;
//! 3. by a new sBlock over the largest free pBlocks, for requests from `fragLimit` on;
//! 4. by a new segment: of 20 MiB for less than 10 MiB, else of the size that was asked for. The paper creates only
//!    what is missing and stitches it to what is free; in the code that is an option which is off (`reAlloc`);
//! 5. by the same two after the cache was given back.
//!
//! The paper has pBlocks and sBlocks in one search for an exact fit, and drops the least recently used sBlocks over a
//! limit on addresses (`StitchFree`); the code looks at pBlocks first, and over the limit (`autoGC`) drops all sBlocks
//! that nobody has and whose event is complete. The code is followed.
//!
//! **Streams** are PyTorch's: memory stays with its stream, and `record_stream` is by events. Besides, each free
//! records an event on the block's stream; in the source it is the block's own, created with each block and each search
//! besides, here one a stream and one an sBlock: the records are counted as there, the creates are fewer.
//!
//! **Unmapping** is what the source leaves to `cuMemUnmap`, which does not wait: pBlocks are unmapped with the cache as
//! if nothing were in flight. Here the host waits for the stream first, once for each time that the cache is given
//! back, as PyTorch's expandable segments do; and an sBlock's event is recorded also when other streams used it.
//!
//! Left out: PyTorch's own options beside GMLake's, captures, and what the code does only by mistake: it loses pBlocks
//! when stitching fails, and ends the process at some errors; with `reAlloc` it fails on requests below `fragLimit`,
//! where here a whole segment is created; and it crashes when a pBlock is given back under the unused end of an sBlock
//! that the program has, where here it stays.

pub mod conf;
mod give_back;
mod grow;
mod pblocks;
mod pending;
mod ranges;
mod request;
mod sblocks;
mod segments;
mod stitch;

use concertina_trace::target::TargetError;
use concertina_vmm::{Address, Driver, DriverError, FrameProperties};

use crate::baseline::Baseline;
use crate::pool_error::PoolError;
use crate::pytorch::{Pytorch, PytorchBlock, conf::PytorchConf, error::PytorchError};
use conf::GmlakeConf;
use pblocks::PBlocks;
use pending::Pending;
use ranges::{FRAME_BYTES, Ranges};
use sblocks::{SBlockId, SBlocks};
use segments::Segments;

/// A block of the large pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Large {
    /// The pBlock at this address.
    P(u64),
    /// An sBlock.
    S(SBlockId),
}

#[derive(Debug)]
enum Place {
    Small(PytorchBlock),
    Large(Large),
}

/// A block that the program has. To be freed: dropping it does not.
#[derive(Debug)]
#[must_use = "the block stays live until it is given to `Gmlake::free`"]
pub struct GmlakeBlock {
    place: Place,
    address: Address,
    bytes: u64,
    stream: u32,
    used_on: Vec<u32>,
}

impl GmlakeBlock {
    /// Where it begins.
    pub const fn address(&self) -> Address {
        self.address
    }

    /// Whether it is stitched: an sBlock.
    pub const fn is_stitched(&self) -> bool {
        matches!(self.place, Place::Large(Large::S(_)))
    }
}

/// What the large pool has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GmlakeStats {
    /// sBlocks made.
    pub stitched: u64,
    /// Requests that an sBlock served which was there.
    pub reused: u64,
    /// sBlocks dropped.
    pub dropped: u64,
    /// `num_alloc_retries`: requests, of both pools, that gave the cache back and asked again.
    pub alloc_retries: u64,
    /// Waits of the host for a whole stream before anything was unmapped.
    pub stream_syncs: u64,
}

/// The allocator of one device.
///
/// ```
/// use concertina_baselines::{Baseline, Gmlake, GmlakeConf};
/// use concertina_emulator::{Emulator, EmulatorConfig};
///
/// let device = Emulator::new(EmulatorConfig::default())?;
/// let mut allocator = Gmlake::new(device.clone(), "fragLimit:2097152".parse::<GmlakeConf>()?)?;
/// allocator.add_stream(device.stream());
/// let blocks = [allocator.allocate(20 << 20, 0)?, allocator.allocate(30 << 20, 0)?];
/// for block in blocks {
///     allocator.free(block)?;
/// }
/// // Neither of the two has 50 MiB: their frames are mapped a second time, in a row.
/// let block = allocator.allocate(50 << 20, 0)?;
/// assert!(block.is_stitched());
/// assert_eq!(allocator.held_bytes(), 50 << 20);
/// # allocator.free(block)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Gmlake<D: Driver> {
    driver: D,
    conf: GmlakeConf,
    streams: Vec<Stream<D>>,
    handles: Vec<D::Stream>,
    small: Pytorch<D>,
    segments: Segments<D::Handle>,
    pblocks: PBlocks,
    sblocks: SBlocks<D::Event>,
    ranges: Ranges<D>,
    pending: Pending<D, Large>,
    /// `total_fuse_size`: bytes of sBlocks made, less those dropped to keep them few. As in the source, those that go
    /// with their pBlocks stay in the sum.
    stitched_bytes: u64,
    used_bytes: u64,
    address_peak_bytes: u64,
    stats: GmlakeStats,
}

/// What is kept of a stream.
#[derive(Debug)]
struct Stream<D: Driver> {
    /// Recorded at each free of a small block or a pBlock.
    event: Option<D::Event>,
    /// Blocks freed so far.
    freed: u64,
}

impl<D: Driver + Clone> Gmlake<D> {
    /// An allocator with nothing in it.
    ///
    /// # Errors
    /// [`PoolError::FrameSize`] if the device has no frames of 2 MiB; what the driver says when it is asked for its
    /// memory and granularity.
    pub fn new(driver: D, conf: GmlakeConf) -> Result<Self, PoolError> {
        let granularity_bytes = driver.granularity(&FrameProperties::default())?.max(1);
        if !FRAME_BYTES.is_multiple_of(granularity_bytes) {
            return Err(PoolError::FrameSize { frame_bytes: FRAME_BYTES, granularity_bytes });
        }
        let small = Pytorch::new(driver.clone(), PytorchConf::native());
        Ok(Self {
            small: small.map_err(|error| small_error(error, 0, 0))?,
            driver,
            conf,
            streams: Vec::new(),
            handles: Vec::new(),
            segments: Segments::new(),
            pblocks: PBlocks::default(),
            sblocks: SBlocks::new(),
            ranges: Ranges::new(),
            pending: Pending::new(),
            stitched_bytes: 0,
            used_bytes: 0,
            address_peak_bytes: 0,
            stats: GmlakeStats::default(),
        })
    }
}

/// The small pool's error as one of the whole.
fn small_error(error: PytorchError, held_bytes: u64, used_bytes: u64) -> PoolError {
    match error {
        PytorchError::OutOfMemory { requested_bytes, .. } => {
            PoolError::OutOfMemory { requested_bytes, held_bytes, used_bytes }
        }
        PytorchError::ZeroBytes => PoolError::ZeroBytes,
        PytorchError::UnknownStream { stream, streams } => PoolError::UnknownStream { stream, streams },
        PytorchError::FrameSize { frame_bytes, granularity_bytes } => {
            PoolError::FrameSize { frame_bytes, granularity_bytes }
        }
        PytorchError::Driver(error) => PoolError::Driver(error),
    }
}

impl<D: Driver> Gmlake<D> {
    /// Its options.
    pub const fn conf(&self) -> &GmlakeConf {
        &self.conf
    }

    /// What it has counted so far.
    pub const fn stats(&self) -> &GmlakeStats {
        &self.stats
    }

    /// What it has of the driver, in bytes: frames, each once, and the segments of the small pool.
    pub const fn held_bytes(&self) -> u64 {
        self.segments.bytes() + self.small.stats().reserved.current
    }

    /// What blocks have of it, rounding included, in bytes.
    pub const fn used_bytes(&self) -> u64 {
        self.used_bytes + self.small.stats().allocated.current
    }

    /// Gives everything back that can go (`emptyCache`), after a wait for all outstanding events, and drops all sBlocks
    /// that nobody has.
    ///
    /// # Errors
    /// What the driver says. What it did not take is still cached, or tried again.
    pub fn empty_cache(&mut self) -> Result<(), PoolError> {
        self.release_cached_blocks()?;
        self.collect_sblocks(2, 0);
        Ok(())
    }

    fn check_stream(&self, stream: u32) -> Result<(), PoolError> {
        let streams = self.streams.len();
        if stream as usize >= streams {
            return Err(PoolError::UnknownStream { stream, streams });
        }
        Ok(())
    }

    fn out_of_memory(&self, requested_bytes: u64) -> PoolError {
        let (held_bytes, used_bytes) = (self.held_bytes(), self.used_bytes());
        PoolError::OutOfMemory { requested_bytes, held_bytes, used_bytes }
    }

    fn note_addresses(&mut self) {
        let bytes = self.ranges.open_bytes + self.small.stats().addresses.current;
        self.address_peak_bytes = self.address_peak_bytes.max(bytes);
    }

    /// The event that the source records at each free.
    fn mark_free(&mut self, number: u32) -> Result<(), DriverError> {
        let stream = &mut self.streams[number as usize];
        stream.freed += 1;
        let event = match stream.event.take() {
            Some(event) => event,
            None => self.driver.event_create()?,
        };
        let recorded = self.driver.event_record(&event, &self.handles[number as usize]);
        stream.event = Some(event);
        recorded
    }

    fn free_block(&mut self, block: GmlakeBlock) -> Result<(), PoolError> {
        match block.place {
            Place::Small(small) => {
                let marked = if block.used_on.is_empty() { self.mark_free(block.stream) } else { Ok(()) };
                let (held_bytes, used_bytes) = (self.held_bytes(), self.used_bytes());
                self.small.free(small).map_err(|error| small_error(error, held_bytes, used_bytes))?;
                Ok(marked?)
            }
            Place::Large(large) => {
                self.used_bytes -= block.bytes;
                if block.used_on.is_empty() {
                    Ok(self.free_large(large)?)
                } else {
                    Ok(self.pending.insert(&self.driver, &self.handles, large, block.used_on)?)
                }
            }
        }
    }
}

/// As PyTorch, it looks neither at the program's waits between streams nor at those of the host: it asks its events.
impl<D: Driver> Baseline for Gmlake<D> {
    type Stream = D::Stream;
    type Block = GmlakeBlock;

    fn add_stream(&mut self, stream: D::Stream) {
        self.small.add_stream(stream.clone());
        self.handles.push(stream);
        self.streams.push(Stream { event: None, freed: 0 });
    }

    fn allocate(&mut self, bytes: u64, stream: u32) -> Result<GmlakeBlock, TargetError> {
        Ok(self.request(bytes, stream)?)
    }

    fn address(&self, block: &GmlakeBlock) -> Address {
        block.address()
    }

    fn free(&mut self, block: GmlakeBlock) -> Result<(), TargetError> {
        Ok(self.free_block(block)?)
    }

    fn record_stream(&mut self, block: &mut GmlakeBlock, stream: u32) -> Result<(), TargetError> {
        self.check_stream(stream)?;
        if stream != block.stream && !block.used_on.contains(&stream) {
            block.used_on.push(stream);
        }
        if let Place::Small(small) = &block.place {
            self.small.record_stream(small, stream)?;
        }
        Ok(())
    }

    fn release_cached(&mut self) -> Result<(), TargetError> {
        Ok(self.empty_cache()?)
    }

    fn address_peak_bytes(&self) -> u64 {
        self.address_peak_bytes
    }
}

/// Waits for all streams and gives everything back, also what is live. What the driver refuses then is lost.
impl<D: Driver> Drop for Gmlake<D> {
    fn drop(&mut self) {
        for stream in &self.handles {
            let _ = self.pending.synchronize(&self.driver, stream);
        }
        for (_, block) in self.sblocks.iter() {
            self.ranges.close(&self.driver, block.address, block.bytes);
        }
        let segments: Vec<(u64, u64)> = self.segments.iter().collect();
        for (address, bytes) in segments {
            self.ranges.close(&self.driver, address, bytes);
            let frames = self.segments.remove(address);
            self.ranges.release(&self.driver, frames.into_iter().map(|frame| frame.handle));
        }
        self.ranges.retry(&self.driver);
    }
}

#[cfg(test)]
mod audit;
#[cfg(test)]
mod tests;
