//! Plans: where a request goes, and what each of its pages needs before it can be used.
//!
//! Main types: [`Plan`], [`Backing`], [`Rules`]. Neighbours: `heap` knows the holes and pages; `ladder` carries a plan
//! out. Making a plan changes nothing and makes no driver call.
//!
//! Placement is best fit over addresses, whether anything is mapped there or not: the smallest hole, then the lowest
//! address, at the start of the hole. A page is *taken* if it is stale, its frame is busy elsewhere, and work may still
//! use the old mapping; it can't be unmapped then, and a place with such a page will not do. Two cases go by another
//! order, the fewest maps among the [`FITS`] best fits and all places in them: when the best fit has a taken page, and
//! when the request is of [`WIDE_PAGES`] or more. Only if no hole will do, the tail serves.
//! `docs/decisions/003-placement.md` has what each of these rules is good for, in figures.

use core::hash::{BuildHasherDefault, Hasher};
use std::collections::HashSet;

use concertina_vmm::{Directory, Driver, Frame, FrameId, Holder, PageRange, Place, SegmentId, Use};

use crate::block::{BlockState, NONE};
use crate::gather::Claim;
use crate::heap::Heap;
use crate::hole_index::Hole;
use crate::step::{Request, STEP_BYTES};

/// Holes that are looked at before the tail.
pub(crate) const FITS: usize = 64;

/// Holes that are looked at whether a request fits in with its alignment, before one is taken that is large enough for any
/// alignment. Holes of one size may all lie wrong, and there may be a million of them.
pub(crate) const MISFITS: usize = 1024;

/// Requests of this many pages go where the fewest maps are needed. Such a place costs them at most two partly used
/// pages, under 2 parts in a hundred; for smaller requests it would cost memory on the random trace s6. Without it,
/// large blocks that come and go in a loop keep robbing one another of frames.
pub(crate) const WIDE_PAGES: u32 = 128;

/// What a page that is not held needs before it can be used, as far as the choice of a place goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Its old mapping, and the frame there.
    Nothing,
    /// A map.
    Map,
    /// Another page in its place: it is taken.
    Another,
}

/// What a page that is not held needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Nothing is mapped: map any frame.
    Map,
    /// A stale mapping to a busy frame, no longer used: unmap it and map any frame.
    Replace,
    /// A stale mapping to a frame that an idle page of this heap holds.
    ReviveOwn {
        /// The frame.
        frame: FrameId,
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

    /// Number of mappings by which there will be more.
    pub(crate) fn new_mappings(&self) -> u64 {
        self.backing.iter().filter(|(_, backing)| *backing == Backing::Map).count() as u64
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
    /// Most new mappings that the driver's tables have room for; `None` before that is known to be short.
    pub(crate) mappings: Option<u64>,
}

impl<D: Driver> Rules<'_, D> {
    /// Whether memory is short: then every hole is worth a look, it is that or running out of it.
    fn is_bound(&self) -> bool {
        self.frames.is_some() || self.mappings.is_some()
    }
}

/// Frames by their numbers, which are small and all different: one multiplication spreads them (by 2^64 over the golden
/// ratio: Knuth, "The Art of Computer Programming", 6.4).
#[derive(Default)]
struct ByNumber(u64);

impl Hasher for ByNumber {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Whether a plan may count on frames that another heap holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// Yes: whether they are free is found out when they are asked for.
    Ask,
    /// No.
    Leave,
}

/// Why a place will not do.
pub(crate) enum Refusal {
    /// This page is taken.
    Page(u32),
    /// It needs more frames, or more mappings, than there are.
    Short,
}

impl<D: Driver> Heap<D> {
    /// The first plan in the order of preference; `None` if no arena has room.
    pub(crate) fn plan(&self, request: &Request, rules: &Rules<'_, D>) -> Option<Plan> {
        if rules.frames.is_none() {
            let wide = request.steps >= WIDE_PAGES * self.steps_per_page();
            if !wide && let Some(Ok(plan)) = self.plan_best_fit(request, rules) {
                return Some(plan);
            }
            if let Some(plan) = self.plan_fewest_maps(request, rules) {
                return Some(plan);
            }
        }
        let bound = rules.is_bound();
        let fits = if bound { usize::MAX } else { FITS };
        let misfits = if bound { usize::MAX } else { MISFITS };
        let in_a_hole = self.fits(request, misfits).take(fits).find_map(|(hole, start)| {
            self.plan_between(
                hole.arena(),
                Spot::Hole(hole),
                start,
                hole.start() + hole.steps(),
                request,
                rules,
            )
        });
        let arenas = 0..self.arenas.len() as u32;
        in_a_hole
            .or_else(|| arenas.clone().find_map(|arena| self.plan_tail(arena, request, rules)))
            .or_else(|| arenas.clone().find_map(|arena| self.plan_across(arena, request, rules)))
    }

    /// The holes that the request fits in, the best fit first, and where it begins in each. Of those that its alignment may
    /// be too much for, only so many are looked at.
    pub(crate) fn fits(&self, request: &Request, misfits: usize) -> impl Iterator<Item = (Hole, u32)> + '_ {
        let request = *request;
        // With so many steps it fits wherever the hole begins.
        let aligned = u64::from(request.steps) + (request.alignment / STEP_BYTES - 1);
        let aligned = u32::try_from(aligned).unwrap_or(u32::MAX);
        let near =
            self.holes.from(request.steps).take_while(move |hole| hole.steps() < aligned).take(misfits);
        let holes = near.chain(self.holes.from(aligned));
        holes.filter_map(move |hole| Some((hole, self.fit(&hole, &request)?)))
    }

    fn plan_best_fit(&self, request: &Request, rules: &Rules<'_, D>) -> Option<Result<Plan, Refusal>> {
        let (hole, start) = self.fits(request, MISFITS).next()?;
        Some(self.plan_at(hole.arena(), Spot::Hole(hole), start, request, rules))
    }

    /// The place in the best fits that needs the fewest maps; of equal ones, the best fit and the lowest address.
    fn plan_fewest_maps(&self, request: &Request, rules: &Rules<'_, D>) -> Option<Plan> {
        let plan = |(_, hole, start): (usize, Hole, u32)| {
            self.plan_at(hole.arena(), Spot::Hole(hole), start, request, rules).ok()
        };
        let mut fewest: Option<(usize, Hole, u32)> = None;
        for (hole, start) in self.fits(request, MISFITS).take(FITS) {
            let bound = fewest.map_or(usize::MAX, |(maps, ..)| maps);
            if let Some((maps, start)) = self.fewest_maps_in(&hole, start, request, rules, bound) {
                fewest = Some((maps, hole, start));
                if maps == 0 {
                    break;
                }
            }
        }
        plan(fewest?).or_else(|| {
            // Its pages would do, each taken by itself, and not together: then the best places of the other holes are
            // asked, up to the one that needed no map.
            let mut places = Vec::new();
            for (hole, start) in self.fits(request, MISFITS).take(FITS) {
                if let Some((maps, start)) = self.fewest_maps_in(&hole, start, request, rules, usize::MAX) {
                    places.push((maps, hole, start));
                    if maps == 0 {
                        break;
                    }
                }
            }
            // A stable sort: the order among equals is that of the fits.
            places.sort_by_key(|(maps, ..)| *maps);
            places.into_iter().find_map(plan)
        })
    }

    /// The fewest maps that a place in the hole needs, if they are fewer than `bound`, and the first such place. Places are
    /// tried at `start` and at every page behind it.
    ///
    /// A window slides over the hole. Pages that enter it are looked at from its end: behind a taken one, all places
    /// that contain it are passed over without a look at their other pages. (Most pages of a large hole are taken when
    /// events are late, and to look at one costs several cache misses.) Passed over, too, are places that can't need
    /// fewer, as they contain too many pages that need a map.
    fn fewest_maps_in(
        &self,
        hole: &Hole,
        mut start: u32,
        request: &Request,
        rules: &Rules<'_, D>,
        mut bound: usize,
    ) -> Option<(usize, u32)> {
        let segment = &self.arenas[hole.arena() as usize].segment;
        let end = hole.start() + hole.steps();
        let mut best: Option<(usize, u32)> = None;
        // Up to here pages were looked at; these need a map, of those in the last window that the next may contain.
        let mut seen = 0;
        let pages = self.pages_touched(start, start.checked_add(request.steps)?).count as usize;
        let mut maps: Vec<u32> = Vec::with_capacity(bound.min(pages + 1));
        while start.checked_add(request.steps)? <= end {
            let window = self.pages_touched(start, start + request.steps);
            maps.drain(..maps.partition_point(|&page| page < window.first));
            let known = maps.len();
            let behind = PageRange::between(seen.max(window.first), window.end());
            seen = window.end();
            let mut without = None;
            for page in segment.not_held(behind).rev() {
                let need = self.need_of(hole.arena(), page, rules);
                if need == Need::Map {
                    maps.push(page);
                }
                if need == Need::Another || maps.len() - known >= bound {
                    without = Some(page);
                    break;
                }
            }
            maps[known..].reverse();
            let next = match without {
                Some(page) => {
                    maps.drain(..known);
                    page + 1
                }
                None => {
                    if maps.len() < bound {
                        bound = maps.len();
                        best = Some((bound, start));
                    }
                    if bound == 0 {
                        break;
                    }
                    // A place needs fewer only if it leaves so many of these maps behind.
                    maps[maps.len() - bound] + 1
                }
            };
            let Some(aligned) = self.align(hole.arena(), next * self.steps_per_page(), request.alignment)
            else {
                break;
            };
            start = aligned;
        }
        best
    }

    /// What a page of a hole that is not held needs, taken by itself.
    #[inline(always)]
    fn need_of(&self, number: u32, page: u32, rules: &Rules<'_, D>) -> Need {
        let arena = &self.arenas[number as usize];
        if !arena.idle.is_idle(page) {
            return Need::Another;
        }
        let Some(mapping) = arena.segment.mapping(page) else { return Need::Map };
        let frame = mapping.frame();
        if self.is_revivable(number, frame, rules.directory.holder(frame), rules) {
            Need::Nothing
        } else if mapping.last_use().is_none_or(rules.done) {
            Need::Map
        } else {
            Need::Another
        }
    }

    fn plan_tail(&self, number: u32, request: &Request, rules: &Rules<'_, D>) -> Option<Plan> {
        let arena = &self.arenas[number as usize];
        let per_page = self.steps_per_page();
        let room = arena.segment.pages() * per_page;
        let last = (arena.last != NONE).then(|| self.blocks.get(arena.last));
        let start = match last {
            // Over the last block, if that is a hole that is too small.
            Some(block) if block.is(BlockState::Hole) && block.steps < request.steps => block.start,
            // Behind it, if its pages were refused.
            Some(block) if block.is(BlockState::Hole) => arena.extent.next_multiple_of(per_page),
            _ => arena.extent,
        };
        self.plan_between(number, Spot::Tail, start, room, request, rules)
    }

    /// A place that begins in a last hole that is large enough but refused, and ends in the tail: before addresses are
    /// reserved for the request.
    fn plan_across(&self, number: u32, request: &Request, rules: &Rules<'_, D>) -> Option<Plan> {
        let arena = &self.arenas[number as usize];
        let per_page = self.steps_per_page();
        let last = (arena.last != NONE).then(|| self.blocks.get(arena.last))?;
        if !last.is(BlockState::Hole) || last.steps < request.steps {
            return None;
        }
        // Behind the last place that is in the hole as a whole.
        let start = ((last.end() - request.steps) / per_page + 1) * per_page;
        self.plan_between(number, Spot::Tail, start, arena.segment.pages() * per_page, request, rules)
    }

    /// The first plan for a place between `start` and `end`: at `start`, or behind the last page that is taken.
    fn plan_between(
        &self,
        arena: u32,
        spot: Spot,
        mut start: u32,
        end: u32,
        request: &Request,
        rules: &Rules<'_, D>,
    ) -> Option<Plan> {
        loop {
            start = self.align(arena, start, request.alignment)?;
            if start.checked_add(request.steps)? > end {
                return None;
            }
            match self.plan_at(arena, spot, start, request, rules) {
                Ok(plan) => return Some(plan),
                Err(Refusal::Page(page)) => start = (page + 1) * self.steps_per_page(),
                Err(Refusal::Short) => {
                    // Only a place that ends in the last page of a hole, beside live bytes, can need less.
                    let last = (end - request.steps) / self.steps_per_page() * self.steps_per_page();
                    if last <= start || spot == Spot::Tail {
                        return None;
                    }
                    start = last;
                }
            }
        }
    }

    /// The plan for a place that begins at exactly this step.
    pub(crate) fn plan_at(
        &self,
        number: u32,
        spot: Spot,
        start: u32,
        request: &Request,
        rules: &Rules<'_, D>,
    ) -> Result<Plan, Refusal> {
        let arena = &self.arenas[number as usize];
        let pages = self.pages_touched(start, start + request.steps);
        let missing = arena.segment.not_held(pages).count();
        let mut backing = Vec::with_capacity(missing);
        let mut revived: HashSet<FrameId, BuildHasherDefault<ByNumber>> =
            HashSet::with_capacity_and_hasher(missing, BuildHasherDefault::default());
        for page in arena.segment.not_held(pages) {
            if !arena.idle.is_idle(page) {
                // Another request is backing it at this moment.
                return Err(Refusal::Page(page));
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
                        None => return Err(Refusal::Page(page)),
                    }
                }
            };
            backing.push((page, need));
        }
        if let Some(frames) = rules.frames {
            // Frames that the place holds already are among those counted.
            let in_place = pages.iter().filter(|&page| self.is_takeable(number, page)).count() as u64;
            if backing.len() as u64 > frames.saturating_sub(in_place) {
                return Err(Refusal::Short);
            }
        }
        let plan = Plan { arena: number, spot, start, backing };
        if rules.mappings.is_some_and(|mappings| plan.new_mappings() > mappings) {
            return Err(Refusal::Short);
        }
        Ok(plan)
    }

    /// The arena that a segment is in: most often the one with this number.
    #[inline]
    fn arena_near(&self, number: u32, segment: SegmentId) -> Option<u32> {
        let near = self.arenas[number as usize].segment.id() == segment;
        if near { Some(number) } else { self.arena_of(segment) }
    }

    /// Whether a stale page of an arena could come by the frame that it is still mapped to, which `holder` holds.
    #[inline(always)]
    fn is_revivable(&self, arena: u32, frame: FrameId, holder: Holder, rules: &Rules<'_, D>) -> bool {
        match holder {
            Holder::Page(holder) => match self.arena_near(arena, holder.segment) {
                Some(arena) => self.is_takeable(arena, holder.page),
                None => rules.others == Others::Ask,
            },
            Holder::Store => rules
                .directory
                .free_frame(frame)
                .is_some_and(|frame| frame.pins() == 0 && (rules.may_serve)(frame)),
            Holder::Thief | Holder::Nobody => false,
        }
    }

    /// How a stale page of the place could come by the frame that it is still mapped to.
    fn revival(
        &self,
        number: u32,
        place: PageRange,
        frame: FrameId,
        rules: &Rules<'_, D>,
    ) -> Option<Backing> {
        let holder = rules.directory.holder(frame);
        if !self.is_revivable(number, frame, holder, rules) {
            return None;
        }
        let Holder::Page(holder) = holder else { return Some(Backing::ReviveStore(frame)) };
        let Some(arena) = self.arena_near(number, holder.segment) else {
            return Some(Backing::ReviveOther(frame, holder));
        };
        // The place's own frames stay where they are.
        let in_place = arena == number && place.contains(holder.page);
        (!in_place).then_some(Backing::ReviveOwn { frame, arena, page: holder.page })
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

#[cfg(test)]
mod tests;
