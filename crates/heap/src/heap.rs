//! One heap: the blocks of one pool, one stream and one kind, and the segments that they lie in.
//!
//! Main types: [`Heap`], [`HeapKey`], [`Granted`]. Neighbours: `plan` finds a place and says what its pages need;
//! `ladder` gets the frames; `heaps` owns all heaps of a device. Everything here happens under the heap's lock, and
//! nothing here reaches into another heap.

mod deferred;
mod figures;
mod frames;
mod growth;
mod last_hit;
mod mallocs;
mod pending;
mod pinned;
mod vacant;

use core::fmt;
use std::collections::HashMap;

use concertina_vmm::sync::{Arc, AtomicU64};
use concertina_vmm::{
    Address, Driver, FrameStore, PageRange, Segment, SegmentKind, StreamClock, StreamId, Use, Uses,
};

use self::deferred::Deferred;
pub(crate) use self::figures::SeenDone;
use self::last_hit::LastHit;
use self::pending::{PendingBlock, PendingBlocks};
use crate::bins::{BIN_STEPS, Bins};
use crate::block::{Block, BlockState, BlockTable, NONE};
use crate::block_id::BlockId;
use crate::error::FreeError;
use crate::hole_index::{Found, Hole, HoleIndex};
use crate::idle::{ArenaIdle, IdlePages};
use crate::live::{HeapLive, LiveBytes};
use crate::plan::MISFITS;
use crate::step::{Kind, Request, STEP_BYTES};

/// The pool of all heaps but those of growables, which have one each, and of graph pools.
pub const DEFAULT_POOL: u32 = 0;

/// Which blocks may serve one another with no wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeapKey {
    /// The pool: the default one, that of one growable, or one for graphs.
    pub pool: u32,
    /// The stream.
    pub stream: StreamId,
    /// The kind of blocks.
    pub kind: Kind,
}

/// A block as it is handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Granted {
    /// Its name in the heap.
    pub id: BlockId,
    /// Its first address.
    pub address: Address,
}

/// A segment with what placement keeps about it.
pub(crate) struct Arena<D: Driver> {
    pub(crate) segment: Segment<D>,
    pub(crate) idle: ArenaIdle,
    /// The block with the highest address, or [`NONE`].
    pub(crate) last: u32,
    /// Where that block ends, in steps: behind it lies the tail, which no block has reached yet.
    pub(crate) extent: u32,
}

impl<D: Driver> Arena<D> {
    /// One with no block yet.
    pub(crate) fn new(segment: Segment<D>) -> Self {
        Self { segment, idle: ArenaIdle::default(), last: NONE, extent: 0 }
    }

    /// Whether its segment has no pages any more: it has given its addresses, or its malloc, up.
    pub(crate) fn is_vacant(&self) -> bool {
        self.segment.pages() == 0
    }
}

/// The blocks of one key.
pub struct Heap<D: Driver> {
    key: HeapKey,
    clock: Arc<StreamClock>,
    store: Arc<FrameStore<D>>,
    // A page has two to the power of this many steps.
    page_shift: u32,
    pub(crate) arenas: Vec<Arena<D>>,
    pub(crate) blocks: BlockTable,
    pub(crate) holes: HoleIndex,
    bins: Bins,
    idle: IdlePages,
    last_hit: LastHit,
    deferred: Deferred,
    // Uses on other streams, of live blocks.
    recorded: HashMap<u32, Uses>,
    pending: PendingBlocks,
    pending_bytes: u64,
    live_blocks: u64,
    live: HeapLive,
    // Steps of blocks that are no holes.
    used_steps: u64,
    // Bytes of held pages, for those without the lock.
    held_bytes: Arc<AtomicU64>,
    // The stream's tick at the last free, or later: every use of a block that is no longer live ended by then.
    last_tick: u64,
    retired: bool,
    // Once nobody has the heap any more: what its mappings that are left wait behind.
    seen_done: Option<SeenDone>,
    // Whether a growable or a graph pool has the heap, with or without bytes in it.
    in_hand: bool,
    // Whether nobody may have the heap's frames: it is a graph pool's.
    pinned: bool,
    // The launch of a graph that the memory of a pool which has ended is behind.
    launched: Option<Use>,
}

impl<D: Driver> fmt::Debug for Heap<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap")
            .field("key", &self.key)
            .field("live_blocks", &self.live_blocks)
            .field("segments", &self.arenas.len())
            .field("holes", &self.holes.len())
            .finish_non_exhaustive()
    }
}

impl<D: Driver> Heap<D> {
    pub(crate) fn new(
        key: HeapKey,
        clock: &Arc<StreamClock>,
        store: &Arc<FrameStore<D>>,
        live: &Arc<LiveBytes>,
        deferred_from_blocks: u64,
    ) -> Self {
        // A granularity is a power of two; one under a step is refused when the heaps are made.
        let page_shift = store.frame_bytes().ilog2().saturating_sub(STEP_BYTES.ilog2());
        Self {
            key,
            clock: Arc::clone(clock),
            store: Arc::clone(store),
            page_shift,
            arenas: Vec::new(),
            blocks: BlockTable::default(),
            holes: HoleIndex::default(),
            bins: Bins::default(),
            idle: IdlePages::default(),
            last_hit: LastHit::default(),
            deferred: Deferred::from_blocks(deferred_from_blocks),
            recorded: HashMap::new(),
            pending: PendingBlocks::default(),
            pending_bytes: 0,
            live_blocks: 0,
            live: HeapLive::new(key, live),
            used_steps: 0,
            held_bytes: Arc::default(),
            last_tick: 0,
            retired: false,
            seen_done: None,
            in_hand: key.pool != DEFAULT_POOL,
            pinned: false,
            launched: None,
        }
    }

    /// Its key.
    pub fn key(&self) -> HeapKey {
        self.key
    }

    /// Where its segments get their memory.
    pub(crate) fn segment_kind(&self) -> SegmentKind {
        self.store.device().segment_kind()
    }

    pub(crate) fn steps_per_page(&self) -> u32 {
        1 << self.page_shift
    }

    /// The page that a step begins, or that lies behind it.
    #[inline]
    fn page_from(&self, step: u32) -> u32 {
        (step + (self.steps_per_page() - 1)) >> self.page_shift
    }

    /// The pages that the steps `start..end` touch.
    #[inline]
    pub(crate) fn pages_touched(&self, start: u32, end: u32) -> PageRange {
        PageRange::between(start >> self.page_shift, self.page_from(end))
    }

    #[inline]
    fn address(&self, arena: u32, start: u32) -> Address {
        self.arenas[arena as usize].segment.address().add(u64::from(start) * STEP_BYTES)
    }

    /// Serves the request from a bin, or from the best fit if all its pages are held. No driver call either way.
    #[inline]
    pub(crate) fn hit(&mut self, request: &Request) -> Option<Granted> {
        if request.alignment == STEP_BYTES
            && let Some(block) = self.bins.pop(request.steps)
        {
            return Some(self.grant(block, request));
        }
        if request.alignment == STEP_BYTES {
            let found = self.holes.best(request.steps)?;
            let (arena, start) = (found.hole.arena(), found.hole.start());
            let pages = self.pages_touched(start, start + request.steps);
            let arena = &mut self.arenas[arena as usize];
            if !arena.segment.all_held(pages) {
                return None;
            }
            arena.idle.set_busy(pages);
            let block = self.take_found(found, request.steps);
            return Some(self.grant(block, request));
        }
        let (hole, start) = self.best_fit(request)?;
        let pages = self.pages_touched(start, start + request.steps);
        if !self.arenas[hole.arena() as usize].segment.all_held(pages) {
            return None;
        }
        let block = self.take_from_hole(hole, start, request.steps);
        Some(self.grant(block, request))
    }

    /// Cuts `steps` off the begin of a hole that was found just now. Its pages are busy already.
    #[inline]
    fn take_found(&mut self, found: Found, steps: u32) -> u32 {
        let (hole, block) = (found.hole, found.hole.block());
        if hole.steps() > steps {
            let rest = self.blocks.split(block, steps);
            let last = &mut self.arenas[hole.arena() as usize].last;
            if *last == block {
                *last = rest;
            }
            let rest = Hole::new(hole.steps() - steps, hole.arena(), hole.start() + steps, rest);
            self.holes.replace_at(found, rest);
        } else {
            self.holes.take(found);
        }
        self.used_steps += u64::from(steps);
        block
    }

    /// The best fit, whether its pages are held or not, and where in it the request begins.
    pub(crate) fn best_fit(&self, request: &Request) -> Option<(Hole, u32)> {
        if request.alignment == STEP_BYTES {
            return self.holes.best(request.steps).map(|found| (found.hole, found.hole.start()));
        }
        // Where nothing looks further once memory is short, every hole is looked at.
        let all = self.pinned || self.segment_kind() == SegmentKind::Malloc;
        self.fits(request, if all { usize::MAX } else { MISFITS }).next()
    }

    /// Where in the hole the request begins, if it fits with its alignment.
    pub(crate) fn fit(&self, hole: &Hole, request: &Request) -> Option<u32> {
        let start = self.align(hole.arena(), hole.start(), request.alignment)?;
        (start - hole.start() <= hole.steps() - request.steps).then_some(start)
    }

    /// The first step at or after `start` whose address is a multiple of `alignment` bytes.
    pub(crate) fn align(&self, arena: u32, start: u32, alignment: u64) -> Option<u32> {
        if alignment == STEP_BYTES {
            return Some(start);
        }
        let base = self.arenas[arena as usize].segment.address().get();
        let address = base + u64::from(start) * STEP_BYTES;
        u32::try_from((address.next_multiple_of(alignment) - base) / STEP_BYTES).ok()
    }

    /// Cuts `steps` at `start` out of an indexed hole; what is left on either side stays a hole.
    pub(crate) fn take_from_hole(&mut self, hole: Hole, start: u32, steps: u32) -> u32 {
        self.holes.remove(hole);
        let mut block = hole.block();
        if start > hole.start() {
            let rest = self.split(block, start - hole.start());
            self.index(block);
            block = rest;
        }
        if self.blocks.get(block).steps > steps {
            let rest = self.split(block, steps);
            self.index(rest);
        }
        self.set_busy(block);
        block
    }

    #[inline]
    fn split(&mut self, block: u32, steps: u32) -> u32 {
        let rest = self.blocks.split(block, steps);
        let &Block { arena, next, .. } = self.blocks.get(rest);
        if next == NONE {
            self.arenas[arena as usize].last = rest;
        }
        rest
    }

    #[inline]
    fn index(&mut self, block: u32) {
        self.holes.insert(self.hole(block));
    }

    #[inline]
    fn hole(&self, number: u32) -> Hole {
        let block = self.blocks.get(number);
        Hole::new(block.steps, block.arena, block.start, number)
    }

    #[inline]
    fn set_busy(&mut self, number: u32) {
        let block = self.blocks.get_mut(number);
        block.set_state(BlockState::Claimed);
        let (arena, start, end) = (block.arena, block.start, block.end());
        let pages = self.pages_touched(start, end);
        self.arenas[arena as usize].idle.set_busy(pages);
        self.used_steps += u64::from(end - start);
    }

    /// Takes `steps` at `start` from the tail of an arena: behind its last block, or over it if that is a hole. Returns
    /// the block.
    pub(crate) fn take_from_tail(&mut self, arena: u32, start: u32, steps: u32) -> u32 {
        let Arena { last, extent, .. } = self.arenas[arena as usize];
        let last_is_hole = last != NONE && self.blocks.get(last).is(BlockState::Hole);
        let block = if last_is_hole {
            self.holes.remove(self.hole(last));
            let hole_start = self.blocks.get(last).start;
            if start == hole_start {
                self.blocks.get_mut(last).steps = steps;
                last
            } else {
                self.blocks.get_mut(last).steps = start - hole_start;
                self.index(last);
                self.blocks.append(arena, last, start, steps, BlockState::Claimed)
            }
        } else {
            let mut before = last;
            if start > extent {
                before = self.blocks.append(arena, last, extent, start - extent, BlockState::Hole);
                self.index(before);
            }
            self.blocks.append(arena, before, start, steps, BlockState::Claimed)
        };
        let state = &mut self.arenas[arena as usize];
        state.last = block;
        state.extent = start + steps;
        self.set_busy(block);
        block
    }

    /// Hands a claimed or binned block out.
    #[inline]
    pub(crate) fn grant(&mut self, number: u32, request: &Request) -> Granted {
        let block = self.blocks.get_mut(number);
        block.set(BlockState::Live, request.bytes);
        let (arena, start, generation) = (block.arena, block.start, block.generation);
        self.count(request.bytes);
        Granted { id: BlockId::new(number, generation), address: self.address(arena, start) }
    }

    /// A block of so many bytes is live.
    #[inline]
    fn count(&mut self, bytes: u64) {
        self.live_blocks += 1;
        self.live.add(bytes);
    }

    /// A block is freed at the stream's tick `tick`. A free that was queued may be older than the last one.
    #[inline]
    fn note_tick(&mut self, tick: u64) {
        if tick > self.last_tick {
            self.finish_deferred();
            self.last_tick = tick;
        }
    }

    /// A block of so many bytes is live no longer.
    #[inline]
    fn count_off(&mut self, bytes: u64) {
        self.live_blocks -= 1;
        self.live.sub(bytes);
    }

    /// Adds a segment for more blocks.
    pub(crate) fn add_arena(&mut self, segment: Segment<D>) {
        self.arenas.push(Arena::new(segment));
    }

    /// Takes a claimed block back.
    pub(crate) fn abandon(&mut self, block: u32) {
        self.release(block);
    }

    #[inline]
    fn check_live(&self, id: BlockId) -> Result<(), FreeError> {
        match self.blocks.find(id.number()) {
            Some(block) if block.is(BlockState::Live) && block.generation == id.generation() => Ok(()),
            _ => Err(FreeError::not_live(id)),
        }
    }

    /// Notes that work on another stream uses a live block up to `use_`.
    pub(crate) fn record(&mut self, id: BlockId, use_: Use) -> Result<(), FreeError> {
        self.check_live(id)?;
        if use_.stream == self.key.stream {
            return Ok(());
        }
        let uses = self.recorded.entry(id.number()).or_default();
        match uses.iter_mut().find(|known| known.stream == use_.stream) {
            Some(known) => known.tick = known.tick.max(use_.tick),
            None => uses.push(use_),
        }
        Ok(())
    }

    /// Uses of a live block on other streams.
    pub(crate) fn recorded_mut(&mut self, id: BlockId) -> Option<&mut Uses> {
        self.check_live(id).ok()?;
        self.recorded.get_mut(&id.number())
    }

    /// Whether any live block is used on other streams.
    pub(crate) fn has_recorded(&self) -> bool {
        !self.recorded.is_empty()
    }

    /// Frees a block in the order of the heap's stream, at its tick `tick`. One that other streams still use becomes
    /// pending.
    #[inline]
    pub(crate) fn free(
        &mut self,
        id: BlockId,
        tick: u64,
        done: impl Fn(Use) -> bool,
    ) -> Result<(), FreeError> {
        self.check_live(id)?;
        let number = id.number();
        let block = self.blocks.get_mut(number);
        block.generation = block.generation.wrapping_add(1);
        let (bytes, steps) = (block.bytes(), block.steps);
        self.note_tick(tick);
        self.count_off(bytes);
        if self.recorded.is_empty() {
            self.put_back_later(number, steps);
        } else {
            let mut uses = self.forget_recorded(number);
            uses.retain(|use_| !done(*use_));
            self.give_up(number, uses);
        }
        Ok(())
    }

    fn forget_recorded(&mut self, number: u32) -> Uses {
        if self.recorded.is_empty() { Uses::new() } else { self.recorded.remove(&number).unwrap_or_default() }
    }

    /// A block is live no more; it is pending as long as there are such uses on other streams.
    fn give_up(&mut self, number: u32, uses: Uses) {
        let block = self.blocks.get_mut(number);
        if uses.is_empty() {
            let steps = block.steps;
            self.put_back(number, steps);
        } else {
            block.set_state(BlockState::Pending);
            self.pending_bytes += block.bytes();
            self.pending.push(PendingBlock { block: number, uses });
        }
    }

    #[inline]
    fn put_back(&mut self, number: u32, steps: u32) {
        if !self.put_in_bin(number, steps) {
            self.release(number);
        }
    }

    /// Returns whether there is a bin for such a block, with room.
    #[inline]
    fn put_in_bin(&mut self, number: u32, steps: u32) -> bool {
        let binned = self.key.kind == Kind::Small
            && steps <= BIN_STEPS
            && !self.retired
            && self.bins.push(number, steps);
        if binned {
            self.blocks.get_mut(number).set_state(BlockState::Binned);
        }
        binned
    }

    /// Turns a block into a hole and coalesces it with its neighbours. The pages that are in the hole as a whole now
    /// are idle from now on.
    fn release(&mut self, number: u32) {
        let block = self.blocks.get_mut(number);
        block.set(BlockState::Hole, 0);
        let Block { arena, start, steps, prev, next, .. } = *block;
        let end = start + steps;
        self.used_steps -= u64::from(steps);
        let (before, behind) = (self.hole_if(prev), self.hole_if(next));
        let mut hole = Hole::new(steps, arena, start, number);
        if let Some(behind) = behind {
            hole = Hole::new(steps + behind.steps(), arena, start, number);
            self.blocks.absorb_next(number);
        }
        if let Some(before) = before {
            hole = Hole::new(before.steps() + hole.steps(), arena, before.start(), before.block());
            self.blocks.absorb_next(before.block());
        }
        if let (Some(_), Some(behind)) = (before, behind) {
            self.holes.remove(behind);
        }
        match before.or(behind) {
            Some(old) => self.holes.replace(old, hole),
            None => self.holes.insert(hole),
        }

        let shift = self.page_shift;
        let mut hole_end = (hole.start() + hole.steps()) >> shift;
        if self.blocks.get(hole.block()).next == NONE {
            self.arenas[arena as usize].last = hole.block();
            // Behind the last block there is nothing but the tail, so the page that it ends in is empty, too.
            hole_end = self.page_from(hole.start() + hole.steps());
        }
        let first = self.page_from(hole.start()).max(start >> shift);
        let last = hole_end.min(self.page_from(end));
        if first < last {
            self.set_idle(arena, PageRange::between(first, last));
        }
    }

    /// The hole with this number, if it is one and not [`NONE`].
    #[inline]
    fn hole_if(&self, number: u32) -> Option<Hole> {
        let block = self.blocks.find(number).filter(|block| block.is(BlockState::Hole))?;
        Some(Hole::new(block.steps, block.arena, block.start, number))
    }

    #[inline]
    fn set_idle(&mut self, arena: u32, pages: PageRange) {
        let state = &mut self.arenas[arena as usize];
        self.idle.push(&mut state.idle, pages, self.last_tick);
    }

    #[inline]
    fn absorb_next(&mut self, number: u32) {
        self.blocks.absorb_next(number);
        let &Block { arena, next, .. } = self.blocks.get(number);
        if next == NONE {
            self.arenas[arena as usize].last = number;
        }
    }

    /// Whether a block lies in a bin.
    pub(crate) fn has_bins(&self) -> bool {
        !self.bins.is_empty()
    }

    /// Turns every block in a bin into a hole.
    pub(crate) fn empty_bins(&mut self) {
        for block in self.bins.empty() {
            self.release(block);
        }
    }
}
