//! Whether the process is exiting, after which no driver call is made.
//!
//! Main types: [`UnlessExiting`]; and the function [`process_is_exiting`]. Neighbours: `context` asks before each call;
//! `context` and `stream` keep what cudarc owns in an `UnlessExiting`.
//!
//! Why: owners may be dropped very late, by handlers of the C library's `exit`, by destructors of static objects of a
//! program around us, or by a thread that still runs meanwhile. By then the CUDA driver may have torn itself down, and a
//! call returns an error, hangs or crashes. All device memory goes with the process, so nothing is lost by leaking it.
//! RMM (`process_is_exiting.hpp`) leaks for the same reason.
//!
//! How: `atexit` handlers run last in, first out. Ours is registered once a context exists, so after the driver has
//! registered its own, and runs before them. Destructors of the main thread's thread-locals run before all handlers:
//! then the driver is still there, and calls are made as always.

use core::ffi::c_int;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static EXITING: AtomicBool = AtomicBool::new(false);

// SAFETY: `atexit` as the C standard declares it; the library that std links on every platform CUDA exists on has it.
unsafe extern "C" {
    fn atexit(handler: extern "C" fn()) -> c_int;
}

extern "C" fn note_exit() {
    EXITING.store(true, Ordering::Release);
}

/// Whether the process has begun to exit: from then on this crate makes no driver call, and what is dropped is leaked to
/// the end of the process.
pub fn process_is_exiting() -> bool {
    EXITING.load(Ordering::Acquire)
}

/// Sees to it that the exit of the process is noted. Called when a context exists, so that the driver has registered its
/// own handlers before.
pub(crate) fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handler takes nothing, can't unwind, and touches only a static.
        let refused = unsafe { atexit(note_exit) };
        if refused != 0 {
            tracing::warn!(
                "atexit took no handler; drops while the process exits will still call the driver"
            );
        }
    });
}

/// A value that is dropped, unless the process is exiting.
#[derive(Debug, Clone)]
pub(crate) struct UnlessExiting<T>(ManuallyDrop<T>);

impl<T> UnlessExiting<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T> Deref for UnlessExiting<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for UnlessExiting<T> {
    fn drop(&mut self) {
        if !process_is_exiting() {
            // SAFETY: dropped here only, and never used after: `self` is going.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

#[cfg(test)]
mod tests;
