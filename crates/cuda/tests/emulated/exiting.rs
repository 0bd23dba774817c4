//! The end of the process: what is dropped by late handlers makes no call.
//!
//! Main types: none. Neighbours: `src/exit.rs`, whose own tests need no driver.

use core::ffi::c_int;
use std::process::Command;
use std::sync::{Arc, Mutex};

use concertina_cuda::{Cuda, Event, Stream, process_is_exiting};
use concertina_vmm::{Driver, DriverErrorKind};
use cudarc::driver::CudaContext;

use crate::{Machine, PAGE, library, small, stream};

/// Set for the child, which ends its process.
const IS_CHILD: &str = "CONCERTINA_CUDA_EXIT_TEST_CHILD";

/// The exit status by which the child says that all was as it should be.
const AS_IT_SHOULD_BE: c_int = 42;

// SAFETY: as the C standard and POSIX declare them.
unsafe extern "C" {
    fn atexit(handler: extern "C" fn()) -> c_int;
    fn _exit(status: c_int) -> !;
}

type Owned = (Event, Stream, Cuda, Arc<CudaContext>);

static LATE: Mutex<Option<Owned>> = Mutex::new(None);

fn calls_of_all_functions() -> [u64; 6] {
    let functions = [
        "cuCtxGetCurrent",
        "cuCtxSetCurrent",
        "cuEventDestroy_v2",
        "cuMemCreate",
        "cuStreamDestroy_v2",
        "cuMemUnmap",
    ];
    functions.map(|function| library().calls(function).unwrap())
}

/// Registered before ours, so it runs after it, as the driver's own handlers do.
extern "C" fn drop_late() {
    let Some((event, stream, cuda, context)) = LATE.lock().unwrap().take() else { return };
    let before = calls_of_all_functions();
    let refused = cuda.create(PAGE, &crate::FRAME).map(drop).map_err(|error| error.kind);
    drop((event, stream, cuda));
    let well =
        process_is_exiting() && refused == Err(DriverErrorKind::Lost) && calls_of_all_functions() == before;
    // What the program itself drops late is not ours to stop.
    std::mem::forget(context);
    // SAFETY: ends the process; nothing else is wanted of it.
    unsafe { _exit(if well { AS_IT_SHOULD_BE } else { 1 }) }
}

#[test]
#[ignore = "run by `late_drops_make_no_call`, in a process of its own"]
fn child() {
    if std::env::var_os(IS_CHILD).is_none() {
        return;
    }
    // SAFETY: the handler takes nothing and can't unwind out of C: a panic in it ends the process, and fails the test.
    assert_eq!(unsafe { atexit(drop_late) }, 0);
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    let owned = (cuda.event_create().unwrap(), stream(&context), cuda, context);
    *LATE.lock().unwrap() = Some(owned);
    assert!(!process_is_exiting());
    std::process::exit(2);
}

#[test]
fn late_drops_make_no_call() {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "exiting::child", "--ignored", "--nocapture"])
        .env(IS_CHILD, "1")
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(AS_IT_SHOULD_BE));
}
