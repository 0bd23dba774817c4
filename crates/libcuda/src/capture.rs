//! Captures: work on streams that is put into a graph in place of being done.
//!
//! Main types: [`Capture`], [`Captures`], [`Place`], [`Mode`]. Neighbours: `device` gives a capture the work of its
//! streams; `record` has the events in it; `entry` asks before each call whether a capture forbids it; `exports::graph`
//! replays.
//!
//! A graph is the work in the order in which it was queued, on all streams of the capture together. That is one of the
//! orders that the program allows, so a replay is right, if not as fast as on a device.
//!
//! The rules are those of the CUDA driver API (stream management, "stream capture modes"): a capture takes in streams
//! that wait for its events; they must be joined again before its end; nothing outside may be waited for; and calls
//! that may be unsafe are refused, and break captures, by the mode of each capture and that of the calling thread.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::abi::Handle;
use crate::code::{Code, Outcome};
use crate::stream::Stream;
use crate::table::new_handle;
use crate::work::Work;

/// `CUstreamCaptureMode`: of a capture, whom its unsafe calls are forbidden to; of a thread, which captures it heeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// All threads; all captures of this mode, and the thread's own.
    Global,
    /// The thread that began the capture; the thread's own captures.
    ThreadLocal,
    /// Nobody; none.
    Relaxed,
}

impl Mode {
    pub(crate) const fn from_raw(raw: u32) -> Outcome<Self> {
        match raw {
            0 => Ok(Self::Global),
            1 => Ok(Self::ThreadLocal),
            2 => Ok(Self::Relaxed),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// Sets the calling thread's mode and gives the one before.
pub(crate) fn exchange_mode(mode: Mode) -> Mode {
    MODE.replace(mode)
}

/// What `cuStreamIsCapturing` says of a stream in a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Active,
    Invalidated,
}

/// How far each stream of a capture has come, by its handle.
type Reached = HashMap<Handle, u64>;

#[derive(Debug)]
struct State {
    status: Status,
    ended: bool,
    work: Vec<Work>,
    members: Vec<Arc<Stream>>,
    /// Pieces of work that each stream has queued.
    queued: Reached,
    /// What work queued on each stream next comes after.
    known: HashMap<Handle, Reached>,
}

/// One capture, from its begin to its end.
#[derive(Debug)]
pub(crate) struct Capture {
    /// `CUstreamCaptureMode` aside, what the driver tells a program of it.
    pub(crate) id: u64,
    mode: Mode,
    thread: ThreadId,
    origin: Handle,
    state: Mutex<State>,
}

/// A place in a capture, for which an event stands.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) capture: Arc<Capture>,
    known: Reached,
}

fn merge(into: &mut Reached, other: &Reached) {
    for (&stream, &position) in other {
        let known = into.entry(stream).or_default();
        *known = position.max(*known);
    }
}

impl Capture {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn status(&self) -> Status {
        self.state().status
    }

    /// Nothing more can be captured; the end will say so.
    pub(crate) fn invalidate(&self) {
        self.state().status = Status::Invalidated;
    }

    /// Breaks the capture and gives the code for it.
    pub(crate) fn broken_by(&self, code: Code) -> Code {
        self.invalidate();
        code
    }

    fn check_valid(&self) -> Outcome {
        match self.status() {
            Status::Active => Ok(()),
            Status::Invalidated => Err(Code::STREAM_CAPTURE_INVALIDATED),
        }
    }

    /// Takes work in place of its stream.
    pub(crate) fn add(&self, stream: &Stream, work: Work) -> Outcome {
        self.check_valid()?;
        let mut state = self.state();
        let queued = state.queued.entry(stream.handle).or_default();
        *queued += 1;
        let position = *queued;
        state.known.entry(stream.handle).or_default().insert(stream.handle, position);
        state.work.push(work);
        Ok(())
    }

    /// The place behind all that the stream has queued and waits for.
    pub(crate) fn place(self: &Arc<Self>, stream: &Stream) -> Outcome<Place> {
        self.check_valid()?;
        let known = self.state().known.get(&stream.handle).cloned().unwrap_or_default();
        Ok(Place { capture: Arc::clone(self), known })
    }

    /// Whether an unsafe call of this thread, in this mode, is forbidden while the capture lasts.
    fn forbids(&self, mode: Mode) -> bool {
        let own = self.thread == thread::current().id() && self.mode != Mode::Relaxed;
        match mode {
            Mode::Global => own || self.mode == Mode::Global,
            Mode::ThreadLocal => own,
            Mode::Relaxed => false,
        }
    }
}

/// A stream waits for a place in a capture: it becomes part of it, if it is not.
pub(crate) fn join(stream: &Arc<Stream>, place: &Place) -> Outcome {
    let capture = &place.capture;
    capture.check_valid()?;
    match stream.capture() {
        Some(own) if !Arc::ptr_eq(&own, capture) => {
            own.invalidate();
            return Err(capture.broken_by(Code::STREAM_CAPTURE_MERGE));
        }
        Some(_) => {}
        None => {
            let mut state = capture.state();
            if state.ended {
                return Err(Code::CAPTURED_EVENT);
            }
            state.members.push(Arc::clone(stream));
            drop(state);
            stream.set_capture(Some(Arc::clone(capture)));
        }
    }
    merge(capture.state().known.entry(stream.handle).or_default(), &place.known);
    Ok(())
}

/// The captures that have begun and not ended.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    active: Mutex<Vec<Arc<Capture>>>,
}

/// How many there are: no lock is taken for a call while there is none.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);

/// Whether there is any capture.
pub(crate) fn is_any() -> bool {
    ACTIVE.load(Ordering::Acquire) > 0
}

impl Captures {
    fn active(&self) -> MutexGuard<'_, Vec<Arc<Capture>>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins one on a stream that is in none.
    pub(crate) fn begin(&self, stream: &Arc<Stream>, mode: Mode) -> Outcome {
        if stream.capture().is_some() {
            return Err(Code::ILLEGAL_STATE);
        }
        let state = State {
            status: Status::Active,
            ended: false,
            work: Vec::new(),
            members: vec![Arc::clone(stream)],
            queued: Reached::new(),
            known: HashMap::new(),
        };
        let capture = Arc::new(Capture {
            id: new_handle() as u64,
            mode,
            thread: thread::current().id(),
            origin: stream.handle,
            state: Mutex::new(state),
        });
        self.active().push(Arc::clone(&capture));
        ACTIVE.fetch_add(1, Ordering::AcqRel);
        stream.set_capture(Some(capture));
        Ok(())
    }

    /// Ends the one that began on this stream, and gives its work.
    pub(crate) fn end(&self, stream: &Stream) -> Outcome<Vec<Work>> {
        let capture = stream.capture().ok_or(Code::ILLEGAL_STATE)?;
        if capture.origin != stream.handle {
            return Err(capture.broken_by(Code::STREAM_CAPTURE_UNMATCHED));
        }
        if capture.mode != Mode::Relaxed && capture.thread != thread::current().id() {
            return Err(capture.broken_by(Code::STREAM_CAPTURE_WRONG_THREAD));
        }
        self.forget(&capture);
        capture.check_valid()?;
        let mut state = capture.state();
        let known = state.known.get(&stream.handle).cloned().unwrap_or_default();
        let joined =
            |(stream, queued): (&Handle, &u64)| known.get(stream).is_some_and(|known| known >= queued);
        if !state.queued.iter().all(joined) {
            return Err(Code::STREAM_CAPTURE_UNJOINED);
        }
        Ok(std::mem::take(&mut state.work))
    }

    /// Its streams are as before it.
    pub(crate) fn forget(&self, capture: &Arc<Capture>) {
        let mut active = self.active();
        let before = active.len();
        active.retain(|other| !Arc::ptr_eq(other, capture));
        ACTIVE.fetch_sub(before - active.len(), Ordering::AcqRel);
        drop(active);
        let mut state = capture.state();
        state.ended = true;
        for member in std::mem::take(&mut state.members) {
            member.set_capture(None);
        }
    }

    pub(crate) fn forget_all(&self) {
        let all = self.active().clone();
        all.iter().for_each(|capture| self.forget(capture));
    }

    /// Fails if the calling thread makes no unsafe call now; the captures that forbid it are broken.
    pub(crate) fn check_unsafe_call(&self) -> Outcome {
        let mode = MODE.get();
        let mut outcome = Ok(());
        for capture in self.active().iter().filter(|capture| capture.forbids(mode)) {
            outcome = Err(capture.broken_by(Code::STREAM_CAPTURE_UNSUPPORTED));
        }
        outcome
    }

    /// Fails if anything is captured: nobody can wait for all of it. Breaks all captures.
    pub(crate) fn check_wait_for_all(&self) -> Outcome {
        let active = self.active();
        active.iter().for_each(|capture| capture.invalidate());
        if active.is_empty() { Ok(()) } else { Err(Code::STREAM_CAPTURE_UNSUPPORTED) }
    }
}
