//! The control functions as they are found in the loaded file.
//!
//! Main types: [`Functions`], [`OpenFile`]. Neighbours: `load` opens the file, `library` calls the functions.

use core::ffi::{CStr, c_char, c_void};
use core::mem::MaybeUninit;
use std::ffi::CString;
use std::ptr::NonNull;

use crate::abi::{RawConfig, RawCounts, RawHeld, RawKernel, RawPiece};

/// A file that the dynamic loader has opened, and that stays to the end of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenFile(NonNull<c_void>);

// SAFETY: the loader's handle may be used from any thread, and the file is never closed.
unsafe impl Send for OpenFile {}
// SAFETY: as above.
unsafe impl Sync for OpenFile {}

impl OpenFile {
    /// Opens the file with this name or path; if `flags` say so, only if it is open already.
    pub(super) fn open(name: &CStr, flags: i32) -> Result<Self, String> {
        // SAFETY: the file's initialisers run, as the program asks for by naming it. Ours does nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | flags) };
        NonNull::new(handle).map(Self).ok_or_else(last_error)
    }

    /// The address of what the file exports under a name.
    pub(super) fn find(self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is of an open file.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

fn last_error() -> String {
    // SAFETY: the text belongs to the loader and is only valid until the thread's next call of it; it is copied at once.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return String::new();
    }
    // SAFETY: it is not null, and ends with a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

macro_rules! functions {
    ($($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// All of them.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Functions {
            $(pub(super) $name: extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl Functions {
            /// Finds all of them, or tells the name of the one that isn't there.
            pub(super) fn find(file: OpenFile) -> Result<Self, &'static str> {
                $(
                    let name = concat!("concertina_libcuda_", stringify!($name));
                    let found = CString::new(name).ok().and_then(|name| file.find(&name)).ok_or(name)?;
                    // SAFETY: a file that exports a name of ours is a build of this library, whose function has just
                    // this type: `load` has compared the version first.
                    let $name = unsafe {
                        core::mem::transmute::<*mut c_void, extern "C" fn($($arg),*) $(-> $ret)?>(found.as_ptr())
                    };
                )*
                Ok(Self { $($name),* })
            }
        }
    };
}

functions! {
    reset: fn(&RawConfig) -> u32;
    max_mappings: fn() -> u64;
    counts: fn(u32, &mut MaybeUninit<RawCounts>) -> u32;
    ns_in_calls: fn(u32) -> u64;
    restart_counts: fn(u32) -> u32;
    held: fn(u32, &mut MaybeUninit<RawHeld>) -> u32;
    resolve: fn(u32, u64, u64, *mut RawPiece, usize) -> usize;
    broken_rules: fn(u32, *mut c_char, usize) -> usize;
    races: fn(u32, *mut c_char, usize) -> usize;
    calls: fn(*const c_char, &mut MaybeUninit<u64>, &mut MaybeUninit<u64>) -> u32;
    fail: fn(*const c_char, u64, u32, u32) -> u32;
    fail_with_number: fn(*const c_char, u64, u32) -> u32;
    fail_by_chance: fn(u32, u64, u32) -> u32;
    clear_failures: fn();
    lose: fn(u32) -> u32;
    advance: fn(u64);
    complete_all: fn();
    register_kernel: fn(&RawKernel) -> u32;
}
