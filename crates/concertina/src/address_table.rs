//! From the address of a live block to what its free needs.
//!
//! Main types: [`AddressTable`], [`Entry`]. Neighbours: `by_address` keeps its blocks here.
//!
//! Two levels, as page tables have them (and as TCMalloc maps its pages: "TCMalloc Design", pagemap): the upper bits of an
//! address choose a leaf, those below a slot in it. No tree, no hash, no lock. Blocks of two streams lie in different
//! pages, and the slots of two pages in different cache lines.
//!
//! Leaves are of two kinds. Small blocks have a slot for each step at which one may begin. Of blocks of 1 MiB and more at most
//! one begins in any aligned MiB, so that one slot for each is enough, if it tells which address it is for. This is what
//! makes it fast: large blocks begin at ever other steps, and the slots of the steps would be cold memory each time.
//!
//! Leaves are memory that the system gives as zeros and backs when it is first written: what a program does not use of its
//! addresses costs nothing.
//!
//! The word that a slot begins with says whether a block is there, and which. It is written last, released, and taken back by
//! one exchange that only one thread wins. `docs/locking.md` has what each of two threads may see.

use core::fmt;
// Not those of `concertina_vmm::sync`: a scheduler's can't be made of zeros.
use core::sync::atomic::{AtomicU64, Ordering};
use std::alloc::{Layout, handle_alloc_error};
use std::sync::OnceLock;

use concertina_heap::BlockId;
use concertina_heap::STEP_BYTES;
use concertina_vmm::Address;
use zerocopy::FromZeros;

/// Bits of the addresses that it covers: those of a process on today's hosts, which device addresses are taken from.
const ADDRESS_BITS: u32 = 48;
/// Bits of the addresses of one leaf: 4 GiB, with 128 KiB of slots for large blocks and 128 MiB for small ones. The roots
/// are 2 MiB.
const LEAF_BITS: u32 = 32;
/// Bits of the least size of a large block.
const LARGE_BITS: u32 = 20;
/// Bits of a step.
const STEP_BITS: u32 = STEP_BYTES.trailing_zeros();

/// Which block, or 0; its stream and its bytes.
type SmallSlot = [AtomicU64; 2];
/// Which block, or 0; its stream; its bytes; its address. A block's slot shares no cache line with that of the next page.
type LargeSlot = [AtomicU64; 4];
type SmallLeaf = [SmallSlot; 1 << (LEAF_BITS - STEP_BITS)];
type LargeLeaf = [LargeSlot; 1 << (LEAF_BITS - LARGE_BITS)];

/// What a free needs to know of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its name in its heap.
    pub(crate) id: BlockId,
    /// The number of its stream.
    pub(crate) stream: u32,
    /// Bytes as asked.
    pub(crate) bytes: u64,
}

/// Both leaves of the same addresses, once a block was there.
#[derive(Default)]
struct Root {
    large: OnceLock<Box<LargeLeaf>>,
    small: OnceLock<Box<SmallLeaf>>,
}

/// Live blocks by address. Any thread may use it.
pub(crate) struct AddressTable {
    roots: Box<[Root]>,
}

impl fmt::Debug for AddressTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressTable").field("roots", &self.roots.len()).finish_non_exhaustive()
    }
}

impl AddressTable {
    /// An empty one.
    pub(crate) fn new() -> Self {
        let roots = 1 << (ADDRESS_BITS - LEAF_BITS);
        Self { roots: (0..roots).map(|_| Root::default()).collect() }
    }

    /// Puts a block at its address, where no other one is: who was just given a block has its addresses alone. Returns
    /// whether the table covers the address.
    #[inline]
    #[must_use]
    pub(crate) fn insert(&self, address: Address, entry: Entry) -> bool {
        let Some(root) = self.root(address) else { return false };
        // Each word is released: whoever reads one of them sees that the word of the block before it is gone.
        let (stream, bytes) = (u64::from(entry.stream), entry.bytes);
        let word = if bytes >> LARGE_BITS == 0 {
            let [word, rest] = &root.small.get_or_init(zeros)[small_slot(address)];
            rest.store(stream << 32 | bytes, Ordering::Release);
            word
        } else {
            let [word, of_stream, of_bytes, at] = &root.large.get_or_init(zeros)[large_slot(address)];
            of_stream.store(stream, Ordering::Release);
            of_bytes.store(bytes, Ordering::Release);
            at.store(address.get(), Ordering::Release);
            word
        };
        word.store(entry.id.word(), Ordering::Release);
        true
    }

    /// The block at an address, and its word.
    #[inline]
    fn look(&self, address: Address) -> Option<(Entry, &AtomicU64)> {
        let root = self.root(address)?;
        if let Some(leaf) = root.large.get() {
            let [word, stream, bytes, at] = &leaf[large_slot(address)];
            // Acquired is the rest of the slot.
            let which = BlockId::from_word(word.load(Ordering::Acquire));
            if let Some(id) = which
                && at.load(Ordering::Acquire) == address.get()
            {
                let stream = stream.load(Ordering::Acquire) as u32;
                return Some((Entry { id, stream, bytes: bytes.load(Ordering::Acquire) }, word));
            }
        }
        let [word, rest] = &root.small.get()?[small_slot(address)];
        let id = BlockId::from_word(word.load(Ordering::Acquire))?;
        let rest = rest.load(Ordering::Acquire);
        Some((Entry { id, stream: (rest >> 32) as u32, bytes: rest & u64::from(u32::MAX) }, word))
    }

    /// The block at an address; `None` if there is none, or another thread takes it meanwhile.
    pub(crate) fn find(&self, address: Address) -> Option<Entry> {
        let (entry, word) = self.look(address)?;
        // What was read in between is of this block if the word is still the same.
        (word.load(Ordering::Relaxed) == entry.id.word()).then_some(entry)
    }

    /// Takes the block at an address; `None` if there is none. Of two that try at once one gets it.
    #[inline]
    pub(crate) fn take(&self, address: Address) -> Option<Entry> {
        let (entry, word) = self.look(address)?;
        // All that the table tells of the block was acquired with its word, above; what comes next hangs on the outcome.
        let taken = word.compare_exchange(entry.id.word(), 0, Ordering::Relaxed, Ordering::Relaxed);
        taken.is_ok().then_some(entry)
    }

    #[inline]
    fn root(&self, address: Address) -> Option<&Root> {
        if !address.is_aligned_to(STEP_BYTES) {
            return None;
        }
        self.roots.get(usize::try_from(address.get() >> LEAF_BITS).ok()?)
    }
}

#[inline]
fn small_slot(address: Address) -> usize {
    (address.get() >> STEP_BITS) as usize % (1 << (LEAF_BITS - STEP_BITS))
}

#[inline]
fn large_slot(address: Address) -> usize {
    (address.get() >> LARGE_BITS) as usize % (1 << (LEAF_BITS - LARGE_BITS))
}

#[cold]
fn zeros<T: FromZeros>() -> Box<T> {
    T::new_box_zeroed().unwrap_or_else(|_| handle_alloc_error(Layout::new::<T>()))
}

#[cfg(test)]
mod tests;
