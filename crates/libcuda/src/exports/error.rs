//! Names and texts of result codes, and the version.
//!
//! Main types: none. Neighbours: `code` has the texts. These answer whatever has become of the device.

use core::ffi::{c_char, c_int};

use crate::code::Code;
use crate::entry::{Out, entry_points, give};

/// The version of CUDA that the driver says to be: 12.8.
const VERSION: c_int = 12_080;

entry_points! {
    fn cuGetErrorName(code: u32, name: Out<'_, *const c_char>) {
        let (text, _) = Code::texts(code).ok_or(Code::INVALID_VALUE)?;
        give(name, text.as_ptr())
    }

    fn cuGetErrorString(code: u32, plain: Out<'_, *const c_char>) {
        let (_, text) = Code::texts(code).ok_or(Code::INVALID_VALUE)?;
        give(plain, text.as_ptr())
    }

    fn cuDriverGetVersion(version: Out<'_, c_int>) {
        give(version, VERSION)
    }
}
