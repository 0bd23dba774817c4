//! The program's context, and the one way in which this crate makes a call in it.
//!
//! Main types: [`Context`], [`Entered`]. Neighbours: everything here that calls the driver does it through
//! [`Context::call`]; `status` turns codes into errors; `exit` says when no call is made any more.
//!
//! cudarc's `bind_to_thread` is not used: it first takes the error that an earlier drop has left in the context, which is
//! the program's to see, and would report it as ours.

use core::ffi::c_uint;
use core::fmt;
use core::ptr;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use concertina_vmm::{Call, DriverError, DriverErrorKind};
use cudarc::driver::CudaContext;
use cudarc::driver::sys;

use crate::exit::{UnlessExiting, process_is_exiting};
use crate::functions::{self, Answer};
use crate::status::driver_error;

/// The context that calls are made in, kept alive.
pub(crate) struct Context {
    cuda: UnlessExiting<Arc<CudaContext>>,
    ordinal: u32,
    // A sticky error was seen.
    lost: AtomicBool,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("ordinal", &self.ordinal)
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

impl Context {
    pub(crate) fn new(cuda: &Arc<CudaContext>, ordinal: u32) -> Self {
        Self { cuda: UnlessExiting::new(Arc::clone(cuda)), ordinal, lost: AtomicBool::new(false) }
    }

    pub(crate) fn cuda(&self) -> &Arc<CudaContext> {
        &self.cuda
    }

    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Whether `other` is the same context of the driver, though perhaps another value of cudarc's.
    pub(crate) fn is_same(&self, other: &CudaContext) -> bool {
        self.cuda.cu_ctx() == other.cu_ctx()
    }

    /// Whether no call is to be made any more: the device is lost, or the process is exiting.
    pub(crate) fn is_closed(&self) -> bool {
        self.lost.load(Ordering::Relaxed) || process_is_exiting()
    }

    /// Makes one call, with this context current. `what` says what was asked, for the error; it is only formatted then.
    pub(crate) fn call(
        &self,
        call: Call,
        what: fmt::Arguments<'_>,
        body: impl FnOnce() -> Answer,
    ) -> Result<(), DriverError> {
        let result = self.result(call, body)?;
        self.check(call, result, what)
    }

    /// Makes one call, with this context current, and returns the driver's answer.
    pub(crate) fn result(&self, call: Call, body: impl FnOnce() -> Answer) -> Result<Answer, DriverError> {
        let _entered = self.enter(call)?;
        Ok(body())
    }

    /// An answer as a result.
    pub(crate) fn check(
        &self,
        call: Call,
        result: Answer,
        what: fmt::Arguments<'_>,
    ) -> Result<(), DriverError> {
        if result == Answer::SUCCESS {
            return Ok(());
        }
        let error = driver_error(call, result, what);
        if error.kind == DriverErrorKind::Lost {
            self.lost.store(true, Ordering::Relaxed);
        }
        Err(error)
    }

    /// Makes the context current in this thread until the guard goes.
    fn enter(&self, call: Call) -> Result<Entered<'_>, DriverError> {
        if process_is_exiting() {
            let why = "the process is exiting; no call was made";
            return Err(DriverError::new(DriverErrorKind::Lost, call, why));
        }
        let mut current = ptr::null_mut();
        // SAFETY: `current` is ours and outlives the call.
        let result = unsafe { functions::cuCtxGetCurrent(&raw mut current) };
        self.check(call, result, format_args!("to ask for the thread's context"))?;
        let mut entered =
            Entered { context: self, displaced: ptr::null_mut(), capture_mode: None, thread: PhantomData };
        if current != self.cuda.cu_ctx() {
            // SAFETY: the context is alive, since we hold a count of its owner.
            let result = unsafe { functions::cuCtxSetCurrent(self.cuda.cu_ctx()) };
            self.check(call, result, format_args!("to bind the context of device {}", self.ordinal))?;
            entered.displaced = current;
        }
        if is_unsafe_in_capture(call) {
            entered.capture_mode = exchange_capture_mode(RELAXED).ok();
        }
        Ok(entered)
    }
}

/// Whether the manual may name the call potentially unsafe while a stream captures, in this thread or any other, depending
/// on the mode of the capture: it would fail, and break a capture that it has nothing to do with. In the relaxed mode of
/// the calling thread it may be made. What an allocator must not do in a capture is decided above, not here.
///
/// What is asked of a stream itself needs no such mode, and is the most frequent.
fn is_unsafe_in_capture(call: Call) -> bool {
    !matches!(call, Call::EventRecord | Call::StreamWait | Call::CaptureStatus)
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_uint = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_uint;

/// Sets the calling thread's capture mode, and returns the one before.
fn exchange_capture_mode(mut mode: c_uint) -> Result<c_uint, Answer> {
    // SAFETY: `mode` is ours, holds a mode, and the driver puts another in its place.
    match unsafe { functions::cuThreadExchangeStreamCaptureMode(&raw mut mode) } {
        Answer::SUCCESS => Ok(mode),
        failed => Err(failed),
    }
}

/// The context is current in this thread. When this goes, the thread is as it was, except that a thread without a context
/// keeps this one, as after any call of cudarc's.
struct Entered<'a> {
    context: &'a Context,
    // The context that was current, if it was another one.
    displaced: sys::CUcontext,
    capture_mode: Option<c_uint>,
    // What it undoes belongs to the thread.
    thread: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(mode) = self.capture_mode
            && let Err(answer) = exchange_capture_mode(mode)
        {
            tracing::warn!(?answer, "the thread's capture mode could not be put back");
        }
        if !self.displaced.is_null() {
            // SAFETY: it was current in this thread when the call began; keeping a context alive while it is current is
            // its owner's duty.
            let result = unsafe { functions::cuCtxSetCurrent(self.displaced) };
            if result != Answer::SUCCESS {
                let ordinal = self.context.ordinal;
                tracing::warn!(?result, ordinal, "the thread's own context could not be put back");
            }
        }
    }
}
