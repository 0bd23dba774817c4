//! Idle pages: pages with no live bytes, in the order in which they became so.
//!
//! Main types: [`IdlePages`], [`ArenaIdle`]. Neighbours: a heap marks pages here when a hole comes to cover them, and asks
//! for the oldest ones when frames are wanted.
//!
//! A free notes of its pages when they became idle, once a word, and that is all: most pages are used again before anybody
//! wants their frames. Who does finds the oldest ones in a queue, which is filled when it has run out, from what was noted since.
//! A page that was used in between, or became idle again, is told by its note.

use std::collections::VecDeque;

use concertina_vmm::PageRange;
use concertina_vmm::page_bits::{self, WORD_PAGES, bits_by_word, bits_of};
use concertina_vmm::sync::CACHE_LINES_BYTES;

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

/// What is known of the pages of one word, but for their notes.
#[derive(Clone, Copy, Debug)]
struct Word {
    // The bit of each page that is idle.
    idle: u64,
    // Those with a note: it holds for the pages behind, too, up to the next one. The first page has one.
    noted: u64,
    // The latest stamp of a note.
    latest: u64,
}

/// Which pages of one arena are idle, and since when. All that a free writes for 64 pages is a few words.
#[derive(Debug, Default)]
pub(crate) struct ArenaIdle {
    words: Vec<Word>,
    // The notes, by word and page.
    since: Vec<[Since; WORD_PAGES as usize]>,
    // The tick of the latest one of all.
    last_tick: u64,
}

impl ArenaIdle {
    /// Sees to it that the page is known.
    #[inline]
    fn know(&mut self, page: u32) {
        if self.words.len() <= (page / WORD_PAGES) as usize {
            self.grow(page);
        }
    }

    /// No page is known: what there was before has gone.
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }

    #[cold]
    fn grow(&mut self, page: u32) {
        if self.words.is_empty() {
            // No two heaps' words on one cache line.
            self.words.reserve(2 * CACHE_LINES_BYTES / size_of::<Word>());
        }
        let words = page_bits::words_for(page + 1);
        // A page that was never used is idle.
        self.words.resize(words, Word { idle: u64::MAX, noted: 1, latest: 0 });
        self.since.resize(words, [Since::default(); WORD_PAGES as usize]);
    }

    /// Whether the page has no live bytes.
    #[inline]
    pub(crate) fn is_idle(&self, page: u32) -> bool {
        let word = self.words.get((page / WORD_PAGES) as usize);
        word.is_none_or(|word| word.idle >> (page % WORD_PAGES) & 1 == 1)
    }

    /// The bit of each page that is idle, by word; those behind the end are.
    pub(crate) fn bits(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().map(|word| word.idle)
    }

    /// Number of pages that have live bytes.
    pub(crate) fn busy_pages(&self) -> u64 {
        self.bits().map(|word| u64::from(word.count_zeros())).sum()
    }

    /// The pages now have live bytes.
    #[inline]
    pub(crate) fn set_busy(&mut self, pages: PageRange) {
        self.know(pages.end() - 1);
        page_bits::change(&mut self.words, pages, |word, bits| word.idle &= !bits);
    }

    #[inline]
    fn set_idle(&mut self, pages: PageRange, since: Since) {
        let end = pages.end();
        self.know(end);
        // What holds for the page behind them comes from a note before it, which may go.
        let behind = self.since(end);
        let word = (end / WORD_PAGES) as usize;
        self.since[word][(end % WORD_PAGES) as usize] = behind;
        self.words[word].noted |= 1 << (end % WORD_PAGES);
        let words = page_bits::words_of(pages);
        let notes = &mut self.since[words.clone()];
        let words = self.words[words].iter_mut().zip(notes);
        for ((word, notes), bits) in words.zip(bits_by_word(pages)) {
            word.idle |= bits;
            // Of these pages the first one has the note.
            word.noted = word.noted & !bits | bits & bits.wrapping_neg();
            word.latest = since.stamp;
            notes[(bits.trailing_zeros() % WORD_PAGES) as usize] = since;
        }
        self.last_tick = since.tick;
    }

    /// When a page became idle last.
    #[inline]
    fn since(&self, page: u32) -> Since {
        let (word, page) = ((page / WORD_PAGES) as usize, page % WORD_PAGES);
        let before = self.words[word].noted << (WORD_PAGES - 1 - page);
        self.since[word][(page.wrapping_sub(before.leading_zeros()) % WORD_PAGES) as usize]
    }

    /// The stream's tick when the page became idle; `None` if it never had live bytes.
    pub(crate) fn tick(&self, page: u32) -> Option<u64> {
        let known = (page / WORD_PAGES) < self.words.len() as u32;
        known.then(|| self.since(page)).filter(|since| since.stamp > 0).map(|since| since.tick)
    }

    /// The latest tick at which a page became idle; 0 if none ever did.
    pub(crate) fn last_tick(&self) -> u64 {
        self.last_tick
    }

    /// The notes in a word, and the idle pages that each of them holds for.
    fn idle_by_note(&self, word: u32) -> impl Iterator<Item = (Since, u64)> + '_ {
        let Word { noted, idle, .. } = self.words[word as usize];
        let notes = &self.since[word as usize];
        bits_of(noted).map(move |bit| {
            // The bits from this note up to the next one.
            let behind = noted & (u64::MAX << bit << 1);
            let pages = (behind & behind.wrapping_neg()).wrapping_sub(1) & u64::MAX << bit;
            (notes[bit as usize], idle & pages)
        })
    }

    /// The pages of the run that are idle since then.
    fn still_in(&self, run: &Run) -> u64 {
        let first = run.word * WORD_PAGES;
        let still = bits_of(self.words[run.word as usize].idle & run.pages);
        still.filter(|bit| self.since(first + bit) == run.since).map(|bit| 1 << bit).sum()
    }

    /// The idle pages with a later stamp, ascending.
    fn runs_after(&self, stamp: u64, arena: u32) -> impl Iterator<Item = Run> + '_ {
        let words = (0..).zip(&self.words).filter(move |(_, word)| word.latest > stamp).map(|(at, _)| at);
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
