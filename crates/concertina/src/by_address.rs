//! Blocks that are freed by their address alone: for C interfaces and pluggable allocators.
//!
//! Main type: [`ByAddress`]. Neighbours: `allocator` hands it out; `address_table` finds a block by its address; `on_stream`
//! has the ways of a hit and its free.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use concertina_heap::{Freeing, Granted, StreamHeaps, Take};
use concertina_vmm::sync::Mutex;
use concertina_vmm::{Address, Driver};

use crate::address_table::{AddressTable, Entry};
use crate::allocation::{Placed, RawAllocation};
use crate::allocator::Shared;
use crate::error::Error;
use crate::layout::Layout;
use crate::stream::Stream;

/// Streams whose blocks are found with no lock: the first ones of an allocator.
const HOMES: usize = 4096;

/// An allocator whose blocks are named by their addresses, for programs that free by address: behind a C interface, or as
/// another library's pluggable allocator. Any thread may use it, and frees what any other allocated.
///
/// An allocation and its free write nothing that threads on other streams write, and take no lock but their heap's, with three
/// exceptions: memory of a graph pool, streams beyond the first 4,096 that were registered with the allocator, and
/// addresses of more than 48 bits, which no driver gives today. These stand in a tree behind a lock.
///
/// It takes 2 MiB of the host's memory, and a 32nd of the addresses at which blocks of less than 1 MiB begin, 4 KiB at a time.
/// It keeps the allocator alive, and the books of each stream that it was used with (not the driver's stream).
///
/// Dropping it frees nothing: its live blocks stay live, and nobody can free them any more. Their memory is given back with
/// the allocator.
///
/// ```
/// use concertina::{Allocator, Config, Error, Layout};
/// use concertina_emulator::{Emulator, EmulatorConfig};
///
/// let device = Emulator::new(EmulatorConfig::default())?;
/// let allocator = Allocator::new(device.clone(), Config::default())?;
/// let stream = allocator.register_stream(device.stream());
///
/// let by_address = allocator.by_address();
/// let address = by_address.allocate(Layout::new(1 << 20), &stream)?;
/// assert_eq!(by_address.bytes(address), Some(1 << 20));
/// by_address.free(address)?;
/// assert!(matches!(by_address.free(address), Err(Error::NoBlockAt { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ByAddress<D: Driver> {
    shared: Arc<Shared<D>>,
    table: AddressTable,
    // By the number of the stream. None goes before the table does: a free borrows its own.
    homes: Box<[OnceLock<Arc<StreamHeaps<D>>>]>,
    elsewhere: Mutex<BTreeMap<Address, RawAllocation>>,
}

impl<D: Driver> fmt::Debug for ByAddress<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByAddress").field("table", &self.table).finish_non_exhaustive()
    }
}

impl<D: Driver> ByAddress<D> {
    pub(crate) fn new(shared: &Arc<Shared<D>>) -> Self {
        Self {
            shared: Arc::clone(shared),
            table: AddressTable::new(),
            homes: (0..HOMES).map(|_| OnceLock::new()).collect(),
            elsewhere: Mutex::default(),
        }
    }

    /// Allocates a block on a stream. Its content is undefined.
    ///
    /// # Errors
    /// As [`Allocator::allocate`](crate::Allocator::allocate).
    #[inline]
    pub fn allocate(&self, layout: Layout, stream: &Stream<D>) -> Result<Address, Error> {
        let core = self.shared.core_of(stream)?;
        let own = |granted, _| Placed { granted, heaps: None };
        let placed = core.allocate_as(layout, Take::None, own, |placed| placed)?;
        let Granted { id, address } = placed.granted;
        let stream = core.clock().stream();
        let entry = Entry { id, stream: stream.get(), bytes: layout.bytes() };
        let home = self.homes.get(stream.index()).filter(|_| placed.heaps.is_none());
        let is_home = home.map(|home| home.get_or_init(|| Arc::clone(&core.heaps))).is_some();
        if !is_home || !self.table.insert(address, entry) {
            self.keep_elsewhere(placed.raw(&core.heaps, layout));
        }
        Ok(address)
    }

    /// Frees the block that begins at `address`, in the order of the stream that it was allocated on. Does not wait for a
    /// thread that is using the stream's memory.
    ///
    /// # Errors
    /// [`Error::NoBlockAt`] if no live block of this value begins there; nothing changes then. Of two frees of one block at
    /// the same time one succeeds. A second free after its address was given out again is not found out: it frees that
    /// block.
    #[inline]
    pub fn free(&self, address: Address) -> Result<(), Error> {
        let Some(entry) = self.table.take(address) else { return self.free_elsewhere(address) };
        let Some(heaps) = self.home(entry) else { return Err(Error::NoBlockAt { address }) };
        let Entry { id, bytes, .. } = entry;
        // Whoever took the entry is the only one.
        Ok(heaps.free_owned(Freeing { id, bytes })?)
    }

    /// Says that work queued on `stream`, up to the free of the block, uses it as well.
    ///
    /// # Errors
    /// [`Error::NoBlockAt`] if no live block of this value begins at `address`, [`Error::ForeignStream`].
    pub fn record_stream(&self, address: Address, stream: &Stream<D>) -> Result<(), Error> {
        let Some(raw) = self.find(address) else { return Err(Error::NoBlockAt { address }) };
        match self.shared.record_stream(raw, stream) {
            // Another thread frees it.
            Err(Error::NotLive(_)) => Err(Error::NoBlockAt { address }),
            recorded => recorded,
        }
    }

    /// Bytes as asked of the block that begins at `address`; `None` if no live block of this value begins there.
    pub fn bytes(&self, address: Address) -> Option<u64> {
        self.find(address).map(|raw| raw.bytes())
    }

    fn find(&self, address: Address) -> Option<RawAllocation> {
        match self.table.find(address) {
            Some(entry) => Some(raw(self.home(entry)?, address, entry)),
            None => self.elsewhere.lock().get(&address).copied(),
        }
    }

    /// The stream of a block in the table.
    #[inline]
    fn home(&self, entry: Entry) -> Option<&Arc<StreamHeaps<D>>> {
        self.homes.get(entry.stream as usize)?.get()
    }

    #[cold]
    fn keep_elsewhere(&self, raw: RawAllocation) {
        self.elsewhere.lock().insert(raw.address(), raw);
    }

    #[cold]
    fn free_elsewhere(&self, address: Address) -> Result<(), Error> {
        let raw = self.elsewhere.lock().remove(&address);
        raw.map_or(Err(Error::NoBlockAt { address }), |raw| self.shared.free_raw(raw))
    }
}

/// A block of the default pool as it was handed out. Its alignment is not asked again.
#[inline]
fn raw<D: Driver>(heaps: &StreamHeaps<D>, address: Address, entry: Entry) -> RawAllocation {
    let Entry { id, bytes, .. } = entry;
    RawAllocation::new(heaps, Granted { id, address }, Layout::new(bytes))
}
