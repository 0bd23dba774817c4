//! Live bytes: a count in each heap, and the peak of their sum with no place where all heaps meet.
//!
//! Main types: [`LiveBytes`], [`HeapLive`], [`LiveCount`]. Neighbours: a heap counts what it hands out and takes back;
//! `ladder` and `gather` ask for the peak when frames are wanted, `heaps` for its figures.
//!
//! The peak of a sum can't be told from the peaks of its parts, and adding every request to one counter would make all
//! threads write one cache line. So the heaps of a stream have a *ceiling*, and the ceilings add up to no more than the
//! peak: as long as every stream stays under its own, the sum can't have passed the peak. A stream that rises over its
//! ceiling adds all counts up, moves the peak if they are more, and shares out anew what is between the sum and the
//! peak. (The same idea bounds a sum of accounts in escrow: O'Neil, "The Escrow Transactional Method", TODS 1986.)
//!
//! One ceiling a stream and not one a heap: a thread that turns from small blocks to large ones and back would have to
//! share out at each turn, since the most that both kinds ever had is more than they ever had at once.
//!
//! Used by one thread at a time, the peak is exact to the byte. A stream that rises at the very moment at which another
//! one shares out may read its ceiling as it was: a high that lasts only until the next free may be missed then.

use concertina_vmm::sync::{Arc, AtomicU64, Mutex, Ordering};

use crate::heap::HeapKey;
use crate::step::Kind;

/// Live bytes of the heaps of one pool and stream, on a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct LiveCount {
    // By kind; each written by the holder of its heap's lock only.
    live: [AtomicU64; 2],
    // Most of them that need no look at other streams.
    ceiling: AtomicU64,
    // Of those live, bytes whose free is in a heap's queue.
    leaving: AtomicU64,
}

impl LiveCount {
    #[inline]
    fn of(&self, kind: Kind) -> &AtomicU64 {
        &self.live[kind as usize]
    }

    #[inline]
    fn bytes(&self) -> u64 {
        let live: u64 = self.live.iter().map(|live| live.load(Ordering::Relaxed)).sum();
        // Who drains a queue takes from both, one after the other.
        live.saturating_sub(self.leaving.load(Ordering::Relaxed))
    }

    /// Live bytes of the heap of one kind, those whose free is queued included.
    pub(crate) fn bytes_of(&self, kind: Kind) -> u64 {
        self.of(kind).load(Ordering::Relaxed)
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

/// The heaps that share a ceiling.
#[derive(Debug)]
struct Member {
    key: HeapKey,
    heaps: u32,
    count: Arc<LiveCount>,
}

impl Member {
    fn has(&self, key: HeapKey) -> bool {
        (self.key.pool, self.key.stream) == (key.pool, key.stream)
    }
}

#[derive(Debug, Default)]
struct Inner {
    members: Vec<Member>,
    peak_bytes: u64,
}

impl Inner {
    fn bytes(&self) -> u64 {
        self.members.iter().map(|member| member.count.bytes()).sum()
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

    /// A stream is over its ceiling.
    #[cold]
    fn share_out(&self) {
        let mut inner = self.inner.lock();
        let bytes = inner.note_peak();
        let share = (inner.peak_bytes - bytes) / inner.members.len().max(1) as u64;
        for member in &inner.members {
            member.count.ceiling.store(member.count.bytes() + share, Ordering::Relaxed);
        }
    }
}

/// A heap's part of the live bytes, for the holder of its lock.
#[derive(Debug)]
pub(crate) struct HeapLive {
    key: HeapKey,
    count: Arc<LiveCount>,
    all: Arc<LiveBytes>,
}

impl HeapLive {
    /// The part of a new heap: nothing is live there yet.
    pub(crate) fn new(key: HeapKey, all: &Arc<LiveBytes>) -> Self {
        let members = &mut all.inner.lock().members;
        let count = match members.iter_mut().find(|member| member.has(key)) {
            Some(member) => {
                member.heaps += 1;
                Arc::clone(&member.count)
            }
            None => {
                let count = Arc::default();
                members.push(Member { key, heaps: 1, count: Arc::clone(&count) });
                count
            }
        };
        Self { key, count, all: Arc::clone(all) }
    }

    /// The count, for those without the lock.
    pub(crate) fn count(&self) -> &Arc<LiveCount> {
        &self.count
    }

    #[inline]
    fn own(&self) -> &AtomicU64 {
        self.count.of(self.key.kind)
    }

    /// Live bytes of the heap, for the holder of its lock: without a look at what is about to be queued.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.own().load(Ordering::Relaxed)
    }

    /// So many bytes more are live.
    #[inline]
    pub(crate) fn add(&self, bytes: u64) {
        self.own().store(self.bytes() + bytes, Ordering::Relaxed);
        if self.count.bytes() > self.count.ceiling.load(Ordering::Relaxed) {
            self.all.share_out();
        }
    }

    /// So many are no longer.
    #[inline]
    pub(crate) fn sub(&self, bytes: u64) {
        self.own().store(self.bytes() - bytes, Ordering::Relaxed);
    }
}

impl Drop for HeapLive {
    fn drop(&mut self) {
        let members = &mut self.all.inner.lock().members;
        if let Some(at) = members.iter().position(|member| member.has(self.key)) {
            members[at].heaps -= 1;
            if members[at].heaps == 0 {
                members.swap_remove(at);
            }
        }
    }
}

#[cfg(test)]
mod tests;
