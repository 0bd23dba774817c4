//! Drivers that lack a function: what is said where it is needed, and that others are done without.
//!
//! Main types: none. Neighbours: `src/library.rs` asks for all of them before the first call.
//!
//! Such a driver is a copy of the emulated one in which the name is another. A process that has a driver keeps it, so
//! each is opened by a process of its own, by its name, as programs do.

use std::fs;
use std::path::Path;
use std::process::Command;

use concertina_cuda::{Cuda, LoadError, OpenError, load};
use cudarc::driver::CudaContext;

use crate::library;

/// A copy of the emulated driver at `to` without these functions.
fn write_driver_without(functions: &[&str], to: &Path) {
    let mut file = fs::read(library().path()).unwrap();
    for function in functions {
        let name = [b"\0", function.as_bytes(), b"\0"].concat();
        let starts: Vec<_> =
            file.windows(name.len()).enumerate().filter(|(_, at)| *at == name).map(|(at, _)| at).collect();
        assert!(!starts.is_empty(), "{function} is in no table of names");
        for start in starts {
            // The first letter: the loader compares names after it has compared their hashes.
            file[start + 1] = b'x';
        }
    }
    fs::write(to, file).unwrap();
}

/// Runs an ignored test of this file in a process whose `libcuda.so` lacks these functions.
#[track_caller]
fn passes_without(functions: &[&str], test: &str) {
    let folder = tempfile::tempdir().unwrap();
    write_driver_without(functions, &folder.path().join("libcuda.so"));
    let output = Command::new(std::env::current_exe().unwrap())
        .args([&format!("lacking::{test}"), "--exact", "--ignored"])
        .env("LD_LIBRARY_PATH", folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn a_driver_without_a_function_that_is_needed_is_an_error() {
    passes_without(&["cuMemMap", "cuMemcpyHtoDAsync_v2"], "two_are_missing");
}

#[test]
fn some_functions_are_done_without() {
    passes_without(&["cuDriverGetVersion", "cuThreadExchangeStreamCaptureMode"], "none_is_missed");
}

#[test]
#[ignore = "run by another test in a process of its own, with a driver that lacks two functions"]
fn two_are_missing() {
    let missing = LoadError::TooOld { functions: vec!["cuMemMap", "cuMemcpyHtoDAsync_v2"] };
    let mut said = load().unwrap_err();
    if let LoadError::TooOld { functions } = &mut said {
        functions.sort_unstable();
    }
    assert_eq!(said, missing);
    let text = "the CUDA driver lacks cuMemMap, cuMemcpyHtoDAsync_v2; a driver for CUDA 10.2 (r440) or later is needed";
    assert_eq!(said.to_string(), text);
    assert!(matches!(Cuda::open(0).unwrap_err(), OpenError::Load(LoadError::TooOld { .. })));
    // A program that has made its context already gets it, too.
    let context = CudaContext::new(0).unwrap();
    assert!(matches!(Cuda::new(&context).unwrap_err(), OpenError::Load(LoadError::TooOld { .. })));
}

#[test]
#[ignore = "run by another test in a process of its own, with a driver that lacks two functions"]
fn none_is_missed() {
    load().unwrap();
    let cuda = Cuda::open(0).unwrap();
    assert_eq!(cuda.probe().driver_version, None);
    assert!(cuda.probe().to_string().contains("driver for CUDA      not told"), "{}", cuda.probe());
}
