//! From the address of a live block to what its owner keeps of it.
//!
//! Main type: [`BlockTable`]. Neighbours: `peer` keeps its allocations here, for a program that frees by address.
//!
//! Two levels, as page tables have them (and as TCMalloc maps its pages: "TCMalloc Design", pagemap): the upper bits of
//! an address choose a leaf, its step in there chooses a slot. No tree, no hash, and no lock: a slot has a state of its own,
//! and blocks of two streams lie in different segments, so that threads with a stream each write no cache line in common.
//!
//! Both levels are memory that the system gives as zeros and backs when it is first written: a leaf costs addresses of the
//! host, and a page of the host wherever a block has begun.

use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Bytes between two addresses at which blocks may begin.
const STEP_BITS: u32 = 9;
/// Addresses of one leaf: 32 MiB. So a page of the host with pointers to leaves covers 16 GiB.
const LEAF_BITS: u32 = 25;
/// Slots of one leaf.
const LEAF_SLOTS: usize = 1 << (LEAF_BITS - STEP_BITS);

// States of a slot. Zeroed memory is empty.
const EMPTY: u32 = 0;
/// Somebody is taking the value out.
const BUSY: u32 = 1;
const FULL: u32 = 2;

struct Slot<T> {
    state: AtomicU32,
    // A value while the state is `FULL`. Written, while it is `EMPTY`, by the one thread that may insert here; read by the
    // one that has set it from `FULL` to `BUSY`.
    value: UnsafeCell<MaybeUninit<T>>,
}

type Leaf<T> = [Slot<T>; LEAF_SLOTS];

/// Values by the address of a block. Any thread may use it; a value is in one thread's hands at a time.
pub(crate) struct BlockTable<T> {
    leaves: NonNull<[AtomicPtr<Leaf<T>>]>,
}

// SAFETY: it owns its leaves and the values in them, and lends no value out: values are moved in by one thread and moved out
// by another, which `Send` permits.
unsafe impl<T: Send> Send for BlockTable<T> {}
// SAFETY: as above. A slot's value is written by the one thread that may insert there, and read by the one that has set its
// state from `FULL` to `BUSY`: never both, since the first needs it `EMPTY`.
unsafe impl<T: Send> Sync for BlockTable<T> {}

impl<T> fmt::Debug for BlockTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockTable").field("leaves", &self.leaves.len()).finish_non_exhaustive()
    }
}

impl<T> BlockTable<T> {
    /// An empty table for addresses of so many bits, 25 to 57: 2^(bits - 22) bytes of the host's addresses at once.
    pub(crate) fn covering(address_bits: u32) -> Self {
        let leaves = 1_usize << (address_bits.clamp(LEAF_BITS, 57) - LEAF_BITS);
        let layout = Self::root_layout(leaves);
        // SAFETY: the layout is not empty, since there is one leaf at least.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory.cast()) else { handle_alloc_error(layout) };
        // Zeros are null pointers.
        Self { leaves: NonNull::slice_from_raw_parts(memory, leaves) }
    }

    fn root_layout(leaves: usize) -> Layout {
        // At most 2^32 pointers: fewer bytes than an `isize` counts.
        Layout::array::<AtomicPtr<Leaf<T>>>(leaves).unwrap_or(Layout::new::<AtomicPtr<Leaf<T>>>())
    }

    fn leaves(&self) -> &[AtomicPtr<Leaf<T>>] {
        // SAFETY: allocated with this length in `covering`, all null pointers or leaves, and kept until the table is dropped.
        unsafe { self.leaves.as_ref() }
    }

    /// Puts a value at an address.
    ///
    /// # Errors
    /// The value, if the address is no multiple of a step, is beyond those covered, or has a value already.
    ///
    /// # Safety
    /// No other thread inserts at this address at the same time. (Whoever was just given a block has its address alone. An
    /// exchange of the state in place of this promise is a third of what a pair of `insert` and `take` costs.)
    #[inline]
    pub(crate) unsafe fn insert(&self, address: u64, value: T) -> Result<(), T> {
        let Some(leaf) = self.leaf_of(address) else { return Err(value) };
        let mut found = leaf.load(Ordering::Acquire);
        if found.is_null() {
            found = new_leaf(leaf);
        }
        // SAFETY: a leaf that is there stays until the table is dropped, and it was put there with its zeros seen
        // (acquire, here or in `new_leaf`).
        let slot = &unsafe { &*found }[slot_number(address)];
        // Acquired is that the last one to take a value out has read it.
        if slot.state.load(Ordering::Acquire) != EMPTY {
            return Err(value);
        }
        // SAFETY: no other thread writes here, as the caller promises, and none reads: it stays empty until the store below.
        unsafe { &mut *slot.value.get() }.write(value);
        slot.state.store(FULL, Ordering::Release);
        Ok(())
    }

    /// Takes the value at an address; `None` if there is none.
    #[inline]
    pub(crate) fn take(&self, address: u64) -> Option<T> {
        let leaf = self.leaf_of(address)?.load(Ordering::Acquire);
        // SAFETY: null, or a leaf that stays until the table is dropped, with its zeros seen (acquire).
        let slot = &unsafe { leaf.as_ref() }?[slot_number(address)];
        // Acquired is the value.
        slot.state.compare_exchange(FULL, BUSY, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // SAFETY: this thread alone has set the state to `BUSY`: no other reads, and none writes while it is not empty.
        let value = unsafe { &*slot.value.get() };
        // SAFETY: the state was `FULL`, so there is a value; with the next store it is the caller's alone.
        let value = unsafe { value.assume_init_read() };
        slot.state.store(EMPTY, Ordering::Release);
        Some(value)
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
    // SAFETY: a leaf is not empty: its slots have states.
    let made = unsafe { alloc_zeroed(layout) }.cast::<Leaf<T>>();
    if made.is_null() {
        handle_alloc_error(layout);
    }
    // Released is that it is all zeros: slots without a value.
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
            for slot in slots {
                if *slot.state.get_mut() == FULL {
                    // SAFETY: the state says that there is a value, and it is not looked at again.
                    unsafe { slot.value.get_mut().assume_init_drop() };
                }
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
