//! Places in streams that others wait for, and the events that programs see.
//!
//! Main types: [`Record`], [`Event`]. Neighbours: `stream` passes records, `exports::event` has the calls.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use concertina_emulator::EmulatedEvent;

/// One place in one stream. Each record of an event makes a new one: whoever waits for an older one waits for that place,
/// wherever the event is recorded next.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// When the stream passed it.
    passed: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Record {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    pub(crate) fn pass(&self) {
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.changed.notify_all();
    }

    /// When the stream passed it, if it has.
    pub(crate) fn passed_at(&self) -> Option<Instant> {
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_passed(&self) -> bool {
        self.passed_at().is_some()
    }

    pub(crate) fn wait(&self) {
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        while passed.is_none() {
            passed = self.changed.wait(passed).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// An event of the program.
#[derive(Debug)]
pub(crate) struct Event {
    /// Of the device that the event belongs to.
    pub(crate) device: u32,
    /// For the counts, and for the truth where work is done at the call.
    pub(crate) emulated: EmulatedEvent,
    /// Times can be taken (the flag `CU_EVENT_DISABLE_TIMING` is not set).
    pub(crate) timed: bool,
    latest: Mutex<Option<Arc<Record>>>,
}

impl Event {
    pub(crate) fn new(device: u32, emulated: EmulatedEvent, timed: bool) -> Self {
        Self { device, emulated, timed, latest: Mutex::default() }
    }

    /// The event stands for this place from now on.
    pub(crate) fn set(&self, record: Arc<Record>) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(record);
    }

    /// What it stands for; nothing if it was never recorded.
    pub(crate) fn latest(&self) -> Option<Arc<Record>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
