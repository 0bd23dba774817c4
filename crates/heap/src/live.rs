//! Live bytes: a count in each heap, and the peak of their sum with no place where all heaps meet.
//!
//! Main types: [`LiveBytes`], [`HeapLive`], [`LiveCount`]. Neighbours: a heap counts what it hands out and takes back;
//! `ladder` and `gather` ask for the peak when frames are wanted, `heaps` for its figures.
//!
//! The peak of a sum can't be told from the peaks of its parts, and adding every request to one counter would make all
//! threads write one cache line. So each heap has a *ceiling*, and the ceilings add up to no more than the peak: as
//! long as every heap stays under its own, the sum can't have passed the peak. A heap that rises over its ceiling adds
//! all counts up, moves the peak if they are more, and shares out anew what is between the sum and the peak. (The
//! same idea bounds a sum of accounts in escrow: O'Neil, "The Escrow Transactional Method", TODS 1986.)
//!
//! Used by one thread at a time, the peak is exact to the byte. A heap that rises at the very moment at which another
//! one shares out may read its ceiling as it was: a high that lasts only until the next free may be missed then.

use concertina_vmm::sync::{Arc, AtomicU64, Mutex, Ordering};

/// Live bytes of one heap, on a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct LiveCount {
    // Written by the holder of the heap's lock only.
    live: AtomicU64,
    // Most of them that need no look at other heaps.
    ceiling: AtomicU64,
    // Of `live`, bytes whose free is in the heap's queue.
    leaving: AtomicU64,
}

impl LiveCount {
    /// Live bytes now.
    pub(crate) fn bytes(&self) -> u64 {
        // The holder of the lock takes from both, one after the other.
        self.live.load(Ordering::Relaxed).saturating_sub(self.leaving.load(Ordering::Relaxed))
    }

    /// A free of so many bytes is about to be queued: they are live no longer.
    pub(crate) fn note_queued(&self, bytes: u64) {
        self.leaving.fetch_add(bytes, Ordering::Relaxed);
    }

    /// It came out of the queue, and what it freed was taken from the count.
    pub(crate) fn note_drained(&self, bytes: u64) {
        self.leaving.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Inner {
    counts: Vec<Arc<LiveCount>>,
    peak_bytes: u64,
}

impl Inner {
    fn bytes(&self) -> u64 {
        self.counts.iter().map(|count| count.bytes()).sum()
    }

    fn note_peak(&mut self) -> u64 {
        let bytes = self.bytes();
        self.peak_bytes = self.peak_bytes.max(bytes);
        bytes
    }
}

/// The live bytes of all heaps. Its lock is a leaf.
#[derive(Debug, Default)]
pub(crate) struct LiveBytes {
    inner: Mutex<Inner>,
}

impl LiveBytes {
    /// Live bytes now.
    pub(crate) fn bytes(&self) -> u64 {
        self.inner.lock().bytes()
    }

    /// Most live bytes at once so far.
    pub(crate) fn peak_bytes(&self) -> u64 {
        let mut inner = self.inner.lock();
        inner.note_peak();
        inner.peak_bytes
    }

    /// What the peak would be if so many bytes more were live now.
    pub(crate) fn peak_with(&self, bytes: u64) -> u64 {
        let inner = self.inner.lock();
        inner.peak_bytes.max(inner.bytes() + bytes)
    }

    /// A heap is over its ceiling.
    #[cold]
    fn share_out(&self) {
        let mut inner = self.inner.lock();
        let bytes = inner.note_peak();
        let share = (inner.peak_bytes - bytes) / inner.counts.len().max(1) as u64;
        for count in &inner.counts {
            count.ceiling.store(count.bytes() + share, Ordering::Relaxed);
        }
    }
}

/// A heap's part of the live bytes, for the holder of its lock.
#[derive(Debug)]
pub(crate) struct HeapLive {
    count: Arc<LiveCount>,
    all: Arc<LiveBytes>,
}

impl HeapLive {
    /// A part with nothing live yet.
    pub(crate) fn new(all: &Arc<LiveBytes>) -> Self {
        let count = Arc::new(LiveCount::default());
        all.inner.lock().counts.push(Arc::clone(&count));
        Self { count, all: Arc::clone(all) }
    }

    /// The count, for those without the lock.
    pub(crate) fn count(&self) -> &Arc<LiveCount> {
        &self.count
    }

    /// Live bytes of the heap, for the holder of its lock: without a look at what is about to be queued.
    pub(crate) fn bytes(&self) -> u64 {
        self.count.live.load(Ordering::Relaxed)
    }

    /// So many bytes more are live.
    #[inline]
    pub(crate) fn add(&self, bytes: u64) {
        let live = self.count.live.load(Ordering::Relaxed) + bytes;
        self.count.live.store(live, Ordering::Relaxed);
        if live > self.count.ceiling.load(Ordering::Relaxed) {
            self.all.share_out();
        }
    }

    /// So many are no longer.
    #[inline]
    pub(crate) fn sub(&self, bytes: u64) {
        let live = self.count.live.load(Ordering::Relaxed) - bytes;
        self.count.live.store(live, Ordering::Relaxed);
    }
}

impl Drop for HeapLive {
    fn drop(&mut self) {
        self.all.inner.lock().counts.retain(|count| !Arc::ptr_eq(count, &self.count));
    }
}

#[cfg(test)]
mod tests;
