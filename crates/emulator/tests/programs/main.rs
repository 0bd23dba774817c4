//! Random programs of memory calls, right and wrong, against a trivial model of the driver's rules.
//!
//! Main types: [`Run`]. Neighbours: `model` has the programs and the model; `tests/rules.rs` has each rule by name.
//!
//! The model keeps one map entry a page and knows nothing of tables, slabs or keys. It says of each call whether it is
//! done, invalid or out of memory; after each, every page of every reservation must have behind it what the model says.

mod model;

use concertina_emulator::{Backing, BackingId, Emulator, EmulatorConfig};
use concertina_vmm::{Accessor, Address, Driver, DriverError, FrameProperties};
use model::{
    CAPACITY_PAGES, FULL, INVALID, MAX_MAPPINGS, Model, ModelFrame, PageState, SPACE_PAGES, Step, Verdict,
    step,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

struct Run {
    emulator: Emulator,
    base: u64,
    model: Model,
}

impl Run {
    fn new(granularity_bytes: u64) -> Self {
        let config = EmulatorConfig {
            granularity_bytes,
            capacity_bytes: CAPACITY_PAGES * granularity_bytes,
            address_space_bytes: SPACE_PAGES * granularity_bytes,
            max_mappings: Some(MAX_MAPPINGS),
            ..EmulatorConfig::default()
        };
        let emulator = Emulator::new(config).unwrap();
        let first = emulator.reserve(granularity_bytes, 0).unwrap();
        emulator.unreserve(first, granularity_bytes).unwrap();
        let model = Model { page: granularity_bytes, ..Model::default() };
        Self { emulator, base: first.get(), model }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let (page, half) = (self.model.page, self.model.page / 2);
        let (emulator, model) = (&self.emulator, &mut self.model);
        match *step {
            Step::Reserve { halves, alignment } => {
                let (bytes, alignment) = (halves * half, alignment * page);
                let expected = model.reserve_at(self.base, bytes, alignment);
                let got = emulator.reserve(bytes, alignment);
                prop_assert_eq!(
                    got.as_ref().map(|address| address.get()).map_err(|error| error.kind),
                    expected
                );
                if let Ok(start) = expected {
                    model.reservations.insert(start, bytes / page);
                }
            }
            Step::Unreserve { which, extra } => {
                let Some((start, pages)) = model.pick_reservation(which) else { return Ok(()) };
                let mapped = (0..pages).any(|index| model.pages.contains_key(&(start + index * page)));
                let expected = if extra != 0 || mapped { INVALID } else { Ok(()) };
                same(&emulator.unreserve(Address::new(start), (pages + extra) * page), expected)?;
                if expected.is_ok() {
                    model.reservations.remove(&start);
                }
            }
            Step::Create { halves } => {
                let bytes = halves * half;
                let expected = model.may_create(bytes);
                let got = emulator.create(bytes, &FrameProperties::default());
                same(&got, expected)?;
                if let Ok(handle) = got {
                    model.frames.push(ModelFrame { pages: bytes / page, handle: Some(handle), seen: None });
                }
            }
            Step::Release { which } => {
                let Some(frame) = model.pick_handle(which) else { return Ok(()) };
                let handle = model.frames[frame].handle.take().unwrap();
                prop_assert!(emulator.release(handle).is_ok());
            }
            Step::Map { which, at, handle, odd_size } => {
                let Some((start, _)) = model.pick_reservation(which) else { return Ok(()) };
                let Some(frame) = model.pick_handle(handle) else { return Ok(()) };
                let pages = model.frames[frame].pages;
                let bytes = odd_size.map_or(pages * page, |halves| halves * half);
                let address = start + at * half;
                let target = model.range(address, bytes).filter(|addresses| {
                    bytes == pages * page && !addresses.iter().any(|at| model.pages.contains_key(at))
                });
                let expected = if target.is_some() { Ok(()) } else { INVALID };
                let handle = model.frames[frame].handle.as_ref().unwrap();
                same(&emulator.map(Address::new(address), bytes, handle), expected)?;
                for (offset, address) in target.into_iter().flatten().enumerate() {
                    let state = PageState { frame, offset: offset as u64, accessible: false };
                    model.pages.insert(address, state);
                }
            }
            Step::Unmap { which, at, halves } => {
                let Some((start, _)) = model.pick_reservation(which) else { return Ok(()) };
                self.unmap(start + at * half, halves * half)?;
            }
            Step::UnmapOne { which } => {
                let Some((address, bytes)) = model.pick_mappings(which, 1) else { return Ok(()) };
                self.unmap(address, bytes)?;
            }
            Step::SetAccess { which, at, halves } => {
                let Some((start, _)) = model.pick_reservation(which) else { return Ok(()) };
                self.set_access(start + at * half, halves * half)?;
            }
            Step::AccessRun { which, mappings } => {
                let Some((address, bytes)) = model.pick_mappings(which, mappings) else { return Ok(()) };
                self.set_access(address, bytes)?;
            }
            Step::Malloc { pages } => {
                let bytes = pages * page;
                let got = emulator.malloc(bytes);
                same(&got, model.may_create(bytes))?;
                if let Ok(address) = got {
                    prop_assert!(address.get() + bytes <= self.base, "mallocs lie below reservations");
                    model.mallocs.push((address.get(), pages));
                }
            }
            Step::Free { which } => {
                let Some(index) = which.checked_rem(model.mallocs.len()) else { return Ok(()) };
                let (address, _) = model.mallocs.swap_remove(index);
                prop_assert!(emulator.free(Address::new(address)).is_ok());
            }
        }
        self.compare()
    }

    fn unmap(&mut self, address: u64, bytes: u64) -> Result<(), TestCaseError> {
        let model = &mut self.model;
        let target = model.range(address, bytes).filter(|addresses| model.is_whole(addresses));
        let expected = if target.is_some() { Ok(()) } else { INVALID };
        same(&self.emulator.unmap(Address::new(address), bytes), expected)?;
        for address in target.into_iter().flatten() {
            model.pages.remove(&address);
        }
        Ok(())
    }

    fn set_access(&mut self, address: u64, bytes: u64) -> Result<(), TestCaseError> {
        let model = &mut self.model;
        let target = model.range(address, bytes).filter(|addresses| model.is_whole(addresses));
        let over = model.mapping_count() > MAX_MAPPINGS;
        let expected = match target {
            None => INVALID,
            Some(_) if over => FULL,
            Some(_) => Ok(()),
        };
        same(&self.emulator.set_access(Address::new(address), bytes, &[Accessor::Device(0)]), expected)?;
        for address in target.into_iter().flatten().filter(|_| !over) {
            model.pages.get_mut(&address).unwrap().accessible = true;
        }
        Ok(())
    }

    /// The emulator must hold what the model holds, page by page.
    fn compare(&mut self) -> Result<(), TestCaseError> {
        let model = &mut self.model;
        let counts = self.emulator.counts();
        prop_assert_eq!(counts.mapped_bytes, model.used_pages() * model.page);
        prop_assert_eq!(counts.mappings, model.mapping_count());
        prop_assert_eq!(counts.reserved_bytes, model.reservations.values().sum::<u64>() * model.page);
        let handles = model.frames.iter().filter(|frame| frame.handle.is_some()).count();
        prop_assert_eq!(counts.handles, handles as u64);
        prop_assert!(counts.mapped_peak_bytes >= counts.mapped_bytes);
        prop_assert_eq!(self.emulator.recount(), self.emulator.leaks());
        for (&start, &pages) in &model.reservations {
            for address in (0..pages).map(|index| start + index * model.page) {
                let inside = model.page - 1;
                let got = self.emulator.resolve(Address::new(address + inside));
                let expected = model.pages.get(&address);
                prop_assert_eq!(got.is_some(), expected.is_some(), "at {:#x}", address);
                if let (Some(backing), Some(state)) = (got, expected) {
                    prop_assert_eq!(backing.offset_bytes, state.offset * model.page + inside);
                    prop_assert_eq!(backing.accessible, state.accessible);
                    let seen = *model.frames[state.frame].seen.get_or_insert(backing.memory);
                    prop_assert_eq!(seen, backing.memory, "a frame is the same memory wherever it is mapped");
                }
            }
            check_pieces(&self.emulator, start, pages * model.page)?;
        }
        let mut seen: Vec<BackingId> = model.frames.iter().filter_map(|frame| frame.seen).collect();
        let frames = seen.len();
        seen.sort_unstable();
        seen.dedup();
        prop_assert_eq!(
            seen.len(),
            frames,
            "two frames are never the same memory, not even at different times"
        );
        Ok(())
    }

    fn give_all_back(self) -> Result<(), TestCaseError> {
        let Self { emulator, model, .. } = self;
        let addresses: Vec<u64> =
            model.pages.iter().filter(|(_, s)| s.offset == 0).map(|(&a, _)| a).collect();
        for address in addresses {
            let pages = model.frames[model.pages[&address].frame].pages;
            prop_assert!(emulator.unmap(Address::new(address), pages * model.page).is_ok());
        }
        for handle in model.frames.into_iter().filter_map(|frame| frame.handle) {
            prop_assert!(emulator.release(handle).is_ok());
        }
        for (start, pages) in model.reservations {
            prop_assert!(emulator.unreserve(Address::new(start), pages * model.page).is_ok());
        }
        for (address, _) in model.mallocs {
            prop_assert!(emulator.free(Address::new(address)).is_ok());
        }
        prop_assert!(emulator.is_empty(), "{}", emulator.leaks());
        prop_assert!(emulator.recount().is_empty());
        Ok(())
    }
}

fn same<T>(got: &Result<T, DriverError>, expected: Verdict) -> Result<(), TestCaseError> {
    let kind = got.as_ref().map(drop).map_err(|error| error.kind);
    prop_assert_eq!(kind, expected, "{:?}", got.as_ref().err());
    Ok(())
}

/// The pieces of a range are in order, without holes, and each says what its addresses say one by one.
fn check_pieces(emulator: &Emulator, start: u64, bytes: u64) -> Result<(), TestCaseError> {
    let mut at = start;
    for piece in emulator.resolve_range(Address::new(start), bytes) {
        prop_assert_eq!(piece.address.get(), at);
        prop_assert!(piece.bytes > 0);
        for offset in [0, piece.bytes / 2, piece.bytes - 1] {
            let expected = piece
                .backing
                .map(|backing| Backing { offset_bytes: backing.offset_bytes + offset, ..backing });
            prop_assert_eq!(emulator.resolve(piece.address.add(offset)), expected);
        }
        at += piece.bytes;
    }
    prop_assert_eq!(at, start + bytes);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn agree_with_the_model(
        steps in prop::collection::vec(step(), 1..120),
        granularity in prop::sample::select(vec![64_u64 << 10, 2 << 20, 32 << 20]),
    ) {
        let mut run = Run::new(granularity);
        for (index, step) in steps.iter().enumerate() {
            run.step(step).map_err(|error| TestCaseError::fail(format!("step {index}, {step:?}: {error}")))?;
        }
        run.give_all_back()?;
    }
}

/// The same program twice: the same addresses, counts and times.
#[test]
fn the_same_calls_give_the_same_addresses() {
    let run = || {
        let mut run = Run::new(2 << 20);
        let steps = [
            Step::Reserve { halves: 12, alignment: 0 },
            Step::Reserve { halves: 4, alignment: 4 },
            Step::Create { halves: 4 },
            Step::Map { which: 0, at: 2, handle: 0, odd_size: None },
            Step::Malloc { pages: 3 },
            Step::SetAccess { which: 0, at: 2, halves: 4 },
            Step::Unreserve { which: 1, extra: 0 },
            Step::Reserve { halves: 2, alignment: 0 },
        ];
        for step in &steps {
            run.step(step).unwrap();
        }
        let reservations: Vec<_> = run.model.reservations.clone().into_iter().collect();
        (reservations, run.model.mallocs.clone(), run.emulator.counts())
    };
    assert_eq!(run(), run());
}
