//! The place that needs the fewest maps, against a search that looks at each window by itself.

use concertina_emulator::{Emulator, EmulatorConfig, EventCompletion};
use concertina_vmm::{Device, FrameProperties, StreamClock};
use proptest::prelude::*;

use super::*;
use crate::cell::Freeing;
use crate::heaps::Heaps;
use crate::ladder::Search;
use crate::policy::{Policy, Settings};
use crate::step::Kind;

const PAGE_BYTES: u64 = 256 << 10;
const PAGES: u64 = 48;
const STREAMS: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Op {
    Allocate { stream: usize, bytes: u64, alignment: u64 },
    Free { nth: usize },
    // The device does what is queued there.
    Complete { stream: usize },
    // Every stale page goes whose use is over.
    Unmap,
}

fn bytes() -> impl Strategy<Value = u64> {
    (4..16u64, prop_oneof![1 => Just(0), 2 => 1..512u64])
        .prop_map(|(pages, steps)| pages * PAGE_BYTES + (steps + 1) * STEP_BYTES)
}

fn alignment() -> impl Strategy<Value = u64> {
    prop_oneof![4 => Just(STEP_BYTES), 1 => (10..21u32).prop_map(|bit| 1u64 << bit)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (0..STREAMS, bytes(), alignment())
            .prop_map(|(stream, bytes, alignment)| Op::Allocate { stream, bytes, alignment }),
        5 => any::<usize>().prop_map(|nth| Op::Free { nth }),
        2 => (0..STREAMS).prop_map(|stream| Op::Complete { stream }),
        1 => Just(Op::Unmap),
    ]
}

/// What `fewest_maps_in` promises, said plainly.
fn window_by_window(
    heap: &Heap<Emulator>,
    hole: &Hole,
    mut start: u32,
    request: &Request,
    rules: &Rules<'_, Emulator>,
) -> Option<(usize, u32)> {
    let held = |page| heap.arenas[hole.arena() as usize].segment.is_held(page);
    let mut best: Option<(usize, u32)> = None;
    while start + request.steps <= hole.start() + hole.steps() {
        let pages = heap.pages_touched(start, start + request.steps);
        let needs: Vec<Need> = pages
            .iter()
            .map(|page| if held(page) { Need::Nothing } else { heap.need_of(hole.arena(), page, rules) })
            .collect();
        let maps = needs.iter().filter(|need| **need == Need::Map).count();
        if !needs.contains(&Need::Another) && best.is_none_or(|(fewest, _)| maps < fewest) {
            best = Some((maps, start));
        }
        start = heap.align(hole.arena(), (pages.first + 1) * heap.steps_per_page(), request.alignment)?;
    }
    best
}

fn differences(heaps: &Heaps<Emulator>, clock: &StreamClock, request: &Request) -> Vec<String> {
    let mut different = Vec::new();
    for cell in heaps.cells_of(clock.stream()).iter().filter(|cell| cell.key().kind == Kind::Large) {
        let heap = cell.lock();
        heaps.with_rules(&heap, &Search::new(), |rules| {
            for (hole, start) in heap.fits(request, usize::MAX) {
                let fewest = window_by_window(&heap, &hole, start, request, rules);
                for bound in [usize::MAX, 1, 2, 5] {
                    let found = heap.fewest_maps_in(&hole, start, request, rules, bound);
                    let expected = fewest.filter(|(maps, _)| *maps < bound);
                    if found != expected {
                        let what = format!("{request:?} in {hole:?} with fewer than {bound} maps");
                        different.push(format!("{what}: {found:?}, and not {expected:?}"));
                    }
                }
            }
        });
    }
    different
}

/// Runs a program, and after each step looks for places for a request of so many bytes.
fn run(program: Vec<(Op, u64)>) -> Result<(), TestCaseError> {
    let config = EmulatorConfig {
        capacity_bytes: PAGES * PAGE_BYTES,
        ..EmulatorConfig::default()
            .with_granularity(PAGE_BYTES)
            .with_event_completion(EventCompletion::ByHand)
    };
    let emulator = Emulator::new(config).expect("a device");
    let device = Device::new(emulator.clone(), FrameProperties::default()).expect("virtual memory");
    let settings = Settings { policy: Policy::Lean, ..Settings::default() };
    let heaps = Heaps::new(device, settings).expect("a size");
    let streams: Vec<_> = (0..STREAMS).map(|_| emulator.stream()).collect();
    let clocks: Vec<_> = streams.iter().map(|stream| heaps.register(stream.clone(), None)).collect();
    let cells: Vec<_> = clocks.iter().map(|clock| heaps.heap(clock, Kind::Large)).collect();
    let mut live = Vec::new();
    for (op, asked) in program {
        match op {
            Op::Allocate { stream, bytes, alignment } => {
                let request = Request::new(bytes, alignment).expect("a request");
                if let Ok(granted) = heaps.allocate(&cells[stream], &request) {
                    live.push((stream, Freeing { id: granted.id, bytes }));
                }
            }
            Op::Free { nth } if !live.is_empty() => {
                let (stream, freeing) = live.swap_remove(nth % live.len());
                heaps.free(&cells[stream], freeing).expect("it is live");
            }
            Op::Free { .. } => {}
            Op::Complete { stream } => {
                emulator.complete_stream(&streams[stream]);
                clocks.iter().for_each(|clock| heaps.see(clock.now()));
            }
            Op::Unmap => drop(heaps.unmap_stale_to(0)),
        }
        for (clock, alignment) in clocks.iter().flat_map(|clock| [(clock, STEP_BYTES), (clock, 1 << 19)]) {
            let request = Request::new(asked, alignment).expect("a request");
            let different = differences(&heaps, clock, &request);
            prop_assert_eq!(different, Vec::<String>::new(), "after {:?}", op);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn agrees_with_a_search_window_by_window(program in prop::collection::vec((op(), bytes()), 1..80)) {
        run(program)?;
    }
}
