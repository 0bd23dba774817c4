//! The frame store against a trivial model, and its limit under two threads.
//!
//! Main types: [`Run`], [`Step`]. Neighbours: `segments` has the part of the book that mappings write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use concertina_emulator::{Emulator, EmulatorConfig, Fault};
use concertina_vmm::{
    Call, CreateError, DriverErrorKind, Frame, FrameId, FrameStore, Holder, Place, ReleaseError, Segment,
    SegmentId, StreamId, Use,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::Setup;

const DEVICE_FRAMES: u64 = 8;
const STREAMS: usize = 3;
const REFUSED: DriverErrorKind = DriverErrorKind::NotReady;

/// Frames and counts are taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    Create,
    /// The driver refuses.
    CreateFails,
    Put {
        hands: usize,
        /// What they were used for last.
        uses: [Option<u64>; STREAMS],
    },
    /// Those whose uses are of no later ticks, by stream.
    TakeOldest {
        count: usize,
        ticks: [u64; STREAMS],
    },
    TakeFrame {
        frame: u32,
        every: u32,
    },
    Map {
        hand: usize,
    },
    Unmap {
        nth: usize,
    },
    Release {
        hand: usize,
    },
    ReleaseFails {
        hand: usize,
    },
    Retry {
        failing: u64,
    },
    Pin {
        hand: usize,
    },
    Unpin {
        hand: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let hand = any::<usize>;
    let uses = prop::array::uniform(prop::option::weighted(0.4, 0..5_u64));
    prop_oneof![
        8 => Just(Step::Create),
        1 => Just(Step::CreateFails),
        5 => (1..4_usize, uses).prop_map(|(hands, uses)| Step::Put { hands, uses }),
        4 => (0..4_usize, prop::array::uniform(0..5_u64))
            .prop_map(|(count, ticks)| Step::TakeOldest { count, ticks }),
        4 => (0..10_u32, 1..4_u32).prop_map(|(frame, every)| Step::TakeFrame { frame, every }),
        3 => hand().prop_map(|hand| Step::Map { hand }),
        2 => hand().prop_map(|nth| Step::Unmap { nth }),
        4 => hand().prop_map(|hand| Step::Release { hand }),
        2 => hand().prop_map(|hand| Step::ReleaseFails { hand }),
        2 => (0..4_u64).prop_map(|failing| Step::Retry { failing }),
        1 => hand().prop_map(|hand| Step::Pin { hand }),
        1 => hand().prop_map(|hand| Step::Unpin { hand }),
    ]
}

#[derive(Clone, Copy, Debug)]
struct ModelFrame {
    id: FrameId,
    pins: u32,
    /// By stream: the tick.
    uses: [Option<u64>; STREAMS],
}

#[derive(Debug, Default)]
struct Model {
    /// In the hands of the test, in the order of `Run::hands`.
    hands: Vec<ModelFrame>,
    /// Oldest first.
    store: Vec<ModelFrame>,
    unreleased: Vec<ModelFrame>,
    /// Which page is mapped to which frame.
    mapped: Vec<(u32, FrameId)>,
    peak_frames: u64,
}

impl Model {
    fn frames(&self) -> u64 {
        (self.hands.len() + self.store.len() + self.unreleased.len()) as u64
    }

    fn is_mapped(&self, frame: FrameId) -> bool {
        self.mapped.iter().any(|(_, mapped)| *mapped == frame)
    }
}

/// One use a stream, the first of which is of any.
fn uses_of(uses: [Option<u64>; STREAMS]) -> impl Iterator<Item = Use> {
    let use_ = |(stream, tick)| Use { stream: StreamId::new(stream), tick };
    (0..).zip(uses).filter_map(|(stream, tick)| tick.map(|tick| (stream, tick))).map(use_)
}

fn wanted(every: u32) -> impl Fn(&Frame<Emulator>) -> bool {
    move |frame| frame.id().get().is_multiple_of(every)
}

struct Run {
    setup: Setup,
    store: Arc<FrameStore<Emulator>>,
    limit_frames: Option<u64>,
    segment: Segment<Emulator>,
    next_page: u32,
    hands: Vec<Frame<Emulator>>,
    model: Model,
}

impl Run {
    fn new(limit_frames: Option<u64>) -> Self {
        let page = EmulatorConfig::default().granularity_bytes;
        let config = EmulatorConfig::default().with_capacity(DEVICE_FRAMES * page).unwrap();
        let setup = Setup::new(config);
        let store = Arc::new(FrameStore::new(&setup.device, limit_frames.map(|frames| frames * page)));
        let segment = Segment::new(SegmentId::new(0), &store, 1_000 * page, 0).unwrap();
        let (hands, model) = (Vec::new(), Model::default());
        Self { setup, store, limit_frames, segment, next_page: 0, hands, model }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let page = self.setup.page();
        match *step {
            Step::Create => {
                let mapped = self.model.frames();
                let created = self.store.create();
                match created {
                    Ok(frame) => {
                        prop_assert!(
                            mapped < DEVICE_FRAMES && self.limit_frames.is_none_or(|most| mapped < most)
                        );
                        prop_assert!(frame.uses().is_empty() && frame.bytes() == page);
                        self.model.hands.push(ModelFrame { id: frame.id(), pins: 0, uses: [None; STREAMS] });
                        self.hands.push(frame);
                        self.model.peak_frames = self.model.peak_frames.max(mapped + 1);
                    }
                    Err(CreateError::OverLimit { mapped_bytes, limit_bytes }) => {
                        prop_assert_eq!(Some(mapped), self.limit_frames);
                        prop_assert_eq!((mapped_bytes, limit_bytes), (mapped * page, mapped * page));
                    }
                    Err(CreateError::Driver(error)) => {
                        prop_assert!(error.is_out_of_memory() && mapped == DEVICE_FRAMES, "{}", error);
                    }
                }
            }
            Step::CreateFails => {
                self.setup.emulator.fail(Fault::once(Call::Create, 1, REFUSED));
                prop_assert!(self.store.create().is_err());
                self.setup.emulator.clear_faults();
            }
            Step::Put { hands, uses } => {
                let count = hands.min(self.hands.len());
                for (frame, model) in self.hands.iter_mut().zip(&mut self.model.hands).take(count) {
                    frame.set_uses(uses_of(uses).collect());
                    model.uses = uses;
                }
                self.store.put(self.hands.drain(..count));
                self.model.store.extend(self.model.hands.drain(..count));
            }
            Step::TakeOldest { count, ticks } => {
                let allowed = |use_: Use| use_.tick <= ticks[use_.stream.index()];
                let free = |frame: &ModelFrame| frame.pins == 0 && uses_of(frame.uses).all(allowed);
                let matching = self.model.store.iter().filter(|frame| free(frame));
                prop_assert_eq!(self.store.count_free(allowed), matching.clone().count());
                let expected: Vec<ModelFrame> = matching.take(count).copied().collect();
                let before = self.hands.len();
                self.store.take(count, allowed, &mut self.hands);
                let taken: Vec<FrameId> = self.hands[before..].iter().map(Frame::id).collect();
                prop_assert_eq!(&taken, &expected.iter().map(|frame| frame.id).collect::<Vec<_>>());
                self.model.store.retain(|frame| !taken.contains(&frame.id));
                self.model.hands.extend(expected);
            }
            Step::TakeFrame { frame, every } => {
                let id = FrameId::new(frame);
                let at = self.model.store.iter().position(|frame| {
                    frame.id == id && frame.pins == 0 && frame.id.get().is_multiple_of(every)
                });
                let taken = self.store.take_frame(id, wanted(every));
                prop_assert_eq!(taken.as_ref().map(Frame::id), at.map(|_| id));
                self.hands.extend(taken);
                self.model.hands.extend(at.map(|at| self.model.store.remove(at)));
            }
            Step::Map { hand } => {
                let Some(at) = hand.checked_rem(self.hands.len()) else { return Ok(()) };
                self.segment.map(self.next_page, &self.hands[at]).unwrap();
                self.model.mapped.push((self.next_page, self.hands[at].id()));
                self.next_page += 1;
            }
            Step::Unmap { nth } => {
                let Some(at) = nth.checked_rem(self.model.mapped.len()) else { return Ok(()) };
                let (mapped_page, _) = self.model.mapped.swap_remove(at);
                self.segment.unmap_stale(&[mapped_page]).unwrap();
            }
            Step::Release { hand } => self.release(hand, None)?,
            Step::ReleaseFails { hand } => self.release(hand, Some(REFUSED))?,
            Step::Retry { failing } => {
                self.setup.emulator.fail(Fault::once(Call::Release, failing.max(1), REFUSED));
                let before = self.model.unreleased.len() as u64;
                // Those behind a failure are tried, too.
                let fails = failing.max(1) <= before;
                prop_assert_eq!(self.store.retry(), (before - u64::from(fails)) * page);
                self.setup.emulator.clear_faults();
                let kept = failing.max(1) as usize - 1;
                self.model.unreleased = self.model.unreleased.get(kept).copied().into_iter().collect();
            }
            Step::Pin { hand } => {
                if let Some(at) = hand.checked_rem(self.hands.len()) {
                    self.hands[at].pin();
                    self.model.hands[at].pins += 1;
                }
            }
            Step::Unpin { hand } => {
                let Some(at) = hand.checked_rem(self.hands.len()) else { return Ok(()) };
                if self.model.hands[at].pins > 0 {
                    self.hands[at].unpin();
                    self.model.hands[at].pins -= 1;
                }
            }
        }
        self.compare()
    }

    fn release(&mut self, hand: usize, failure: Option<DriverErrorKind>) -> Result<(), TestCaseError> {
        let Some(at) = hand.checked_rem(self.hands.len()) else { return Ok(()) };
        let (frame, known) = (self.hands.remove(at), self.model.hands.remove(at));
        let calls = self.setup.calls(Call::Release);
        if let Some(kind) = failure {
            self.setup.emulator.fail(Fault::once(Call::Release, 1, kind));
        }
        let released = self.store.release(frame);
        self.setup.emulator.clear_faults();
        match released {
            Ok(bytes) => {
                prop_assert!(failure.is_none() && !self.model.is_mapped(known.id));
                prop_assert_eq!(bytes, self.setup.page());
            }
            Err(ReleaseError::Mapped(frame)) => {
                prop_assert!(self.model.is_mapped(known.id));
                prop_assert_eq!(self.setup.calls(Call::Release), calls, "the driver is not asked");
                self.hands.push(frame);
                self.model.hands.push(known);
            }
            Err(ReleaseError::Driver(error)) => {
                prop_assert!(!self.model.is_mapped(known.id));
                prop_assert_eq!(Some(error.kind), failure);
                self.model.unreleased.push(known);
            }
        }
        Ok(())
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        let (store, model, page) = (&self.store, &self.model, self.setup.page());
        prop_assert_eq!(store.mapped_bytes(), model.frames() * page);
        prop_assert_eq!(store.mapped_peak_bytes(), model.peak_frames * page);
        prop_assert_eq!(store.free_frames(), model.store.len());
        prop_assert_eq!(store.unreleased_frames(), model.unreleased.len());
        prop_assert_eq!(store.limit_bytes(), self.limit_frames.map(|frames| frames * page));
        prop_assert_eq!(self.setup.emulator.leaks().handles, model.frames());
        let directory = store.directory();
        for id in (0..DEVICE_FRAMES as u32 + 2).map(FrameId::new) {
            let is_in = |frames: &[ModelFrame]| frames.iter().any(|frame| frame.id == id);
            let holder = if is_in(&model.store) {
                Holder::Store
            } else if is_in(&model.hands) {
                Holder::Thief
            } else if is_in(&model.unreleased) {
                // On its way out: only that nobody can have it matters.
                directory.holder(id)
            } else {
                Holder::Nobody
            };
            prop_assert_eq!(directory.holder(id), holder, "{:?}", id);
            let free = directory.free_frame(id).map(Frame::id);
            prop_assert_eq!(free, is_in(&model.store).then_some(id));
            let mut places: Vec<u32> =
                model.mapped.iter().filter(|(_, mapped)| *mapped == id).map(|(page, _)| *page).collect();
            let mut known: Vec<u32> = directory.mappings(id).map(|Place { page, .. }| page).collect();
            places.sort_unstable();
            known.sort_unstable();
            prop_assert_eq!(known, places);
        }
        let mut uses: Vec<Use> = model.store.iter().flat_map(|frame| uses_of(frame.uses)).collect();
        uses.sort_unstable_by_key(|use_| (use_.stream, use_.tick));
        uses.dedup();
        prop_assert_eq!(&directory.free_uses().collect::<Vec<_>>(), &uses);
        drop(directory);
        uses.reverse();
        uses.dedup_by_key(|use_| use_.stream);
        uses.reverse();
        prop_assert_eq!(store.last_free_uses(), uses);
        Ok(())
    }

    fn give_all_back(mut self) -> Result<(), TestCaseError> {
        self.segment.clear().unwrap();
        self.store.put(self.hands.drain(..));
        let mut frames = Vec::new();
        self.store.take(usize::MAX, |_| true, &mut frames);
        let pinned = self.model.store.iter().chain(&self.model.hands).filter(|frame| frame.pins > 0).count();
        prop_assert_eq!(self.store.free_frames(), pinned, "pinned frames stay");
        for frame in frames {
            prop_assert!(self.store.release(frame).is_ok());
        }
        self.store.retry();
        prop_assert_eq!(self.store.mapped_bytes(), pinned as u64 * self.setup.page());
        let Self { setup, store, segment, .. } = self;
        drop((store, segment));
        setup.assert_clean();
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn agree_with_the_model(
        steps in prop::collection::vec(step(), 1..120),
        limit_frames in prop_oneof![Just(None), (1..DEVICE_FRAMES + 3).prop_map(Some)],
    ) {
        let mut run = Run::new(limit_frames);
        for (index, step) in steps.iter().enumerate() {
            run.step(step).map_err(|error| TestCaseError::fail(format!("step {index}, {step:?}: {error}")))?;
        }
        run.give_all_back()?;
    }
}

/// A frame that never lay in the store has no place among the free ones, whatever became of its release.
#[test]
fn an_unreleased_frame_is_not_taken_for_another() {
    let setup = Setup::default();
    let store = setup.store();
    let (free, stuck) = (store.create().unwrap(), store.create().unwrap());
    let id = stuck.id();
    store.put([free]);
    setup.emulator.fail(Fault::once(Call::Release, 1, REFUSED));
    assert!(store.release(stuck).is_err());
    assert!(store.directory().free_frame(id).is_none());
    assert!(store.take_frame(id, |_| true).is_none());
    assert_eq!((store.free_frames(), store.unreleased_frames()), (1, 1));
}

#[test]
fn forgetting_a_segment_forgets_its_mappings_only() {
    let setup = Setup::default();
    let store = setup.store();
    let segment = |number| Segment::new(SegmentId::new(number), &store, 2 * setup.page(), 0).unwrap();
    let (mut gone, mut stays) = (segment(0), segment(1));
    let frame = store.create().unwrap();
    gone.map(0, &frame).unwrap();
    stays.map(1, &frame).unwrap();
    drop(gone);
    assert_eq!(store.directory().mappings(frame.id()).len(), 2);
    store.forget_mappings(SegmentId::new(0));
    let left = Place { segment: SegmentId::new(1), page: 1 };
    assert_eq!(store.directory().mappings(frame.id()).collect::<Vec<_>>(), [left]);
    stays.unmap_stale(&[1]).unwrap();
    store.release(frame).unwrap();
    drop(stays);
    setup.assert_clean();
}

/// Two threads create and release at a limit of 5 frames; a third looks on. Nobody ever sees more, and a create is
/// refused only when the others really have all the rest.
#[test]
fn two_threads_never_exceed_the_limit() {
    const LIMIT: u64 = 5;
    const ROUNDS: usize = 3_000;
    let setup = Setup::default();
    let page = setup.page();
    let store = FrameStore::new(&setup.device, Some(LIMIT * page));
    let finished = AtomicBool::new(false);
    let refused = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2_usize)
            .map(|worker| {
                let (store, refused) = (&store, &refused);
                scope.spawn(move || {
                    let mut mine = Vec::new();
                    for round in 0..ROUNDS {
                        if (round + worker) % 7 < 4 {
                            match store.create() {
                                Ok(frame) => mine.push(frame),
                                Err(CreateError::OverLimit { mapped_bytes, limit_bytes }) => {
                                    assert_eq!((mapped_bytes, limit_bytes), (LIMIT * page, LIMIT * page));
                                    refused.fetch_add(1, Ordering::Relaxed);
                                }
                                Err(CreateError::Driver(error)) => panic!("{error}"),
                            }
                        } else if let Some(frame) = mine.pop() {
                            store.release(frame).unwrap();
                        }
                    }
                    for frame in mine {
                        store.release(frame).unwrap();
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !finished.load(Ordering::Relaxed) {
                let (mapped, driver) = (store.mapped_bytes(), setup.counts().mapped_bytes);
                assert!(mapped <= LIMIT * page && driver <= LIMIT * page, "{mapped}, {driver}");
            }
        });
        let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        finished.store(true, Ordering::Relaxed);
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
    });
    assert_eq!(store.mapped_bytes(), 0);
    assert!(store.mapped_peak_bytes() <= LIMIT * page);
    assert!(setup.counts().mapped_peak_bytes <= LIMIT * page);
    assert!(refused.load(Ordering::Relaxed) > 0, "the limit was reached");
    setup.assert_clean();
}

/// How often a store asks about uses when so many frames of one stream lie in it and then some of another.
fn questions(frames: u64, count: usize, may_take: impl Fn(Use) -> bool) -> (Vec<u32>, u64) {
    let setup = Setup::new(EmulatorConfig::default());
    let store = setup.store();
    let put = |stream: u32, ticks: std::ops::Range<u64>| {
        for tick in ticks {
            let mut frame = store.create().unwrap();
            frame.set_uses([Use { stream: StreamId::new(stream), tick }].into_iter().collect());
            store.put([frame]);
        }
    };
    put(0, 10..10 + frames);
    put(1, 10..13);
    let asked = AtomicU64::new(0);
    let mut taken = Vec::new();
    let allowed = |use_| {
        asked.fetch_add(1, Ordering::Relaxed);
        may_take(use_)
    };
    store.take(count, allowed, &mut taken);
    let ids = taken.iter().map(|frame| frame.id().get()).collect();
    store.put(taken);
    let mut frames = Vec::new();
    store.take(usize::MAX, |_| true, &mut frames);
    for frame in frames {
        store.release(frame).unwrap();
    }
    (ids, asked.into_inner())
}

#[test]
fn a_take_does_not_grow_with_what_stays() {
    for frames in [20, 2_000] {
        assert_eq!(questions(frames, 9, |_| false), (vec![], 2), "one question a stream, of {frames}");
        let others = questions(frames, 2, |use_| use_.stream.get() == 1);
        let expected = vec![frames as u32, frames as u32 + 1];
        assert_eq!(others, (expected, 4), "two frames, the next one, and the other stream, of {frames}");
        let early = questions(frames, 9, |use_| use_.tick < 12);
        let expected = vec![0, 1, frames as u32, frames as u32 + 1];
        assert_eq!(early, (expected, 6), "two of each stream, and the next of each, of {frames}");
    }
}
