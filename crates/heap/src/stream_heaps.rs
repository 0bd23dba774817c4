//! The heaps of one stream, and the way of a free by a handle.
//!
//! Main type: [`StreamHeaps`]. Neighbours: handles own references to it, and leave them behind a heap's lock (`references`);
//! `heaps` are all heaps; `cell` is one.

use core::fmt;

use concertina_vmm::sync::Arc;
use concertina_vmm::{Driver, StreamClock};

use crate::cell::{Freeing, HeapCell};
use crate::error::FreeError;
use crate::heap::Granted;
use crate::heap_lock::{HeapGuard, HeapLock};
use crate::heaps::Heaps;
use crate::references::Take;
use crate::step::{Kind, Request};

/// A handle's reference to what its block is to be freed in, and the heap, entered if that did not take a wait.
pub type Unkept<D> = (Arc<StreamHeaps<D>>, Option<HeapGuard<D>>);

/// What handles of a stream's blocks keep alive: the two heaps that the blocks are in, and all others of the allocator.
// Written by whoever counts a reference: on a cache line that other streams don't use.
#[repr(align(128))]
pub struct StreamHeaps<D: Driver> {
    // As `heaps` has it.
    instance: u64,
    heaps: Arc<Heaps<D>>,
    clock: Arc<StreamClock>,
    // By kind, and beside them the locks: at hand.
    cells: [Arc<HeapCell<D>>; 2],
    locks: [&'static HeapLock<D>; 2],
}

impl<D: Driver> fmt::Debug for StreamHeaps<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamHeaps").field("stream", &self.clock.stream()).finish_non_exhaustive()
    }
}

impl<D: Driver> StreamHeaps<D> {
    /// The heaps of a stream in the default pool, made if they do not exist yet.
    pub fn new(heaps: &Arc<Heaps<D>>, clock: &Arc<StreamClock>) -> Self {
        Self::of(heaps, clock, [Kind::Small, Kind::Large].map(|kind| heaps.heap(clock, kind)))
    }

    fn of(heaps: &Arc<Heaps<D>>, clock: &Arc<StreamClock>, cells: [Arc<HeapCell<D>>; 2]) -> Self {
        let locks = [cells[0].lock_itself(), cells[1].lock_itself()];
        let (instance, heaps, clock) = (heaps.instance(), Arc::clone(heaps), Arc::clone(clock));
        Self { instance, heaps, clock, cells, locks }
    }

    /// The same stream with its heap in a graph pool, which has one for all kinds.
    pub fn in_pool(&self, heap: &Arc<HeapCell<D>>) -> Self {
        Self::of(&self.heaps, &self.clock, [Arc::clone(heap), Arc::clone(heap)])
    }

    /// [`Heaps::instance`].
    #[inline]
    pub fn instance(&self) -> u64 {
        self.instance
    }

    /// All heaps of the allocator.
    #[inline]
    pub fn heaps(&self) -> &Arc<Heaps<D>> {
        &self.heaps
    }

    /// The clock of the stream.
    #[inline]
    pub fn clock(&self) -> &Arc<StreamClock> {
        &self.clock
    }

    /// The heap for blocks of this kind.
    #[inline]
    pub fn cell(&self, kind: Kind) -> &Arc<HeapCell<D>> {
        &self.cells[kind as usize]
    }

    /// Serves a request that is the last one of its heap once more: same size, and its block was freed with nothing in between.
    /// Else the heap is entered, and the caller goes on with [`HeapCell::hit_entered`]. Returns the block with a reference for its
    /// handle, if one is wanted and there is one.
    ///
    /// # Errors
    /// The heap, entered.
    #[inline(always)]
    pub fn hit_again(
        &self,
        request: &Request,
        take: Take,
    ) -> Result<(Granted, Option<Arc<Self>>), HeapGuard<D>> {
        let kind = request.kind();
        let mut entered = HeapGuard::lock(self.locks[kind as usize]);
        // Nothing on this way may panic: a guard that has to be dropped then would lie in memory, and not in registers.
        if let Some((heap, references)) = entered.parts()
            && let Some(granted) = self.cell(kind).hit_again_in_entered(heap, request)
        {
            return Ok((granted, references.take(take)));
        }
        Err(entered)
    }

    /// Frees the last block that was served by one of these heaps, and keeps it for a request like that one. Any other is left to
    /// [`StreamHeaps::free_owned_entered`].
    ///
    /// # Errors
    /// The heap, entered if that did not take a wait.
    #[inline(always)]
    pub fn keep(&self, freeing: Freeing) -> Result<(), Option<HeapGuard<D>>> {
        let kind = Kind::of(freeing.bytes);
        let Some(mut entered) = HeapGuard::try_lock(self.locks[kind as usize]) else { return Err(None) };
        if let Some((heap, _)) = entered.parts()
            && self.cell(kind).keep_in_entered(heap, freeing)
        {
            return Ok(());
        }
        Err(Some(entered))
    }

    /// The same for a handle that goes: this reference stays behind for another handle. Any other block, and any where no
    /// reference is kept, is left to [`StreamHeaps::free_entered_and_leave`].
    ///
    /// # Errors
    /// This reference, and the heap as above.
    #[inline(always)]
    pub fn keep_and_leave(self: Arc<Self>, freeing: Freeing) -> Result<(), Unkept<D>> {
        let kind = Kind::of(freeing.bytes);
        let cell = self.cell(kind);
        let Some(mut entered) = HeapGuard::try_lock(self.locks[kind as usize]) else {
            return Err((self, None));
        };
        if let Some((heap, references)) = entered.parts()
            && references.has_room()
            && cell.keep_in_entered(heap, freeing)
        {
            references.put(self);
            return Ok(());
        }
        Err((self, Some(entered)))
    }

    /// Frees a block of one of these heaps, as [`Heaps::free`].
    ///
    /// # Errors
    /// As [`Heaps::free`].
    #[inline(always)]
    pub fn free(&self, freeing: Freeing) -> Result<(), FreeError> {
        self.keep(freeing).or_else(|entered| self.free_entered(entered, freeing))
    }

    // Apart from the ways above, which are short.
    #[inline(never)]
    fn free_entered(&self, entered: Option<HeapGuard<D>>, freeing: Freeing) -> Result<(), FreeError> {
        self.heaps.free_entered(self.cell(Kind::of(freeing.bytes)), entered, freeing)
    }

    /// Frees a block of one of these heaps that nobody else has a name for: it is live, and no second free of it can come.
    ///
    /// # Errors
    /// As [`Heaps::free`]; in a heap of many blocks what is wrong may be logged instead.
    #[inline(always)]
    pub fn free_owned(&self, freeing: Freeing) -> Result<(), FreeError> {
        self.keep(freeing).or_else(|entered| self.free_owned_entered(entered, freeing))
    }

    /// The same of a block that [`StreamHeaps::keep`] did not take.
    ///
    /// # Errors
    /// As [`StreamHeaps::free_owned`].
    #[inline(never)]
    pub fn free_owned_entered(
        &self,
        entered: Option<HeapGuard<D>>,
        freeing: Freeing,
    ) -> Result<(), FreeError> {
        let cell = self.cell(Kind::of(freeing.bytes));
        let Some(mut entered) = entered else { return self.heaps.free_entered(cell, None, freeing) };
        if cell.free_owned_in_entered(&mut entered, freeing)? {
            drop(entered);
            self.heaps.finish_last_block(cell.key());
        }
        Ok(())
    }

    /// Frees a block that [`StreamHeaps::keep_and_leave`] did not take, and leaves this reference behind if one is kept.
    ///
    /// # Errors
    /// As [`StreamHeaps::free_owned`].
    // What `free_owned_entered` does, and not by it: the heap would come back from there in memory.
    #[inline]
    pub fn free_entered_and_leave(
        self: Arc<Self>,
        entered: Option<HeapGuard<D>>,
        freeing: Freeing,
    ) -> Result<(), FreeError> {
        let cell = self.cell(Kind::of(freeing.bytes));
        let Some(mut entered) = entered else { return self.heaps.free_entered(cell, None, freeing) };
        if cell.free_owned_in_entered(&mut entered, freeing)? {
            drop(entered);
            self.heaps.finish_last_block(cell.key());
            return Ok(());
        }
        if let Some((_, references)) = entered.parts()
            && references.make_room()
        {
            references.put(self);
            return Ok(());
        }
        // The reference may be the last one, and take the heap with it, whose lock must be free then.
        drop(entered);
        drop(self);
        Ok(())
    }
}
