//! The audit: every invariant of heaps, pages and frames, counted again from the ground.
//!
//! Main functions: [`heap`], [`heaps`]. Neighbours: tests call it between operations, and after each injected failure.
//! It is slow and changes nothing.

use std::collections::HashMap;

use concertina_vmm::sync::Ordering;
use concertina_vmm::{Access, Driver, FrameId, Holder, Place, SegmentKind};

use crate::block::{BlockState, NONE};
use crate::heap::Heap;
use crate::heaps::Heaps;

/// Checks one heap by itself.
pub(crate) fn heap<D: Driver>(heap: &Heap<D>) -> Vec<String> {
    let mut broken = Vec::new();
    let mut holes = 0;
    let mut used_steps = 0;
    for (number, arena) in (0..).zip(&heap.arenas) {
        let mut blocks: Vec<_> = heap.blocks.iter().filter(|(_, block)| block.arena == number).collect();
        blocks.sort_by_key(|(_, block)| block.start);
        let mut end = 0;
        let mut before: Option<u32> = None;
        let mut busy = vec![false; heap.pages_touched(0, arena.extent).end() as usize];
        for (block_number, block) in &blocks {
            if block.start != end {
                broken.push(format!(
                    "arena {number}: block {block_number} begins at {}, not {end}",
                    block.start
                ));
            }
            if heap.blocks.prev(*block_number) != before {
                broken.push(format!(
                    "arena {number}: block {block_number} has another neighbour than {before:?}"
                ));
            }
            if block.is(BlockState::Hole) {
                holes += 1;
                if !heap
                    .holes
                    .from(block.steps)
                    .take_while(|hole| hole.steps() == block.steps)
                    .any(|hole| hole.block() == *block_number)
                {
                    broken.push(format!("hole {block_number} is not in the index"));
                }
                if before.is_some_and(|before| heap.blocks.get(before).is(BlockState::Hole)) {
                    broken.push(format!("holes {before:?} and {block_number} are not coalesced"));
                }
            } else {
                used_steps += u64::from(block.steps);
                for page in heap.pages_touched(block.start, block.end()).iter() {
                    busy[page as usize] = true;
                    if !arena.segment.is_held(page) {
                        broken.push(format!(
                            "arena {number}: page {page} of {:?} block {block_number} is not held",
                            block.state()
                        ));
                    }
                }
            }
            end = block.end();
            before = Some(*block_number);
        }
        if heap.segment_kind() == SegmentKind::Malloc
            && arena.extent != arena.segment.pages() * heap.steps_per_page()
        {
            broken.push(format!("arena {number}: a malloc segment, and blocks only up to {}", arena.extent));
        }
        if end != arena.extent || before.unwrap_or(NONE) != arena.last {
            broken.push(format!("arena {number}: extent {} but blocks end at {end}", arena.extent));
        }
        for (page, busy) in (0..).zip(busy) {
            if arena.idle.is_idle(page) == busy {
                broken.push(format!("arena {number}: page {page} idle is {}, busy is {busy}", !busy));
            }
        }
    }
    if holes != heap.holes.len() {
        broken.push(format!("{holes} holes but {} in the index", heap.holes.len()));
    }
    let noted = heap.held_count().load(Ordering::Relaxed);
    if heap.segment_kind() == SegmentKind::Reserved && noted != heap.held_bytes() {
        broken.push(format!("{} bytes held but {noted} noted", heap.held_bytes()));
    }
    if used_steps != heap.used_steps() {
        broken.push(format!("{used_steps} steps used but {} counted", heap.used_steps()));
    }
    broken
}

/// Bytes of a heap's malloc segments; 0 where there is virtual memory.
fn malloc_bytes<D: Driver>(heap: &Heap<D>) -> u64 {
    if heap.segment_kind() == SegmentKind::Reserved {
        return 0;
    }
    heap.arenas.iter().map(|arena| arena.segment.bytes()).sum()
}

/// Checks all heaps of an allocator, and their frames against the store's book.
pub(crate) fn heaps<D: Driver>(heaps: &Heaps<D>) -> Vec<String> {
    let mut broken = Vec::new();
    let mut held: HashMap<FrameId, Place> = HashMap::new();
    let mut mappings: HashMap<FrameId, Vec<Place>> = HashMap::new();
    let mut live_bytes = 0;
    for cell in heaps.cells() {
        let locked = cell.lock();
        broken.extend(heap(&locked).into_iter().map(|line| format!("{:?}: {line}", cell.key())));
        live_bytes += locked
            .blocks
            .iter()
            .filter(|(_, block)| block.is(BlockState::Live))
            .map(|(_, block)| block.bytes())
            .sum::<u64>();
        for arena in &locked.arenas {
            let segment = &arena.segment;
            for page in 0..segment.pages() {
                let place = Place { segment: segment.id(), page };
                let Some(mapping) = segment.mapping(page) else { continue };
                mappings.entry(mapping.frame()).or_default().push(place);
                let Some(frame) = segment.frame(page) else { continue };
                if frame.id() != mapping.frame() || mapping.access() != Access::Granted {
                    broken.push(format!("{place:?} holds {:?} and is mapped to {mapping:?}", frame.id()));
                }
                if let Some(other) = held.insert(frame.id(), place) {
                    broken.push(format!("{:?} is held by {place:?} and {other:?}", frame.id()));
                }
            }
        }
    }
    if live_bytes != heaps.live.bytes() {
        broken.push(format!("{live_bytes} bytes live but {} counted", heaps.live.bytes()));
    }
    let directory = heaps.store.directory();
    let mut mapped_pages = 0;
    for (frame, mut places) in mappings {
        mapped_pages += places.len() as u64;
        let known: Vec<Place> = directory.mappings(frame).collect();
        let key = |place: &Place| (place.segment, place.page);
        places.sort_by_key(key);
        if places != known {
            broken.push(format!("{frame:?} is mapped at {places:?}, the store knows {known:?}"));
        }
    }
    for (frame, place) in &held {
        if directory.holder(*frame) != Holder::Page(*place) {
            broken.push(format!(
                "{frame:?} is held by {place:?}, the store knows {:?}",
                directory.holder(*frame)
            ));
        }
    }
    drop(directory);
    if mapped_pages != heaps.device.mappings() {
        broken.push(format!("{mapped_pages} pages mapped but {} counted", heaps.device.mappings()));
    }
    let in_heaps = heaps.cells().iter().map(|cell| malloc_bytes(&cell.lock())).sum::<u64>();
    let apart = [heaps.store.spare_mallocs(|_| true), heaps.store.unfreed_mallocs()];
    let mallocs = in_heaps + apart.iter().flatten().sum::<u64>();
    let frames = held.len() + heaps.store.free_frames() + heaps.store.unreleased_frames();
    let bytes = frames as u64 * heaps.store.frame_bytes() + mallocs;
    if bytes != heaps.store.mapped_bytes() {
        broken
            .push(format!("{bytes} bytes in frames and mallocs but {} counted", heaps.store.mapped_bytes()));
    }
    broken
}
