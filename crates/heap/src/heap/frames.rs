//! The frames of a heap: which of its pages can give theirs up, and the mappings that stay behind.
//!
//! Main type: [`Heap`], the half of it that deals in frames. Neighbours: `gather` and `trim` take frames from here as
//! owned values.

use concertina_vmm::{Driver, DriverError, Frame, SegmentId, SegmentKind, Use};

use super::Heap;
use crate::idle::Visit;

impl<D: Driver> Heap<D> {
    /// Takes up to `count` frames from idle pages, those idle for longest first, as long as `allowed` agrees to their
    /// last use.
    pub(crate) fn take_idle(
        &mut self,
        count: usize,
        allowed: impl Fn(Use) -> bool,
        taken: &mut Vec<Frame<D>>,
    ) {
        // Pages of malloc segments have no frames; their notes know their last uses.
        if count == 0 || self.pinned || self.segment_kind() == SegmentKind::Malloc {
            return;
        }
        let stream = self.key.stream;
        let before = taken.len();
        let target = before.saturating_add(count);
        self.idle.visit(
            &mut self.arenas,
            |arena| &arena.idle,
            |arena, page, tick| {
                if taken.len() == target {
                    return Visit::Stop;
                }
                let last_use = Use { stream, tick };
                match arena.segment.frame(page) {
                    None => Visit::Taken,
                    Some(frame) if frame.pins() > 0 => Visit::Kept,
                    // Ticks ascend along the queue.
                    Some(_) if !allowed(last_use) => Visit::Stop,
                    Some(_) => {
                        taken.extend(arena.segment.take(page, Some(last_use)));
                        Visit::Taken
                    }
                }
            },
        );
        self.note_given_up(taken.len() - before);
    }

    /// Takes the frame out of one idle page.
    pub(crate) fn take_page(&mut self, arena: u32, page: u32) -> Option<Frame<D>> {
        let last_use = self.last_use(arena, page);
        let arena = &mut self.arenas[arena as usize];
        if !arena.idle.is_idle(page) || self.pinned {
            return None;
        }
        let taken = arena.segment.take(page, Some(last_use));
        self.note_given_up(usize::from(taken.is_some()));
        taken
    }

    /// The last use of an idle page that is held.
    pub(crate) fn last_use(&self, arena: u32, page: u32) -> Use {
        // A page without one never had live bytes.
        let tick = self.arenas[arena as usize].idle.tick(page).unwrap_or_default();
        Use { stream: self.key.stream, tick }
    }

    /// Whether the page is held, idle and not pinned: its frame may be taken.
    #[inline]
    pub(crate) fn is_takeable(&self, arena: u32, page: u32) -> bool {
        let arena = &self.arenas[arena as usize];
        !self.pinned && arena.idle.is_idle(page) && arena.segment.is_takeable(page)
    }

    /// Number of frames that could be taken now, among those to whose last use `allowed` agrees. It agrees to every use
    /// before one that it agrees to.
    pub(crate) fn takeable_frames(&self, allowed: impl Fn(Use) -> bool) -> u64 {
        if self.pinned || self.segment_kind() == SegmentKind::Malloc {
            return 0;
        }
        // No page became idle later than that.
        if allowed(Use { stream: self.key.stream, tick: self.last_tick }) {
            return self.arenas.iter().map(|arena| arena.segment.held_among(arena.idle.bits())).sum();
        }
        let arenas = (0..).zip(&self.arenas);
        arenas
            .map(|(number, arena)| {
                let pages = 0..self.pages_touched(0, arena.extent).end();
                pages
                    .filter(|&page| self.is_takeable(number, page) && allowed(self.last_use(number, page)))
                    .count() as u64
            })
            .sum()
    }

    /// The arena that a segment is in.
    pub(crate) fn arena_of(&self, segment: SegmentId) -> Option<u32> {
        // Segments get ascending numbers, and one that takes another's place its number, too.
        let found = self.arenas.binary_search_by_key(&segment, |arena| arena.segment.id());
        found.ok().map(|number| number as u32)
    }

    /// Unmaps the stale pages among `pages` of one arena whose last use is seen done.
    pub(crate) fn unmap_done(
        &mut self,
        arena: u32,
        mut pages: Vec<u32>,
        done: impl Fn(Use) -> bool,
    ) -> Result<(), DriverError> {
        if !self.launched.is_none_or(&done) {
            return Ok(());
        }
        let segment = &mut self.arenas[arena as usize].segment;
        pages.retain(|&page| segment.stale(page).is_some_and(|(_, last_use)| last_use.is_none_or(&done)));
        pages.sort_unstable();
        pages.dedup();
        segment.unmap_stale(&pages)
    }

    /// The stale pages whose last use is seen done: the tick of that use, the arena and the page.
    pub(crate) fn stale_done(&self, done: impl Fn(Use) -> bool) -> Vec<(u64, u32, u32)> {
        let arenas = (0..).zip(&self.arenas).filter(|_| self.launched.is_none_or(&done));
        arenas
            .flat_map(|(number, arena)| {
                let done = &done;
                arena.segment.stale_pages().filter_map(move |page| {
                    let (_, last_use) = arena.segment.stale(page)?;
                    last_use.is_none_or(done).then(|| (last_use.map_or(0, |use_| use_.tick), number, page))
                })
            })
            .collect()
    }

    /// Unmaps those of the pages, given by arena and number, that are stale and whose last use is seen done.
    pub(crate) fn unmap_pages(
        &mut self,
        pages: impl IntoIterator<Item = (u32, u32)>,
        done: impl Fn(Use) -> bool,
    ) -> Result<(), DriverError> {
        let mut by_arena: Vec<Vec<u32>> = vec![Vec::new(); self.arenas.len()];
        for (arena, page) in pages {
            by_arena[arena as usize].push(page);
        }
        for (arena, pages) in (0..).zip(by_arena) {
            self.unmap_done(arena, pages, &done)?;
        }
        Ok(())
    }

    /// Whether one of the heap's pages or pending blocks waits for work that is not done, and for which: pending blocks
    /// in any case, pages that are held if `idle` says so, stale ones if `stale` does.
    pub(crate) fn unfinished(
        &self,
        done: impl Fn(Use) -> bool,
        idle: impl Fn(Use) -> bool,
        stale: impl Fn(Use) -> bool,
    ) -> Option<Use> {
        let pages = (0..).zip(&self.arenas).flat_map(|(number, arena)| {
            let (idle, stale) = (&idle, &stale);
            (0..self.pages_touched(0, arena.extent).end()).filter_map(move |page| {
                match arena.segment.stale(page) {
                    Some((_, last_use)) => last_use.filter(|use_| stale(*use_)),
                    None if !self.is_takeable(number, page) => None,
                    None => Some(self.last_use(number, page)).filter(|use_| idle(*use_)),
                }
            })
        });
        let unfinished = self.pending_uses().chain(pages).filter(|use_| !done(*use_));
        // Ticks of one stream can be compared; those of several can't, and any will do.
        unfinished.min_by_key(|use_| use_.tick)
    }

    /// Unmaps every stale page whose last use is seen done.
    ///
    /// # Errors
    /// The first failure; pages of other arenas have gone nevertheless.
    pub(crate) fn unmap_all_done(&mut self, done: impl Fn(Use) -> bool) -> Result<(), DriverError> {
        let mut outcome = Ok(());
        for arena in 0..self.arenas.len() as u32 {
            let pages = self.arenas[arena as usize].segment.stale_pages().collect();
            outcome = outcome.and(self.unmap_done(arena, pages, &done));
        }
        outcome
    }
}
