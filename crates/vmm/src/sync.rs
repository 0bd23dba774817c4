//! The locks and atomics of the library, in one place, so that a test can put them under a scheduler.
//!
//! Main types: [`Mutex`], [`LastingMutex`], [`RwLock`], [`Queue`], [`AtomicU64`]. Neighbours: every crate of the
//! library takes its locks from here. Plain builds use `std`, and a lock of their own (`mutex.rs`); with `--cfg
//! shuttle` the same names come from `shuttle`, which runs a test under many random schedules, and with `--cfg loom`
//! from `loom`, which runs a small one under all of them (`cargo xtask test` does all three).
//!
//! A lock here is not poisoned: a panic while one is held is a bug that the panic itself reports, and refusing every
//! later free would turn one lost block into all of them.

#[cfg(loom)]
use loom::sync as backing;
#[cfg(shuttle)]
use shuttle::sync as backing;
#[cfg(not(any(loom, shuttle)))]
use std::sync as backing;
#[cfg(any(loom, shuttle))]
use std::sync::TryLockError;

#[cfg(any(loom, shuttle))]
pub use backing::MutexGuard;
pub use backing::atomic::{AtomicBool, AtomicU64, Ordering, fence};
pub use backing::{RwLockReadGuard, RwLockWriteGuard};
pub use std::sync::Arc;

#[cfg(not(any(loom, shuttle)))]
mod mutex;
#[cfg(not(any(loom, shuttle)))]
pub use mutex::{Mutex, MutexGuard};

mod lasting;
pub use lasting::{LastingGuard, LastingMutex};

/// Bytes of two cache lines, which processors fetch together: what two threads write should be this far apart, or they
/// slow one another though they share nothing. A small buffer whose begin is in use all the time is made this large; a
/// value in an `Arc` is aligned to it. (128, as in `crossbeam_utils::CachePadded` on x86-64 and aarch64.)
pub const CACHE_LINES_BYTES: usize = 128;

/// A mutual exclusion lock, as a scheduler has it.
#[cfg(any(loom, shuttle))]
#[derive(Debug, Default)]
pub struct Mutex<T>(
    backing::Mutex<T>,
    // Touched with the lock held, and before a try: loom looks at other orders of two steps only if they meet somewhere,
    // and an unlock is no step to it. Without this no try would ever find the lock taken.
    #[cfg(loom)] AtomicU64,
);

#[cfg(any(loom, shuttle))]
impl<T> Mutex<T> {
    /// A lock around `value`.
    pub fn new(value: T) -> Self {
        Self(
            backing::Mutex::new(value),
            #[cfg(loom)]
            AtomicU64::new(0),
        )
    }

    /// Waits for the lock and takes it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let guard = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        #[cfg(loom)]
        self.1.fetch_add(1, Ordering::Relaxed);
        guard
    }

    /// Takes the lock if nobody has it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        #[cfg(loom)]
        self.1.fetch_add(1, Ordering::Relaxed);
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The value, when nobody else can hold the lock.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A lock that many readers or one writer hold.
#[derive(Debug, Default)]
pub struct RwLock<T>(backing::RwLock<T>);

impl<T> RwLock<T> {
    /// A lock around `value`.
    pub fn new(value: T) -> Self {
        Self(backing::RwLock::new(value))
    }

    /// Waits until no writer holds the lock and shares it.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Waits until nobody holds the lock and takes it.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A queue without a lock: many threads push, and whoever holds the lock of what it belongs to pops.
///
/// Plain builds use crossbeam's `SegQueue`. It can't be put under a scheduler, so under `--cfg shuttle` and `--cfg loom` another queue
/// stands in for it, which lets other threads run before each of its steps that they could see.
#[derive(Debug)]
pub struct Queue<T> {
    #[cfg(not(any(loom, shuttle)))]
    items: crossbeam_queue::SegQueue<T>,
    #[cfg(any(loom, shuttle))]
    items: std::sync::Mutex<std::collections::VecDeque<T>>,
    #[cfg(any(loom, shuttle))]
    len: AtomicU64,
}

#[cfg(not(any(loom, shuttle)))]
impl<T> Queue<T> {
    /// Nothing queued.
    pub fn new() -> Self {
        Self { items: crossbeam_queue::SegQueue::new() }
    }

    /// Whether nothing is queued: two loads.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Queues an item. Does not wait.
    pub fn push(&self, item: T) {
        self.items.push(item);
    }

    /// Takes the oldest item.
    pub fn pop(&self) -> Option<T> {
        self.items.pop()
    }
}

#[cfg(any(loom, shuttle))]
impl<T> Queue<T> {
    /// Nothing queued.
    pub fn new() -> Self {
        Self { items: std::sync::Mutex::default(), len: AtomicU64::new(0) }
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.len.load(Ordering::SeqCst) == 0
    }

    /// Queues an item. It is seen once it is counted.
    pub fn push(&self, item: T) {
        self.items().push_back(item);
        self.len.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes the oldest item.
    pub fn pop(&self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        self.len.fetch_sub(1, Ordering::SeqCst);
        self.items().pop_front()
    }

    // Never waits: no other thread runs while it is held.
    fn items(&self) -> std::sync::MutexGuard<'_, std::collections::VecDeque<T>> {
        self.items.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self::new()
    }
}
