//! The driver's library: whether it is there, and which functions it has, asked before cudarc panics over it.
//!
//! Main types: [`LoadError`]; and the function [`load`]. Neighbours: `cuda` asks before it makes a first call.
//!
//! cudarc opens the library at its first call and panics if there is none, and panics too at the first use of a function
//! that the library lacks. Both are asked here first, with a handle of our own on the same library, and answered with
//! an error. cudarc's own handle (`sys::culib`) is not used, since it exists only where cudarc loads dynamically, and
//! an application may choose otherwise.

use core::error::Error;
use std::sync::OnceLock;

use libloading::Library;

use crate::functions;

/// Names that cudarc 0.19 tries too, so that what opens here opens there; in the same order. The emulated driver has the
/// first as its soname, so that it is found once it was opened by path.
#[cfg(windows)]
const NAMES: &[&str] = &["nvcuda.dll"];
#[cfg(not(windows))]
const NAMES: &[&str] = &["libcuda.so", "libcuda.so.1"];

/// Functions that cudarc calls on behalf of this crate and its programs: contexts and streams are its own. Those that
/// this crate calls itself are in `functions`.
const OF_CUDARC: &[&str] = &["cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"];

/// Functions that are done without where they are missing: a version is not told; and a driver without capture modes
/// has no captures that a call could break (both came with CUDA 10.1).
const OPTIONAL: &[&str] = &["cuDriverGetVersion", "cuThreadExchangeStreamCaptureMode"];

/// What must be there. All of it is in drivers for CUDA 10.2 (r440) and later.
fn required() -> impl Iterator<Item = &'static str> {
    let ours = functions::NAMES.iter().filter(|name| !OPTIONAL.contains(name));
    OF_CUDARC.iter().chain(ours).copied()
}

/// Why the driver's library can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No library of the driver on this machine.
    #[error(
        "no CUDA driver on this machine: {} could not be opened ({reason}); install the NVIDIA driver, or open the \
         emulated one first",
        .tried.join(", ")
    )]
    NotFound {
        /// The names tried.
        tried: Vec<String>,
        /// What the loader said of the last.
        reason: String,
    },
    /// The library lacks functions.
    #[error("the CUDA driver lacks {}; a driver for CUDA 10.2 (r440) or later is needed", .functions.join(", "))]
    TooOld {
        /// The functions.
        functions: Vec<&'static str>,
    },
}

static LIBRARY: OnceLock<Library> = OnceLock::new();

/// Opens the driver's library, once, for good, and checks that it has every function that is needed.
///
/// Call it before the first use of cudarc to get an error where cudarc would panic. A failure is not remembered: the next
/// call tries again.
///
/// # Errors
/// [`LoadError`].
pub fn load() -> Result<(), LoadError> {
    let library = match LIBRARY.get() {
        Some(library) => library,
        None => {
            let opened = open(NAMES)?;
            LIBRARY.get_or_init(|| opened)
        }
    };
    let functions: Vec<_> = required().filter(|name| !has(library, name)).collect();
    if functions.is_empty() { Ok(()) } else { Err(LoadError::TooOld { functions }) }
}

/// A function of the library; `None` if it has none of this name, or was not opened yet.
///
/// # Safety
/// `F` is a function pointer, of the type that the function of this name has.
pub(crate) unsafe fn function<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: the caller says so of the type. The library is never closed, so that the pointer stays good.
    unsafe { LIBRARY.get()?.get::<F>(name.as_bytes()) }.ok().map(|found| *found)
}

/// The mapping budget that an emulated driver tells of: it exports a function for that, real drivers don't.
pub(crate) fn emulated_max_mappings() -> Option<u64> {
    let library = LIBRARY.get()?;
    // SAFETY: the name is one that only the emulated driver of this project uses, for a function of this type.
    let function =
        unsafe { library.get::<unsafe extern "C" fn() -> u64>(b"concertina_libcuda_max_mappings\0") }.ok()?;
    // SAFETY: it takes nothing and only reads.
    let most = unsafe { function() };
    (most != 0).then_some(most)
}

fn open(names: &[&str]) -> Result<Library, LoadError> {
    let mut reason = String::new();
    for &name in names {
        // SAFETY: opening runs the library's initialisers. Under these names that is the CUDA driver, which cudarc opens
        // in the same way.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok(library),
            Err(error) => reason = words(&error),
        }
    }
    Err(LoadError::NotFound { tried: names.iter().copied().map(str::to_owned).collect(), reason })
}

/// What the loader said: libloading keeps it in the error's source.
fn words(error: &libloading::Error) -> String {
    let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    format!("{error}{source}")
}

fn has(library: &Library, name: &str) -> bool {
    // SAFETY: the symbol is not used: only whether it is there is asked.
    unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_an_error_that_names_it() {
        let error = open(&["libconcertina_no_such_driver.so", "libconcertina_neither.so.1"]).unwrap_err();
        let LoadError::NotFound { tried, reason } = &error else { panic!("{error}") };
        assert_eq!(tried, &["libconcertina_no_such_driver.so", "libconcertina_neither.so.1"]);
        assert!(reason.contains("libconcertina_neither.so.1"), "{reason}");
        assert!(error.to_string().contains("install the NVIDIA driver"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn functions_are_found_by_name() {
        let library = open(&["libc.so.6"]).unwrap();
        assert!(has(&library, "malloc"));
        assert!(!has(&library, "cuMemMap"));
    }
}
