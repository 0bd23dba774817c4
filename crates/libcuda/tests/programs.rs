//! Random programs of virtual memory calls against a trivial model: which calls are refused, and which bytes are where.
//!
//! Main types: [`Step`], [`Model`]. Neighbours: the emulator has such a test of its rules; this one is about the bytes, on
//! host pages and on software pages, and about threads that meet in the same addresses.

#![allow(unsafe_code, reason = "the raw calls of cudarc")]

mod common;

use std::collections::BTreeMap;

use common::{Context, assert_nothing_held, fresh};
use concertina_libcuda::{Backing, DeviceConfig};
use cudarc::driver::sys::CUresult;
use proptest::prelude::*;

const PAGE: u64 = 4096;
/// Pages of the one reservation.
const PLACES: u64 = 12;
/// Pages of the device.
const CAPACITY: u64 = 10;
/// Frames that the program knows by number.
const FRAMES: usize = 5;

#[derive(Clone, Debug)]
enum Step {
    /// Into a number that has no handle.
    Create {
        frame: usize,
        pages: u64,
    },
    Release {
        frame: usize,
    },
    Map {
        frame: usize,
        place: u64,
    },
    SetAccess {
        place: u64,
        pages: u64,
    },
    Unmap {
        place: u64,
        pages: u64,
    },
    Fill {
        place: u64,
        pages: u64,
        value: u8,
    },
    Retain {
        frame: usize,
        place: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (frame, place) = (0..FRAMES, 0..PLACES);
    let step = prop_oneof![
        2 => (frame.clone(), 1..4_u64).prop_map(|(frame, pages)| Step::Create { frame, pages }),
        1 => frame.clone().prop_map(|frame| Step::Release { frame }),
        4 => (frame.clone(), place.clone()).prop_map(|(frame, place)| Step::Map { frame, place }),
        3 => (place.clone(), 1..6_u64).prop_map(|(place, pages)| Step::SetAccess { place, pages }),
        2 => (place.clone(), 1..4_u64).prop_map(|(place, pages)| Step::Unmap { place, pages }),
        4 => (place.clone(), 1..5_u64, 1..=255_u8)
            .prop_map(|(place, pages, value)| Step::Fill { place, pages, value }),
        1 => (frame, place).prop_map(|(frame, place)| Step::Retain { frame, place }),
    ];
    prop::collection::vec(step, 1..60)
}

/// Memory by a number that is never given again.
#[derive(Debug)]
struct Memory {
    handles: u64,
    /// What each page is filled with.
    pages: Vec<u8>,
}

#[derive(Debug, Default)]
struct Model {
    memories: BTreeMap<usize, Memory>,
    next: usize,
    /// The memory and the real handle of each frame number.
    frames: [Option<(usize, u64)>; FRAMES],
    /// By place of the first page: memory and whether accessible.
    mappings: BTreeMap<u64, (usize, bool)>,
}

impl Model {
    fn pages_of(&self, memory: usize) -> u64 {
        self.memories[&memory].pages.len() as u64
    }

    fn used(&self) -> u64 {
        self.memories.values().map(|memory| memory.pages.len() as u64).sum()
    }

    fn forget_unused(&mut self) {
        let mapped: Vec<usize> = self.mappings.values().map(|&(memory, _)| memory).collect();
        self.memories.retain(|memory, of| of.handles > 0 || mapped.contains(memory));
    }

    /// The mapping over a place, and the page of it there.
    fn at(&self, place: u64) -> Option<(u64, usize, bool, usize)> {
        let (&start, &(memory, accessible)) = self.mappings.range(..=place).next_back()?;
        let page = place - start;
        (page < self.pages_of(memory)).then_some((start, memory, accessible, page as usize))
    }

    /// The mappings that make up exactly these places.
    fn whole(&self, place: u64, pages: u64) -> Option<Vec<u64>> {
        let mut starts = Vec::new();
        let mut at = place;
        while at < place + pages {
            let &(memory, _) = self.mappings.get(&at)?;
            starts.push(at);
            at += self.pages_of(memory);
        }
        (at == place + pages && at <= PLACES).then_some(starts)
    }
}

struct Run<'a> {
    context: &'a Context,
    base: u64,
    model: Model,
}

impl Run<'_> {
    /// Does the step on the device and on the model, and compares the answers.
    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let (context, model) = (self.context, &mut self.model);
        let address = |place: u64| self.base + place * PAGE;
        let ok = |fits: bool| if fits { Ok(()) } else { Err(CUresult::CUDA_ERROR_INVALID_VALUE) };
        match *step {
            Step::Create { frame, pages } => {
                if model.frames[frame].is_some() {
                    return Ok(());
                }
                let got = context.create(pages * PAGE);
                if model.used() + pages > CAPACITY {
                    prop_assert_eq!(got, Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
                    return Ok(());
                }
                let memory = Memory { handles: 1, pages: vec![0; pages as usize] };
                model.memories.insert(model.next, memory);
                model.frames[frame] = Some((model.next, got.unwrap()));
                model.next += 1;
            }
            Step::Release { frame } => {
                let Some((memory, handle)) = model.frames[frame].take() else { return Ok(()) };
                prop_assert_eq!(context.release(handle), Ok(()));
                model.memories.get_mut(&memory).unwrap().handles -= 1;
                model.forget_unused();
            }
            Step::Map { frame, place } => {
                let Some((memory, handle)) = model.frames[frame] else { return Ok(()) };
                let pages = model.pages_of(memory);
                let free = (place..place + pages).all(|place| model.at(place).is_none());
                let fits = free && place + pages <= PLACES;
                prop_assert_eq!(context.map(address(place), pages * PAGE, handle), ok(fits));
                if fits {
                    model.mappings.insert(place, (memory, false));
                }
            }
            Step::SetAccess { place, pages } => {
                let whole = model.whole(place, pages);
                prop_assert_eq!(context.set_access(address(place), pages * PAGE), ok(whole.is_some()));
                for start in whole.into_iter().flatten() {
                    model.mappings.get_mut(&start).unwrap().1 = true;
                }
            }
            Step::Unmap { place, pages } => {
                let whole = model.whole(place, pages);
                prop_assert_eq!(context.unmap(address(place), pages * PAGE), ok(whole.is_some()));
                for start in whole.into_iter().flatten() {
                    model.mappings.remove(&start);
                }
                model.forget_unused();
            }
            Step::Fill { place, pages, value } => {
                let places = || place..place + pages;
                let fits = places().all(|place| model.at(place).is_some_and(|(_, _, may, _)| may));
                prop_assert_eq!(context.fill(address(place), value, pages * PAGE), ok(fits));
                for place in places().filter(|_| fits) {
                    let (_, memory, _, page) = model.at(place).unwrap();
                    model.memories.get_mut(&memory).unwrap().pages[page] = value;
                }
            }
            Step::Retain { frame, place } => {
                if model.frames[frame].is_some() {
                    return Ok(());
                }
                let got = context.retain(address(place) + 17);
                match model.at(place) {
                    None => prop_assert_eq!(got, Err(CUresult::CUDA_ERROR_INVALID_VALUE)),
                    Some((_, memory, _, _)) => {
                        model.frames[frame] = Some((memory, got.unwrap()));
                        model.memories.get_mut(&memory).unwrap().handles += 1;
                    }
                }
            }
        }
        self.compare()
    }

    /// Every accessible page has the bytes that the model says.
    fn compare(&self) -> Result<(), TestCaseError> {
        let model = &self.model;
        prop_assert_eq!(self.context.free_bytes(), (CAPACITY - model.used()) * PAGE);
        for place in 0..PLACES {
            let Some((_, memory, true, page)) = model.at(place) else { continue };
            let mut bytes = [0_u8; PAGE as usize];
            self.context.to_host(&mut bytes, self.base + place * PAGE).unwrap();
            let value = model.memories[&memory].pages[page];
            prop_assert!(bytes == [value; PAGE as usize], "place {place} is not filled with {value}");
        }
        Ok(())
    }

    fn give_everything_back(mut self) {
        let starts: Vec<u64> = self.model.mappings.keys().copied().collect();
        for start in starts {
            let pages = self.model.pages_of(self.model.mappings[&start].0);
            self.context.unmap(self.base + start * PAGE, pages * PAGE).unwrap();
        }
        for (_, handle) in self.model.frames.iter_mut().filter_map(Option::take) {
            self.context.release(handle).unwrap();
        }
        self.context.unreserve(self.base, PLACES * PAGE).unwrap();
    }
}

fn run(steps: &[Step], backing: Backing) -> Result<(), TestCaseError> {
    let config = DeviceConfig { granularity_bytes: PAGE, ..DeviceConfig::default() };
    let device = fresh(&config.with_capacity(CAPACITY * PAGE).with_backing(backing));
    let context = Context::new();
    let base = context.reserve(PLACES * PAGE).unwrap();
    let mut run = Run { context: &context, base, model: Model::default() };
    steps.iter().try_for_each(|step| run.step(step))?;
    run.give_everything_back();
    drop(context);
    assert_nothing_held(&device);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_are_where_the_model_has_them_on_host_pages(steps in steps()) {
        run(&steps, Backing::HostPages)?;
    }

    #[test]
    fn bytes_are_where_the_model_has_them_in_software(steps in steps()) {
        run(&steps, Backing::Software)?;
    }
}

/// The same addresses and frames go round among threads. A host page that is not exactly where the emulator has the mapping,
/// at any moment, is a fault or a wrong byte.
#[test]
fn threads_meet_in_the_same_addresses() {
    let config = DeviceConfig { granularity_bytes: PAGE, ..DeviceConfig::default() };
    let device = fresh(&config.with_capacity(64 * PAGE));
    let context = Context::new();
    std::thread::scope(|scope| {
        for thread in 1..=4_u64 {
            let context = &context;
            scope.spawn(move || {
                context.context.bind_to_thread().unwrap();
                for round in 0..500 {
                    let pages = 1 + (thread + round) % 3;
                    let at = context.reserve(pages * PAGE).unwrap();
                    let frame = context.create(pages * PAGE).unwrap();
                    context.map(at, pages * PAGE, frame).unwrap();
                    context.set_access(at, pages * PAGE).unwrap();
                    let words = (0..pages * PAGE / 8).map(|word| at as *mut u64 as usize + word as usize * 8);
                    for place in words.clone() {
                        // SAFETY: this thread's own page, mapped and accessible.
                        unsafe { (place as *mut u64).write_volatile(thread << 32 | round) };
                    }
                    for place in words {
                        // SAFETY: as above.
                        assert_eq!(unsafe { (place as *mut u64).read_volatile() }, thread << 32 | round);
                    }
                    context.unmap(at, pages * PAGE).unwrap();
                    context.release(frame).unwrap();
                    context.unreserve(at, pages * PAGE).unwrap();
                }
            });
        }
    });
    drop(context);
    assert_nothing_held(&device);
    assert_eq!(device.broken_rules(0), Vec::<String>::new());
}
