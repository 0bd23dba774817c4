//! The frame store: the frames of one class, who holds each, and those that nobody holds.
//!
//! Main types: [`FrameStore`], [`Holder`]. Neighbours: heaps take frames from here and put them back; segments report
//! every mapping that they make or remove, so that a frame is never released while it is still mapped somewhere.
//!
//! Its lock is taken under a heap's lock and is not held over a driver call. Nothing here takes another one under it;
//! what callers ask of each frame (`wanted`) may take the fences' lock, which is a leaf.

use core::fmt;
use std::collections::BTreeSet;

use crate::device::Device;
use crate::driver::Driver;
use crate::error::{DriverError, Returned};
use crate::fence::Use;
use crate::frame::Frame;
use crate::free_frames::{FreeFrames, FreeKey};
use crate::malloc::Mallocs;
use crate::reservation::Place;
use crate::sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering};
use crate::units::{FrameId, SegmentId};

/// Who holds a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// There is no such frame.
    Nobody,
    /// The store: it is free and no page counts it as its own, or it waits for another try at its release.
    Store,
    /// A page.
    Page(Place),
    /// Somebody who took it and has not placed it yet.
    Thief,
}

#[derive(Debug)]
struct Record {
    holder: Holder,
    // Where it lies among the free, while it is one of them.
    free: Option<FreeKey>,
    // Every page that is mapped to the frame: the one that holds it and the stale ones.
    mappings: BTreeSet<Place>,
}

struct Inner<D: Driver> {
    free: FreeFrames<D>,
    // Frames whose release failed: only for another try at that.
    unreleased: Vec<Frame<D>>,
    records: Vec<Record>,
    unused: Vec<FrameId>,
}

impl Record {
    fn note_taken(&mut self) {
        self.holder = Holder::Thief;
        self.free = None;
    }
}

/// Why no frame was created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// Mapped bytes would exceed the limit.
    #[error("{mapped_bytes} bytes are mapped of a limit of {limit_bytes}")]
    OverLimit {
        /// Bytes mapped now.
        mapped_bytes: u64,
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Why a frame was not released.
#[derive(thiserror::Error)]
pub enum ReleaseError<D: Driver> {
    /// It is still mapped; it comes back.
    #[error("frame {:?} is still mapped", .0.id())]
    Mapped(Frame<D>),
    /// The driver refused; the frame is on the retry list.
    #[error(transparent)]
    Driver(DriverError),
}

impl<D: Driver> fmt::Debug for ReleaseError<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mapped(frame) => f.debug_tuple("Mapped").field(frame).finish(),
            Self::Driver(error) => f.debug_tuple("Driver").field(error).finish(),
        }
    }
}

/// The frames of one class.
pub struct FrameStore<D: Driver> {
    device: Arc<Device<D>>,
    inner: Mutex<Inner<D>>,
    // Where there is no virtual memory: `malloc` has what is done with them.
    pub(crate) mallocs: Mutex<Mallocs<D>>,
    limit_bytes: u64,
    // Bytes of frames that exist or are being created: what the limit bounds.
    claimed_bytes: AtomicU64,
    mapped_bytes: AtomicU64,
    mapped_peak_bytes: AtomicU64,
    // Bytes that were mapped when the driver last had no memory for one more frame; the largest number before that.
    refused_at_bytes: AtomicU64,
}

impl<D: Driver> fmt::Debug for FrameStore<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameStore")
            .field("mapped_bytes", &self.mapped_bytes())
            .field("limit_bytes", &self.limit_bytes)
            .finish_non_exhaustive()
    }
}

/// The store's book of frames, locked, for many questions in a row.
pub struct Directory<'a, D: Driver>(MutexGuard<'a, Inner<D>>);

impl<D: Driver> fmt::Debug for Directory<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory").field("frames", &self.0.records.len()).finish()
    }
}

impl<D: Driver> Directory<'_, D> {
    /// Who holds the frame.
    #[inline]
    pub fn holder(&self, frame: FrameId) -> Holder {
        self.0.records.get(frame.index()).map_or(Holder::Nobody, |record| record.holder)
    }

    /// The free frame with this number, if the store holds it.
    pub fn free_frame(&self, frame: FrameId) -> Option<&Frame<D>> {
        self.0.free.get(self.0.records.get(frame.index())?.free?)
    }

    /// The last uses of the free frames of the store, each once: by stream, and there by tick.
    pub fn free_uses(&self) -> impl Iterator<Item = Use> + '_ {
        self.0.free.uses()
    }

    /// Every page that is mapped to the frame, by segment and page.
    pub fn mappings(&self, frame: FrameId) -> impl ExactSizeIterator<Item = Place> + '_ {
        const NONE: &BTreeSet<Place> = &BTreeSet::new();
        self.0.records.get(frame.index()).map_or(NONE, |record| &record.mappings).iter().copied()
    }
}

impl<D: Driver> FrameStore<D> {
    /// An empty store. `limit_bytes` bounds mapped bytes; `None` leaves that to the device.
    pub fn new(device: &Arc<Device<D>>, limit_bytes: Option<u64>) -> Self {
        let inner = Inner {
            free: FreeFrames::default(),
            unreleased: Vec::new(),
            records: Vec::new(),
            unused: Vec::new(),
        };
        Self {
            device: Arc::clone(device),
            inner: Mutex::new(inner),
            mallocs: Mutex::default(),
            limit_bytes: limit_bytes.unwrap_or(u64::MAX),
            claimed_bytes: AtomicU64::new(0),
            mapped_bytes: AtomicU64::new(0),
            mapped_peak_bytes: AtomicU64::new(0),
            refused_at_bytes: AtomicU64::new(u64::MAX),
        }
    }

    /// The device that the frames are on.
    pub fn device(&self) -> &Arc<Device<D>> {
        &self.device
    }

    /// Bytes of a frame.
    pub fn frame_bytes(&self) -> u64 {
        self.device.granularity()
    }

    /// Bytes of frames not yet given back to the driver, wherever they are; without those that are being created or
    /// released by other threads at this moment.
    pub fn mapped_bytes(&self) -> u64 {
        self.mapped_bytes.load(Ordering::Relaxed)
    }

    /// Most bytes that were mapped at once.
    pub fn mapped_peak_bytes(&self) -> u64 {
        self.mapped_peak_bytes.load(Ordering::Relaxed)
    }

    /// The limit on mapped bytes, if there is one.
    pub fn limit_bytes(&self) -> Option<u64> {
        (self.limit_bytes != u64::MAX).then_some(self.limit_bytes)
    }

    /// Most bytes that are likely to be mapped at once: the limit, or what was mapped when the driver last refused. Asks
    /// nobody; other users of the device may have come or gone since.
    pub fn expected_most_bytes(&self) -> u64 {
        self.limit_bytes.min(self.refused_at_bytes.load(Ordering::Relaxed))
    }

    /// Claims bytes that are to be mapped. Before they are: two threads must not both see the last free place below the
    /// limit. In one step, since bytes claimed in vain and given back would be missing to a third in between.
    pub(crate) fn claim(&self, bytes: u64) -> Result<(), CreateError> {
        let limit_bytes = self.limit_bytes;
        let claim = |claimed: u64| claimed.checked_add(bytes).filter(|sum| *sum <= limit_bytes);
        self.claimed_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim)
            .map(drop)
            .map_err(|mapped_bytes| CreateError::OverLimit { mapped_bytes, limit_bytes })
    }

    /// The claimed bytes are not mapped after all, or not any more.
    pub(crate) fn unclaim(&self, bytes: u64) {
        self.claimed_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Claimed bytes are mapped now.
    pub(crate) fn note_mapped_bytes(&self, bytes: u64) {
        let mapped_bytes = self.mapped_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.mapped_peak_bytes.fetch_max(mapped_bytes, Ordering::Relaxed);
        if mapped_bytes > self.refused_at_bytes.load(Ordering::Relaxed) {
            self.refused_at_bytes.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// The driver is asked to take bytes back. Before the call: as soon as it is done another thread may take others in
    /// their stead, and the two must not be counted together.
    pub(crate) fn note_going_bytes(&self, bytes: u64) {
        self.mapped_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The driver has not taken them.
    pub(crate) fn note_kept_bytes(&self, bytes: u64) {
        self.mapped_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Creates one frame and hands it out.
    ///
    /// # Errors
    /// Over the limit, or what the driver says; nothing has changed then.
    pub fn create(&self) -> Result<Frame<D>, CreateError> {
        let bytes = self.frame_bytes();
        self.claim(bytes)?;
        let id = {
            let mut inner = self.inner.lock();
            inner.unused.pop().unwrap_or_else(|| {
                let number = u32::try_from(inner.records.len()).expect("fewer than 2^32 frames on a device");
                inner.records.push(Record { holder: Holder::Nobody, free: None, mappings: BTreeSet::new() });
                FrameId::new(number)
            })
        };
        match Frame::new(&self.device, id) {
            Ok(frame) => {
                self.inner.lock().records[id.index()].holder = Holder::Thief;
                self.note_mapped_bytes(bytes);
                Ok(frame)
            }
            Err(error) => {
                self.inner.lock().unused.push(id);
                self.unclaim(bytes);
                if error.is_out_of_memory() {
                    self.refused_at_bytes.store(self.mapped_bytes(), Ordering::Relaxed);
                }
                Err(error.into())
            }
        }
    }

    /// Puts free frames into the store, youngest last. Their last uses travel with them.
    pub fn put(&self, frames: impl IntoIterator<Item = Frame<D>>) {
        let inner = &mut *self.inner.lock();
        for frame in frames {
            let record = &mut inner.records[frame.id().index()];
            record.holder = Holder::Store;
            record.free = Some(inner.free.insert(frame));
        }
    }

    /// Takes up to `count` free frames of which every last use is allowed, oldest first, and appends them to `taken`. What
    /// is allowed of a use must be of every earlier one on its stream.
    pub fn take(&self, count: usize, allowed: impl Fn(Use) -> bool, taken: &mut Vec<Frame<D>>) {
        let inner = &mut *self.inner.lock();
        let records = &mut inner.records;
        inner.free.take(count, allowed, |frame| {
            records[frame.id().index()].note_taken();
            taken.push(frame);
        });
    }

    /// Takes the free frame with this number, if the store holds it unpinned and `wanted` agrees.
    pub fn take_frame(&self, frame: FrameId, wanted: impl Fn(&Frame<D>) -> bool) -> Option<Frame<D>> {
        let inner = &mut *self.inner.lock();
        let record = inner.records.get_mut(frame.index())?;
        let key = record.free?;
        inner.free.get(key).filter(|frame| frame.pins() == 0 && wanted(frame))?;
        let taken = inner.free.remove(key)?;
        record.note_taken();
        Some(taken)
    }

    /// Number of free frames in the store.
    pub fn free_frames(&self) -> usize {
        self.inner.lock().free.len()
    }

    /// Number of free frames in the store of which every last use is allowed, as for [`FrameStore::take`].
    pub fn count_free(&self, allowed: impl Fn(Use) -> bool) -> usize {
        self.inner.lock().free.count(allowed)
    }

    /// The last of the last uses of free frames on each stream, by stream.
    pub fn last_free_uses(&self) -> Vec<Use> {
        self.inner.lock().free.last_uses()
    }

    /// The book of frames, for many questions under one lock.
    pub fn directory(&self) -> Directory<'_, D> {
        Directory(self.inner.lock())
    }

    /// Gives a frame back to the driver. Returns its bytes.
    ///
    /// # Errors
    /// `Mapped` hands it back while any page is still mapped to it. When the driver refuses, the frame stays on the
    /// retry list, counted as mapped, and [`FrameStore::retry`] tries again.
    pub fn release(&self, frame: Frame<D>) -> Result<u64, ReleaseError<D>> {
        let id = frame.id();
        if !self.inner.lock().records[id.index()].mappings.is_empty() {
            return Err(ReleaseError::Mapped(frame));
        }
        let bytes = frame.bytes();
        self.note_going_bytes(bytes);
        match frame.release() {
            Ok(()) => {
                self.note_released(id, bytes);
                Ok(bytes)
            }
            Err(Returned { owner, error }) => {
                self.note_kept_bytes(bytes);
                let mut inner = self.inner.lock();
                inner.records[id.index()].holder = Holder::Store;
                inner.unreleased.push(owner);
                Err(ReleaseError::Driver(error))
            }
        }
    }

    /// Tries once more to release the frames whose release failed, and to free such mallocs. Returns the bytes that went.
    pub fn retry(&self) -> u64 {
        let frames = std::mem::take(&mut self.inner.lock().unreleased);
        frames.into_iter().filter_map(|frame| self.release(frame).ok()).sum::<u64>() + self.retry_mallocs()
    }

    /// Number of frames whose release failed and that wait for another try.
    pub fn unreleased_frames(&self) -> usize {
        self.inner.lock().unreleased.len()
    }

    /// Forgets all mappings of a segment that is gone. Those that could not be unmapped are on the device's retry list.
    pub fn forget_mappings(&self, segment: SegmentId) {
        for record in &mut self.inner.lock().records {
            record.mappings.retain(|place| place.segment != segment);
        }
    }

    fn note_released(&self, id: FrameId, bytes: u64) {
        let mut inner = self.inner.lock();
        inner.records[id.index()].holder = Holder::Nobody;
        inner.unused.push(id);
        self.unclaim(bytes);
    }

    pub(crate) fn note_holder(&self, frame: FrameId, holder: Holder) {
        self.inner.lock().records[frame.index()].holder = holder;
    }

    pub(crate) fn note_mapped(&self, frame: FrameId, place: Place) {
        self.inner.lock().records[frame.index()].mappings.insert(place);
    }

    pub(crate) fn note_unmapped(&self, frame: FrameId, place: Place) {
        self.inner.lock().records[frame.index()].mappings.remove(&place);
    }
}
