//! Segments against a trivial model: one map entry a mapped page.
//!
//! Main types: [`Run`], [`Step`], [`ModelPage`]. Neighbours: `frame_stores` does the same for the store.
//!
//! Two segments share a store, so that a frame is mapped in both. After each step every page of both is compared, with
//! the driver's own view of it, with the book of the store, and with the number of driver calls worked out by the model.

use std::collections::HashMap;

use concertina_emulator::{BackingId, Emulator, EmulatorConfig, Fault, Rule};
use concertina_vmm::{
    Access, Call, DriverErrorKind, Frame, FrameId, FrameStore, Holder, PageRange, PageState, Place, Segment,
    SegmentId, StreamId, Use, Uses,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::Setup;

const PAGES: u32 = 10;
const REFUSED: DriverErrorKind = DriverErrorKind::NotReady;

/// Which frame in the hands of the test, which page, and so on: taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    Create,
    Map { segment: usize, page: u32, hand: usize, fails: Fails },
    Grant { segment: usize, first: u32, count: u32, fails: Fails },
    Hold { segment: usize, page: u32 },
    Take { segment: usize, page: u32, tick: Option<u64> },
    Pin { segment: usize, page: u32 },
    Unpin { segment: usize, page: u32 },
    UnmapStale { segment: usize, mask: u32, failing: Option<u64> },
    Clear { segment: usize, failing: Option<u64> },
    Put { hand: usize },
    TakeOldest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fails {
    No,
    Yes,
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..2_usize, 0..PAGES);
    let fails = || prop_oneof![9 => Just(Fails::No), 1 => Just(Fails::Yes)];
    let failing = || prop_oneof![4 => Just(None), 1 => (1..4_u64).prop_map(Some)];
    prop_oneof![
        3 => Just(Step::Create),
        8 => (place(), any::<usize>(), fails())
            .prop_map(|((segment, page), hand, fails)| Step::Map { segment, page, hand, fails }),
        6 => (place(), 0..5_u32, fails())
            .prop_map(|((segment, first), count, fails)| Step::Grant { segment, first, count, fails }),
        10 => place().prop_map(|(segment, page)| Step::Hold { segment, page }),
        5 => (place(), prop::option::of(1..100_u64))
            .prop_map(|((segment, page), tick)| Step::Take { segment, page, tick }),
        1 => place().prop_map(|(segment, page)| Step::Pin { segment, page }),
        2 => place().prop_map(|(segment, page)| Step::Unpin { segment, page }),
        3 => (0..2_usize, any::<u32>(), failing())
            .prop_map(|(segment, mask, failing)| Step::UnmapStale { segment, mask, failing }),
        1 => (0..2_usize, failing()).prop_map(|(segment, failing)| Step::Clear { segment, failing }),
        2 => any::<usize>().prop_map(|hand| Step::Put { hand }),
        2 => Just(Step::TakeOldest),
    ]
}

#[derive(Clone, Copy, Debug)]
struct ModelPage {
    frame: FrameId,
    access: Access,
    held: bool,
    last_use: Option<Use>,
}

#[derive(Debug, Default)]
struct Model {
    pages: HashMap<(usize, u32), ModelPage>,
    pins: HashMap<FrameId, u32>,
    /// Frames of the store, oldest first.
    store: Vec<FrameId>,
    /// Calls that reached the driver.
    maps: u64,
    unmaps: u64,
    grants: u64,
    broken: Vec<Rule>,
}

impl Model {
    fn is_pinned(&self, frame: FrameId) -> bool {
        self.pins.get(&frame).is_some_and(|pins| *pins > 0)
    }

    fn stale_pages(&self, segment: usize) -> Vec<u32> {
        (0..PAGES).filter(|page| self.pages.get(&(segment, *page)).is_some_and(|page| !page.held)).collect()
    }

    /// Unmaps run by run; the run at which the driver refuses, and all behind it, stay.
    fn unmap(&mut self, segment: usize, pages: &[u32], longest: usize, failing: Option<u64>) {
        let mut runs: Vec<Vec<u32>> = Vec::new();
        for &page in pages {
            match runs.last_mut() {
                Some(run) if run.len() < longest && run.last() == Some(&(page - 1)) => run.push(page),
                _ => runs.push(vec![page]),
            }
        }
        for (number, run) in (1..).zip(runs) {
            self.unmaps += 1;
            if failing == Some(number) {
                break;
            }
            for page in run {
                self.pages.remove(&(segment, page));
            }
        }
    }
}

struct Run {
    setup: Setup,
    store: std::sync::Arc<FrameStore<Emulator>>,
    segments: Vec<Segment<Emulator>>,
    hands: Vec<Frame<Emulator>>,
    /// Most mappings that one unmap takes.
    longest: usize,
    /// The driver's memory of each frame, as first seen.
    memory: HashMap<FrameId, BackingId>,
    model: Model,
}

impl Run {
    fn new(granularity_bytes: u64, unmap_spans_mappings: bool) -> Self {
        let config = EmulatorConfig { granularity_bytes, unmap_spans_mappings, ..EmulatorConfig::default() };
        let setup = Setup::new(config);
        let store = setup.store();
        let bytes = u64::from(PAGES) * granularity_bytes;
        let segments =
            (0..2).map(|number| Segment::new(SegmentId::new(number), &store, bytes, 0).unwrap()).collect();
        Self {
            setup,
            store,
            segments,
            hands: Vec::new(),
            longest: if unmap_spans_mappings { usize::MAX } else { 1 },
            memory: HashMap::new(),
            model: Model::default(),
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Create => self.hands.push(self.store.create().unwrap()),
            Step::Map { segment, page, hand, fails } => self.map(segment, page, hand, fails)?,
            Step::Grant { segment, first, count, fails } => {
                self.grant(segment, PageRange::between(first, PAGES.min(first + count)), fails)?;
            }
            Step::Hold { segment, page } => {
                let Some(state) = self.model.pages.get_mut(&(segment, page)) else { return Ok(()) };
                let Some(at) = self.hands.iter().position(|frame| frame.id() == state.frame) else {
                    return Ok(());
                };
                if state.access == Access::Granted {
                    state.held = true;
                    self.segments[segment].hold(page, self.hands.swap_remove(at));
                }
            }
            Step::Take { segment, page, tick } => {
                let last_use = tick.map(|tick| Use { stream: StreamId::new(5), tick });
                let taken = self.segments[segment].take(page, last_use);
                let state = self.model.pages.get(&(segment, page)).copied().filter(|page| page.held);
                let expected = state.map(|page| page.frame).filter(|frame| !self.model.is_pinned(*frame));
                prop_assert_eq!(taken.as_ref().map(Frame::id), expected);
                if let Some(frame) = taken {
                    prop_assert_eq!(frame.uses(), &last_use.into_iter().collect::<Uses>());
                    self.hands.push(frame);
                    let state = self.model.pages.get_mut(&(segment, page)).unwrap();
                    (state.held, state.last_use) = (false, last_use);
                }
            }
            Step::Pin { segment, page } => {
                if let Some(frame) = self.segments[segment].frame(page) {
                    *self.model.pins.entry(frame.id()).or_default() += 1;
                }
                self.segments[segment].pin(page);
            }
            Step::Unpin { segment, page } => self.unpin(segment, page),
            Step::UnmapStale { segment, mask, failing } => {
                let mut pages = self.model.stale_pages(segment);
                pages.retain(|page| mask >> page & 1 == 1);
                self.unmapping(segment, &pages, failing, |segment| segment.unmap_stale(&pages))?;
            }
            Step::Clear { segment, failing } => self.clear(segment, failing)?,
            Step::Put { hand } => {
                if let Some(at) = hand.checked_rem(self.hands.len()) {
                    self.model.store.push(self.hands[at].id());
                    self.store.put([self.hands.swap_remove(at)]);
                }
            }
            Step::TakeOldest => {
                let mut taken = Vec::new();
                self.store.take(1, |_| true, &mut taken);
                let free = self.model.store.iter().position(|frame| !self.model.is_pinned(*frame));
                prop_assert_eq!(
                    taken.first().map(Frame::id),
                    free.map(|oldest| self.model.store.remove(oldest))
                );
                self.hands.append(&mut taken);
            }
        }
        self.compare()
    }

    fn map(&mut self, segment: usize, page: u32, hand: usize, fails: Fails) -> Result<(), TestCaseError> {
        let Some(at) = hand.checked_rem(self.hands.len()) else { return Ok(()) };
        if self.model.pages.contains_key(&(segment, page)) {
            return Ok(());
        }
        if fails == Fails::Yes {
            self.setup.emulator.fail(Fault::once(Call::Map, 1, REFUSED));
        }
        let mapped = self.segments[segment].map(page, &self.hands[at]);
        prop_assert_eq!(mapped.is_err(), fails == Fails::Yes);
        self.model.maps += 1;
        if mapped.is_ok() {
            let frame = self.hands[at].id();
            let state = ModelPage { frame, access: Access::None, held: false, last_use: None };
            self.model.pages.insert((segment, page), state);
        }
        Ok(())
    }

    fn grant(&mut self, segment: usize, pages: PageRange, fails: Fails) -> Result<(), TestCaseError> {
        let unmapped = pages.iter().any(|page| !self.model.pages.contains_key(&(segment, page)));
        if fails == Fails::Yes && !pages.is_empty() {
            self.setup.emulator.fail(Fault::once(Call::SetAccess, 1, REFUSED));
        }
        let granted = self.segments[segment].grant(pages);
        if pages.is_empty() {
            prop_assert!(granted.is_ok(), "nothing to do");
            return Ok(());
        }
        self.model.grants += 1;
        if fails == Fails::No && unmapped {
            self.model.broken.push(Rule::AccessUnmapped);
        }
        prop_assert_eq!(granted.is_err(), fails == Fails::Yes || unmapped);
        for page in pages.iter().filter(|_| granted.is_ok()) {
            self.model.pages.get_mut(&(segment, page)).unwrap().access = Access::Granted;
        }
        Ok(())
    }

    fn unpin(&mut self, segment: usize, page: u32) {
        if let Some(frame) = self.segments[segment].frame(page).filter(|frame| frame.pins() > 0) {
            *self.model.pins.get_mut(&frame.id()).unwrap() -= 1;
        }
        self.segments[segment].unpin(page);
    }

    fn unmapping(
        &mut self,
        segment: usize,
        pages: &[u32],
        failing: Option<u64>,
        unmap: impl FnOnce(&mut Segment<Emulator>) -> Result<(), concertina_vmm::DriverError>,
    ) -> Result<(), TestCaseError> {
        if let Some(nth) = failing {
            self.setup.emulator.fail(Fault::once(Call::Unmap, nth, REFUSED));
        }
        let unmapped = unmap(&mut self.segments[segment]);
        self.setup.emulator.clear_faults();
        self.model.unmap(segment, pages, self.longest, failing);
        let left = pages.iter().any(|page| self.model.pages.contains_key(&(segment, *page)));
        prop_assert_eq!(unmapped.is_err(), left);
        Ok(())
    }

    fn clear(&mut self, segment: usize, failing: Option<u64>) -> Result<(), TestCaseError> {
        for page in 0..PAGES {
            let pins = self.model.pins.clone();
            let Some(state) = self.model.pages.get_mut(&(segment, page)) else { continue };
            if state.held && pins.get(&state.frame).is_none_or(|pins| *pins == 0) {
                (state.held, state.last_use) = (false, None);
                self.model.store.push(state.frame);
            }
        }
        let stale = self.model.stale_pages(segment);
        self.unmapping(segment, &stale, failing, Segment::clear)
    }

    fn compare(&mut self) -> Result<(), TestCaseError> {
        for segment in 0..self.segments.len() {
            for page in 0..=PAGES {
                self.compare_page(segment, page)?;
            }
            self.compare_ranges(segment)?;
        }
        self.compare_book()?;
        let model = &self.model;
        let setup = &self.setup;
        prop_assert_eq!(setup.calls(Call::Map), model.maps);
        prop_assert_eq!(setup.calls(Call::Unmap), model.unmaps, "one for each run of neighbours");
        prop_assert_eq!(setup.calls(Call::SetAccess), model.grants, "one a grant");
        prop_assert_eq!(setup.broken(), model.broken.clone());
        prop_assert_eq!(setup.device.mappings(), model.pages.len() as u64);
        prop_assert_eq!(setup.counts().mappings, model.pages.len() as u64);
        prop_assert_eq!(setup.emulator.recount(), setup.emulator.leaks());
        Ok(())
    }

    fn compare_page(&mut self, number: usize, page: u32) -> Result<(), TestCaseError> {
        let segment = &self.segments[number];
        let expected = self.model.pages.get(&(number, page));
        let state = match expected {
            None => PageState::Unmapped,
            Some(page) if page.held => PageState::Held(page.frame),
            Some(page) => PageState::Stale(page.frame),
        };
        prop_assert_eq!(segment.state(page), state, "page {} of segment {}", page, number);
        prop_assert_eq!(segment.is_held(page), expected.is_some_and(|page| page.held));
        let frame = expected.filter(|page| page.held).map(|page| page.frame);
        prop_assert_eq!(segment.frame(page).map(Frame::id), frame);
        let stale = expected.filter(|page| !page.held).map(|page| (page.frame, page.last_use));
        prop_assert_eq!(segment.stale(page), stale);
        let mapping = segment.mapping(page);
        prop_assert_eq!(
            mapping.map(|mapping| (mapping.frame(), mapping.access(), mapping.last_use())),
            expected.map(|page| (page.frame, page.access, page.last_use))
        );
        let address = segment.address().add(u64::from(page) * self.setup.page());
        prop_assert!(mapping.is_none_or(|mapping| mapping.address() == address));
        if page < PAGES {
            let behind = self.setup.emulator.resolve(address);
            prop_assert_eq!(
                behind.map(|backing| backing.accessible),
                expected.map(|page| page.access == Access::Granted)
            );
            if let (Some(behind), Some(expected)) = (behind, expected) {
                let seen = *self.memory.entry(expected.frame).or_insert(behind.memory);
                prop_assert_eq!(behind.memory, seen, "a frame is the same memory wherever it is mapped");
            }
        }
        Ok(())
    }

    fn compare_ranges(&self, number: usize) -> Result<(), TestCaseError> {
        let segment = &self.segments[number];
        let held = |page: u32| self.model.pages.get(&(number, page)).is_some_and(|page| page.held);
        for first in 0..=PAGES {
            for end in first..=PAGES {
                let pages = PageRange::between(first, end);
                let missing: Vec<u32> = pages.iter().filter(|page| !held(*page)).collect();
                // A range that ends behind all pages ever mapped has no bits to look at, and no page to use either.
                if !pages.is_empty() {
                    prop_assert_eq!(segment.all_held(pages), missing.is_empty(), "{:?}", pages);
                }
                prop_assert_eq!(segment.not_held(pages).collect::<Vec<_>>(), missing, "{:?}", pages);
            }
        }
        let of = |wanted: &dyn Fn(u32) -> bool| (0..PAGES).filter(|page| wanted(*page)).count();
        prop_assert_eq!(segment.held_pages() as usize, of(&held));
        for page in 0..PAGES {
            let state = self.model.pages.get(&(number, page)).filter(|state| state.held);
            let may_go = state.is_some_and(|state| !self.model.is_pinned(state.frame));
            prop_assert_eq!(segment.is_takeable(page), may_go, "page {}", page);
        }
        let mapped = |page: u32| self.model.pages.contains_key(&(number, page));
        prop_assert_eq!(segment.mapped_pages() as usize, of(&mapped));
        prop_assert_eq!(segment.stale_pages().collect::<Vec<_>>(), self.model.stale_pages(number));
        Ok(())
    }

    fn compare_book(&self) -> Result<(), TestCaseError> {
        let directory = self.store.directory();
        let place = |(segment, page): (usize, u32)| Place { segment: self.segments[segment].id(), page };
        let frames = self.setup.counts().handles;
        for frame in (0..frames as u32).map(FrameId::new) {
            let pages = self.model.pages.iter().filter(|(_, page)| page.frame == frame);
            let mut mapped: Vec<Place> = pages.map(|(at, _)| place(*at)).collect();
            let mut known = directory.mappings(frame).collect::<Vec<_>>();
            let key = |place: &Place| (place.segment, place.page);
            mapped.sort_by_key(key);
            known.sort_by_key(key);
            prop_assert_eq!(known, mapped, "{:?}", frame);
            let held_at: Vec<_> =
                self.model.pages.iter().filter(|(_, page)| page.held && page.frame == frame).collect();
            let holder = if let [(at, _)] = held_at[..] {
                Holder::Page(place(*at))
            } else if self.model.store.contains(&frame) {
                Holder::Store
            } else {
                Holder::Thief
            };
            prop_assert!(held_at.len() <= 1, "{:?} is held through {:?}", frame, held_at);
            prop_assert_eq!(directory.holder(frame), holder, "{:?}", frame);
            prop_assert_eq!(directory.free_frame(frame).is_some(), holder == Holder::Store);
        }
        Ok(())
    }

    fn give_all_back(mut self) -> Result<(), TestCaseError> {
        for segment in 0..self.segments.len() {
            for page in 0..PAGES {
                while self.segments[segment].frame(page).is_some_and(|frame| frame.pins() > 0) {
                    self.unpin(segment, page);
                }
            }
            self.clear(segment, None)?;
        }
        self.compare()?;
        let Self { setup, store, segments, mut hands, model, .. } = self;
        store.take(usize::MAX, |_| true, &mut hands);
        for frame in hands {
            prop_assert!(store.release(frame).is_ok());
        }
        for mut segment in segments {
            prop_assert!(segment.unreserve().is_ok());
        }
        prop_assert_eq!(store.mapped_bytes(), 0);
        prop_assert!(setup.emulator.is_empty(), "{}", setup.emulator.leaks());
        prop_assert!(setup.device.unreturned().is_empty());
        prop_assert_eq!(setup.broken(), model.broken);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn agree_with_the_model(
        steps in prop::collection::vec(step(), 1..150),
        granularity in prop::sample::select(vec![64_u64 << 10, 2 << 20, 32 << 20]),
        unmap_spans_mappings in any::<bool>(),
    ) {
        let mut run = Run::new(granularity, unmap_spans_mappings);
        for (index, step) in steps.iter().enumerate() {
            run.step(step).map_err(|error| TestCaseError::fail(format!("step {index}, {step:?}: {error}")))?;
        }
        run.give_all_back()?;
    }
}

/// A run of stale pages is one call, wherever the frames came from; a gap makes two; one mapping a call without spans.
#[test]
fn unmaps_are_counted_in_runs() {
    for (spans, calls) in [(true, 2), (false, 5)] {
        let mut run = Run::new(2 << 20, spans);
        for page in [0, 1, 2, 6, 7] {
            run.step(&Step::Create).unwrap();
            run.step(&Step::Map { segment: 0, page, hand: page as usize, fails: Fails::No }).unwrap();
        }
        let mask = u32::MAX;
        run.step(&Step::UnmapStale { segment: 0, mask, failing: None }).unwrap();
        assert_eq!(run.setup.calls(Call::Unmap), calls);
        run.give_all_back().unwrap();
    }
}

fn one_held_page() -> (Setup, Segment<Emulator>) {
    let setup = Setup::default();
    let store = setup.store();
    let mut segment = Segment::new(SegmentId::new(0), &store, 4 * setup.page(), 0).unwrap();
    let frame = store.create().unwrap();
    segment.map(0, &frame).unwrap();
    segment.grant(PageRange { first: 0, count: 1 }).unwrap();
    segment.hold(0, frame);
    (setup, segment)
}

#[test]
#[should_panic(expected = "is mapped already")]
fn mapping_twice_is_a_mistake() {
    let (setup, mut segment) = one_held_page();
    let _ = segment.map(0, &setup.store().create().unwrap());
}

#[test]
#[should_panic(expected = "can't hold")]
fn holding_another_frame_is_a_mistake() {
    let (setup, mut segment) = one_held_page();
    let store = setup.store();
    // Of another store, with another number: what matters is that the page is mapped to a different one.
    drop(store.create());
    segment.hold(0, store.create().unwrap());
}

#[test]
#[should_panic(expected = "can't hold")]
fn holding_without_access_is_a_mistake() {
    let (setup, mut segment) = one_held_page();
    let frame = segment.take(0, None).unwrap();
    segment.map(1, &frame).unwrap();
    drop(setup);
    segment.hold(1, frame);
}

#[test]
#[should_panic(expected = "is not stale")]
fn unmapping_a_held_page_is_a_mistake() {
    let (_setup, mut segment) = one_held_page();
    let _ = segment.unmap_stale(&[0]);
}
