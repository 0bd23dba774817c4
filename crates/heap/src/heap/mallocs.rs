//! The malloc segments of a heap: how they come, which are empty, and how they leave.
//!
//! Main types: [`Empty`], and the half of [`Heap`] that deals in mallocs. Neighbours: `malloc_ladder` and `trim` take empty
//! ones as owned values. Only where there is no virtual memory.
//!
//! A malloc segment is one hole when it comes, so that all of it is found as the best fit: there is no tail. When it leaves,
//! its arena stays without pages, and the next one takes its place.

use concertina_vmm::{Address, Driver, Malloc, PageRange, Segment, SegmentId, SegmentKind, Use, Uses};

use super::Heap;
use crate::block::{BlockState, NONE};
use crate::graph::merged;
use crate::heap::Arena;

/// A malloc segment with no block in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Empty {
    pub(crate) arena: u32,
    pub(crate) address: Address,
    pub(crate) bytes: u64,
    pub(crate) last_use: Use,
}

impl<D: Driver> Heap<D> {
    /// Adds a malloc as one large hole. The heap's stream comes after its last uses.
    pub(crate) fn add_malloc(&mut self, malloc: Malloc<D>, new_id: impl FnOnce() -> SegmentId) {
        let number = match self.vacant() {
            Some(number) => {
                self.arenas[number].segment.put_malloc(malloc);
                number
            }
            None => {
                self.add_arena(Segment::of_malloc(new_id(), &self.store, malloc));
                self.arenas.len() - 1
            }
        };
        let tick = self.clock.now().tick;
        let Arena { segment, idle, last, extent } = &mut self.arenas[number];
        // Whoever takes it from here waits for this stream, and so for those that it has just been put behind.
        idle.restart();
        self.idle.push(idle, PageRange::between(0, segment.pages()), tick);
        *extent = segment.pages() << self.page_shift;
        *last = self.blocks.append(number as u32, NONE, 0, *extent, BlockState::Hole);
        let hole = *last;
        self.index(hole);
    }

    /// The malloc segments with no block in them, unless they are pinned.
    pub(crate) fn empty_mallocs(&self) -> impl Iterator<Item = Empty> + '_ {
        let arenas = (0..)
            .zip(&self.arenas)
            .filter(|(_, arena)| !self.pinned && !arena.is_vacant() && self.is_empty(arena));
        arenas.map(|(number, arena)| {
            let last_use = Use { stream: self.key.stream, tick: arena.idle.last_tick() };
            let (address, bytes) = (arena.segment.address(), arena.segment.bytes());
            Empty { arena: number, address, bytes, last_use }
        })
    }

    /// Takes the malloc of an arena out of the heap, with its last use, if no block is in it.
    pub(crate) fn take_malloc(&mut self, number: u32) -> Option<Malloc<D>> {
        let arena = &self.arenas[number as usize];
        if !self.is_empty(arena) {
            return None;
        }
        let tick = arena.idle.last_tick();
        let mut malloc = self.arenas[number as usize].segment.take_malloc()?;
        malloc.set_uses(Uses::from_iter([Use { stream: self.key.stream, tick }]));
        self.restart(number);
        Some(malloc)
    }

    /// Takes all empty segments. Of a pinned heap, too: nobody else gets any of it in between.
    pub(crate) fn give_up_empty(&mut self) -> Vec<Malloc<D>> {
        if self.segment_kind() == SegmentKind::Reserved {
            return Vec::new();
        }
        let pinned = std::mem::take(&mut self.pinned);
        let empty: Vec<u32> = self.empty_mallocs().map(|empty| empty.arena).collect();
        let mut mallocs: Vec<_> = empty.into_iter().filter_map(|arena| self.take_malloc(arena)).collect();
        self.pinned = pinned;
        for malloc in &mut mallocs {
            malloc.set_uses(merged(malloc.uses().clone(), self.launched.as_slice()));
        }
        mallocs
    }

    /// Bytes of pages of malloc segments with no live bytes in them.
    pub(crate) fn idle_malloc_bytes(&self) -> u64 {
        let idle = |arena: &Arena<D>| {
            (0..arena.segment.pages()).filter(|&page| arena.idle.is_idle(page)).count() as u64
        };
        self.arenas.iter().map(idle).sum::<u64>() * self.store.frame_bytes()
    }
}
