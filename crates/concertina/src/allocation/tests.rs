//! Handles, their size and their references. Neighbours: `tests/schedules` has the races, `tests/programs` what else a handle does.

use std::sync::{Arc, Weak};

use concertina_emulator::{Emulator, EmulatorConfig};
use concertina_heap::StreamHeaps;

use super::Allocation;
use crate::{Allocator, Config, Layout, Stream};

/// A small block and a large one: each heap keeps references of its own.
const SIZES: [u64; 2] = [512, 3 << 20];

/// Most references that a heap keeps (`concertina_heap`, `references.rs`).
const MOST: usize = 1024;

fn on_a_stream() -> (Emulator, Allocator<Emulator>, Stream<Emulator>) {
    let device = Emulator::new(EmulatorConfig::default()).unwrap();
    let allocator = Allocator::new(device.clone(), Config::default()).unwrap();
    let stream = allocator.register_stream(device.stream());
    (device, allocator, stream)
}

fn handles(
    allocator: &Allocator<Emulator>,
    stream: &Stream<Emulator>,
    bytes: u64,
    count: usize,
) -> Vec<Allocation<Emulator>> {
    (0..count).map(|_| allocator.allocate(Layout::new(bytes), stream).unwrap()).collect()
}

fn heaps_of(stream: &Stream<Emulator>) -> Weak<StreamHeaps<Emulator>> {
    Arc::downgrade(&stream.core().heaps)
}

#[test]
fn a_handle_is_half_a_cache_line_and_so_is_an_optional_one() {
    assert_eq!(size_of::<Allocation<Emulator>>(), 32);
    assert_eq!(size_of::<Option<Allocation<Emulator>>>(), 32);
}

#[test]
fn handles_that_come_find_the_references_of_those_that_went() {
    let (device, allocator, stream) = on_a_stream();
    let references = heaps_of(&stream);
    // That of the stream, and one in the table of streams.
    let at_first = references.strong_count();
    let mut kept = 0;
    for bytes in SIZES {
        let blocks = handles(&allocator, &stream, bytes, 5);
        assert_eq!(references.strong_count(), at_first + kept + 5, "one each, the first time");
        drop(blocks);
        kept += 5;
        assert_eq!(references.strong_count(), at_first + kept, "left behind");
        for live in [1, 2, 5, 3] {
            let blocks = handles(&allocator, &stream, bytes, live);
            assert_eq!(
                references.strong_count(),
                at_first + kept,
                "{live} of {bytes} bytes take what was left"
            );
            drop(blocks);
        }
        // A sixth one is counted.
        drop(handles(&allocator, &stream, bytes, 6));
        kept += 1;
        assert_eq!(references.strong_count(), at_first + kept);
    }
    // A block without a handle leaves none and takes none; a handle that is given up takes its own with it.
    let raw = allocator.allocate_raw(Layout::new(SIZES[0]), &stream).unwrap();
    allocator.free_raw(raw).unwrap();
    drop(allocator.on(&stream).unwrap().allocate_scoped(Layout::new(SIZES[0])).unwrap());
    assert_eq!(references.strong_count(), at_first + kept);
    let given_up = handles(&allocator, &stream, SIZES[0], 1).remove(0).into_raw();
    assert_eq!(references.strong_count(), at_first + kept - 1);
    allocator.free_raw(given_up).unwrap();

    drop(stream);
    assert_eq!(references.strong_count(), 0, "what was left goes with the stream");
    allocator.close().unwrap();
    assert!(device.is_empty(), "left: {}", device.leaks());
}

#[test]
fn so_many_references_are_kept_and_no_more() {
    let (_device, allocator, stream) = on_a_stream();
    let references = heaps_of(&stream);
    let at_first = references.strong_count();
    for (heap, bytes) in (1..).zip(SIZES) {
        let blocks = handles(&allocator, &stream, bytes, MOST + 100);
        drop(blocks);
        assert_eq!(references.strong_count(), at_first + heap * MOST);
        // The last place is used again.
        drop(handles(&allocator, &stream, bytes, 1));
        assert_eq!(references.strong_count(), at_first + heap * MOST);
    }
    drop(stream);
    allocator.close().unwrap();
}

#[test]
fn a_retired_stream_keeps_no_references_and_its_handles_keep_theirs() {
    let (device, allocator, stream) = on_a_stream();
    let references = heaps_of(&stream);
    let mut live: Vec<_> =
        SIZES.into_iter().flat_map(|bytes| handles(&allocator, &stream, bytes, 3)).collect();
    SIZES.into_iter().for_each(|bytes| drop(handles(&allocator, &stream, bytes, 4)));
    drop(stream);
    drop(allocator);
    for left in (1..=live.len()).rev() {
        assert_eq!(references.strong_count(), left, "one for each handle");
        assert!(!device.is_empty(), "the handles keep the allocator");
        live.pop();
    }
    assert_eq!(references.strong_count(), 0);
    assert!(device.is_empty(), "left: {}", device.leaks());
}

#[test]
fn a_handle_that_goes_on_another_thread_leaves_its_reference_as_well() {
    let (device, allocator, stream) = on_a_stream();
    let references = heaps_of(&stream);
    let at_first = references.strong_count();
    for _ in 0..3 {
        let blocks = handles(&allocator, &stream, SIZES[1], 7);
        std::thread::spawn(move || drop(blocks)).join().unwrap();
        assert_eq!(references.strong_count(), at_first + 7);
    }
    drop((stream, allocator));
    assert_eq!(references.strong_count(), 0);
    assert!(device.is_empty(), "left: {}", device.leaks());
}

#[test]
fn handles_of_a_graph_pool_leave_none() {
    let (device, allocator, stream) = on_a_stream();
    let references = heaps_of(&stream);
    let at_first = references.strong_count();
    let pool = allocator.graph_pool();
    let scope = stream.capture(&pool).unwrap();
    let captured = handles(&allocator, &stream, SIZES[1], 2);
    drop(handles(&allocator, &stream, SIZES[1], 2));
    scope.end().unwrap();
    assert_eq!(references.strong_count(), at_first, "they have those of the pool");
    drop((pool, stream, allocator));
    assert_eq!(references.strong_count(), 0);
    assert!(!device.is_empty(), "the handles keep the allocator");
    drop(captured);
    assert!(device.is_empty(), "left: {}", device.leaks());
}
