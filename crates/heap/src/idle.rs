//! Idle pages: pages with no live bytes, in the order in which they became so.
//!
//! Main types: [`IdlePages`], [`ArenaIdle`]. Neighbours: a heap marks pages here when a hole comes to cover them, and asks
//! for the oldest ones when frames are wanted.
//!
//! A free notes of its pages when they became idle, once a word, and that is all: most pages are used again before anybody
//! wants their frames. Who does finds the oldest ones in a queue, which is filled when it has run out, from what was noted since.
//! A page that was used in between, or became idle again, is told by its note.

use std::collections::VecDeque;

use concertina_vmm::page_bits::{WORD_PAGES, bits_between, bits_of};
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

/// Pages of one word of an arena's bitmap that became idle together.
#[derive(Clone, Copy, Debug)]
struct Run {
    since: Since,
    arena: u32,
    word: u32,
    // The bit of each page.
    pages: u64,
}

/// Which pages of one arena are idle, and since when. All that a free writes for 64 pages is a few words.
#[derive(Debug, Default)]
pub(crate) struct ArenaIdle {
    idle: Vec<u64>,
    // The pages with a note: it holds for those behind them, too, up to the next one. The first page of each word has one.
    noted: Vec<u64>,
    // The notes, by page.
    since: Vec<Since>,
    // By word, the latest stamp of its notes.
    latest: Vec<u64>,
    // The tick of the latest one of all.
    last_tick: u64,
}

impl ArenaIdle {
    #[inline]
    fn grow_to(&mut self, pages: u32) {
        if self.since.len() < pages as usize {
            self.grow(pages);
        }
    }

    /// No page is known: what there was before has gone.
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }

    #[cold]
    fn grow(&mut self, pages: u32) {
        let words = page_bits::words_for(pages);
        if self.idle.is_empty() {
            // No two heaps' words on one cache line.
            for words in [&mut self.idle, &mut self.noted, &mut self.latest] {
                words.reserve(CACHE_LINES_BYTES / size_of::<u64>());
            }
        }
        // A page that was never used is idle.
        self.idle.resize(words, u64::MAX);
        self.noted.resize(words, 1);
        self.since.resize(words * WORD_PAGES as usize, Since::default());
        self.latest.resize(words, 0);
    }

    /// Whether the page has no live bytes.
    #[inline]
    pub(crate) fn is_idle(&self, page: u32) -> bool {
        page_bits::get(&self.idle, page) != Some(false)
    }

    /// The bit of each page that is idle; those behind the end are.
    pub(crate) fn bits(&self) -> &[u64] {
        &self.idle
    }

    /// Number of pages that have live bytes.
    pub(crate) fn busy_pages(&self) -> u64 {
        self.idle.iter().map(|word| u64::from(word.count_zeros())).sum()
    }

    /// The pages now have live bytes.
    #[inline]
    pub(crate) fn set_busy(&mut self, pages: PageRange) {
        self.grow_to(pages.end());
        page_bits::clear(&mut self.idle, pages);
    }

    #[inline]
    fn set_idle(&mut self, pages: PageRange, since: Since) {
        let (first, end) = (pages.first, pages.end());
        self.grow_to(end + 1);
        // What holds for the page behind them comes from a note before it, which may go.
        let behind = self.since(end);
        self.since[end as usize] = behind;
        self.noted[(end / WORD_PAGES) as usize] |= 1 << (end % WORD_PAGES);
        let words = (first / WORD_PAGES) as usize..((end - 1) / WORD_PAGES + 1) as usize;
        let idle = &mut self.idle[words.clone()];
        self.latest[words.clone()].fill(since.stamp);
        let noted = &mut self.noted[words];
        let mut at = first;
        for (idle, noted) in idle.iter_mut().zip(noted) {
            let bits = bits_between(at, end);
            *idle |= bits;
            // Of these pages the first one has the note.
            *noted = *noted & !bits | 1 << (at % WORD_PAGES);
            self.since[at as usize] = since;
            at = (at | (WORD_PAGES - 1)) + 1;
        }
        self.last_tick = since.tick;
    }

    /// When a page became idle last.
    #[inline]
    fn since(&self, page: u32) -> Since {
        let before = self.noted[(page / WORD_PAGES) as usize] << (WORD_PAGES - 1 - page % WORD_PAGES);
        self.since[(page - before.leading_zeros()) as usize]
    }

    /// The stream's tick when the page became idle; `None` if it never had live bytes.
    pub(crate) fn tick(&self, page: u32) -> Option<u64> {
        let known = (page as usize) < self.since.len();
        known.then(|| self.since(page)).filter(|since| since.stamp > 0).map(|since| since.tick)
    }

    /// The latest tick at which a page became idle; 0 if none ever did.
    pub(crate) fn last_tick(&self) -> u64 {
        self.last_tick
    }

    /// The notes in a word, and the idle pages that each of them holds for.
    fn idle_by_note(&self, word: u32) -> impl Iterator<Item = (Since, u64)> + '_ {
        let (noted, idle) = (self.noted[word as usize], self.idle[word as usize]);
        bits_of(noted).map(move |bit| {
            let first = word * WORD_PAGES + bit;
            // The bits from this note up to the next one.
            let behind = noted & (u64::MAX << bit << 1);
            let pages = (behind & behind.wrapping_neg()).wrapping_sub(1) & u64::MAX << bit;
            (self.since[first as usize], idle & pages)
        })
    }

    /// The pages of the run that are idle since then.
    fn still_in(&self, run: &Run) -> u64 {
        let first = run.word * WORD_PAGES;
        let still = bits_of(self.idle[run.word as usize] & run.pages);
        still.filter(|bit| self.since(first + bit) == run.since).map(|bit| 1 << bit).sum()
    }

    /// The idle pages with a later stamp, ascending.
    fn runs_after(&self, stamp: u64, arena: u32) -> impl Iterator<Item = Run> + '_ {
        let words = (0..).zip(&self.latest).filter(move |(_, latest)| **latest > stamp).map(|(word, _)| word);
        words.flat_map(move |word| {
            let notes =
                self.idle_by_note(word).filter(move |(since, pages)| since.stamp > stamp && *pages != 0);
            notes.map(move |(since, pages)| Run { since, arena, word, pages })
        })
    }
}

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
        let arenas = (0..).zip(arenas);
        let mut runs: Vec<Run> =
            arenas.flat_map(|(number, arena)| idle(arena).runs_after(self.queued, number)).collect();
        // A stable sort: runs of one stamp stay in order.
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
            let mut pages = idle(arena).still_in(&run);
            let mut stopped = false;
            for bit in bits_of(pages) {
                match visit(arena, run.word * WORD_PAGES + bit, run.since.tick) {
                    Visit::Taken => pages &= !(1 << bit),
                    Visit::Kept => {}
                    Visit::Stop => {
                        stopped = true;
                        break;
                    }
                }
            }
            if pages != 0 {
                kept.push(Run { pages, ..run });
            }
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
