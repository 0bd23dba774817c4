//! VPMM, the memory manager of OpenVM's STARK prover, as a model: pages that are mapped a second time where they are
//! needed.
//!
//! Main types: [`Vpmm`], [`VpmmBlock`]. Neighbours: `conf` has its options; `free_regions` and `holes` are what it has
//! of addresses, `defragment` puts pages together and creates them, `below_page` has the small blocks.
//!
//! What is modelled: `VirtualMemoryPool` and `MemoryManager` of stark-backend, `crates/cuda-common/src/memory_manager`
//! (`vm_pool.rs` at commit 0228beed, `mod.rs`; <https://github.com/openvm-org/stark-backend>, its paper
//! `docs/vpmm_spec.md`). Requests of a page and more, in whole pages, are served by
//!
//! 1. the smallest free region of the same stream that fits, done or not;
//! 2. the smallest of other streams whose event is complete;
//! 3. *defragmentation*: the smallest hole of addresses that fits gets the pages that are missing altogether, newly
//!    created, and behind them those of free regions, first of the own stream, then of others behind a wait on the
//!    device, the oldest first. Their old mappings stay as *zombies*, until a later request sees their event complete.
//!
//! Each free records an event of its own. Access is granted once over all new pages and once over all moved ones. Pages
//! never go back to the driver.
//!
//! **A stand-in**: requests below a page go to `cudaMallocAsync` in the source. Here each is a `cudaMalloc`, each free
//! of one a `cudaFree`, which waits for the whole device where `cudaFreeAsync` does not. So of host waits, and of time
//! in the driver, what small blocks cause is too much; the memory that they take is about that of a pool.
//!
//! **Streams.** A block is freed in the order of the stream that frees it, and the source assumes that no other stream
//! uses it after that. There is no `record_stream`: whoever used a block elsewhere orders the streams before the free.
//! Here that is done for the program, by one event and one wait on the device for each stream that used the block. They
//! are counted among VPMM's own, though its users make these calls.
//!
//! What is different: where a call fails half-way the source panics or forgets pages; here everything stays in its
//! books, and what the driver would not take back is tried again. When only a part of another stream's region is moved,
//! the source records the event of the rest on the stream that asks; here it is recorded on the region's own, since the
//! rest may be joined to neighbours that the stream that asks does not come after. Two reservations are never joined.
//! `pages` are created with the first request, since there is no stream before.

mod below_page;
pub mod conf;
mod defragment;
mod free_regions;
mod holes;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use concertina_trace::target::TargetError;
use concertina_vmm::{Address, Driver, DriverError, FrameProperties};

use crate::baseline::Baseline;
use crate::pool_error::PoolError;
use below_page::BelowPage;
use conf::VpmmConf;
use free_regions::{FreeRegions, Region};
use holes::Holes;

/// One reservation.
#[derive(Debug)]
struct Chunk {
    address: u64,
    /// Bytes from its start to the end of the last page that was ever in it.
    extent_bytes: u64,
}

/// Addresses whose pages are held elsewhere by now, and which are still mapped.
#[derive(Debug)]
struct Zombie<E> {
    address: u64,
    bytes: u64,
    /// Behind the last use of these addresses; none if there was no use.
    event: Option<Arc<E>>,
}

/// Mapped memory that is free, but could not be filed with an event yet.
#[derive(Debug)]
struct Unfiled {
    address: u64,
    bytes: u64,
    stream: u32,
    /// Streams that used it and that its own one does not come after yet.
    used_on: Vec<u32>,
}

/// Where a block lies.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In pages, so many bytes of them.
    Pages(u64),
    /// In a malloc of so many bytes.
    Malloc(u64),
}

/// A block that the program has. To be freed: dropping it does not.
#[derive(Debug)]
#[must_use = "the block stays live until it is given to `Vpmm::free`"]
pub struct VpmmBlock {
    address: u64,
    place: Place,
    stream: u32,
    used_on: Vec<u32>,
}

impl VpmmBlock {
    /// Where it begins.
    pub const fn address(&self) -> Address {
        Address::new(self.address)
    }
}

/// The pool of one device.
///
/// ```
/// use concertina_baselines::{Baseline, Vpmm, VpmmConf};
/// use concertina_emulator::{Emulator, EmulatorConfig};
///
/// let device = Emulator::new(EmulatorConfig::default())?;
/// let mut pool = Vpmm::new(device.clone(), VpmmConf::plain())?;
/// pool.add_stream(device.stream());
/// let (first, second) = (pool.allocate(10 << 20, 0)?, pool.allocate(2 << 20, 0)?);
/// pool.free(first)?;
/// // 12 MiB do not fit into the 10 that are free: their five pages move, and one is created.
/// let third = pool.allocate(12 << 20, 0)?;
/// assert_eq!(pool.held_bytes(), 14 << 20);
/// # pool.free(second)?;
/// # pool.free(third)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Vpmm<D: Driver> {
    driver: D,
    conf: VpmmConf,
    page_bytes: u64,
    streams: Vec<D::Stream>,
    chunks: Vec<Chunk>,
    /// Each page by the address where it is held.
    pages: BTreeMap<u64, D::Handle>,
    free: FreeRegions<D::Event>,
    holes: Holes,
    zombies: Vec<Zombie<D::Event>>,
    unfiled: Vec<Unfiled>,
    /// Handles that the driver would not take back: the next pages.
    spare: Vec<D::Handle>,
    /// Regions filed so far.
    filed: u64,
    below_page: BelowPage,
    used_bytes: u64,
    address_peak_bytes: u64,
    device_waits: u64,
    defragmentations: u64,
}

impl<D: Driver> Vpmm<D> {
    /// A pool with its first addresses and no memory.
    ///
    /// # Errors
    /// [`PoolError::FrameSize`] if the pages are no multiple of the device's granularity, or the addresses that are
    /// reserved at once no multiple of the pages; what the driver says.
    pub fn new(driver: D, conf: VpmmConf) -> Result<Self, PoolError> {
        let granularity_bytes = driver.granularity(&FrameProperties::default())?.max(1);
        let page_bytes = conf.page_bytes.unwrap_or(granularity_bytes);
        for (frame_bytes, granularity_bytes) in
            [(page_bytes, granularity_bytes), (conf.chunk_bytes, page_bytes)]
        {
            if !frame_bytes.is_multiple_of(granularity_bytes) {
                return Err(PoolError::FrameSize { frame_bytes, granularity_bytes });
            }
        }
        let mut pool = Self {
            driver,
            conf,
            page_bytes,
            streams: Vec::new(),
            chunks: Vec::new(),
            pages: BTreeMap::new(),
            free: FreeRegions::new(),
            holes: Holes::default(),
            zombies: Vec::new(),
            unfiled: Vec::new(),
            spare: Vec::new(),
            filed: 0,
            below_page: BelowPage::default(),
            used_bytes: 0,
            address_peak_bytes: 0,
            device_waits: 0,
            defragmentations: 0,
        };
        pool.reserve_chunk()?;
        Ok(pool)
    }

    /// Bytes of pages that were created, none of which goes back.
    pub fn held_bytes(&self) -> u64 {
        self.pages.len() as u64 * self.page_bytes
    }

    /// Bytes of live blocks, in whole pages, without those below a page.
    pub const fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Bytes of addresses that are mapped to pages held elsewhere.
    pub fn zombie_bytes(&self) -> u64 {
        self.zombies.iter().map(|zombie| zombie.bytes).sum()
    }

    /// Requests so far that nothing free in one piece served.
    pub const fn defragmentations(&self) -> u64 {
        self.defragmentations
    }

    /// Waits of a stream for another on the device, so that it could have its pages.
    pub const fn device_waits(&self) -> u64 {
        self.device_waits
    }

    fn check_stream(&self, stream: u32) -> Result<(), PoolError> {
        let streams = self.streams.len();
        if stream as usize >= streams {
            return Err(PoolError::UnknownStream { stream, streams });
        }
        Ok(())
    }

    fn out_of_memory(&self, requested_bytes: u64) -> PoolError {
        let (held_bytes, used_bytes) = (self.held_bytes(), self.used_bytes);
        PoolError::OutOfMemory { requested_bytes, held_bytes, used_bytes }
    }

    fn request(&mut self, requested_bytes: u64, stream: u32) -> Result<VpmmBlock, PoolError> {
        self.check_stream(stream)?;
        if requested_bytes == 0 {
            return Err(PoolError::ZeroBytes);
        }
        if requested_bytes < self.page_bytes {
            let address = self.below_page.allocate(&self.driver, requested_bytes)?;
            self.note_addresses();
            let place = Place::Malloc(requested_bytes);
            return Ok(VpmmBlock { address, place, stream, used_on: Vec::new() });
        }
        // More than one reservation is never found; the source panics.
        if requested_bytes > self.conf.chunk_bytes {
            return Err(self.out_of_memory(requested_bytes));
        }
        let bytes = requested_bytes.next_multiple_of(self.page_bytes);
        self.file_again()?;
        self.create_initial_pages(stream)?;
        self.bury_zombies()?;
        let found = match self.find(bytes, stream)? {
            Some(found) => found,
            None => self.defragment(bytes, stream).map_err(|error| match error {
                PoolError::Driver(error) if error.is_out_of_memory() => self.out_of_memory(requested_bytes),
                error => error,
            })?,
        };
        let Some(region) = self.free.remove(found) else { return Err(self.out_of_memory(requested_bytes)) };
        if region.bytes > bytes {
            // The rest keeps its event and its age.
            self.free.insert(found + bytes, Region { bytes: region.bytes - bytes, ..region });
        }
        self.used_bytes += bytes;
        Ok(VpmmBlock { address: found, place: Place::Pages(bytes), stream, used_on: Vec::new() })
    }

    /// A free region in one piece: of the stream, or of another and done. It is the stream's then.
    fn find(&mut self, bytes: u64, stream: u32) -> Result<Option<u64>, DriverError> {
        if let Some(found) = self.free.best_fit(stream, bytes) {
            return Ok(Some(found));
        }
        let mut best: Option<(u64, u64)> = None;
        for other in 0..self.streams.len() as u32 {
            for (region_bytes, address) in self.free.fitting(other, bytes) {
                // As in the source, each one is asked.
                let done = match self.free.at(address) {
                    Some(region) => self.driver.event_query(&region.event)?,
                    None => false,
                };
                if done && best.is_none_or(|best| (region_bytes, address) < best) {
                    best = Some((region_bytes, address));
                }
            }
        }
        let Some((_, address)) = best else { return Ok(None) };
        if let Some(region) = self.free.remove(address) {
            self.free.insert(address, Region { stream, ..region });
        }
        Ok(Some(address))
    }

    /// Unmaps what nothing uses any more. What the driver refuses stays for the next time.
    fn bury_zombies(&mut self) -> Result<(), DriverError> {
        let mut index = 0;
        while index < self.zombies.len() {
            let zombie = &self.zombies[index];
            let done = match &zombie.event {
                Some(event) => self.driver.event_query(event)?,
                None => true,
            };
            let (address, bytes) = (zombie.address, zombie.bytes);
            if done && self.driver.unmap(Address::new(address), bytes).is_ok() {
                self.zombies.swap_remove(index);
                self.add_hole(address, bytes);
            } else {
                index += 1;
            }
        }
        Ok(())
    }

    /// Makes memory free in the order of the stream, behind an event of its own, joined to the stream's regions beside
    /// it. Where the region begins, and its bytes.
    fn file(&mut self, unfiled: Unfiled) -> Result<(u64, u64), DriverError> {
        match self.record_for(&unfiled) {
            Ok(event) => {
                let Unfiled { address, bytes, stream, .. } = unfiled;
                let (address, bytes) =
                    self.free.absorb_neighbours(address, bytes, stream, self.chunk_of(address));
                let id = self.filed;
                self.filed += 1;
                self.free.insert(address, Region { bytes, stream, event: Arc::new(event), id });
                Ok((address, bytes))
            }
            Err(error) => {
                self.unfiled.push(unfiled);
                Err(error)
            }
        }
    }

    /// Puts the stream behind the other uses, and an event behind all that.
    fn record_for(&self, unfiled: &Unfiled) -> Result<D::Event, DriverError> {
        let stream = &self.streams[unfiled.stream as usize];
        let event = self.driver.event_create()?;
        for &other in &unfiled.used_on {
            self.driver.event_record(&event, &self.streams[other as usize])?;
            self.driver.stream_wait(stream, &event)?;
        }
        self.driver.event_record(&event, stream)?;
        Ok(event)
    }

    fn file_again(&mut self) -> Result<(), DriverError> {
        while let Some(unfiled) = self.unfiled.pop() {
            self.file(unfiled)?;
        }
        Ok(())
    }

    /// The addresses that were reserved together with this one.
    fn chunk_of(&self, address: u64) -> Range<u64> {
        let bytes = self.conf.chunk_bytes;
        let mut chunks = self.chunks.iter().map(|chunk| chunk.address..chunk.address + bytes);
        chunks.find(|chunk| chunk.contains(&address)).unwrap_or(address..address)
    }

    fn add_hole(&mut self, address: u64, bytes: u64) {
        self.holes.insert(address, bytes, self.chunk_of(address));
    }

    fn note_addresses(&mut self) {
        let extents: u64 = self.chunks.iter().map(|chunk| chunk.extent_bytes).sum();
        self.address_peak_bytes = self.address_peak_bytes.max(extents + self.below_page.bytes());
    }
}

/// It learns of no wait of the program's: it asks its events. Nothing is given back before the end.
impl<D: Driver> Baseline for Vpmm<D> {
    type Stream = D::Stream;
    type Block = VpmmBlock;

    fn add_stream(&mut self, stream: D::Stream) {
        self.streams.push(stream);
    }

    fn allocate(&mut self, bytes: u64, stream: u32) -> Result<VpmmBlock, TargetError> {
        Ok(self.request(bytes, stream)?)
    }

    fn address(&self, block: &VpmmBlock) -> Address {
        block.address()
    }

    fn free(&mut self, block: VpmmBlock) -> Result<(), TargetError> {
        let VpmmBlock { address, place, stream, used_on } = block;
        match place {
            Place::Malloc(bytes) => self.below_page.free(&self.driver, address, bytes)?,
            Place::Pages(bytes) => {
                self.used_bytes -= bytes;
                self.file(Unfiled { address, bytes, stream, used_on })?;
            }
        }
        Ok(())
    }

    fn record_stream(&mut self, block: &mut VpmmBlock, stream: u32) -> Result<(), TargetError> {
        self.check_stream(stream)?;
        if stream != block.stream && !block.used_on.contains(&stream) {
            block.used_on.push(stream);
        }
        Ok(())
    }

    fn release_cached(&mut self) -> Result<(), TargetError> {
        Ok(())
    }

    fn address_peak_bytes(&self) -> u64 {
        self.address_peak_bytes
    }
}

/// Waits for all streams and gives everything back, also what is live. What the driver refuses then is lost.
impl<D: Driver> Drop for Vpmm<D> {
    fn drop(&mut self) {
        if let Ok(event) = self.driver.event_create() {
            for stream in &self.streams {
                let recorded = self.driver.event_record(&event, stream);
                let _ = recorded.and_then(|()| self.driver.event_synchronize(&event));
            }
        }
        for zombie in &self.zombies {
            let _ = self.driver.unmap(Address::new(zombie.address), zombie.bytes);
        }
        for (address, handle) in std::mem::take(&mut self.pages) {
            let _ = self.driver.unmap(Address::new(address), self.page_bytes);
            let _ = self.driver.release(handle);
        }
        for handle in self.spare.drain(..) {
            let _ = self.driver.release(handle);
        }
        for chunk in &self.chunks {
            let _ = self.driver.unreserve(Address::new(chunk.address), self.conf.chunk_bytes);
        }
        self.below_page.close(&self.driver);
    }
}

#[cfg(test)]
mod tests;
