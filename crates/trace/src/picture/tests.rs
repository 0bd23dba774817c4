//! Pictures against a model that looks at every address step by step.
//! Neighbours: `watch/tests` looks at when a picture is taken.

use std::collections::BTreeMap;

use concertina_emulator::{EmulatedHandle, Emulator, EmulatorConfig};
use concertina_vmm::{Address, Driver, FrameProperties};
use proptest::prelude::*;

use super::{PageState, Picture, PictureBlock, PicturePage};

const PAGE: u64 = 64 << 10;

fn device() -> Emulator {
    let config = EmulatorConfig::default().with_granularity(PAGE).with_capacity(64 * PAGE).expect("a size");
    Emulator::new(config).expect("a device")
}

fn frame(device: &Emulator, pages: u64) -> EmulatedHandle {
    device.create(pages * PAGE, &FrameProperties::default()).expect("memory")
}

fn picture(device: &Emulator, blocks: &[(u64, u64)]) -> Picture {
    let blocks =
        blocks.iter().map(|&(address, bytes)| PictureBlock { address: Address::new(address), bytes });
    Picture::take(7, &device.counts(), device, blocks.collect())
}

/// Address of the page over its size, live bytes, state; addresses from `base`.
fn told(pages: &[PicturePage], base: Address) -> Vec<(u64, u64, PageState)> {
    let base = base.get() / PAGE;
    pages.iter().map(|page| (page.number - base, page.live_bytes, page.state)).collect()
}

#[test]
fn a_frame_counts_once_and_where_its_live_bytes_are() {
    let device = device();
    let base = device.reserve(16 * PAGE, 0).expect("addresses");
    let [a, b, c] = [frame(&device, 1), frame(&device, 2), frame(&device, 1)];
    // Page 0 and 5 have the same memory; so have 8 and 9, which nobody uses. 1 and 2 are two halves of one frame.
    for (page, pages, handle) in [(0, 1, &a), (1, 2, &b), (5, 1, &a), (8, 1, &c), (9, 1, &c)] {
        device.map(base.add(page * PAGE), pages * PAGE, handle).expect("mapped");
    }
    let start = base.get();
    // 100 bytes of page 2, and a block across the border of 5 into what is not mapped.
    let picture = picture(&device, &[(start + 6 * PAGE - 10, 30), (start + 2 * PAGE, 100)]);
    assert_eq!(
        (picture.mapped_bytes, picture.reserved_bytes, picture.live_bytes()),
        (4 * PAGE, 16 * PAGE, 130)
    );
    let expected = [
        (0, 0, PageState::Stale),
        (1, 0, PageState::Idle),
        (2, 100, PageState::Live),
        (5, 10, PageState::Live),
        (8, 0, PageState::Idle),
        (9, 0, PageState::Stale),
    ];
    assert_eq!(told(&picture.pages(PAGE), base), expected);
    assert!(!picture.is_blind());
}

#[test]
fn small_mallocs_share_a_page_and_large_ones_fill_theirs() {
    let device = device();
    let [small, other] = [1000, 500].map(|bytes| device.malloc(bytes).expect("memory"));
    let large = device.malloc(3 * PAGE).expect("memory");
    device.free(other).expect("live");
    let picture = picture(&device, &[(small.get(), 1000), (large.get() + PAGE, 5)]);
    let pages = picture.pages(PAGE);
    let expected = [
        (0, 1000, PageState::Live),
        (1, 0, PageState::Idle),
        (2, 5, PageState::Live),
        (3, 0, PageState::Idle),
    ];
    assert_eq!(told(&pages, small), expected);
    assert_eq!(picture.mapped_bytes, 4 * PAGE);
}

#[test]
fn a_device_that_tells_nothing_is_blind() {
    let device = device();
    assert!(!picture(&device, &[]).is_blind());
    let blind = Picture { mapped_bytes: 1, ..picture(&device, &[]) };
    assert!(blind.is_blind() && blind.pages(PAGE).is_empty());
}

/// Steps that the model looks at: a quarter of a page.
const STEP: u64 = PAGE / 4;

proptest! {
    #[test]
    fn pages_are_what_a_look_at_every_step_tells(
        mappings in prop::collection::vec((0..24_u64, 0..6_usize), 0..20),
        blocks in prop::collection::vec((0..96_u64, 1..9_u64), 0..12),
    ) {
        let device = device();
        let base = device.reserve(24 * PAGE, 0).expect("addresses");
        let frames: Vec<_> = (0..6).map(|_| frame(&device, 1)).collect();
        let mut behind = BTreeMap::new();
        for (page, frame) in mappings {
            if let std::collections::btree_map::Entry::Vacant(entry) = behind.entry(page) {
                device.map(base.add(page * PAGE), PAGE, &frames[frame]).expect("mapped");
                entry.insert(frame);
            }
        }
        // Blocks that do not overlap, of whole steps; what reaches over the end or into another is left out.
        let mut taken = [false; 96];
        let mut live = Vec::new();
        for (first, steps) in blocks {
            let range = first as usize..(first + steps) as usize;
            if range.end <= taken.len() && !taken[range.clone()].contains(&true) {
                taken[range].fill(true);
                live.push((base.get() + first * STEP, steps * STEP));
            }
        }
        let live_steps = |page: u64| taken[4 * page as usize..][..4].iter().filter(|step| **step).count();
        let expected: Vec<_> = behind.iter().map(|(&page, frame)| {
            let same = || behind.iter().filter(|(_, other)| *other == frame).map(|(&page, _)| page);
            let state = if live_steps(page) > 0 {
                PageState::Live
            } else if same().all(|other| live_steps(other) == 0) && same().next() == Some(page) {
                PageState::Idle
            } else {
                PageState::Stale
            };
            (page, live_steps(page) as u64 * STEP, state)
        }).collect();
        prop_assert_eq!(told(&picture(&device, &live).pages(PAGE), base), expected);
    }
}
