//! From the address of a live block to what its owner keeps of it.
//!
//! Main type: [`AddressTable`]. Neighbours: `peer` keeps its allocations here, for a program that frees by address.
//!
//! Two levels, as page tables have them (and as TCMalloc maps its pages: "TCMalloc Design", pagemap): the upper bits of an
//! address choose a leaf, those below a slot in it. No tree, no hash, and no lock: to take a value is one exchange in its
//! slot, to insert one a store. Blocks of two streams lie in different segments, so that threads with a stream each write
//! no cache line in common.
//!
//! A leaf has two kinds of slots. Small blocks have one for each step at which one may begin. Of blocks of 1 MiB and more at
//! most one begins in any aligned MiB, so that one slot for each is enough, if it tells which address it is for. This is what
//! makes it fast: large blocks begin at ever other steps, and the slots of the steps would be cold memory each time.
//!
//! Both levels are memory that the system gives as zeros and backs when it is first written.

use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Bits of a step: the bytes between two addresses at which blocks may begin.
const STEP_BITS: u32 = 9;
/// Bits of the least size of a large block.
const LARGE_BITS: u32 = 20;
/// Bits of the addresses of one leaf: 1 GiB, with 16 KiB of slots for large blocks and 16 MiB for small ones.
const LEAF_BITS: u32 = 30;

/// Where a large block begins in an aligned MiB, if one does. All zeros: none.
struct LargeSlot<T> {
    // Of the value, or of the last one.
    address: AtomicU64,
    value: AtomicPtr<T>,
}

/// Values in boxes of their own, or null.
struct Leaf<T> {
    large: [LargeSlot<T>; 1 << (LEAF_BITS - LARGE_BITS)],
    small: [AtomicPtr<T>; 1 << (LEAF_BITS - STEP_BITS)],
}

/// Values by the address of a block. Any thread may use it.
pub(crate) struct AddressTable<T> {
    leaves: NonNull<[AtomicPtr<Leaf<T>>]>,
    // It owns values.
    values: PhantomData<T>,
}

// SAFETY: it owns its leaves and the values in them.
unsafe impl<T: Send> Send for AddressTable<T> {}
// SAFETY: it lends no value out: values are moved in by one thread and moved out by one, which `Send` permits. All else is
// atomic.
unsafe impl<T: Send> Sync for AddressTable<T> {}

impl<T> fmt::Debug for AddressTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressTable").field("leaves", &self.leaves.len()).finish_non_exhaustive()
    }
}

impl<T> AddressTable<T> {
    /// An empty table for addresses of so many bits, 30 to 57. Reserves 2^(bits - 27) bytes of host memory for it.
    pub(crate) fn covering(address_bits: u32) -> Self {
        let leaves = 1_usize << (address_bits.clamp(LEAF_BITS, 57) - LEAF_BITS);
        let layout = Self::root_layout(leaves);
        // SAFETY: the layout is not empty, since there is one leaf at least.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory.cast()) else { handle_alloc_error(layout) };
        // Zeros are null pointers.
        Self { leaves: NonNull::slice_from_raw_parts(memory, leaves), values: PhantomData }
    }

    fn root_layout(leaves: usize) -> Layout {
        Layout::array::<AtomicPtr<Leaf<T>>>(leaves).expect("2^30 bytes at most")
    }

    fn leaves(&self) -> &[AtomicPtr<Leaf<T>>] {
        // SAFETY: allocated with this length in `covering`, all null pointers or leaves, and kept until the table is dropped.
        unsafe { self.leaves.as_ref() }
    }

    /// Puts the value of a block of so many bytes at its address. Nobody else does so at the same place at the same time, or
    /// one of the values may never be seen again: who was just given a block has its addresses alone.
    ///
    /// # Errors
    /// The value, if the address is no multiple of a step, is beyond those covered, or another block is there already.
    #[inline]
    pub(crate) fn insert(&self, address: u64, bytes: u64, value: T) -> Result<(), T> {
        let Some(place) = self.leaf_of(address) else { return Err(value) };
        let mut leaf = place.load(Ordering::Acquire);
        if leaf.is_null() {
            leaf = new_leaf(place);
        }
        // SAFETY: a leaf that is there stays until the table is dropped, and its zeros were seen with it (acquired, here or in
        // `new_leaf`).
        let leaf = unsafe { &*leaf };
        let slot = if bytes >> LARGE_BITS == 0 {
            &leaf.small[small_slot(address)]
        } else {
            &leaf.large[large_slot(address)].value
        };
        if !slot.load(Ordering::Relaxed).is_null() {
            return Err(value);
        }
        if bytes >> LARGE_BITS != 0 {
            leaf.large[large_slot(address)].address.store(address, Ordering::Relaxed);
        }
        // Released are the value and its address. An exchange here would be a third of what a pair of `insert` and `take` costs.
        slot.store(Box::into_raw(Box::new(value)), Ordering::Release);
        Ok(())
    }

    /// Takes the value at an address; `None` if there is none. Of two that try at once one gets it.
    #[inline]
    pub(crate) fn take(&self, address: u64) -> Option<T> {
        let leaf = self.leaf_of(address)?.load(Ordering::Acquire);
        // SAFETY: null, or a leaf that stays until the table is dropped, with its zeros seen (acquired).
        let leaf = unsafe { leaf.as_ref() }?;
        let large = &leaf.large[large_slot(address)];
        // Acquired is the address that came with the value. The other way round the address could be that of a block of
        // before, and the value that of one which another thread puts in just now.
        let is_large = !large.value.load(Ordering::Acquire).is_null()
            && large.address.load(Ordering::Relaxed) == address;
        let slot = if is_large { &large.value } else { &leaf.small[small_slot(address)] };
        // Acquired is the value.
        let value = slot.swap(ptr::null_mut(), Ordering::Acquire);
        if value.is_null() {
            return None;
        }
        // SAFETY: `insert` made it of a box, and this exchange alone has got it: each pointer is stored once.
        Some(*unsafe { Box::from_raw(value) })
    }

    #[inline]
    fn leaf_of(&self, address: u64) -> Option<&AtomicPtr<Leaf<T>>> {
        if !address.is_multiple_of(1 << STEP_BITS) {
            return None;
        }
        self.leaves().get(usize::try_from(address >> LEAF_BITS).ok()?)
    }
}

#[inline]
fn small_slot(address: u64) -> usize {
    (address >> STEP_BITS) as usize % (1 << (LEAF_BITS - STEP_BITS))
}

#[inline]
fn large_slot(address: u64) -> usize {
    (address >> LARGE_BITS) as usize % (1 << (LEAF_BITS - LARGE_BITS))
}

/// Makes a leaf where there is none, unless another thread is faster; returns the one that is there then.
#[cold]
fn new_leaf<T>(place: &AtomicPtr<Leaf<T>>) -> *mut Leaf<T> {
    let layout = Layout::new::<Leaf<T>>();
    // SAFETY: a leaf is not empty.
    let made = unsafe { alloc_zeroed(layout) }.cast::<Leaf<T>>();
    if made.is_null() {
        handle_alloc_error(layout);
    }
    // Released is that it is all zeros: no values.
    match place.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        Err(other) => {
            // SAFETY: allocated above with this layout, and nobody else has seen it.
            unsafe { dealloc(made.cast(), layout) };
            other
        }
    }
}

impl<T> Drop for AddressTable<T> {
    fn drop(&mut self) {
        for place in self.leaves() {
            let leaf = place.load(Ordering::Acquire);
            // SAFETY: null or a leaf, as above. Nobody else has the table any more.
            let Some(slots) = (unsafe { leaf.as_ref() }) else { continue };
            let large = slots.large.iter().map(|slot| &slot.value);
            for slot in large.chain(&slots.small) {
                let value = slot.load(Ordering::Acquire);
                if !value.is_null() {
                    // SAFETY: made of a box by `insert`, and not taken; its slot goes below.
                    drop(unsafe { Box::from_raw(value) });
                }
            }
            // SAFETY: allocated by `new_leaf` with this layout; its pointer goes with the table, and no borrow of it is left.
            unsafe { dealloc(leaf.cast(), Layout::new::<Leaf<T>>()) };
        }
        // SAFETY: allocated by `covering` with this layout; pointers need no drop.
        unsafe { dealloc(self.leaves.cast().as_ptr(), Self::root_layout(self.leaves.len())) };
    }
}

#[cfg(test)]
mod tests;
