//! Pools for graphs: memory that captured work uses, and that stays as it is until no graph needs it any more.
//!
//! Main types: [`GraphPool`], [`Growth`], [`CaptureError`]. Neighbours: `ladder` serves requests, `heap/pinned.rs` has what
//! is different about the heaps; the fences know which streams capture; the face wraps this in handles.
//!
//! A pool has one heap for each stream that captures into it, for blocks of all sizes: its pages never leave, so there
//! is nothing that small blocks should be kept apart from. Its frames are pinned, the free ones too. Nobody takes them,
//! no trim and no budget unmaps them, and no other heap of the pool has them: streams of one capture are not ordered by
//! us.
//!
//! Which order makes a replay right? A block is reused in a capture in the order of its stream, and so in the graph.
//! Frames come into the pool when their last uses are seen done, or, by a reservation before the capture, in the order of
//! the stream. Uses of blocks outside of graphs end with the block, in the order of its stream. So a launch that comes
//! after the last free of each heap and after the launches on other streams finds the memory unused, and
//! [`Heaps::launch`] sees to that.

use core::fmt;

use concertina_vmm::sync::{Arc, Mutex};
use concertina_vmm::{BeginCapture, CaptureStatus, Driver, StreamClock, StreamId, Use, Uses};

use crate::cell::{Freeing, HeapCell};
use crate::error::{AllocateError, CaptureError};
use crate::growable::merge;
use crate::heap::Granted;
use crate::heaps::Heaps;
use crate::step::{Request, STEP_BYTES};

/// Whether a pool for graphs may take more memory while a stream captures into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Growth {
    /// No: a capture has what the pool holds by then, and makes no driver call for memory.
    Held,
    /// Yes: free frames whose last uses are seen done, and new ones, are mapped in the middle of the capture, in the
    /// relaxed mode of the calling thread. Nothing is waited for.
    #[default]
    Create,
}

/// A pool for graphs. Not a handle: [`Heaps::end_graph_pool`] gives it back.
pub struct GraphPool {
    number: u32,
    growth: Growth,
    // Up to here a launch uses the pool's memory. Those before are before it.
    launched: Mutex<Option<Use>>,
}

impl fmt::Debug for GraphPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphPool").field("number", &self.number).field("growth", &self.growth).finish()
    }
}

impl GraphPool {
    /// Whether it may take more memory in a capture.
    pub fn growth(&self) -> Growth {
        self.growth
    }

    /// The pool's number in the keys of its heaps.
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl<D: Driver> Heaps<D> {
    /// A pool for graphs, with no memory yet.
    pub fn add_graph_pool(&self, growth: Growth) -> Arc<GraphPool> {
        Arc::new(GraphPool { number: self.new_pool(), growth, launched: Mutex::default() })
    }

    /// The pool's heap for a stream, made if it does not exist yet.
    pub fn graph_heap(&self, pool: &Arc<GraphPool>, clock: &Arc<StreamClock>) -> Arc<HeapCell<D>> {
        self.add_pool_heap(pool.number, clock, Some(pool))
    }

    fn heaps_of(&self, pool: &GraphPool) -> Vec<Arc<HeapCell<D>>> {
        self.cells_in(pool.number)
    }

    /// Bytes of the pages that the pool holds, on all streams.
    pub fn held_bytes(&self, pool: &GraphPool) -> u64 {
        self.heaps_of(pool).iter().map(|cell| cell.lock().held_bytes()).sum()
    }

    /// The stream captures from now on, or is about to. Where it does not yet, its last event is recorded.
    ///
    /// # Errors
    /// [`CaptureError::Twice`], [`CaptureError::Broken`], [`CaptureError::Driver`].
    pub fn begin_capture(&self, stream: StreamId) -> Result<(), CaptureError> {
        match self.fences.begin_capture(stream)? {
            BeginCapture::Begun => Ok(()),
            BeginCapture::Twice => Err(CaptureError::Twice { stream }),
            BeginCapture::Broken => Err(CaptureError::Broken { stream }),
        }
    }

    /// The stream's capture into the pool has ended. The stream is put behind the last launch of the pool: so is then what
    /// runs on blocks of the capture before their graph is launched.
    ///
    /// # Errors
    /// [`CaptureError::NotEnded`]; the driver is asked again later. [`CaptureError::Driver`].
    pub fn end_capture(&self, pool: &GraphPool, stream: StreamId) -> Result<(), CaptureError> {
        if !self.fences.end_capture(stream)? {
            return Err(CaptureError::NotEnded { stream });
        }
        let launched = *pool.launched.lock();
        Ok(self.put_after(stream, launched.as_slice())?)
    }

    /// Refuses a request that is no hit, where the stream captures and its memory is not of the capture's pool.
    pub(crate) fn check_capture(&self, cell: &HeapCell<D>) -> Result<(), CaptureError> {
        let stream = cell.key().stream;
        if self.fences.look_at_capture(stream)? {
            return if cell.graph_pool().is_some() {
                Ok(())
            } else {
                Err(CaptureError::OtherPool { stream })
            };
        }
        match self.fences.capture_status(stream)? {
            CaptureStatus::None => Ok(()),
            CaptureStatus::Active | CaptureStatus::Invalidated => Err(CaptureError::NoScope { stream }),
        }
    }

    /// Serves a request of a pool that may not grow now: by what comes free with no driver call.
    pub(crate) fn allocate_held(
        &self,
        cell: &HeapCell<D>,
        request: &Request,
    ) -> Result<Granted, CaptureError> {
        let mut heap = cell.lock();
        heap.settle_pending(|use_| self.fences.is_done(use_));
        heap.hit(request).ok_or_else(|| CaptureError::NotHeld {
            stream: cell.key().stream,
            asked_bytes: request.bytes,
            held_bytes: heap.held_bytes(),
            needed_bytes: ((heap.used_steps() + u64::from(request.steps)) * STEP_BYTES + request.alignment
                - STEP_BYTES)
                .next_multiple_of(self.store.frame_bytes()),
        })
    }

    /// Whether a heap may not take memory now.
    pub(crate) fn is_fixed(&self, cell: &HeapCell<D>) -> bool {
        cell.graph_pool().is_some_and(|pool| pool.growth == Growth::Held)
            && self.fences.captures(cell.key().stream)
    }

    /// Sees to it that the pool's heap for a stream holds so many free bytes in one piece. They come as any block's do, in
    /// the order of the stream.
    ///
    /// # Errors
    /// As [`Heaps::allocate`], with [`CaptureError::InCapture`].
    pub fn reserve_in(
        &self,
        pool: &Arc<GraphPool>,
        clock: &Arc<StreamClock>,
        bytes: u64,
    ) -> Result<(), AllocateError> {
        let request = Request::new(bytes, STEP_BYTES)?;
        let stream = clock.stream();
        if self.fences.captures(stream) {
            return Err(CaptureError::InCapture { stream, what: "a reservation" }.into());
        }
        let cell = self.graph_heap(pool, clock);
        let granted = self.allocate(&cell, &request)?;
        // It is live: it was granted just now.
        let _ = self.free(&cell, Freeing { id: granted.id, bytes });
        Ok(())
    }

    /// Launches a graph of the pool: puts the stream behind all that others do with the pool's memory, has `launch` queue
    /// the graph there, and notes that work on the stream up to here uses the memory. The launches of one pool come one
    /// at a time.
    ///
    /// # Errors
    /// [`CaptureError::InCapture`], [`CaptureError::Driver`]; `launch` was not called then.
    pub fn launch<T>(
        &self,
        pool: &GraphPool,
        clock: &StreamClock,
        launch: impl FnOnce() -> T,
    ) -> Result<T, CaptureError> {
        let stream = clock.stream();
        if self.fences.captures(stream) {
            return Err(CaptureError::InCapture { stream, what: "a launch" });
        }
        let mut launched = pool.launched.lock();
        let mut before: Uses = launched.into_iter().collect();
        for cell in self.heaps_of(pool) {
            // What another graph's capture frees was never used.
            let last_free = self.fences.that_runs(cell.lock().last_free());
            merge(&mut before, &[last_free]);
        }
        self.put_after(stream, &before)?;
        let outcome = launch();
        *launched = Some(clock.now());
        Ok(outcome)
    }

    /// No graph needs the pool any more. Its heaps with no live block give up their frames at once, behind the last launch;
    /// the others when their last block is freed. Mappings go when that launch is done.
    pub fn end_graph_pool(&self, pool: &GraphPool) {
        let launched = pool.launched.lock().take();
        for cell in self.heaps_of(pool) {
            cell.end_pool();
            let (retired, unused) = {
                let mut heap = cell.lock();
                heap.let_go_behind(launched);
                (heap.is_retired(), !heap.is_in_use())
            };
            if unused {
                self.finish_pool_heap(&cell);
            }
            if retired {
                self.finish_retired(cell.key().stream);
            }
        }
    }
}

/// The later of each stream's uses.
pub(crate) fn merged(mut uses: Uses, more: &[Use]) -> Uses {
    merge(&mut uses, more);
    uses
}
