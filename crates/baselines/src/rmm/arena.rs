//! RMM's arena: one segment, cut into superblocks that streams have arenas of.
//!
//! Main type: [`RmmArena`]. Neighbours: `global_arena` has the segment, `superblocks` the arena of a stream.
//!
//! Source: RMM 25.4, `arena_memory_resource.hpp` and `detail/arena.hpp`. The rules:
//! 1. All memory is one segment, of which nothing comes and nothing goes.
//! 2. Requests of more than 1 MiB are placed by the global arena, others by the arena of their stream: both at the first
//!    hole that fits. An arena without one gets a superblock of the global arena, as a rule of 1 MiB.
//! 3. If nothing fits, the host waits for the device, the arenas of all streams give all their superblocks back, also those
//!    with live blocks in them, and the request is tried once more.
//! 4. Before a large block is freed the host waits for its stream; also before any that does not lie in its own stream's
//!    arena any more, which is looked for in the others then.
//!
//! So no memory goes from one stream to another without a wait of the host. The driver's trait has no
//! `cudaStreamSynchronize` and no `cudaDeviceSynchronize`: here the one is an event, recorded and synchronised, and the
//! other is as many as there are streams.

use concertina_trace::target::TargetError;
use concertina_vmm::{Address, Driver, DriverError};

use super::conf::RmmArenaConf;
use super::error::RmmError;
use super::global_arena::{GlobalArena, SUPERBLOCK_BYTES};
use super::superblocks::Superblocks;
use super::{RmmBlock, STEP_BYTES, check_request, part_of};
use crate::baseline::Baseline;

/// The allocator of one device.
///
/// Streams are numbered by whoever uses it: 0 is the first that was added.
///
/// ```
/// use concertina_baselines::{Baseline, RmmArena, RmmArenaConf};
/// use concertina_emulator::{Emulator, EmulatorConfig};
///
/// let device = Emulator::new(EmulatorConfig::default().with_capacity(64 << 20)?)?;
/// let mut arena = RmmArena::new(device.clone(), RmmArenaConf::default())?;
/// arena.add_stream(device.stream());
/// assert_eq!(arena.held_bytes(), 32 << 20);
/// let first = arena.allocate(512, 0)?;
/// let second = arena.allocate(2 << 20, 0)?;
/// // The first MiB is a superblock of the stream's.
/// assert_eq!(second.address().get() - first.address().get(), 1 << 20);
/// arena.free(first)?;
/// arena.free(second)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RmmArena<D: Driver> {
    driver: D,
    conf: RmmArenaConf,
    streams: Vec<D::Stream>,
    /// For waits of the host.
    event: Option<D::Event>,
    segment: Address,
    held_bytes: u64,
    live_bytes: u64,
    global: GlobalArena,
    /// By stream.
    arenas: Vec<Superblocks>,
    /// Freed, but the host could not wait for their stream. The next request tries again. RMM takes no notice.
    late: Vec<RmmBlock>,
}

impl<D: Driver> RmmArena<D> {
    /// An arena with its segment.
    ///
    /// # Errors
    /// [`RmmError::ArenaTooSmall`]; what the driver says when it is asked for its memory, and for the segment.
    pub fn new(driver: D, conf: RmmArenaConf) -> Result<Self, RmmError> {
        let bytes = part_of(driver.memory_info()?.free_bytes, conf.initial);
        if bytes < SUPERBLOCK_BYTES {
            return Err(RmmError::ArenaTooSmall { bytes });
        }
        let segment = driver.malloc(bytes)?;
        Ok(Self {
            driver,
            conf,
            streams: Vec::new(),
            event: None,
            segment,
            held_bytes: bytes,
            live_bytes: 0,
            global: GlobalArena::new(segment.get(), bytes),
            arenas: Vec::new(),
            late: Vec::new(),
        })
    }

    /// The segment's bytes.
    pub const fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Where the segment begins, and its bytes.
    pub const fn segment(&self) -> (Address, u64) {
        (self.segment, self.held_bytes)
    }

    fn rounded(&self, bytes: u64) -> Option<u64> {
        if self.conf.size_classes { size_class(bytes) } else { bytes.checked_next_multiple_of(STEP_BYTES) }
    }

    /// Rule 2. (RMM: `arena::allocate`.)
    fn place(&mut self, bytes: u64, stream: u32) -> Option<u64> {
        if GlobalArena::places(bytes) {
            return self.global.place(bytes);
        }
        let arena = &mut self.arenas[stream as usize];
        arena.place(bytes).or_else(|| {
            arena.insert(self.global.acquire(bytes)?);
            arena.place(bytes)
        })
    }

    /// Rule 3, but for the second try. (RMM: `defragment`.)
    fn defragment(&mut self) -> Result<(), DriverError> {
        for stream in 0..self.streams.len() {
            self.synchronize(stream)?;
        }
        for arena in &mut self.arenas {
            while let Some(superblock) = arena.extract_first() {
                self.global.release(superblock);
            }
        }
        Ok(())
    }

    /// Makes the host wait for a stream.
    fn synchronize(&mut self, stream: usize) -> Result<(), DriverError> {
        let event = match self.event.take() {
            Some(event) => event,
            None => self.driver.event_create()?,
        };
        let event = self.event.insert(event);
        self.driver.event_record(event, &self.streams[stream])?;
        self.driver.event_synchronize(event)
    }

    /// Rule 4. (RMM: `do_deallocate`.)
    fn free_waiting(&mut self, block: &RmmBlock) -> Result<(), DriverError> {
        let (address, stream) = (block.address.get(), block.stream as usize);
        if GlobalArena::places(block.bytes) {
            self.synchronize(stream)?;
            if self.global.give_back(address, block.bytes).is_some() {
                return Ok(());
            }
        }
        if self.arenas[stream].give_back(address, block.bytes).is_none() {
            self.synchronize(stream)?;
            self.give_back(block);
        }
        Ok(())
    }

    fn free_late(&mut self) -> Result<(), DriverError> {
        while let Some(block) = self.late.pop() {
            if let Err(error) = self.free_waiting(&block) {
                self.late.push(block);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Makes a hole of a block, wherever it lies: the host has waited for its stream. (RMM:
    /// `deallocate_from_other_arena`.)
    fn give_back(&mut self, block: &RmmBlock) {
        let (address, bytes) = (block.address.get(), block.bytes);
        if !self.arenas.iter_mut().any(|arena| arena.give_back(address, bytes).is_some()) {
            let found = self.global.give_back(address, bytes);
            debug_assert!(found.is_some(), "a block of {bytes} bytes at {address:#x} lies in no arena");
        }
    }

    const fn out_of_memory(&self, requested_bytes: u64) -> RmmError {
        RmmError::OutOfMemory { requested_bytes, held_bytes: self.held_bytes, live_bytes: self.live_bytes }
    }
}

/// The least size class of so many bytes: steps of 256 up to 2 KiB, then four to each doubling, up to 256 GiB; none for
/// more. One class is not where jemalloc, which these come from, has it: 54 KiB instead of 56. (RMM:
/// `align_to_size_class`.)
fn size_class(bytes: u64) -> Option<u64> {
    const KIB: u64 = 1 << 10;
    const LARGEST: u64 = 256 << 30;
    match bytes {
        _ if bytes <= 2 * KIB => Some(bytes.next_multiple_of(256)),
        _ if bytes > LARGEST => None,
        _ if 48 * KIB < bytes && bytes <= 64 * KIB => {
            Some(if bytes <= 54 * KIB { 54 * KIB } else { 64 * KIB })
        }
        _ => Some(bytes.next_multiple_of(bytes.next_power_of_two() / 8)),
    }
}

impl<D: Driver> Baseline for RmmArena<D> {
    type Stream = D::Stream;
    type Block = RmmBlock;

    fn add_stream(&mut self, stream: D::Stream) {
        self.streams.push(stream);
        self.arenas.push(Superblocks::default());
    }

    fn allocate(&mut self, bytes: u64, stream: u32) -> Result<RmmBlock, TargetError> {
        check_request(bytes, stream, self.streams.len())?;
        let rounded = self.rounded(bytes).ok_or_else(|| self.out_of_memory(bytes))?;
        self.free_late()?;
        let address = match self.place(rounded, stream) {
            Some(address) => address,
            None => {
                self.defragment()?;
                self.place(rounded, stream).ok_or_else(|| self.out_of_memory(rounded))?
            }
        };
        self.live_bytes += rounded;
        Ok(RmmBlock { address: Address::new(address), bytes: rounded, stream })
    }

    fn address(&self, block: &RmmBlock) -> Address {
        block.address()
    }

    /// If the host can't wait for the stream, the block is freed by the next request.
    fn free(&mut self, block: RmmBlock) -> Result<(), TargetError> {
        self.live_bytes -= block.bytes;
        let freed = self.free_waiting(&block);
        if freed.is_err() {
            self.late.push(block);
        }
        Ok(freed?)
    }

    /// RMM has nothing of the kind: the free must come after the use by the program's own waits.
    fn record_stream(&mut self, _block: &mut RmmBlock, _stream: u32) -> Result<(), TargetError> {
        Ok(())
    }

    /// RMM has nothing of the kind.
    fn release_cached(&mut self) -> Result<(), TargetError> {
        Ok(())
    }

    fn address_peak_bytes(&self) -> u64 {
        self.held_bytes
    }
}

/// Gives everything back, also what is live. What the driver refuses then is lost: nobody is left to be told.
impl<D: Driver> Drop for RmmArena<D> {
    fn drop(&mut self) {
        let _ = self.driver.free(self.segment);
    }
}

#[cfg(test)]
mod tests {
    use super::size_class;

    #[test]
    fn there_are_116_size_classes() {
        let mut classes = vec![size_class(1).expect("a class")];
        while let Some(next) = size_class(classes[classes.len() - 1] + 1) {
            classes.push(next);
        }
        assert_eq!(classes.len(), 116);
        let kib = |bytes: u64| size_class(bytes).map(|class| class as f64 / 1024.0);
        let found = [1, 256, 257, 2048, 2049, 2561, 4097, 8193].map(kib);
        assert_eq!(found, [0.25, 0.25, 0.5, 2.0, 2.5, 3.0, 5.0, 10.0].map(Some));
        let found = [49_152, 49_153, 55_296, 55_297, 57_344, 65_537].map(kib);
        assert_eq!(found, [48.0, 54.0, 54.0, 64.0, 64.0, 80.0].map(Some));
        assert_eq!(size_class((1 << 20) + 1), Some(1280 << 10));
        assert_eq!(size_class(256 << 30), Some(256 << 30));
        assert_eq!(size_class((256 << 30) + 1), None);
    }
}
