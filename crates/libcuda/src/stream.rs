//! Streams: queues of work, each with one worker thread that does it in order.
//!
//! Main types: [`Stream`], [`StreamKind`], [`Execution`]. Neighbours: `work` says what is done;
//! `device` keeps the streams and the order between the legacy stream and the others.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use concertina_emulator::EmulatedStream;

use crate::abi::Handle;
use crate::capture::Capture;
use crate::code::{Code, Outcome};
use crate::control::Execution;
use crate::machine;
use crate::record::Record;
use crate::work::Work;

/// How a stream stands to the legacy default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// The legacy default stream itself.
    Legacy,
    /// Ordered with it.
    Blocking,
    /// Not ordered with it.
    NonBlocking,
}

#[derive(Debug)]
struct Queue {
    work: VecDeque<Work>,
    submitted: u64,
    done: u64,
    /// No more comes; the worker ends when it has done what is there.
    closed: bool,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) handle: Handle,
    pub(crate) kind: StreamKind,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// For the counts, and for the truth where work is done at the call.
    pub(crate) emulated: EmulatedStream,
    capture: Mutex<Option<Arc<Capture>>>,
    execution: Execution,
    shared: Arc<Shared>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl Shared {
    /// No code panics with the lock held: work runs outside of it.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        loop {
            let mut queue = self.lock();
            let next = loop {
                if let Some(next) = queue.work.pop_front() {
                    break next;
                }
                if queue.closed {
                    return;
                }
                queue = self.wait(queue);
            };
            drop(queue);
            match next {
                // Passed and done at once: whoever sees one sees the other.
                Work::Record(record) => {
                    let mut queue = self.lock();
                    record.pass();
                    queue.done += 1;
                }
                work => {
                    run(work);
                    self.lock().done += 1;
                }
            }
            self.changed.notify_all();
        }
    }
}

/// Does one piece of work; one that fails takes the device with it, and what comes after is dropped, except for the order.
fn run(work: Work) {
    if machine::is_lost() && !work.is_order() {
        return;
    }
    if let Err(code) = work.run() {
        machine::lose(code);
    }
}

impl Stream {
    pub(crate) fn new(
        handle: Handle,
        kind: StreamKind,
        emulated: EmulatedStream,
        execution: Execution,
    ) -> Self {
        let queue = Queue { work: VecDeque::new(), submitted: 0, done: 0, closed: false };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), changed: Condvar::new() });
        let (capture, worker) = (Mutex::default(), Mutex::default());
        Self { handle, kind, flags: 0, priority: 0, emulated, capture, execution, shared, worker }
    }

    /// The capture that takes the stream's work, if it is in one.
    pub(crate) fn capture(&self) -> Option<Arc<Capture>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_capture(&self, capture: Option<Arc<Capture>>) {
        *self.capture.lock().unwrap_or_else(PoisonError::into_inner) = capture;
    }

    /// For calls that a stream in a capture can't take: they fail and break it.
    pub(crate) fn check_not_capturing(&self) -> Outcome {
        match self.capture() {
            Some(capture) => Err(capture.broken_by(Code::STREAM_CAPTURE_UNSUPPORTED)),
            None => Ok(()),
        }
    }

    /// Puts work behind all that is queued. Where work is done at the call, it is done when this returns.
    pub(crate) fn submit(&self, work: Work) -> Outcome {
        if self.execution == Execution::AtCall {
            run(work);
            return Ok(());
        }
        self.start()?;
        let mut queue = self.shared.lock();
        if queue.closed {
            return Err(Code::INVALID_HANDLE);
        }
        queue.submitted += 1;
        queue.work.push_back(work);
        drop(queue);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Starts the worker if there is none yet.
    fn start(&self) -> Outcome {
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.is_none() {
            let shared = Arc::clone(&self.shared);
            let builder = std::thread::Builder::new().name(format!("stream-{:x}", self.handle));
            let thread = builder.spawn(move || shared.serve()).map_err(|_| Code::OPERATING_SYSTEM)?;
            *worker = Some(thread);
        }
        Ok(())
    }

    /// Whether all that is queued is done.
    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.shared.lock();
        queue.done == queue.submitted
    }

    /// Waits for all that is queued now.
    pub(crate) fn synchronize(&self) {
        let mut queue = self.shared.lock();
        let goal = queue.submitted;
        while queue.done < goal {
            queue = self.shared.wait(queue);
        }
    }

    /// A record behind all that is queued.
    pub(crate) fn mark(&self) -> Outcome<Arc<Record>> {
        let record = Record::new();
        self.submit(Work::Record(Arc::clone(&record)))?;
        Ok(record)
    }

    /// What is queued here from now on comes after what is queued on `other` now.
    pub(crate) fn come_after(&self, other: &Self) -> Outcome {
        if other.is_idle() {
            return Ok(());
        }
        let record = other.mark()?;
        self.submit(Work::Wait(record))
    }

    /// Takes no more work. What is queued will be done; the worker's thread is given out to be waited for.
    pub(crate) fn close(&self) -> Option<JoinHandle<()>> {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        self.worker.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
