//! Idle pages: pages with no live bytes, in the order in which they became so.
//!
//! Main types: [`IdlePages`], [`ArenaIdle`]. Neighbours: a heap marks pages here when a hole comes to cover them, and asks
//! for the oldest ones when frames are wanted.
//!
//! A free adds one run of pages, whatever its length. Pages that were used since are not looked for in the queue: each
//! page carries the stamp of its last run, and a run that is reached later finds by it which of its pages still count.

use std::collections::VecDeque;

use bitvec::vec::BitVec;
use concertina_vmm::sync::CACHE_LINES_BYTES;
use concertina_vmm::{PageRange, page_bits};

#[derive(Clone, Copy, Debug)]
struct Run {
    stamp: u64,
    // The stream's tick when they became idle: their last use.
    tick: u64,
    arena: u32,
    pages: PageRange,
}

/// Which pages of one arena are idle, and since when.
#[derive(Debug, Default)]
pub(crate) struct ArenaIdle {
    idle: BitVec<u64>,
    // By page, the run that it became idle in; 0 for a page that never had live bytes.
    stamps: Vec<u64>,
}

impl ArenaIdle {
    #[inline]
    fn grow_to(&mut self, pages: u32) {
        if self.stamps.len() < pages as usize {
            self.grow(pages as usize);
        }
    }

    /// No page is known: what there was before has gone.
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }

    #[cold]
    fn grow(&mut self, pages: usize) {
        let pages = pages.next_multiple_of(STAMPS);
        if self.idle.is_empty() {
            self.idle.reserve(8 * CACHE_LINES_BYTES);
        }
        // A page that was never used is idle.
        self.idle.resize(pages, true);
        self.stamps.resize(pages, 0);
    }

    /// Whether the page has no live bytes.
    #[inline]
    pub(crate) fn is_idle(&self, page: u32) -> bool {
        page_bits::get(&self.idle, page) != Some(false)
    }

    /// The first page of the run that is idle since then.
    fn next_of(&self, run: &Run, from: u32) -> Option<u32> {
        let stamps = &self.stamps[PageRange::between(from, run.pages.end()).indices()];
        // Most pages that are not, have another stamp.
        let since = |&(page, stamp): &(u32, &u64)| *stamp == run.stamp && self.is_idle(page);
        (from..).zip(stamps).find(since).map(|(page, _)| page)
    }

    /// The bit of each page that is idle; those behind the end are.
    pub(crate) fn bits(&self) -> &BitVec<u64> {
        &self.idle
    }

    /// The pages now have live bytes.
    #[inline]
    pub(crate) fn set_busy(&mut self, pages: PageRange) {
        self.grow_to(pages.end());
        page_bits::clear(&mut self.idle, pages);
    }
}

/// Number of pages by which the bitmap and the stamps grow: few growths, and no two heaps' stamps on one cache line.
const STAMPS: usize = CACHE_LINES_BYTES / size_of::<u64>();

/// Runs that are not worth a look.
const FEW_RUNS: usize = 64;

/// The queue of a heap's idle pages.
#[derive(Debug, Default)]
pub(crate) struct IdlePages {
    runs: VecDeque<Run>,
    stamp: u64,
    // Number of runs at which the next look at all of them is due.
    compact_at: usize,
}

/// What to do with an idle page that comes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    /// It was used up: go on.
    Taken,
    /// It stays idle: go on.
    Kept,
    /// It stays idle, and so do all that follow: stop.
    Stop,
}

impl IdlePages {
    /// The pages of an arena became idle at `tick`.
    #[inline]
    pub(crate) fn push(&mut self, arena: u32, state: &mut ArenaIdle, pages: PageRange, tick: u64) {
        if pages.is_empty() {
            return;
        }
        self.stamp += 1;
        state.grow_to(pages.end());
        page_bits::set(&mut state.idle, pages);
        state.stamps[pages.indices()].fill(self.stamp);
        // A block that comes and goes in one place leaves one run, not one for each time.
        let again = |run: &Run| {
            run.arena == arena && run.pages.first >= pages.first && run.pages.end() <= pages.end()
        };
        while self.runs.back().is_some_and(again) {
            self.runs.pop_back();
        }
        if self.runs.capacity() == 0 {
            self.runs.reserve(CACHE_LINES_BYTES / size_of::<Run>());
        }
        self.runs.push_back(Run { stamp: self.stamp, tick, arena, pages });
    }

    /// The stream's tick when the page became idle, if it is in the queue.
    pub(crate) fn tick(&self, state: &ArenaIdle, page: u32) -> Option<u64> {
        let stamp = *state.stamps.get(page as usize)?;
        // Stamps ascend along the queue.
        let at = self.runs.binary_search_by_key(&stamp, |run| run.stamp).ok()?;
        Some(self.runs[at].tick)
    }

    /// The latest tick at which pages of an arena became idle, if they still count; 0 if there are none.
    pub(crate) fn last_tick(&self, arena: u32) -> u64 {
        // Ticks ascend along the queue; a page that was used since has a later run.
        self.runs.iter().rev().find(|run| run.arena == arena).map_or(0, |run| run.tick)
    }

    /// The pages of an arena have gone.
    pub(crate) fn forget(&mut self, arena: u32) {
        self.runs.retain(|run| run.arena != arena);
    }

    /// Drops runs that nothing counts of any more, once they are the most: keeps the queue linear in the pages, and short, at
    /// a cost that is spread over the frees. A page that is busy now may keep its last run.
    #[inline]
    pub(crate) fn compact<'a>(&mut self, arena: impl Fn(u32) -> &'a ArenaIdle) {
        if self.runs.len() > self.compact_at.max(FEW_RUNS) {
            self.compact_now(arena);
        }
    }

    #[cold]
    fn compact_now<'a>(&mut self, arena: impl Fn(u32) -> &'a ArenaIdle) {
        self.runs.retain(|run| arena(run.arena).stamps[run.pages.indices()].contains(&run.stamp));
        // Three times as many come before the next time. No page keeps more than one run.
        self.compact_at = 4 * self.runs.len() + FEW_RUNS;
    }

    /// Shows every idle page, the one idle for longest first, to `visit`, with the tick at which it became so, until that
    /// says stop.
    pub(crate) fn visit<A>(
        &mut self,
        arenas: &mut [A],
        idle: impl Fn(&A) -> &ArenaIdle,
        mut visit: impl FnMut(&mut A, u32, u64) -> Visit,
    ) {
        let mut kept = Vec::new();
        while let Some(run) = self.runs.pop_front() {
            let arena = &mut arenas[run.arena as usize];
            // Pages of this run that stay in the queue, as one range: a page in the gap is told by its stamp later.
            let mut rest: Option<PageRange> = None;
            let mut stopped = false;
            let mut from = run.pages.first;
            while let Some(page) = idle(arena).next_of(&run, from) {
                from = page + 1;
                let outcome = if stopped { Visit::Kept } else { visit(arena, page, run.tick) };
                if outcome != Visit::Taken {
                    let first = rest.map_or(page, |range| range.first);
                    rest = Some(PageRange::between(first, page + 1));
                }
                stopped |= outcome == Visit::Stop;
                if stopped {
                    rest = rest.map(|range| PageRange::between(range.first, run.pages.end()));
                    break;
                }
            }
            kept.extend(rest.map(|pages| Run { pages, ..run }));
            if stopped {
                break;
            }
        }
        for run in kept.into_iter().rev() {
            self.runs.push_front(run);
        }
    }
}

#[cfg(test)]
mod tests;
