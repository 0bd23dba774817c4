//! The functions that the library exports: those of the driver, and ours to control it.
//!
//! Main types: none. Neighbours: `entry` has the door that all pass; each file has the functions of one noun of the manual.

use core::ffi::{CStr, c_char};

use crate::code::{Code, Outcome};
use crate::entry::Symbol;

mod allocation;
mod context;
mod control;
mod copy;
mod error;
mod event;
mod graph;
mod host;
mod launch;
mod pool;
mod stream;
mod vmm;

/// Every function of the driver that is here.
pub(crate) fn symbols() -> impl Iterator<Item = &'static Symbol> {
    let files = [
        allocation::SYMBOLS,
        context::SYMBOLS,
        copy::SYMBOLS,
        error::SYMBOLS,
        event::SYMBOLS,
        graph::SYMBOLS,
        host::SYMBOLS,
        launch::SYMBOLS,
        pool::SYMBOLS,
        stream::SYMBOLS,
        vmm::SYMBOLS,
    ];
    files.into_iter().flatten().copied()
}

/// A text of C's.
///
/// # Safety
/// Null, or a text that ends with a zero and stays while the result is used.
unsafe fn text<'a>(text: *const c_char) -> Outcome<&'a str> {
    if text.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller says so.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Code::INVALID_VALUE)
}

/// Writes as much of a text as there is room for, and a zero behind it.
///
/// # Safety
/// Null, or `length` bytes that may be written.
unsafe fn give_text(text: &str, buffer: *mut c_char, length: usize) -> Outcome {
    if buffer.is_null() || length == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let kept = text.len().min(length - 1);
    // SAFETY: the buffer has room for it, and is C's, not part of the text.
    unsafe { core::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, kept) };
    // SAFETY: `kept` is below the length.
    unsafe { buffer.wrapping_add(kept).write(0) };
    Ok(())
}

/// An array of C's.
///
/// # Safety
/// Null, or `count` valid elements that stay while the result is used.
unsafe fn array<'a, T>(start: *const T, count: usize) -> Outcome<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if start.is_null() || !start.is_aligned() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller says so; it is neither null nor askew.
    Ok(unsafe { core::slice::from_raw_parts(start, count) })
}
