//! The exit of a process of its own, seen from a handler that runs after ours.
//!
//! Main types: none. Neighbours: `exit`.

use std::process::Command;

use super::*;

/// The exit status by which the child says that all was as it should be.
const AS_IT_SHOULD_BE: c_int = 42;

// SAFETY: `_exit` as POSIX and Microsoft's C library declare it.
unsafe extern "C" {
    fn _exit(status: c_int) -> !;
}

/// Set for the child, which ends its process.
const IS_CHILD: &str = "CONCERTINA_EXIT_TEST_CHILD";

static DROPPED: AtomicBool = AtomicBool::new(false);

struct Noted;

impl Drop for Noted {
    fn drop(&mut self) {
        DROPPED.store(true, Ordering::Release);
    }
}

/// Registered before ours, so it runs after it, as the driver's own handlers do.
extern "C" fn look() {
    drop(UnlessExiting::new(Noted));
    let well = process_is_exiting() && !DROPPED.load(Ordering::Acquire);
    // SAFETY: ends the process; nothing else is wanted of it.
    unsafe { _exit(if well { AS_IT_SHOULD_BE } else { 1 }) }
}

/// The child: not a test by itself.
#[test]
#[ignore = "run by `what_is_dropped_at_exit_is_leaked`, in a process of its own"]
fn child() {
    if std::env::var_os(IS_CHILD).is_none() {
        return;
    }
    // SAFETY: the handler takes nothing and can't unwind.
    assert_eq!(unsafe { atexit(look) }, 0);
    watch();
    watch();
    assert!(!process_is_exiting());
    drop(UnlessExiting::new(Noted));
    assert!(DROPPED.swap(false, Ordering::AcqRel), "dropped as always before the exit");
    std::process::exit(2);
}

#[test]
fn what_is_dropped_at_exit_is_leaked() {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "exit::tests::child", "--ignored", "--nocapture"])
        .env(IS_CHILD, "1")
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(AS_IT_SHOULD_BE));
    assert!(!process_is_exiting());
}
