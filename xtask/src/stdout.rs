//! What commands print: on the standard output, as long as somebody reads it.
//!
//! Main functions: [`write()`]. Neighbours: every command prints with `print!` and `println!`, which are these here and not
//! the standard ones: those panic when the pipe is closed, as `| head` does.

use std::fmt;
use std::io::{self, Write as _};
use std::process;

/// Writes to the standard output. When nobody reads any more, the command is over: a closed pipe is no failure of ours.
pub(crate) fn write(text: fmt::Arguments<'_>) {
    if io::stdout().write_fmt(text).is_err() {
        process::exit(0);
    }
}

macro_rules! print {
    ($($text:tt)*) => { $crate::stdout::write(format_args!($($text)*)) };
}

macro_rules! println {
    () => { $crate::stdout::write(format_args!("\n")) };
    ($($text:tt)*) => { $crate::stdout::write(format_args!("{}\n", format_args!($($text)*))) };
}
