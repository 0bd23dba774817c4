//! The emulator as users and tests hold it: what a test tells it, and what it tells about itself.
//!
//! Main types: [`Emulator`], [`EmulatedHandle`], [`EmulatedEvent`], [`EmulatedStream`]. Neighbours: `driver` has the
//! driver calls, `program` what a program does besides, `device` their rules and effects.

use core::fmt;
use core::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard, PoisonError};

// A driver puts calls that concern one stream in an order, and so do the threads that make them: loom has to know.
#[cfg(loom)]
use concertina_vmm::sync::{Mutex, MutexGuard};
use concertina_vmm::{Address, Capabilities, CaptureStatus};

use crate::backing::{Backing, BackingId, Piece};
use crate::config::{ConfigError, Detection, EmulatorConfig};
use crate::counts::{Counts, Held};
use crate::device::Device;
use crate::fault::Fault;
use crate::rule::BrokenRule;
use crate::slab::Key;

/// One emulated device. A clone is the same device; calls may come from any thread.
#[derive(Clone)]
pub struct Emulator {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    /// Tells this emulator's handles, events and streams from those of others.
    pub(crate) instance: u64,
    pub(crate) capabilities: Capabilities,
    device: Mutex<Device>,
    /// To be read without the device's lock; written under it.
    ns_in_calls: AtomicU64,
}

impl Shared {
    /// No code panics with the lock held and a change half done, so a poisoned lock is as good as another.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Device> {
        #[cfg(loom)]
        return self.device.lock();
        #[cfg(not(loom))]
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more call has taken so long, with the device's lock held.
    pub(crate) fn add_ns_in_calls(&self, ns: u64) {
        self.ns_in_calls
            .store(self.ns_in_calls.load(Ordering::Relaxed).saturating_add(ns), Ordering::Relaxed);
    }
}

/// A handle of physical memory. Forgetting it without a release leaks the memory, as on a device.
#[derive(Debug)]
pub struct EmulatedHandle {
    pub(crate) instance: u64,
    pub(crate) key: Key,
}

impl EmulatedHandle {
    /// The handle as a number above 0, for interfaces that speak in numbers: [`Emulator::handle_from_raw`] gives it
    /// back. Two handles of one frame have the same number.
    pub const fn into_raw(self) -> u64 {
        self.key.to_raw()
    }
}

/// An event; dropping it destroys it.
pub struct EmulatedEvent {
    pub(crate) shared: Arc<Shared>,
    pub(crate) slot: u32,
}

impl Drop for EmulatedEvent {
    fn drop(&mut self) {
        self.shared.lock().timeline.destroy_event(self.slot);
    }
}

impl fmt::Debug for EmulatedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EmulatedEvent").field(&self.slot).finish()
    }
}

/// A stream; a clone is the same stream. It lives as long as its emulator.
#[derive(Clone)]
pub struct EmulatedStream {
    pub(crate) instance: u64,
    pub(crate) index: u32,
    alive: Arc<()>,
}

impl EmulatedStream {
    /// Its number, from 0 in the order in which the emulator's streams were made: as reports name it.
    pub const fn number(&self) -> u32 {
        self.index
    }

    /// How many clones of this value there are, itself among them: who keeps the stream alive.
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.alive)
    }
}

impl PartialEq for EmulatedStream {
    fn eq(&self, other: &Self) -> bool {
        (self.instance, self.index) == (other.instance, other.index)
    }
}

impl Eq for EmulatedStream {}

impl Hash for EmulatedStream {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.instance, self.index).hash(state);
    }
}

impl fmt::Debug for EmulatedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EmulatedStream").field(&self.index).finish()
    }
}

impl fmt::Debug for Emulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emulator").field("held", &self.leaks()).finish_non_exhaustive()
    }
}

impl Emulator {
    /// A device on which nothing is taken.
    ///
    /// # Errors
    /// If no device can have these values.
    pub fn new(config: EmulatorConfig) -> Result<Self, ConfigError> {
        static INSTANCES: AtomicU64 = AtomicU64::new(0);
        config.check()?;
        let capabilities = Capabilities {
            virtual_memory: config.virtual_memory,
            unmap_spans_mappings: config.unmap_spans_mappings,
            max_mappings: config.max_mappings,
        };
        let instance = INSTANCES.fetch_add(1, Ordering::Relaxed);
        let device = Mutex::new(Device::new(config));
        Ok(Self {
            shared: Arc::new(Shared { instance, capabilities, device, ns_in_calls: AtomicU64::new(0) }),
        })
    }

    /// A new stream.
    pub fn stream(&self) -> EmulatedStream {
        let index = self.shared.lock().timeline.add_stream();
        EmulatedStream { instance: self.shared.instance, index, alive: Arc::default() }
    }

    /// The stream with this number, made here if there are fewer: for whoever knows streams by their numbers.
    pub fn nth_stream(&self, number: u32) -> EmulatedStream {
        let mut device = self.shared.lock();
        while device.timeline.stream_count() <= number as usize {
            device.timeline.add_stream();
        }
        EmulatedStream { instance: self.shared.instance, index: number, alive: Arc::default() }
    }

    /// Sets what the driver says of a stream's capture. An event recorded while it is not `None` is a captured one.
    ///
    /// # Panics
    /// If the stream is another emulator's.
    pub fn set_capture_status(&self, stream: &EmulatedStream, status: CaptureStatus) {
        let stream = self.own(stream);
        self.shared.lock().timeline.set_capture(stream, status);
    }

    /// The program queued `operations` further pieces of work.
    pub fn advance(&self, operations: u64) {
        self.shared.lock().timeline.advance(operations);
    }

    /// All that is queued on the stream completes, and all that it waits for: the device has run that far, or as far as it
    /// could if something waits for a signal. The host doesn't know.
    ///
    /// # Panics
    /// If the stream is another emulator's.
    pub fn complete_stream(&self, stream: &EmulatedStream) {
        let stream = self.own(stream);
        let mut device = self.shared.lock();
        let last = device.timeline.last(stream);
        // What blocks was let go, and completes once its signal is sent.
        let _blocked = device.timeline.complete(last);
    }

    /// The event completes, with all queued before it on its stream and all that these wait for, as far as it can. Nothing
    /// to do if it was not recorded.
    ///
    /// # Panics
    /// If the event is another emulator's.
    pub fn complete_event(&self, event: &EmulatedEvent) {
        assert!(Arc::ptr_eq(&self.shared, &event.shared), "an event of another emulator");
        let mut device = self.shared.lock();
        if let Some(record) = device.timeline.record_of(event.slot) {
            let _blocked = device.timeline.complete(record.at);
        }
    }

    /// All that is queued so far completes, as far as it can.
    pub fn complete_all(&self) {
        let _blocked = self.shared.lock().timeline.complete_all();
    }

    /// The handle that a number stands for. Any number gives one: a call with it breaks a rule unless a handle with
    /// this number was made here and not released since.
    pub fn handle_from_raw(&self, raw: u64) -> EmulatedHandle {
        EmulatedHandle { instance: self.shared.instance, key: Key::from_raw(raw) }
    }

    /// One more handle of the frame that is mapped at an address (`cuMemRetainAllocationHandle`), to be released like
    /// one that was created; none if no frame is mapped there. Neither counted as a call nor charged.
    pub fn retain(&self, address: Address) -> Option<EmulatedHandle> {
        let key = self.shared.lock().retain(address.get())?;
        Some(EmulatedHandle { instance: self.shared.instance, key })
    }

    /// Whether the memory with this number ([`BackingId::to_raw`](crate::BackingId::to_raw), [`EmulatedHandle::into_raw`]) is still taken: a
    /// frame is until its last handle and its last mapping have gone.
    pub fn holds(&self, raw: u64) -> bool {
        self.shared.lock().holds(Key::from_raw(raw))
    }

    pub(crate) fn own(&self, stream: &EmulatedStream) -> u32 {
        assert_eq!(self.shared.instance, stream.instance, "a stream of another emulator");
        stream.index
    }

    /// Whether races are looked for.
    pub fn detection(&self) -> Detection {
        if self.shared.lock().detector.is_some() { Detection::On } else { Detection::Off }
    }

    /// Whether a call has said that the device is lost.
    pub fn is_lost(&self) -> bool {
        self.shared.lock().is_lost()
    }

    /// How many mappings a piece of memory has; 0 if it has gone.
    pub fn mappings_of(&self, memory: BackingId) -> u32 {
        self.shared.lock().memory.frames.get(memory.0).map_or(0, |frame| frame.mappings)
    }

    /// Bytes of a piece of memory: of a frame, or of the granules that one malloc or several small ones took; 0 if it has
    /// gone.
    pub fn bytes_of(&self, memory: BackingId) -> u64 {
        self.shared.lock().memory.frames.get(memory.0).map_or(0, |frame| frame.bytes)
    }

    /// Calls are to fail, beside those that were to fail already.
    pub fn fail(&self, fault: Fault) {
        self.shared.lock().faults.add(fault);
    }

    /// No call is to fail any more. A lost device stays lost.
    pub fn clear_faults(&self) {
        self.shared.lock().faults.clear();
    }

    /// Every call that broke a rule, in order. Right users of the driver break none.
    pub fn broken_rules(&self) -> Vec<BrokenRule> {
        self.shared.lock().broken.clone()
    }

    /// What was counted since the emulator was made, or since the counting was restarted.
    pub fn counts(&self) -> Counts {
        self.shared.lock().counts()
    }

    /// Modelled time that the host has spent in driver calls, in nanoseconds: what they cost, and with
    /// [`EventCompletion::ByClock`](crate::EventCompletion::ByClock) also what they waited. Takes no lock, for whoever
    /// reads it often. Counted as [`counts`](Self::counts) are.
    pub fn ns_in_calls(&self) -> u64 {
        // Nothing else is concluded from it.
        self.shared.ns_in_calls.load(Ordering::Relaxed)
    }

    /// Counts calls, waits and times from 0 again, and peaks from what is taken now.
    pub fn restart_counts(&self) {
        let mut device = self.shared.lock();
        device.restart_counts();
        self.shared.ns_in_calls.store(0, Ordering::Relaxed);
    }

    /// What is taken and not given back, from the counters: at the end, the leaks.
    pub fn leaks(&self) -> Held {
        self.shared.lock().held()
    }

    /// Whether everything was given back.
    pub fn is_empty(&self) -> bool {
        self.leaks().is_empty()
    }

    /// The same as [`Emulator::leaks`], counted one by one from the page tables, frames and mallocs. Slow: for tests.
    pub fn recount(&self) -> Held {
        self.shared.lock().recount()
    }

    /// The physical memory behind an address: of a mapping (accessible or not yet) or a live malloc.
    pub fn resolve(&self, address: Address) -> Option<Backing> {
        self.shared.lock().behind(address.get()).0
    }

    /// What is behind a range, in order and without holes: a piece a mapping, a malloc or a gap. `bytes` of 0 gives
    /// none.
    pub fn resolve_range(&self, address: Address, bytes: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.resolve_range_into(address, bytes, &mut pieces);
        pieces
    }

    /// The same into a vector that the caller keeps, whose content goes.
    pub fn resolve_range_into(&self, address: Address, bytes: u64, pieces: &mut Vec<Piece>) {
        pieces.clear();
        let mut device = self.shared.lock();
        let mut at = address.get();
        let end = at.saturating_add(bytes);
        while at < end {
            let (backing, holds) = device.behind(at);
            let bytes = holds.min(end - at);
            pieces.push(Piece { address: Address::new(at), bytes, backing });
            at += bytes;
        }
    }
}

#[cfg(test)]
mod tests;
