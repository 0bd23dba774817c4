//! Plans: where a request goes, and what each of its pages needs before it can be used.
//!
//! Main types: [`Plan`], [`Backing`], [`Rules`]. Neighbours: `heap` knows the holes and pages; `ladder` carries a plan
//! out. Making a plan changes nothing and makes no driver call.
//!
//! Placement is best fit over addresses, whether anything is mapped there or not: the smallest hole, then the lowest
//! address. A hole is passed over if one of its pages is stale, its frame is busy elsewhere, and work may still use the
//! old mapping; after [`FITS`] holes the tail serves.

use std::collections::HashSet;

use concertina_vmm::{Directory, Driver, Frame, FrameId, Holder, PageRange, Place, Use};

use crate::block::{BlockState, NONE};
use crate::gather::Claim;
use crate::heap::Heap;
use crate::hole_index::Hole;
use crate::step::Request;

/// Holes that are tried before the tail. In simulation, 64 kept addresses under 4 times the live bytes and cost at most
/// 2 parts in a thousand of memory.
pub(crate) const FITS: usize = 64;

/// What a page that is not held needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Nothing is mapped: map any frame.
    Map,
    /// A stale mapping to a busy frame, no longer used: unmap it and map any frame.
    Replace,
    /// A stale mapping to a frame that an idle page of this heap holds.
    ReviveOwn {
        /// That page's arena.
        arena: u32,
        /// That page.
        page: u32,
    },
    /// A stale mapping to a free frame of the store.
    ReviveStore(FrameId),
    /// A stale mapping to a frame that another heap holds, through a page that may be idle.
    ReviveOther(FrameId, Place),
}

/// Where in a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spot {
    /// In a hole.
    Hole(Hole),
    /// At the end of an arena.
    Tail,
}

/// Where a request goes, and what its pages need.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) arena: u32,
    pub(crate) spot: Spot,
    /// In steps.
    pub(crate) start: u32,
    /// Pages that are not held, ascending.
    pub(crate) backing: Vec<(u32, Backing)>,
}

impl Plan {
    /// Number of frames that it needs beside those that it revives.
    pub(crate) fn frames(&self) -> usize {
        self.backing.iter().filter(|(_, backing)| matches!(backing, Backing::Map | Backing::Replace)).count()
    }
}

/// What a plan may use.
pub(crate) struct Rules<'a, D: Driver> {
    /// Whether a use is seen done.
    pub(crate) done: &'a dyn Fn(Use) -> bool,
    /// Whether a free frame of the store may serve this heap.
    pub(crate) may_serve: &'a dyn Fn(&Frame<D>) -> bool,
    /// Who holds which frame.
    pub(crate) directory: &'a Directory<'a, D>,
    /// Stale pages found not to be revivable in this request.
    pub(crate) blocked: &'a [Place],
    /// Whether frames of other heaps may be asked for.
    pub(crate) others: Others,
    /// Most frames there are to be had, counting those that this heap's idle pages hold; `None` before that is known.
    pub(crate) frames: Option<u64>,
}

/// Whether a plan may count on frames that another heap holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// Yes: whether they are free is found out when they are asked for.
    Ask,
    /// No.
    Leave,
}

impl<D: Driver> Heap<D> {
    /// The first plan in the order of preference; `None` if no arena has room.
    pub(crate) fn plan(&self, request: &Request, rules: &Rules<'_, D>) -> Option<Plan> {
        // Under a bound on frames every hole is worth a look: it is that or running out of memory.
        let fits = if rules.frames.is_some() { usize::MAX } else { FITS };
        self.holes
            .from(request.steps)
            .filter_map(|hole| Some((hole, self.fit(&hole, request)?)))
            .take(fits)
            .find_map(|(hole, start)| self.plan_at(hole.arena, Spot::Hole(hole), start, request, rules))
            .or_else(|| (0..self.arenas.len() as u32).find_map(|arena| self.plan_tail(arena, request, rules)))
    }

    fn plan_tail(&self, number: u32, request: &Request, rules: &Rules<'_, D>) -> Option<Plan> {
        let arena = &self.arenas[number as usize];
        let per_page = self.steps_per_page();
        let room = arena.segment.pages() * per_page;
        let plan_from = |start: u32| {
            let start = self.align(number, start, request.alignment)?;
            let end = start.checked_add(request.steps).filter(|&end| end <= room)?;
            debug_assert!(end > arena.extent || arena.last == NONE, "a hole that fits is no tail");
            self.plan_at(number, Spot::Tail, start, request, rules)
        };
        // Over the last block if that is a hole that is too small; else, or if a page of it is taken, behind it.
        let last_hole = (arena.last != NONE).then(|| self.blocks.get(arena.last));
        last_hole
            .filter(|block| block.state == BlockState::Hole && block.steps < request.steps)
            .and_then(|block| plan_from(block.start))
            .or_else(|| {
                let behind_hole = last_hole.is_some_and(|block| block.state == BlockState::Hole);
                plan_from(if behind_hole { arena.extent.next_multiple_of(per_page) } else { arena.extent })
            })
    }

    fn plan_at(
        &self,
        number: u32,
        spot: Spot,
        start: u32,
        request: &Request,
        rules: &Rules<'_, D>,
    ) -> Option<Plan> {
        let arena = &self.arenas[number as usize];
        let pages = self.pages_touched(start, start + request.steps);
        let mut backing = Vec::new();
        let mut revived = HashSet::new();
        for page in arena.segment.not_held(pages) {
            if !arena.idle.is_idle(page) {
                // Another request is backing it at this moment.
                return None;
            }
            let need = match arena.segment.stale(page) {
                None => Backing::Map,
                Some((frame, last_use)) => {
                    let place = Place { segment: arena.segment.id(), page };
                    let revival = self
                        .revival(number, pages, frame, rules)
                        .filter(|_| !rules.blocked.contains(&place))
                        .filter(|_| revived.insert(frame));
                    match revival {
                        Some(revival) => revival,
                        None if last_use.is_none_or(rules.done) => Backing::Replace,
                        None => return None,
                    }
                }
            };
            backing.push((page, need));
        }
        if let Some(frames) = rules.frames {
            // Frames that the place holds already are among those counted.
            let in_place = pages.iter().filter(|&page| self.is_takeable(number, page)).count() as u64;
            if backing.len() as u64 > frames.saturating_sub(in_place) {
                return None;
            }
        }
        Some(Plan { arena: number, spot, start, backing })
    }

    /// How a stale page of the place could come by the frame that it is still mapped to.
    fn revival(
        &self,
        number: u32,
        place: PageRange,
        frame: FrameId,
        rules: &Rules<'_, D>,
    ) -> Option<Backing> {
        match rules.directory.holder(frame) {
            Holder::Store => rules
                .directory
                .free_frame(frame)
                .filter(|frame| frame.pins() == 0 && (rules.may_serve)(frame))
                .map(|_| Backing::ReviveStore(frame)),
            Holder::Page(holder) => match self.arena_of(holder.segment) {
                Some(arena) => {
                    // The place's own frames stay where they are.
                    let in_place = arena == number && place.contains(holder.page);
                    (!in_place && self.is_takeable(arena, holder.page))
                        .then_some(Backing::ReviveOwn { arena, page: holder.page })
                }
                None if rules.others == Others::Ask => Some(Backing::ReviveOther(frame, holder)),
                None => None,
            },
            Holder::Thief | Holder::Nobody => None,
        }
    }

    /// Makes the plan's place a block, so that nobody else takes it while its pages are backed.
    pub(crate) fn claim(&mut self, plan: Plan, request: &Request) -> Claim<D> {
        let block = match plan.spot {
            Spot::Hole(hole) => self.take_from_hole(hole, plan.start, request.steps),
            Spot::Tail => self.take_from_tail(plan.arena, plan.start, request.steps),
        };
        Claim::new(block, plan)
    }

    /// Whether the tail of some arena has addresses for the request.
    pub(crate) fn has_room(&self, request: &Request) -> bool {
        (0..).zip(&self.arenas).any(|(number, arena)| {
            let behind = arena.extent.next_multiple_of(self.steps_per_page());
            self.align(number, behind, request.alignment)
                .and_then(|start| start.checked_add(request.steps))
                .is_some_and(|end| end <= arena.segment.pages() * self.steps_per_page())
        })
    }
}
