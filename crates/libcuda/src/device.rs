//! One device: its memory, its context, its streams and its pools.
//!
//! Main types: [`Device`]. Neighbours: `machine` has them all; `exports` call.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, ThreadId};

use concertina_emulator::Detection;

use crate::abi::Handle;
use crate::code::{Code, Outcome};
use crate::control::Execution;
use crate::machine;
use crate::memory::DeviceMemory;
use crate::pool::Pools;
use crate::record::{Event, Record};
use crate::stream::{Stream, StreamKind};
use crate::table::{Table, new_handle};
use crate::work::Work;

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) ordinal: u32,
    pub(crate) memory: Arc<DeviceMemory>,
    pub(crate) execution: Execution,
    /// Whether the emulator is told what work touches, and what comes after what.
    detection: Detection,
    pub(crate) streams: Table<Stream>,
    pub(crate) events: Table<Event>,
    pub(crate) pools: Pools,
    /// The primary context: the same handle as long as the device lives.
    pub(crate) context: Handle,
    /// How often it is retained.
    pub(crate) retained: AtomicU32,
    pub(crate) context_flags: AtomicU32,
    legacy: Arc<Stream>,
    per_thread: Mutex<HashMap<ThreadId, Arc<Stream>>>,
    /// Workers of destroyed streams that may still have work.
    retired: Mutex<Vec<JoinHandle<()>>>,
}

impl Device {
    pub(crate) fn new(ordinal: u32, memory: DeviceMemory, execution: Execution) -> Self {
        let detection = memory.emulator.detection();
        let memory = Arc::new(memory);
        let emulated = memory.emulator.stream();
        let legacy = Stream::new(new_handle(), StreamKind::Legacy, emulated, execution);
        Self {
            ordinal,
            execution,
            detection,
            streams: Table::default(),
            events: Table::default(),
            pools: Pools::new(ordinal, &memory),
            context: new_handle(),
            retained: AtomicU32::new(0),
            context_flags: AtomicU32::new(0),
            legacy: Arc::new(legacy),
            per_thread: Mutex::default(),
            retired: Mutex::default(),
            memory,
        }
    }

    pub(crate) fn legacy_stream(&self) -> Arc<Stream> {
        Arc::clone(&self.legacy)
    }

    /// The calling thread's own default stream.
    pub(crate) fn per_thread_stream(&self) -> Arc<Stream> {
        let mut streams = self.per_thread.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            let emulated = self.memory.emulator.stream();
            Arc::new(Stream::new(new_handle(), StreamKind::Blocking, emulated, self.execution))
        };
        Arc::clone(streams.entry(std::thread::current().id()).or_insert_with(new))
    }

    pub(crate) fn create_stream(&self, kind: StreamKind, flags: u32, priority: i32) -> Handle {
        self.reap();
        let handle = new_handle();
        let emulated = self.memory.emulator.stream();
        let mut stream = Stream::new(handle, kind, emulated, self.execution);
        (stream.flags, stream.priority) = (flags, priority);
        self.streams.insert(handle, Arc::new(stream));
        handle
    }

    /// What is queued will be done, but not waited for.
    pub(crate) fn destroy_stream(&self, handle: Handle) -> Outcome {
        let stream = self.streams.remove(handle)?;
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.extend(stream.close());
        Ok(())
    }

    fn reap(&self) {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner).retain(|worker| !worker.is_finished());
    }

    fn all_streams(&self) -> Vec<Arc<Stream>> {
        let mut streams = self.streams.all();
        streams.extend(self.per_thread.lock().unwrap_or_else(PoisonError::into_inner).values().cloned());
        streams.push(self.legacy_stream());
        streams
    }

    /// Queues work, in the order that the legacy default stream has with those that are not apart from it; or gives it
    /// to the capture that the stream is in.
    pub(crate) fn submit(&self, stream: &Stream, work: Work) -> Outcome {
        if let Some(capture) = stream.capture() {
            return capture.add(stream, work);
        }
        match stream.kind {
            StreamKind::NonBlocking => {}
            StreamKind::Blocking => self.come_after(stream, &self.legacy)?,
            StreamKind::Legacy => {
                for other in self.all_streams() {
                    if other.kind == StreamKind::Blocking {
                        if let Some(capture) = other.capture() {
                            return Err(capture.broken_by(Code::STREAM_CAPTURE_IMPLICIT));
                        }
                        self.come_after(stream, &other)?;
                    }
                }
            }
        }
        if self.detection == Detection::On
            && let Some(work) = work.emulated(&self.memory)?
        {
            self.memory.emulator.queue(&stream.emulated, work);
        }
        stream.submit(work)
    }

    /// What is queued on `stream` from here on comes after what is queued on `other` now.
    fn come_after(&self, stream: &Stream, other: &Stream) -> Outcome {
        if self.detection == Detection::On {
            self.memory.emulator.queue_wait(&stream.emulated, &other.emulated);
        }
        stream.come_after(other)
    }

    /// The host has waited until all that is queued on the stream was done.
    pub(crate) fn saw(&self, stream: &Stream) -> Outcome {
        if self.detection == Detection::On {
            self.memory.emulator.synchronize_stream(&stream.emulated)?;
        }
        Ok(())
    }

    /// A record behind all that is queued on the stream.
    pub(crate) fn mark(&self, stream: &Stream) -> Outcome<Arc<Record>> {
        let record = Record::new();
        self.submit(stream, Work::Record(Arc::clone(&record)))?;
        Ok(record)
    }

    /// Waits for the stream, and for what the legacy stream waits for if it is that.
    pub(crate) fn synchronize_stream(&self, stream: &Stream) -> Outcome {
        match self.execution {
            Execution::AtCall => self.memory.emulator.synchronize_stream(&stream.emulated)?,
            Execution::Workers => {
                if stream.kind != StreamKind::NonBlocking {
                    // Also behind what the default stream makes it wait for.
                    self.mark(stream)?;
                }
                stream.synchronize();
                self.saw(stream)?;
            }
        }
        machine::check_alive()?;
        self.pools.trim_to_thresholds()
    }

    /// Waits for everything, destroyed streams included.
    pub(crate) fn synchronize(&self) -> Outcome {
        self.drain();
        self.memory.emulator.synchronize_device()?;
        machine::check_alive()?;
        self.pools.trim_to_thresholds()
    }

    /// Waits for all work, whatever became of it.
    pub(crate) fn drain(&self) {
        for stream in self.all_streams() {
            stream.synchronize();
        }
        let retired: Vec<_> = self.retired.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect();
        for worker in retired {
            // A worker that panicked is done, too.
            let _ = worker.join();
        }
    }

    /// Ends all workers. The device takes no more work.
    pub(crate) fn shut_down(&self) {
        for stream in self.all_streams() {
            self.retired.lock().unwrap_or_else(PoisonError::into_inner).extend(stream.close());
        }
        self.drain();
    }

    /// Fails unless the context is retained.
    pub(crate) fn check_context(&self) -> Outcome {
        if self.retained.load(Ordering::Acquire) == 0 {
            return Err(Code::CONTEXT_IS_DESTROYED);
        }
        Ok(())
    }
}
