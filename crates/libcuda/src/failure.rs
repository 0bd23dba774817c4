//! Entry points that fail because the test said so, by the name of the function and the number of the call.
//!
//! Main types: [`Failure`]. Neighbours: `entry` asks before each call; failures by chance are the emulator's own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::code::{Code, Outcome};
use crate::entry::Symbol;
use crate::machine;

/// Calls of one function that are to fail.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) symbol: &'static Symbol,
    /// Calls until the first that fails; 1 is the next.
    pub(crate) countdown: u64,
    pub(crate) repeat: Repeat,
    pub(crate) code: Code,
}

/// How often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// That call only.
    Once,
    /// And all after it.
    Onwards,
}

static ANY: AtomicBool = AtomicBool::new(false);
static FAILURES: Mutex<Vec<Failure>> = Mutex::new(Vec::new());

pub(crate) fn add(failure: Failure) {
    let mut failures = FAILURES.lock().unwrap_or_else(PoisonError::into_inner);
    failures.push(failure);
    ANY.store(true, Ordering::Release);
}

pub(crate) fn clear() {
    let mut failures = FAILURES.lock().unwrap_or_else(PoisonError::into_inner);
    failures.clear();
    ANY.store(false, Ordering::Release);
}

/// Fails if this call is to fail. All failures count the call; the one given first decides.
pub(crate) fn strike(symbol: &'static Symbol) -> Outcome {
    if !ANY.load(Ordering::Acquire) {
        return Ok(());
    }
    let mut failures = FAILURES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut struck = None;
    failures.retain_mut(|failure| {
        if !core::ptr::eq(failure.symbol, symbol) {
            return true;
        }
        failure.countdown = failure.countdown.saturating_sub(1);
        if failure.countdown > 0 || struck.is_some() {
            return true;
        }
        struck = Some(failure.code);
        failure.repeat == Repeat::Onwards
    });
    ANY.store(!failures.is_empty(), Ordering::Release);
    drop(failures);
    let Some(code) = struck else { return Ok(()) };
    if code.is_sticky() {
        machine::lose(code);
    }
    Err(code)
}
