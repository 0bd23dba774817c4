//! The queue of idle pages against a trivial model: a list of pages with the ticks at which they became idle.

use std::collections::HashSet;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::*;

// Three words, and some.
const PAGES: u32 = 200;
const ARENAS: u32 = 2;

/// A page by its arena and number.
type Page = (u32, u32);

#[derive(Clone, Debug)]
enum Step {
    /// Pages get live bytes, and frames.
    Use { arena: u32, first: u32, count: u32 },
    /// Pages are claimed: they get no frames, and the claim will be given up.
    Claim { arena: u32, first: u32, count: u32 },
    /// Pages become idle, some time later.
    Free { arena: u32, first: u32, count: u32, later: u64 },
    /// So many of them with nobody looking in between, each over a few pages from a place that these numbers give.
    FreeOften { times: u32, from: u32 },
    /// Takes the frames of up to `count` idle pages, but for those of `pinned`, as long as they are older than the tick
    /// `younger` before now.
    Take { count: usize, pinned: u32, younger: Option<u64> },
    /// Looks at all of them.
    Look,
}

fn step() -> impl Strategy<Value = Step> {
    let count = || prop_oneof![3 => 1..=8_u32, 1 => 1..=PAGES];
    let pages = move || (0..ARENAS, 0..PAGES, count());
    prop_oneof![
        8 => pages().prop_map(|(arena, first, count)| Step::Use { arena, first, count }),
        1 => pages().prop_map(|(arena, first, count)| Step::Claim { arena, first, count }),
        12 => (pages(), 0..3_u64)
            .prop_map(|((arena, first, count), later)| Step::Free { arena, first, count, later }),
        1 => (60..150_u32, any::<u32>()).prop_map(|(times, from)| Step::FreeOften { times, from }),
        3 => (prop_oneof![0..6_usize, 0..100_usize], any::<u32>(), prop::option::of(0..5_u64))
            .prop_map(|(count, pinned, younger)| Step::Take { count, pinned, younger }),
        1 => Just(Step::Look),
    ]
}

#[derive(Default)]
struct Run {
    queue: IdlePages,
    arenas: [ArenaIdle; ARENAS as usize],
    now: u64,
    /// Idle pages, the one idle for longest first, with their ticks.
    idle: Vec<(Page, u64)>,
    busy: HashSet<Page>,
    with_frame: HashSet<Page>,
}

fn pages(first: u32, count: u32) -> PageRange {
    PageRange::between(first, PAGES.min(first + count))
}

impl Run {
    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Use { arena, first, count } => {
                let pages = pages(first, count);
                self.set_busy(arena, pages);
                self.with_frame.extend(pages.iter().map(|page| (arena, page)));
            }
            Step::Claim { arena, first, count } => self.set_busy(arena, pages(first, count)),
            Step::Free { arena, first, count, later } => {
                self.now += later;
                self.free(arena, pages(first, count));
            }
            Step::FreeOften { times, from } => {
                for at in (0..times).map(|time| from.wrapping_add(time.wrapping_mul(2_654_435_761)) >> 7) {
                    let pages = pages(at / ARENAS % PAGES, 1 + at / 64 % 3);
                    self.free(at % ARENAS, pages);
                }
            }
            Step::Take { count, pinned, younger } => self.take(count, pinned, younger)?,
            Step::Look => self.take(0, 0, None)?,
        }
        for arena in 0..ARENAS {
            for page in 0..PAGES {
                let is_busy = self.busy.contains(&(arena, page));
                prop_assert_eq!(self.arenas[arena as usize].is_idle(page), !is_busy);
                let idle = self.idle.iter().find(|(known, _)| *known == (arena, page));
                if let Some((_, tick)) = idle.filter(|(known, _)| self.with_frame.contains(known)) {
                    prop_assert_eq!(self.arenas[arena as usize].tick(page), Some(*tick));
                }
            }
        }
        Ok(())
    }

    fn free(&mut self, arena: u32, pages: PageRange) {
        self.queue.push(&mut self.arenas[arena as usize], pages, self.now);
        for page in pages.iter().map(|page| (arena, page)) {
            self.busy.remove(&page);
            self.idle.retain(|(known, _)| *known != page);
            self.idle.push((page, self.now));
        }
    }

    fn set_busy(&mut self, arena: u32, pages: PageRange) {
        self.arenas[arena as usize].set_busy(pages);
        for page in pages.iter().map(|page| (arena, page)) {
            self.busy.insert(page);
            self.idle.retain(|(known, _)| *known != page);
        }
    }

    /// A visit as a heap makes it. With `count` 0 and nothing pinned it only looks.
    fn take(&mut self, count: usize, pinned: u32, younger: Option<u64>) -> Result<(), TestCaseError> {
        let is_pinned =
            |(arena, page): Page| count > 0 && pinned >> ((arena * PAGES + page) % u32::BITS) & 1 == 1;
        let stops = |tick: u64| younger.is_some_and(|younger| tick + younger > self.now);

        // What a visit must show of the pages with frames, and what it takes.
        let mut expected = Vec::new();
        let mut taken = Vec::new();
        for &(page, tick) in self.idle.iter().filter(|(page, _)| self.with_frame.contains(page)) {
            expected.push((page, tick));
            if (count > 0 && taken.len() == count) || (!is_pinned(page) && stops(tick)) {
                break;
            }
            if count > 0 && !is_pinned(page) {
                taken.push(page);
            }
        }

        let mut shown = Vec::new();
        let mut got = Vec::new();
        let with_frame = &mut self.with_frame;
        // Numbered, so that the visitor knows whose page it is.
        let mut numbered: Vec<(u32, ArenaIdle)> = (0..).zip(std::mem::take(&mut self.arenas)).collect();
        self.queue.visit(
            &mut numbered,
            |(_, state)| state,
            |(arena, _), page, tick| {
                let page = (*arena, page);
                if !with_frame.contains(&page) {
                    return Visit::Taken;
                }
                shown.push((page, tick));
                if count > 0 && got.len() == count {
                    return Visit::Stop;
                }
                match is_pinned(page) {
                    true => Visit::Kept,
                    false if stops(tick) => Visit::Stop,
                    false if count == 0 => Visit::Kept,
                    false => {
                        with_frame.remove(&page);
                        got.push(page);
                        Visit::Taken
                    }
                }
            },
        );
        for (arena, state) in numbered {
            self.arenas[arena as usize] = state;
        }
        prop_assert_eq!(shown, expected);
        prop_assert_eq!(got, taken);
        prop_assert!(self.queue.runs.len() <= (ARENAS * PAGES) as usize, "{} runs", self.queue.runs.len());
        Ok(())
    }
}

proptest! {
    #[test]
    fn agree_with_a_list(steps in prop::collection::vec(step(), 1..200)) {
        let mut run = Run::default();
        for (index, step) in steps.iter().enumerate() {
            run.step(step).map_err(|error| TestCaseError::fail(format!("step {index}, {step:?}: {error}")))?;
        }
        run.take(0, 0, None)?;
        run.take(usize::MAX, 0, None)?;
        prop_assert!(run.idle.iter().all(|(page, _)| !run.with_frame.contains(page)), "all are taken");
    }
}

/// All that a visit shows, as pages and ticks.
fn shown(queue: &mut IdlePages, arena: &mut ArenaIdle) -> Vec<(u32, u64)> {
    let mut shown = Vec::new();
    queue.visit(
        std::slice::from_mut(arena),
        |arena| arena,
        |_, page, tick| {
            shown.push((page, tick));
            Visit::Kept
        },
    );
    shown
}

/// Pages in several words of the bitmap, freed in another order than that of their addresses.
#[test]
fn the_queue_is_in_the_order_of_the_frees() {
    let mut queue = IdlePages::default();
    let mut arena = ArenaIdle::default();
    let pages = |first, count| PageRange { first, count };
    queue.push(&mut arena, pages(200, 2), 1);
    queue.push(&mut arena, pages(63, 2), 1);
    queue.push(&mut arena, pages(3, 1), 2);
    assert_eq!(shown(&mut queue, &mut arena), [(200, 1), (201, 1), (63, 1), (64, 1), (3, 2)]);
    // What is in the queue comes first; of a page that was freed again the later time counts.
    queue.push(&mut arena, pages(201, 1), 3);
    queue.push(&mut arena, pages(130, 1), 3);
    queue.push(&mut arena, pages(0, 1), 4);
    arena.set_busy(pages(63, 1));
    let order = [(200, 1), (64, 1), (3, 2), (201, 3), (130, 3), (0, 4)];
    assert_eq!(shown(&mut queue, &mut arena), order);
}

/// A free costs the queue nothing, however many there are before somebody looks.
#[test]
fn pages_that_come_and_go_are_queued_once() {
    let mut queue = IdlePages::default();
    let mut arena = ArenaIdle::default();
    let pages = |first, count| PageRange { first, count };
    for tick in 1..=1_000 {
        queue.push(&mut arena, pages((tick % 4) as u32, 2), tick);
    }
    assert_eq!(queue.runs.len(), 0);
    assert_eq!(shown(&mut queue, &mut arena), [(2, 998), (3, 999), (4, 999), (0, 1_000), (1, 1_000)]);
    assert_eq!(queue.runs.len(), 3);
    let ticks = [0, 1, 2, 3, 4, 5].map(|page| arena.tick(page));
    assert_eq!(ticks, [Some(1_000), Some(1_000), Some(998), Some(999), Some(999), None]);
}

#[test]
fn a_page_never_used_is_idle_and_in_no_queue() {
    let mut queue = IdlePages::default();
    let mut arena = ArenaIdle::default();
    arena.set_busy(PageRange { first: 3, count: 1 });
    assert!([0, 1, 2, 4, 1_000].iter().all(|page| arena.is_idle(*page)));
    assert_eq!([2, 3, 1_000].map(|page| arena.tick(page)), [None; 3]);
    queue.push(&mut arena, PageRange { first: 3, count: 0 }, 1);
    assert_eq!(shown(&mut queue, &mut arena), []);
    assert!(!arena.is_idle(3));
}
