//! Idle pages: pages with no live bytes, in the order in which they became so.
//!
//! Main types: [`IdlePages`], [`ArenaIdle`]. Neighbours: a heap marks pages here when a hole comes to cover them, and asks
//! for the oldest ones when frames are wanted.
//!
//! A free notes in each of its pages when it became idle, and that is all: most pages are used again before anybody wants
//! their frames. Who does finds the oldest ones in a queue, which is filled when it has run out, from what was noted since.
//! A page that was used in between, or became idle again, is told by its note.

use std::collections::VecDeque;

use bitvec::vec::BitVec;
use concertina_vmm::sync::CACHE_LINES_BYTES;
use concertina_vmm::{PageRange, page_bits};

/// When a page became idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Since {
    // Which of the heap's frees it was; 0 for a page that never had live bytes.
    stamp: u64,
    // The stream's tick then: the page's last use.
    tick: u64,
}

/// Pages that became idle together.
#[derive(Clone, Copy, Debug)]
struct Run {
    since: Since,
    arena: u32,
    pages: PageRange,
}

/// Which pages of one arena are idle, and since when.
#[derive(Debug, Default)]
pub(crate) struct ArenaIdle {
    idle: BitVec<u64>,
    // By page, unless its group has a later one.
    since: Vec<Since>,
    // By group of pages: what all of them became idle in, so that a long run writes little.
    groups: Vec<Since>,
    // By word of `idle`, the latest stamp of its pages.
    latest: Vec<u64>,
    // The tick of the latest one of all.
    last_tick: u64,
}

impl ArenaIdle {
    #[inline]
    fn grow_to(&mut self, pages: u32) {
        if self.since.len() < pages as usize {
            self.grow(pages as usize);
        }
    }

    /// No page is known: what there was before has gone.
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }

    #[cold]
    fn grow(&mut self, pages: usize) {
        let pages = pages.next_multiple_of(GROWTH_PAGES);
        if self.idle.is_empty() {
            self.idle.reserve(8 * CACHE_LINES_BYTES);
            self.latest.reserve(CACHE_LINES_BYTES / size_of::<u64>());
        }
        // A page that was never used is idle.
        self.idle.resize(pages, true);
        self.since.resize(pages, Since::default());
        self.groups.resize(pages / GROUP_PAGES, Since::default());
        self.latest.resize(pages.div_ceil(WORD_PAGES), 0);
    }

    /// Whether the page has no live bytes.
    #[inline]
    pub(crate) fn is_idle(&self, page: u32) -> bool {
        page_bits::get(&self.idle, page) != Some(false)
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

    #[inline]
    fn set_idle(&mut self, pages: PageRange, since: Since) {
        self.grow_to(pages.end());
        page_bits::set(&mut self.idle, pages);
        let groups = pages.first as usize / GROUP_PAGES + 1..pages.end() as usize / GROUP_PAGES;
        if groups.is_empty() {
            self.since[pages.indices()].fill(since);
        } else {
            self.since[pages.first as usize..groups.start * GROUP_PAGES].fill(since);
            self.since[groups.end * GROUP_PAGES..pages.end() as usize].fill(since);
            self.groups[groups].fill(since);
        }
        let words = pages.first as usize / WORD_PAGES..=(pages.end() - 1) as usize / WORD_PAGES;
        self.latest[words].fill(since.stamp);
        self.last_tick = since.tick;
    }

    /// When the page became idle last.
    fn since(&self, page: usize) -> Since {
        let (page, group) = (self.since[page], self.groups[page / GROUP_PAGES]);
        if page.stamp > group.stamp { page } else { group }
    }

    /// The stream's tick when the page became idle; `None` if it never had live bytes.
    pub(crate) fn tick(&self, page: u32) -> Option<u64> {
        let page = page as usize;
        (page < self.since.len())
            .then(|| self.since(page))
            .filter(|since| since.stamp > 0)
            .map(|since| since.tick)
    }

    /// The latest tick at which a page became idle; 0 if none ever did.
    pub(crate) fn last_tick(&self) -> u64 {
        self.last_tick
    }

    /// The first page of the run that is idle since then.
    fn next_of(&self, run: &Run, from: u32) -> Option<u32> {
        // Most pages that are not, have another stamp.
        (from..run.pages.end()).find(|&page| self.since(page as usize) == run.since && self.is_idle(page))
    }

    /// The idle pages with a later stamp, ascending: pages of one stamp that lie side by side as one run.
    fn runs_after(&self, stamp: u64, arena: u32, runs: &mut Vec<Run>) {
        let mut current: Option<Run> = None;
        let words = self.latest.iter().zip(self.idle.as_raw_slice()).enumerate();
        for (at, (_, &word)) in words.filter(|(_, (latest, _))| **latest > stamp) {
            let pages = (at * WORD_PAGES..self.since.len()).take(WORD_PAGES);
            let idle = pages.filter(|page| word >> (page % WORD_PAGES) & 1 == 1);
            let later =
                idle.map(|page| (page as u32, self.since(page))).filter(|(_, since)| since.stamp > stamp);
            for (page, since) in later {
                match &mut current {
                    Some(run) if run.since == since && run.pages.end() == page => run.pages.count += 1,
                    _ => runs.extend(current.replace(Run {
                        since,
                        arena,
                        pages: PageRange { first: page, count: 1 },
                    })),
                }
            }
        }
        runs.extend(current);
    }
}

/// Pages in one group.
const GROUP_PAGES: usize = 8;

/// Pages in one word of a bitmap.
const WORD_PAGES: usize = u64::BITS as usize;

/// Number of pages by which the arena grows: few growths, and no two heaps' pages on one cache line.
const GROWTH_PAGES: usize = CACHE_LINES_BYTES / size_of::<Since>() * GROUP_PAGES;

/// The queue of a heap's idle pages.
#[derive(Debug, Default)]
pub(crate) struct IdlePages {
    // Ascending by stamp, up to `queued`.
    runs: VecDeque<Run>,
    // The last stamp.
    stamp: u64,
    // The last stamp when the queue was filled: no page with a later one is in it.
    queued: u64,
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
    /// The pages of an arena became idle at `tick`, which is none before that of the last ones.
    #[inline]
    pub(crate) fn push(&mut self, arena: &mut ArenaIdle, pages: PageRange, tick: u64) {
        if pages.is_empty() {
            return;
        }
        self.stamp += 1;
        arena.set_idle(pages, Since { stamp: self.stamp, tick });
    }

    /// The pages of an arena have gone.
    pub(crate) fn forget(&mut self, arena: u32) {
        self.runs.retain(|run| run.arena != arena);
    }

    /// Queues the pages that became idle since this was done last. Looks at each of them once, and at a word for every 64
    /// others.
    fn fill<A>(&mut self, arenas: &[A], idle: impl Fn(&A) -> &ArenaIdle) {
        let mut runs = Vec::new();
        for (number, arena) in (0..).zip(arenas) {
            idle(arena).runs_after(self.queued, number, &mut runs);
        }
        // A stable sort: runs of one stamp are in order.
        runs.sort_by_key(|run| run.since.stamp);
        self.runs.extend(runs);
        self.queued = self.stamp;
    }

    /// The oldest run, if there is one.
    fn pop<A>(&mut self, arenas: &[A], idle: impl Fn(&A) -> &ArenaIdle) -> Option<Run> {
        if self.runs.is_empty() && self.queued < self.stamp {
            self.fill(arenas, idle);
        }
        self.runs.pop_front()
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
        while let Some(run) = self.pop(arenas, &idle) {
            let arena = &mut arenas[run.arena as usize];
            // Pages of this run that stay in the queue, as one range: a page in the gap is told by its stamp later.
            let mut rest: Option<PageRange> = None;
            let mut stopped = false;
            let mut from = run.pages.first;
            while let Some(page) = idle(arena).next_of(&run, from) {
                from = page + 1;
                let outcome = visit(arena, page, run.since.tick);
                if outcome != Visit::Taken {
                    let first = rest.map_or(page, |range| range.first);
                    rest = Some(PageRange::between(first, page + 1));
                }
                if outcome == Visit::Stop {
                    stopped = true;
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
