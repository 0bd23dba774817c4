//! What `cudaMalloc` gave, as an owned value: the memory of one malloc segment.
//!
//! Main types: [`Malloc`], [`MallocCounts`], and the half of [`FrameStore`] that keeps them. Neighbours: a `Segment` owns the malloc that it
//! consists of; the store has those that no heap has, and counts their bytes as mapped, as it does with frames.
//!
//! Only for devices without virtual memory. Addresses and memory come and go together, so that nothing smaller than the
//! whole can serve another heap.

use core::fmt;

use crate::device::Device;
use crate::driver::Driver;
use crate::error::{DriverError, Returned};
use crate::fence::Uses;
use crate::frame_store::{CreateError, FrameStore};
use crate::sync::Arc;
use crate::units::Address;

/// What one `cudaMalloc` gave. Whoever holds the value owns the memory: a segment, the frame store, or somebody who moves
/// it from one heap to another. Dropping it gives it back, which waits for the whole device.
pub struct Malloc<D: Driver> {
    // `None` once given back.
    device: Option<Arc<Device<D>>>,
    address: Address,
    bytes: u64,
    uses: Uses,
}

impl<D: Driver> fmt::Debug for Malloc<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Malloc")
            .field("address", &self.address)
            .field("bytes", &self.bytes)
            .field("uses", &self.uses)
            .finish()
    }
}

impl<D: Driver> Malloc<D> {
    fn new(device: &Arc<Device<D>>, bytes: u64) -> Result<Self, DriverError> {
        let address = device.malloc(bytes)?;
        Ok(Self { device: Some(Arc::clone(device)), address, bytes, uses: Uses::new() })
    }

    /// Its first address.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The last uses that nothing has ordered yet. Empty for a new one.
    pub fn uses(&self) -> &Uses {
        &self.uses
    }

    /// Replaces the last uses: what the heap that had it knew.
    pub fn set_uses(&mut self, uses: Uses) {
        self.uses = uses;
    }

    /// Gives it back to the driver, which waits for the whole device.
    ///
    /// # Errors
    /// It comes back, whole, when the driver refuses.
    fn free(mut self) -> Result<(), Returned<Self>> {
        let Some(device) = self.device.take() else { return Ok(()) };
        match device.free(self.address) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.device = Some(device);
                Err(Returned { owner: self, error })
            }
        }
    }
}

impl<D: Driver> Drop for Malloc<D> {
    fn drop(&mut self) {
        if let Some(device) = self.device.take()
            && device.free(self.address).is_err()
        {
            device.owe_malloc(self.address, self.bytes);
        }
    }
}

/// How many mallocs a store has made and given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MallocCounts {
    /// Made.
    pub mallocs: u64,
    /// Given back; each waited for the whole device.
    pub frees: u64,
}

/// The mallocs of a store.
pub(crate) struct Mallocs<D: Driver> {
    counts: MallocCounts,
    // Of no heap.
    spare: Vec<Malloc<D>>,
    // Only for another try at giving them back.
    unfreed: Vec<Malloc<D>>,
}

impl<D: Driver> Default for Mallocs<D> {
    fn default() -> Self {
        Self { counts: MallocCounts::default(), spare: Vec::new(), unfreed: Vec::new() }
    }
}

impl<D: Driver> FrameStore<D> {
    /// Takes `bytes` by a malloc and hands them out.
    ///
    /// # Errors
    /// Over the limit, or what the driver says; nothing has changed then.
    pub fn malloc(&self, bytes: u64) -> Result<Malloc<D>, CreateError> {
        self.claim(bytes)?;
        let malloc = Malloc::new(self.device(), bytes).inspect_err(|_| self.unclaim(bytes))?;
        self.note_mapped_bytes(bytes);
        self.mallocs.lock().counts.mallocs += 1;
        Ok(malloc)
    }

    /// Gives a malloc back to the driver, which waits for the whole device. Returns its bytes.
    ///
    /// # Errors
    /// What the driver says. The malloc is on the retry list then, counted as mapped, and [`FrameStore::retry`] tries
    /// again.
    pub fn free(&self, malloc: Malloc<D>) -> Result<u64, DriverError> {
        let bytes = malloc.bytes();
        self.note_going_bytes(bytes);
        match malloc.free() {
            Ok(()) => {
                self.unclaim(bytes);
                self.mallocs.lock().counts.frees += 1;
                Ok(bytes)
            }
            Err(Returned { owner, error }) => {
                self.note_kept_bytes(bytes);
                self.mallocs.lock().unfreed.push(owner);
                Err(error)
            }
        }
    }

    /// Puts a malloc that no heap uses into the store. Its last uses travel with it.
    pub fn put_malloc(&self, malloc: Malloc<D>) {
        self.mallocs.lock().spare.push(malloc);
    }

    /// Takes out the smallest malloc that `wanted` agrees to; of equal ones, that with the lowest address.
    pub fn take_malloc(&self, wanted: impl Fn(&Malloc<D>) -> bool) -> Option<Malloc<D>> {
        let spare = &mut self.mallocs.lock().spare;
        let candidates = spare.iter().enumerate().filter(|(_, malloc)| wanted(malloc));
        let best = candidates.min_by_key(|(_, malloc)| (malloc.bytes, malloc.address))?.0;
        Some(spare.swap_remove(best))
    }

    /// Sizes in bytes of the mallocs in the store that `wanted` agrees to.
    pub fn spare_mallocs(&self, wanted: impl Fn(&Malloc<D>) -> bool) -> Vec<u64> {
        self.mallocs.lock().spare.iter().filter(|malloc| wanted(malloc)).map(Malloc::bytes).collect()
    }

    /// The last uses of the mallocs in the store that nothing has ordered yet.
    pub fn spare_uses(&self) -> Uses {
        self.mallocs.lock().spare.iter().flat_map(|malloc| malloc.uses().iter().copied()).collect()
    }

    /// Sizes in bytes of the mallocs that the driver would not take back.
    pub fn unfreed_mallocs(&self) -> Vec<u64> {
        self.mallocs.lock().unfreed.iter().map(Malloc::bytes).collect()
    }

    /// How many mallocs were made and given back so far.
    pub fn malloc_counts(&self) -> MallocCounts {
        self.mallocs.lock().counts
    }

    /// Tries once more to give back what the driver would not take. Returns the bytes that went.
    pub(crate) fn retry_mallocs(&self) -> u64 {
        let unfreed = std::mem::take(&mut self.mallocs.lock().unfreed);
        unfreed.into_iter().filter_map(|malloc| self.free(malloc).ok()).sum()
    }
}
