//! RMM's pool: a free list for each stream, over segments of which each is as large as all before it.
//!
//! Main type: [`RmmPool`]. Neighbours: `free_list` has the holes, `stream_events` the events.
//!
//! Source: RMM 25.4, `pool_memory_resource.hpp` and `detail/stream_ordered_memory_resource.hpp`. The rules, in the order
//! in which a request meets them:
//! 1. The best fit in the list of its own stream.
//! 2. The best fit in the list of the first other stream that has one, behind a wait for that stream's event. The rest
//!    stays in that list.
//! 3. The lists of other streams are put into its own, one after another and each behind a wait, until something fits.
//! 4. A new segment: of the size of the whole pool, or of half of what the maximum leaves; or of the request, if that is
//!    more. While the driver refuses, of half of that, down to the request.
//!
//! A freed block goes to the list of its stream, whose event is recorded then. Segments go back to the driver when the pool
//! is dropped, not before; holes of different segments are not joined.
//!
//! Rule 3 does not record the event of the stream whose list grew. So a third stream that takes from there by rule 2 does
//! not come after the streams whose holes were put in: a race, which RMM repaired after 25.4
//! (<https://github.com/rapidsai/rmm/issues/2489>). The model has it, as 25.4 does. It takes three streams.

use std::collections::BTreeMap;

use concertina_trace::target::TargetError;
use concertina_vmm::{Address, Driver};

use super::conf::RmmPoolConf;
use super::error::RmmError;
use super::free_list::{FreeList, Hole};
use super::stream_events::{EventNumber, StreamEvents};
use super::{RmmBlock, STEP_BYTES, check_request, part_of};
use crate::baseline::Baseline;

/// The stream whose list gets what the pool begins with. (RMM: `cuda_stream_legacy`.)
const DEFAULT_STREAM: u32 = 0;

/// Segments are asked for in multiples of this; what is more than a segment should have is not used. (RMM passes on the
/// alignment of `std::max_align_t`.)
const UPSTREAM_BYTES: u64 = 16;

/// The allocator of one device.
///
/// Streams are numbered by whoever uses it: 0 is the first that was added, and stands for CUDA's default stream.
///
/// ```
/// use concertina_baselines::{Baseline, RmmPool, RmmPoolConf};
/// use concertina_emulator::{Emulator, EmulatorConfig};
///
/// let device = Emulator::new(EmulatorConfig::default())?;
/// let mut pool = RmmPool::new(device.clone(), RmmPoolConf::default())?;
/// pool.add_stream(device.stream());
/// let (first, second) = (pool.allocate(6 << 20, 0)?, pool.allocate(1 << 20, 0)?);
/// // The second segment is as large as the first.
/// assert_eq!(pool.held_bytes(), 12 << 20);
/// pool.free(first)?;
/// pool.free(second)?;
/// assert_eq!(pool.held_bytes(), 12 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RmmPool<D: Driver> {
    driver: D,
    maximum_bytes: Option<u64>,
    streams: Vec<D::Stream>,
    events: StreamEvents<D>,
    lists: BTreeMap<EventNumber, FreeList>,
    /// Bytes by address.
    segments: BTreeMap<u64, u64>,
    held_bytes: u64,
    live_bytes: u64,
}

impl<D: Driver> RmmPool<D> {
    /// A pool with what it shall begin with.
    ///
    /// # Errors
    /// [`RmmError::InitialOverMaximum`]; [`RmmError::OutOfMemory`] if the driver does not give what it shall begin with;
    /// what the driver says when it is asked for its memory.
    pub fn new(driver: D, conf: RmmPoolConf) -> Result<Self, RmmError> {
        let free_bytes = driver.memory_info()?.free_bytes;
        let initial_bytes = part_of(free_bytes, conf.initial);
        let maximum_bytes = conf.maximum.map(|maximum| part_of(free_bytes, maximum));
        if let Some(maximum_bytes) = maximum_bytes.filter(|&maximum| initial_bytes > maximum) {
            return Err(RmmError::InitialOverMaximum { initial_bytes, maximum_bytes });
        }
        let mut pool = Self {
            driver,
            maximum_bytes,
            streams: Vec::new(),
            events: StreamEvents::new(),
            lists: BTreeMap::new(),
            segments: BTreeMap::new(),
            held_bytes: 0,
            live_bytes: 0,
        };
        if initial_bytes > 0 {
            let event = pool.events.of(&pool.driver, DEFAULT_STREAM)?;
            let start = pool.add_segment(initial_bytes, initial_bytes)?;
            let whole = Hole { bytes: initial_bytes, starts_segment: true };
            pool.lists.entry(event).or_default().insert(start, whole);
        }
        Ok(pool)
    }

    /// What it has of the driver, in bytes. It never gets less. (RMM: `pool_size`.)
    pub const fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// What it has of the driver: where each segment begins, and its bytes, by address.
    pub fn segments(&self) -> impl Iterator<Item = (Address, u64)> {
        self.segments.iter().map(|(&start, &bytes)| (Address::new(start), bytes))
    }

    /// Where a place for so many bytes (in whole steps) begins.
    fn place(&mut self, bytes: u64, stream: u32) -> Result<u64, RmmError> {
        let own = self.events.of(&self.driver, stream)?;
        if let Some(address) = self.lists.entry(own).or_default().take(bytes) {
            return Ok(address);
        }
        if let Some(address) = self.take_from_another(bytes, stream, own)? {
            return Ok(address);
        }
        if let Some(address) = self.take_from_joined(bytes, stream, own)? {
            return Ok(address);
        }
        let address = self.add_segment(self.growth(bytes), bytes)?;
        let rest = self.segments[&address] - bytes;
        if rest > 0 {
            let rest = Hole { bytes: rest, starts_segment: false };
            self.lists.entry(own).or_default().insert(address + bytes, rest);
        }
        Ok(address)
    }

    fn take_from_another(
        &mut self,
        bytes: u64,
        stream: u32,
        own: EventNumber,
    ) -> Result<Option<u64>, RmmError> {
        let fitting = self.lists.iter_mut().find(|(other, list)| **other != own && list.fits(bytes));
        let Some((&other, list)) = fitting else { return Ok(None) };
        self.events.wait(&self.driver, &self.streams, stream, other)?;
        Ok(list.take(bytes))
    }

    fn take_from_joined(
        &mut self,
        bytes: u64,
        stream: u32,
        own: EventNumber,
    ) -> Result<Option<u64>, RmmError> {
        let others: Vec<_> = self.lists.keys().copied().filter(|&other| other != own).collect();
        for other in others {
            self.events.wait(&self.driver, &self.streams, stream, other)?;
            let holes = self.lists.remove(&other).unwrap_or_default();
            let list = self.lists.entry(own).or_default();
            list.absorb(holes);
            if let Some(address) = list.take(bytes) {
                return Ok(Some(address));
            }
        }
        Ok(None)
    }

    /// How large the next segment should be for a request; 0 if the maximum does not allow it. (RMM: `size_to_grow`.)
    fn growth(&self, bytes: u64) -> u64 {
        let Some(maximum) = self.maximum_bytes else { return bytes.max(self.held_bytes) };
        // Halves are not whole steps: the last step may go beyond the maximum.
        let left = maximum.saturating_sub(self.held_bytes).next_multiple_of(STEP_BYTES);
        if bytes <= left { bytes.max(left / 2) } else { 0 }
    }

    /// Takes a segment of `wanted` bytes of the driver, or of what it gives, at least `least`. Where it begins. (RMM:
    /// `try_to_expand`, which calls every failure one of memory.)
    fn add_segment(&mut self, wanted: u64, least: u64) -> Result<u64, RmmError> {
        let mut bytes = wanted;
        while bytes >= least {
            match self.driver.malloc(bytes.next_multiple_of(UPSTREAM_BYTES)) {
                Ok(address) => {
                    self.segments.insert(address.get(), bytes);
                    self.held_bytes += bytes;
                    return Ok(address.get());
                }
                Err(error) if bytes == least && !error.is_out_of_memory() => return Err(error.into()),
                Err(_) if bytes == least => break,
                Err(_) => bytes = least.max(bytes / 2),
            }
        }
        Err(self.out_of_memory(least))
    }

    const fn out_of_memory(&self, requested_bytes: u64) -> RmmError {
        RmmError::OutOfMemory { requested_bytes, held_bytes: self.held_bytes, live_bytes: self.live_bytes }
    }
}

impl<D: Driver> Baseline for RmmPool<D> {
    type Stream = D::Stream;
    type Block = RmmBlock;

    fn add_stream(&mut self, stream: D::Stream) {
        self.streams.push(stream);
    }

    fn allocate(&mut self, bytes: u64, stream: u32) -> Result<RmmBlock, TargetError> {
        check_request(bytes, stream, self.streams.len())?;
        let rounded = bytes.checked_next_multiple_of(STEP_BYTES).ok_or_else(|| self.out_of_memory(bytes))?;
        let address = self.place(rounded, stream)?;
        self.live_bytes += rounded;
        Ok(RmmBlock { address: Address::new(address), bytes: rounded, stream })
    }

    fn address(&self, block: &RmmBlock) -> Address {
        block.address()
    }

    /// The block is freed also if an event can't be recorded: then it is recorded before another stream takes the block.
    fn free(&mut self, block: RmmBlock) -> Result<(), TargetError> {
        let own = self.events.of(&self.driver, block.stream)?;
        let recorded = self.events.record(&self.driver, &self.streams, own);
        let address = block.address.get();
        let hole = Hole { bytes: block.bytes, starts_segment: self.segments.contains_key(&address) };
        self.lists.entry(own).or_default().insert(address, hole);
        self.live_bytes -= block.bytes;
        Ok(recorded?)
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
impl<D: Driver> Drop for RmmPool<D> {
    fn drop(&mut self) {
        for &start in self.segments.keys() {
            let _ = self.driver.free(Address::new(start));
        }
        let _ = self.events.synchronize(&self.driver);
    }
}
