//! The door of every function that the library exports: counted, able to fail on command, and no panic gets out.
//!
//! Main types: [`Symbol`], the macro `entry_points`. Neighbours: `exports` has the functions, `failure` the commands.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::code::{Code, Outcome};
use crate::{capture, failure, machine};

/// Functions that may be unsafe while a stream captures. The manual names only examples of them; these are the calls
/// that take or give back memory, load code, or let the host ask for or wait for work.
const UNSAFE_IN_CAPTURE: &[&str] = &[
    "cuEventQuery",
    "cuEventSynchronize",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
    "cuStreamQuery",
    "cuStreamSynchronize",
];

/// One exported function of the driver.
#[derive(Debug)]
pub(crate) struct Symbol {
    pub(crate) name: &'static str,
    made: AtomicU64,
    failed: AtomicU64,
}

impl Symbol {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, made: AtomicU64::new(0), failed: AtomicU64::new(0) }
    }

    /// Calls made, and those of them that did not answer with success.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.made.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    pub(crate) fn forget_counts(&self) {
        self.made.store(0, Ordering::Relaxed);
        self.failed.store(0, Ordering::Relaxed);
    }

    /// Fails if the function may be unsafe and a capture forbids that to the calling thread.
    fn check_captures(&self) -> Outcome {
        if !capture::is_any() || !UNSAFE_IN_CAPTURE.contains(&self.name) {
            return Ok(());
        }
        machine::get()?.captures.check_unsafe_call()
    }

    /// Makes one call of this function.
    pub(crate) fn enter(&'static self, body: impl FnOnce() -> Outcome) -> u32 {
        self.made.fetch_add(1, Ordering::Relaxed);
        let guarded = AssertUnwindSafe(|| {
            failure::strike(self)?;
            self.check_captures()?;
            body()
        });
        match catch_unwind(guarded).unwrap_or(Err(Code::UNKNOWN)) {
            Ok(()) => Code::SUCCESS.get(),
            Err(code) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                code.get()
            }
        }
    }
}

/// Exports functions of the driver. The body gives an `Outcome`; out pointers are `Option<&mut MaybeUninit<T>>`, which is
/// a C pointer that may be null. That they and all other pointers are what the CUDA manual asks for is the caller's duty,
/// as with every function of C.
macro_rules! entry_points {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {
        #[allow(non_upper_case_globals)]
        mod symbols {
            $(pub(super) static $name: crate::entry::Symbol = crate::entry::Symbol::new(stringify!($name));)*
        }

        /// The functions that this file exports.
        pub(crate) static SYMBOLS: &[&crate::entry::Symbol] = &[$(&symbols::$name),*];

        $(
            #[allow(non_snake_case)]
            #[unsafe(no_mangle)]
            extern "C" fn $name($($arg: $ty),*) -> u32 {
                symbols::$name.enter(move || -> crate::code::Outcome { $body })
            }
        )*
    };
}
pub(crate) use entry_points;

/// Writes a result for the caller.
pub(crate) fn give<T>(out: Out<'_, T>, value: T) -> Outcome {
    let out = out.ok_or(Code::INVALID_VALUE)?;
    out.write(value);
    Ok(())
}

/// Where a caller wants a result: a C pointer that may be null.
pub(crate) type Out<'a, T> = Option<&'a mut core::mem::MaybeUninit<T>>;
