//! Raw blocks of streams that come and go. Neighbours: `tests/schedules` has the races, `tests/programs` the figures.

use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};

use concertina_emulator::{Emulator, EmulatorConfig};

use super::*;
use crate::{Allocator, Config, Error, Layout, RawAllocation, Stream};

const PAGE: u64 = 2 << 20;
const SIZES: [u64; 2] = [512, PAGE];

fn allocator() -> Allocator<Emulator> {
    Allocator::new(Emulator::new(EmulatorConfig::default()).unwrap(), Config::default()).unwrap()
}

fn another_stream(allocator: &Allocator<Emulator>) -> Stream<Emulator> {
    allocator.register_stream(allocator.driver().stream())
}

/// A stream with the number after that of `stream` that has the same place.
fn namesake(allocator: &Allocator<Emulator>, stream: StreamId) -> Stream<Emulator> {
    (1..PLACES).for_each(|_| drop(another_stream(allocator)));
    let found = another_stream(allocator);
    assert_eq!(found.id().index(), stream.index() + PLACES);
    found
}

/// A small block and a large one.
fn blocks(allocator: &Allocator<Emulator>, stream: &Stream<Emulator>) -> [RawAllocation; 2] {
    SIZES.map(|bytes| allocator.allocate_raw(Layout::new(bytes), stream).unwrap())
}

/// Whether the heaps of both blocks are in the table.
fn are_here(stream: &Stream<Emulator>, blocks: [RawAllocation; 2]) -> bool {
    let core = stream.core();
    let here = blocks.map(|raw| {
        let place = core.shared.streams.try_at(raw.key.stream).expect("nobody else looks");
        let cell = place.cell(raw.key)?;
        Some(Arc::ptr_eq(cell, core.cell(raw.key.kind)))
    });
    assert_eq!(here[0], here[1]);
    here[0].inspect(|same| assert!(same, "another heap of the same key")).is_some()
}

fn assert_dead(allocator: &Allocator<Emulator>, user: &Stream<Emulator>, blocks: [RawAllocation; 2]) {
    let before = allocator.stats();
    for raw in blocks {
        assert!(matches!(allocator.free_raw(raw), Err(Error::NotLive(_))), "{raw:?}");
        assert!(matches!(allocator.record_stream_raw(raw, user), Err(Error::NotLive(_))), "{raw:?}");
    }
    assert_eq!(allocator.stats(), before);
}

/// Both blocks are live, are freed, and are dead then.
fn assert_freed_once(allocator: &Allocator<Emulator>, user: &Stream<Emulator>, blocks: [RawAllocation; 2]) {
    for raw in blocks {
        let before = allocator.stats().live_bytes;
        allocator.record_stream_raw(raw, user).unwrap();
        allocator.free_raw(raw).unwrap();
        assert_eq!(allocator.stats().live_bytes, before - raw.bytes());
    }
    assert_dead(allocator, user, blocks);
}

#[test]
fn blocks_outlive_their_stream_and_heaps_do_not_outlive_both() {
    let allocator = allocator();
    let other = another_stream(&allocator);
    for last_by_handle in [false, true] {
        let stream = another_stream(&allocator);
        let kept = blocks(&allocator, &stream);
        let handle = allocator.allocate(Layout::new(1), &stream).unwrap();
        let heaps: [Weak<HeapCell<Emulator>>; 2] =
            kept.map(|raw| Arc::downgrade(stream.core().cell(raw.key.kind)));
        let are_gone = || heaps.iter().all(|heap| heap.upgrade().is_none());
        assert!(are_here(&stream, kept));
        drop(stream);
        // The handle keeps the books of its stream, and no place in the table.
        assert!(other.core().shared.streams.try_at(kept[0].stream()).unwrap().cell(kept[0].key).is_none());
        let handle = if last_by_handle {
            Some(handle)
        } else {
            drop(handle);
            None
        };
        assert_freed_once(&allocator, &other, kept);
        assert_eq!(are_gone(), handle.is_none());
        drop(handle);
        assert!(are_gone(), "something keeps a heap that is no more");
        assert_dead(&allocator, &other, kept);
        assert_eq!(allocator.audit(), Vec::<String>::new());
    }
}

/// Streams are never given a number that another one had, but their place.
#[test]
fn two_streams_with_one_place_are_kept_apart() {
    let allocator = allocator();
    let user = another_stream(&allocator);
    let first = another_stream(&allocator);
    let second = namesake(&allocator, first.id());
    // Block for block with the same numbers, in heaps of other streams.
    let [of_first, of_second] = [blocks(&allocator, &first), blocks(&allocator, &second)];
    assert_eq!(of_first.map(|raw| raw.freeing()), of_second.map(|raw| raw.freeing()));
    assert_eq!((are_here(&first, of_first), are_here(&second, of_second)), (true, false));
    assert_freed_once(&allocator, &user, of_second);
    assert_freed_once(&allocator, &user, of_first);

    // The first leaves while its blocks are live; the next stream with the place has it.
    let of_first = blocks(&allocator, &first);
    let of_second = blocks(&allocator, &second);
    let first_id = first.id();
    drop(first);
    assert!(!are_here(&second, of_second));
    let third = namesake(&allocator, second.id());
    let of_third = blocks(&allocator, &third);
    assert_eq!(third.id().index() % PLACES, first_id.index() % PLACES);
    assert!(are_here(&third, of_third));
    assert_freed_once(&allocator, &user, of_first);
    assert_freed_once(&allocator, &user, of_second);
    // The second leaves, and not in the third's place.
    drop(second);
    assert!(are_here(&third, of_third));
    assert_dead(&allocator, &user, of_first);
    assert_freed_once(&allocator, &user, of_third);
    assert_eq!(allocator.audit(), Vec::<String>::new());
}

#[test]
fn blocks_of_another_allocator_are_refused_though_all_numbers_are_the_same() {
    let allocators = [allocator(), allocator()];
    let streams = allocators.each_ref().map(another_stream);
    let [mine, theirs] = [0, 1].map(|nth| blocks(&allocators[nth], &streams[nth]));
    assert_eq!(mine.map(|raw| (raw.key, raw.granted)), theirs.map(|raw| (raw.key, raw.granted)));
    assert_dead(&allocators[0], &streams[0], theirs);
    assert_dead(&allocators[1], &streams[1], mine);
    assert_freed_once(&allocators[0], &streams[0], mine);
    assert_freed_once(&allocators[1], &streams[1], theirs);
}

/// The heap of a graph pool has the number of its stream as well.
#[test]
fn blocks_of_a_graph_pool_are_told_from_those_of_their_stream() {
    let allocator = allocator();
    let stream = another_stream(&allocator);
    let user = another_stream(&allocator);
    let pool = allocator.graph_pool();
    let two_pages = || [(); 2].map(|()| allocator.allocate_raw(Layout::new(PAGE), &stream).unwrap());
    let scope = stream.capture(&pool).unwrap();
    let captured = two_pages();
    let by_handle = allocator.allocate(Layout::new(PAGE), &stream).unwrap();
    drop(scope);
    let own = two_pages();
    assert_eq!(captured.map(|raw| raw.freeing()), own.map(|raw| raw.freeing()));
    assert!(are_here(&stream, own) && !are_here(&stream, captured));
    drop(by_handle);
    assert_eq!(allocator.stats().live_bytes, 4 * PAGE);
    assert_freed_once(&allocator, &user, [captured[0], own[0]]);
    // The pool ends, and the stream, before the last blocks of both.
    drop(pool);
    drop(stream);
    assert_freed_once(&allocator, &user, [captured[1], own[1]]);
    assert_dead(&allocator, &user, [captured[0], own[0]]);
    assert_eq!(allocator.audit(), Vec::<String>::new());
}

/// Whoever finds a place taken goes another way, and to the same heap.
#[test]
fn nothing_waits_for_a_place() {
    let allocator = allocator();
    let stream = another_stream(&allocator);
    let raw = blocks(&allocator, &stream);
    let place = stream.core().shared.streams.try_at(stream.id()).unwrap();
    assert_freed_once(&allocator, &stream, raw);
    drop(place);
    assert_dead(&allocator, &stream, raw);
}

/// Each block is freed by two threads while its stream retires, or another stream takes its place: one of them does it.
#[test]
fn threads_free_raw_blocks_while_streams_come_and_go() {
    const THREADS: usize = 3;
    let streams = 2 * PLACES / THREADS;
    let allocator = allocator();
    let freed: u64 = std::thread::scope(|scope| {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel::<RawAllocation>()).unzip();
        let threads: Vec<_> = receivers
            .into_iter()
            .enumerate()
            .map(|(thread, receiver)| {
                let to = [1, 2].map(|next| senders[(thread + next) % THREADS].clone());
                let allocator = &allocator;
                scope.spawn(move || {
                    let free = |raw: RawAllocation| match allocator.free_raw(raw) {
                        Ok(()) => 1,
                        Err(Error::NotLive(_)) => 0,
                        Err(error) => panic!("{error}"),
                    };
                    let mut freed = 0;
                    for _ in 0..streams {
                        let stream = another_stream(allocator);
                        for raw in blocks(allocator, &stream) {
                            to.iter().for_each(|to| to.send(raw).unwrap());
                        }
                        freed += receiver.try_iter().map(free).sum::<u64>();
                    }
                    drop(to);
                    freed + receiver.iter().map(free).sum::<u64>()
                })
            })
            .collect();
        drop(senders);
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let blocks = (SIZES.len() * THREADS * streams) as u64;
    // A free that is queued behind another one of the same block can't tell.
    assert!((blocks..=2 * blocks).contains(&freed), "{freed} of {blocks}");
    let stats = allocator.stats();
    assert_eq!((stats.live_bytes, stats.live_blocks), (0, 0));
    assert_eq!(allocator.audit(), Vec::<String>::new());
    allocator.trim();
    assert_eq!(allocator.driver().leaks().reservations, 0, "heaps of retired streams are left");
}
