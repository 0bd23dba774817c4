//! The driver's rules as plainly as they can be said, and the programs that are run against them.
//!
//! Main types: [`Step`], [`Model`]. Neighbours: `main` runs a program on the emulator and on the model.

use std::collections::{BTreeMap, HashMap};

use concertina_emulator::{BackingId, EmulatedHandle};
use concertina_vmm::DriverErrorKind;
use proptest::prelude::*;

pub(crate) const CAPACITY_PAGES: u64 = 24;
pub(crate) const SPACE_PAGES: u64 = 48;
pub(crate) const MAX_MAPPINGS: u64 = 4;

/// One call. Places and sizes are in half pages, so that some are not granular; `which` picks among what there is.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Reserve {
        halves: u64,
        alignment: u64,
    },
    Unreserve {
        which: usize,
        extra: u64,
    },
    Create {
        halves: u64,
    },
    Release {
        which: usize,
    },
    Map {
        which: usize,
        at: u64,
        handle: usize,
        odd_size: Option<u64>,
    },
    Unmap {
        which: usize,
        at: u64,
        halves: u64,
    },
    SetAccess {
        which: usize,
        at: u64,
        halves: u64,
    },
    /// Of one mapping that there is.
    UnmapOne {
        which: usize,
    },
    /// From one mapping that there is to the end of a later one in the same run, if there is one.
    AccessRun {
        which: usize,
        mappings: usize,
    },
    Malloc {
        pages: u64,
    },
    Free {
        which: usize,
    },
}

/// Mostly whole pages.
pub(crate) fn halves(pages: std::ops::Range<u64>) -> impl Strategy<Value = u64> {
    (pages, prop::bool::weighted(0.03)).prop_map(|(pages, odd)| 2 * pages + u64::from(odd))
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let which = any::<usize>;
    prop_oneof![
        2 => (halves(0..12), prop::sample::select(vec![0, 1, 2, 3, 4, 8]))
            .prop_map(|(halves, alignment)| Step::Reserve { halves, alignment }),
        1 => (which(), prop::sample::select(vec![0, 0, 0, 1]))
            .prop_map(|(which, extra)| Step::Unreserve { which, extra }),
        3 => halves(0..5).prop_map(|halves| Step::Create { halves }),
        2 => which().prop_map(|which| Step::Release { which }),
        8 => (which(), halves(0..12), which(), prop::option::weighted(0.1, halves(0..5)))
            .prop_map(|(which, at, handle, odd_size)| Step::Map { which, at, handle, odd_size }),
        5 => (which(), halves(0..12), halves(0..8)).prop_map(|(which, at, halves)| Step::Unmap { which, at, halves }),
        5 => (which(), halves(0..12), halves(0..8))
            .prop_map(|(which, at, halves)| Step::SetAccess { which, at, halves }),
        5 => which().prop_map(|which| Step::UnmapOne { which }),
        3 => (which(), 1_usize..4).prop_map(|(which, mappings)| Step::AccessRun { which, mappings }),
        1 => (1_u64..6).prop_map(|pages| Step::Malloc { pages }),
        1 => which().prop_map(|which| Step::Free { which }),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageState {
    pub(crate) frame: usize,
    /// Which page of the frame.
    pub(crate) offset: u64,
    pub(crate) accessible: bool,
}

pub(crate) struct ModelFrame {
    pub(crate) pages: u64,
    pub(crate) handle: Option<EmulatedHandle>,
    pub(crate) seen: Option<BackingId>,
}

/// The device as the rules describe it.
#[derive(Default)]
pub(crate) struct Model {
    pub(crate) page: u64,
    /// Start address and pages.
    pub(crate) reservations: BTreeMap<u64, u64>,
    /// By address.
    pub(crate) pages: HashMap<u64, PageState>,
    pub(crate) frames: Vec<ModelFrame>,
    /// Address and pages.
    pub(crate) mallocs: Vec<(u64, u64)>,
}

pub(crate) type Verdict = Result<(), DriverErrorKind>;
pub(crate) const INVALID: Verdict = Err(DriverErrorKind::Invalid);
pub(crate) const FULL: Verdict = Err(DriverErrorKind::OutOfMemory);

impl Model {
    pub(crate) fn used_pages(&self) -> u64 {
        let mapped = |frame| self.pages.values().any(|state| state.frame == frame);
        let frames = self.frames.iter().enumerate();
        let held = frames.filter(|&(index, frame)| frame.handle.is_some() || mapped(index));
        held.map(|(_, frame)| frame.pages).sum::<u64>()
            + self.mallocs.iter().map(|&(_, pages)| pages).sum::<u64>()
    }

    pub(crate) fn mapping_count(&self) -> u64 {
        self.pages.values().filter(|state| state.offset == 0).count() as u64
    }

    /// The addresses of the pages of a granular range inside one reservation.
    pub(crate) fn range(&self, address: u64, bytes: u64) -> Option<Vec<u64>> {
        let whole = bytes != 0 && bytes.is_multiple_of(self.page) && address.is_multiple_of(self.page);
        let inside =
            |(&start, &pages): (&u64, &u64)| start <= address && address + bytes <= start + pages * self.page;
        (whole && self.reservations.iter().any(inside))
            .then(|| (0..bytes / self.page).map(|index| address + index * self.page).collect())
    }

    /// Whether a range is made of whole mappings.
    pub(crate) fn is_whole(&self, addresses: &[u64]) -> bool {
        let states: Option<Vec<PageState>> =
            addresses.iter().map(|address| self.pages.get(address).copied()).collect();
        let Some(states) = states else { return false };
        let last = states[states.len() - 1];
        states[0].offset == 0 && last.offset + 1 == self.frames[last.frame].pages
    }

    pub(crate) fn may_create(&self, bytes: u64) -> Verdict {
        if bytes == 0 || !bytes.is_multiple_of(self.page) {
            return INVALID;
        }
        if self.used_pages() + bytes / self.page > CAPACITY_PAGES { FULL } else { Ok(()) }
    }

    /// The lowest fitting address, tried page by page.
    pub(crate) fn reserve_at(&self, base: u64, bytes: u64, alignment: u64) -> Result<u64, DriverErrorKind> {
        if bytes == 0 || !bytes.is_multiple_of(self.page) || !(alignment == 0 || alignment.is_power_of_two())
        {
            return Err(DriverErrorKind::Invalid);
        }
        let end = base + SPACE_PAGES * self.page;
        let free = |&start: &u64| {
            start.is_multiple_of(alignment.max(1))
                && start + bytes <= end
                && self
                    .reservations
                    .iter()
                    .all(|(&other, &pages)| start + bytes <= other || other + pages * self.page <= start)
        };
        (0..SPACE_PAGES).map(|index| base + index * self.page).find(free).ok_or(DriverErrorKind::OutOfMemory)
    }

    pub(crate) fn pick_reservation(&self, which: usize) -> Option<(u64, u64)> {
        let count = self.reservations.len();
        let (&start, &pages) = self.reservations.iter().nth(which.checked_rem(count)?)?;
        Some((start, pages))
    }

    /// Address and bytes of a run of up to so many adjacent mappings in one reservation.
    pub(crate) fn pick_mappings(&self, which: usize, mappings: usize) -> Option<(u64, u64)> {
        let mut starts: Vec<u64> =
            self.pages.iter().filter(|(_, state)| state.offset == 0).map(|(&address, _)| address).collect();
        starts.sort_unstable();
        let first = starts[which.checked_rem(starts.len())?];
        let mut end = first;
        for _ in 0..mappings {
            let next = self.pages.get(&end).map(|state| end + self.frames[state.frame].pages * self.page);
            match next.filter(|&next| self.range(first, next - first).is_some()) {
                Some(next) => end = next,
                None => break,
            }
        }
        Some((first, end - first))
    }

    pub(crate) fn pick_handle(&self, which: usize) -> Option<usize> {
        let held: Vec<usize> =
            (0..self.frames.len()).filter(|&index| self.frames[index].handle.is_some()).collect();
        Some(held[which.checked_rem(held.len())?])
    }
}
