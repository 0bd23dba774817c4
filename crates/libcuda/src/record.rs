//! Places in streams that others wait for, and the events that programs see.
//!
//! Main types: [`Record`], [`Event`]. Neighbours: `stream` passes records, `exports::event` has the calls.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use concertina_emulator::EmulatedEvent;

use crate::capture::Place;

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
    stands_for: Mutex<StandsFor>,
}

/// What an event was recorded at last.
#[derive(Debug, Default)]
enum StandsFor {
    #[default]
    Nothing,
    Record(Arc<Record>),
    Captured(Place),
}

impl Event {
    pub(crate) fn new(device: u32, emulated: EmulatedEvent, timed: bool) -> Self {
        Self { device, emulated, timed, stands_for: Mutex::default() }
    }

    /// The event stands for this place from now on.
    pub(crate) fn set(&self, record: Arc<Record>) {
        *self.lock() = StandsFor::Record(record);
    }

    /// The event stands for this place of a capture from now on.
    pub(crate) fn capture(&self, place: Place) {
        *self.lock() = StandsFor::Captured(place);
    }

    /// The place of a capture that it stands for.
    pub(crate) fn captured(&self) -> Option<Place> {
        match &*self.lock() {
            StandsFor::Captured(place) => Some(place.clone()),
            _ => None,
        }
    }

    /// The place in a stream that it stands for, if it does.
    pub(crate) fn latest(&self) -> Option<Arc<Record>> {
        match &*self.lock() {
            StandsFor::Record(record) => Some(Arc::clone(record)),
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, StandsFor> {
        self.stands_for.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
