//! A machine without a driver, or without the device: an error, and no panic of cudarc's.
//!
//! Main types: none. Neighbours: `tests/emulated.rs` has a driver. On its own, since the library that a process has
//! loaded stays loaded.

use concertina_cuda::{Cuda, LoadError, OpenError, load};

#[test]
fn what_is_not_there_is_an_error() {
    match load() {
        Err(LoadError::NotFound { tried, .. }) => {
            assert!(tried.contains(&"libcuda.so.1".to_owned()) || cfg!(windows), "{tried:?}");
            for ordinal in [0, 9_999] {
                let error = Cuda::open(ordinal).unwrap_err();
                assert!(matches!(error, OpenError::Load(LoadError::NotFound { .. })), "{error}");
                assert!(error.to_string().contains("no CUDA driver on this machine"), "{error}");
            }
        }
        // A stub of the toolkit, or an old driver.
        Err(error) => assert_eq!(Cuda::open(0).unwrap_err(), OpenError::Load(error)),
        Ok(()) => {
            let error = Cuda::open(9_999).unwrap_err();
            assert!(matches!(error, OpenError::NoContext { ordinal: 9_999, .. }), "{error}");
        }
    }
}
