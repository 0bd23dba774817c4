//! From the address of a live block to what its owner keeps of it.
//!
//! Main type: [`BlockTable`]. Neighbours: `peer` keeps its allocations here, for a program that frees by address.
//!
//! Two levels, as page tables have them (and as TCMalloc maps its pages: "TCMalloc Design", pagemap): the upper bits of
//! an address choose a leaf, its step in there chooses a slot. No tree, no hash, and no lock: to take a value is one exchange
//! in its slot, to insert one a store. Blocks of two streams lie in different segments, so that threads with a stream each
//! write no cache line in common.
//!
//! A slot is a pointer and not the value: where blocks come and go at all steps, slots are what the host pays for each 512
//! bytes of the device. Both levels are memory that the system gives as zeros and backs when it is first written.

use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Bits of the bytes between two addresses at which blocks may begin: the step.
const STEP_BITS: u32 = 9;
/// Bits of the addresses of one leaf: 32 MiB. So a host page of pointers to leaves covers 16 GiB.
const LEAF_BITS: u32 = 25;
/// Slots of one leaf.
const LEAF_SLOTS: usize = 1 << (LEAF_BITS - STEP_BITS);

/// A value in a box of its own, or null.
type Slot<T> = AtomicPtr<T>;
type Leaf<T> = [Slot<T>; LEAF_SLOTS];

/// Values by the address of a block. Any thread may use it.
pub(crate) struct BlockTable<T> {
    leaves: NonNull<[AtomicPtr<Leaf<T>>]>,
    // It owns values.
    values: PhantomData<T>,
}

// SAFETY: it owns its leaves and the values in them.
unsafe impl<T: Send> Send for BlockTable<T> {}
// SAFETY: it lends no value out: values are moved in by one thread and moved out by one, which `Send` permits. All else is
// atomic.
unsafe impl<T: Send> Sync for BlockTable<T> {}

impl<T> fmt::Debug for BlockTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockTable").field("leaves", &self.leaves.len()).finish_non_exhaustive()
    }
}

impl<T> BlockTable<T> {
    /// An empty table for addresses of so many bits, 25 to 57. Reserves 2^(bits - 22) bytes of host memory for it.
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
        // At most 2^32 pointers: fewer bytes than an `isize` counts.
        Layout::array::<AtomicPtr<Leaf<T>>>(leaves).expect("2^35 bytes at most")
    }

    fn leaves(&self) -> &[AtomicPtr<Leaf<T>>] {
        // SAFETY: allocated with this length in `covering`, all null pointers or leaves, and kept until the table is dropped.
        unsafe { self.leaves.as_ref() }
    }

    /// Puts a value at an address. Nobody else does so at the same address at the same time, or one of the values may never
    /// be seen again: who was just given a block has its address alone.
    ///
    /// # Errors
    /// The value, if the address is no multiple of a step, is beyond those covered, or has a value already.
    #[inline]
    pub(crate) fn insert(&self, address: u64, value: T) -> Result<(), T> {
        let Some(leaf) = self.leaf_of(address) else { return Err(value) };
        let mut found = leaf.load(Ordering::Acquire);
        if found.is_null() {
            found = new_leaf(leaf);
        }
        // SAFETY: a leaf that is there stays until the table is dropped, and its zeros were seen with it (acquired, here or in
        // `new_leaf`).
        let slot = &unsafe { &*found }[slot_number(address)];
        if !slot.load(Ordering::Relaxed).is_null() {
            return Err(value);
        }
        // Released is the value. An exchange here would be a third of what a pair of `insert` and `take` costs.
        slot.store(Box::into_raw(Box::new(value)), Ordering::Release);
        Ok(())
    }

    /// Takes the value at an address; `None` if there is none. Of two that try at once one gets it.
    #[inline]
    pub(crate) fn take(&self, address: u64) -> Option<T> {
        let leaf = self.leaf_of(address)?.load(Ordering::Acquire);
        // SAFETY: null, or a leaf that stays until the table is dropped, with its zeros seen (acquired).
        let slot = &unsafe { leaf.as_ref() }?[slot_number(address)];
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
fn slot_number(address: u64) -> usize {
    (address >> STEP_BITS) as usize % LEAF_SLOTS
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

impl<T> Drop for BlockTable<T> {
    fn drop(&mut self) {
        for leaf in self.leaves() {
            let leaf = leaf.load(Ordering::Acquire);
            // SAFETY: null or a leaf, as above. Nobody else has the table any more.
            let Some(slots) = (unsafe { leaf.as_mut() }) else { continue };
            for value in slots.iter_mut().map(|slot| *slot.get_mut()).filter(|value| !value.is_null()) {
                // SAFETY: made of a box by `insert`, and not taken; its slot goes below.
                drop(unsafe { Box::from_raw(value) });
            }
            // SAFETY: allocated by `new_leaf` with this layout; its pointer goes with the table.
            unsafe { dealloc(leaf.cast(), Layout::new::<Leaf<T>>()) };
        }
        // SAFETY: allocated by `covering` with this layout; pointers need no drop.
        unsafe { dealloc(self.leaves.cast().as_ptr(), Self::root_layout(self.leaves.len())) };
    }
}

#[cfg(test)]
mod tests;
