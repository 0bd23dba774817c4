//! The locks and atomics of the library, in one place, so that a test can put them under a scheduler.
//!
//! Main types: [`Mutex`], [`RwLock`], [`AtomicU64`]. Neighbours: every crate of the library takes its locks from here.
//! Plain builds use `std`; with `--cfg shuttle` the same names come from `shuttle`, which runs a test under many
//! random schedules (`cargo xtask test` does both).
//!
//! A lock here is not poisoned: a panic while one is held is a bug that the panic itself reports, and refusing every
//! later free would turn one lost block into all of them.

#[cfg(shuttle)]
use shuttle::sync as backing;
#[cfg(not(shuttle))]
use std::sync as backing;

pub use backing::atomic::{AtomicBool, AtomicU64, Ordering};
pub use backing::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
pub use std::sync::Arc;

/// A mutual exclusion lock.
#[derive(Debug, Default)]
pub struct Mutex<T>(backing::Mutex<T>);

impl<T> Mutex<T> {
    /// A lock around `value`.
    pub fn new(value: T) -> Self {
        Self(backing::Mutex::new(value))
    }

    /// Waits for the lock and takes it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
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
