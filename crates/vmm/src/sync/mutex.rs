//! The mutual exclusion lock: taken with one atomic operation, let go of with a plain store.
//!
//! Main types: [`Mutex`], [`MutexGuard`]. Neighbours: `sync` has the other locks. Plain builds only: a scheduler's own lock
//! stands in for it under `--cfg shuttle` and `--cfg loom`.
//!
//! A lock of `std` is let go of with an atomic exchange, since that has to see who sleeps. A pair of an allocation and
//! its free takes and releases a heap's lock twice, and each atomic operation costs as much as 20 plain instructions: a
//! pair took 51 ns with that and 46 without (decision 016). Here whoever lets go stores, and then looks whether anybody sleeps. The
//! processor may look before it stores, so that a thread which falls asleep at that very moment may be missed. Therefore
//! nobody falls asleep for good: a sleeper is woken at the next release that sees it, and looks by itself after
//! [`PATIENCE`]. That needs no fence, and no order of events can lose a thread.

use core::fmt;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, PoisonError};
use std::time::Duration;

use crossbeam_utils::Backoff;
use spin::mutex::{SpinMutex, SpinMutexGuard};

/// How long a thread sleeps at most before it looks at the lock again. Locks that are held for long are held over driver
/// calls, of which the longest take milliseconds.
const PATIENCE: Duration = Duration::from_millis(1);

/// Where threads sleep.
#[derive(Debug, Default)]
struct Sleepers {
    sleepers: AtomicU32,
    bed: std::sync::Mutex<()>,
    released: Condvar,
}

impl Sleepers {
    #[cold]
    fn wake(&self) {
        // Whoever is about to sleep has the bed from its last look at the lock on.
        drop(self.bed.lock().unwrap_or_else(PoisonError::into_inner));
        self.released.notify_one();
    }
}

/// A mutual exclusion lock. Not fair, and not poisoned by a panic.
#[derive(Default)]
pub struct Mutex<T> {
    sleepers: Sleepers,
    value: SpinMutex<T>,
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_tuple("Mutex");
        match self.try_lock() {
            Some(value) => shown.field(&*value).finish(),
            None => shown.field(&format_args!("<locked>")).finish(),
        }
    }
}

impl<T> Mutex<T> {
    /// A lock around `value`.
    pub fn new(value: T) -> Self {
        Self { sleepers: Sleepers::default(), value: SpinMutex::new(value) }
    }

    /// Waits for the lock and takes it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        match self.try_lock() {
            Some(guard) => guard,
            None => self.wait(),
        }
    }

    /// Takes the lock if nobody has it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let value = self.value.try_lock()?;
        Some(MutexGuard { value, _release: Release(&self.sleepers) })
    }

    /// For some rounds the holder is expected to be quick, and for some more to be without a processor; then it waits for the
    /// driver.
    #[cold]
    fn wait(&self) -> MutexGuard<'_, T> {
        let backoff = Backoff::new();
        while !backoff.is_completed() {
            backoff.snooze();
            if let Some(guard) = self.try_lock() {
                return guard;
            }
        }
        let Sleepers { sleepers, bed, released } = &self.sleepers;
        sleepers.fetch_add(1, Ordering::SeqCst);
        let mut awake = bed.lock().unwrap_or_else(PoisonError::into_inner);
        let guard = loop {
            if let Some(guard) = self.try_lock() {
                break guard;
            }
            awake = released.wait_timeout(awake, PATIENCE).unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(awake);
        sleepers.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// The value, when nobody else can hold the lock.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

/// The lock, held: lets go when dropped.
// Fields are dropped in this order: the lock is free before a sleeper is woken.
#[must_use = "dropping it lets go of the lock"]
pub struct MutexGuard<'a, T> {
    value: SpinMutexGuard<'a, T>,
    _release: Release<'a>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

struct Release<'a>(&'a Sleepers);

impl Drop for Release<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.sleepers.load(Ordering::Relaxed) > 0 {
            self.0.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn one_at_a_time_has_it() {
        let counted = Mutex::new(0_u64);
        let inside = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let mut count = counted.lock();
                        assert!(!inside.swap(true, Ordering::Relaxed), "two threads have the lock");
                        *count += 1;
                        inside.store(false, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(counted.into_inner(), 80_000);
    }

    #[test]
    fn a_try_finds_it_taken_and_then_free() {
        let lock = Mutex::new(1);
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        assert_eq!(format!("{lock:?}"), "Mutex(<locked>)");
        drop(held);
        assert_eq!(lock.try_lock().as_deref(), Some(&1));
        assert_eq!(format!("{lock:?}"), "Mutex(1)");
    }

    #[test]
    fn sleepers_are_woken_one_after_the_other() {
        let lock = Mutex::new(0);
        let start = Barrier::new(4);
        std::thread::scope(|scope| {
            let held = lock.lock();
            for _ in 0..3 {
                scope.spawn(|| {
                    start.wait();
                    *lock.lock() += 1;
                });
            }
            start.wait();
            // Until all of them have given up to spin.
            while lock.sleepers.sleepers.load(Ordering::SeqCst) < 3 {
                std::thread::yield_now();
            }
            drop(held);
        });
        assert_eq!(*lock.lock(), 3);
        assert_eq!(lock.sleepers.sleepers.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_panic_lets_go_of_it() {
        let lock = Mutex::new(7);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _held = lock.lock();
            panic!("on purpose");
        }));
        assert!(panicked.is_err());
        assert_eq!(*lock.lock(), 7);
    }
}
