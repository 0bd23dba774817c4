//! The handle for one stream: it keeps the stream, and takes back blocks of every heap of its allocator and no other.
//!
//! Neighbours: `requests` has requests that are wrong by any handle, `retired` streams that end.

use concertina::{Allocator, Config, CrossStream, Error, Layout, OnStream, RawAllocation, Stream};
use concertina_emulator::{Emulator, EmulatorConfig, EventCompletion};

use crate::program::{KIB, MIB};

const PAGE: u64 = 2 * MIB;

fn allocator() -> (Allocator<Emulator>, Stream<Emulator>) {
    let device = Emulator::new(EmulatorConfig::default()).unwrap();
    let config = Config::builder().limit_bytes(8 * PAGE).cross_stream(CrossStream::Never).build();
    let allocator = Allocator::new(device.clone(), config).unwrap();
    let stream = allocator.register_stream(device.stream());
    (allocator, stream)
}

fn another_stream(allocator: &Allocator<Emulator>) -> Stream<Emulator> {
    allocator.register_stream(allocator.driver().stream())
}

fn is_dead(freed: Result<(), Error>) -> bool {
    matches!(freed, Err(Error::NotLive(_)))
}

#[test]
fn it_keeps_the_stream_until_its_last_clone_goes() {
    let (allocator, stream) = allocator();
    let other = another_stream(&allocator);
    let on_stream = allocator.on(&stream).unwrap();
    let clone = on_stream.clone();
    drop((stream, on_stream));
    let all = Layout::new(8 * PAGE);
    let block = clone.allocate_raw(all).unwrap();
    clone.free_raw(block).unwrap();
    // With `Never`, what a stream has is its own as long as it is registered.
    assert!(allocator.allocate(all, &other).is_err());
    let again = clone.allocate_raw(all).unwrap();
    assert_eq!(again.address(), block.address());
    drop(clone);
    assert!(is_dead(allocator.free_raw(block)), "its second free");
    allocator.free_raw(again).unwrap();
    assert!(allocator.allocate(all, &other).is_ok());
    assert_eq!(allocator.audit(), Vec::<String>::new());
}

#[test]
fn it_takes_back_blocks_of_every_heap_of_its_allocator_once() {
    let (allocator, stream) = allocator();
    let other = another_stream(&allocator);
    let on_stream = allocator.on(&stream).unwrap();
    let pool = allocator.graph_pool();
    let captured = {
        let _scope = stream.capture(&pool).unwrap();
        on_stream.allocate_raw(Layout::new(KIB)).unwrap()
    };
    assert_eq!(pool.held_bytes(), PAGE, "in a capture its memory comes from the pool");
    let large = Layout::new(PAGE);
    let of_handle = on_stream.allocate(Layout::new(2 * KIB)).unwrap().into_raw();
    let blocks: [RawAllocation; 5] = [
        captured,
        of_handle,
        on_stream.allocate_raw(large).unwrap(),
        allocator.allocate_raw(large, &other).unwrap(),
        allocator.allocate_raw(Layout::new(KIB), &other).unwrap(),
    ];
    let live = [KIB, 2 * KIB, PAGE, PAGE, KIB];
    for (at, block) in blocks.into_iter().enumerate() {
        assert_eq!(allocator.stats().live_bytes, live[at..].iter().sum::<u64>());
        on_stream.free_raw(block).unwrap();
        assert!(is_dead(on_stream.free_raw(block)), "block {at} a second time");
        assert!(is_dead(allocator.free_raw(block)), "block {at} a second time");
    }
    assert_eq!((allocator.stats().live_bytes, allocator.stats().live_blocks), (0, 0));
    assert_eq!(allocator.audit(), Vec::<String>::new());
}

#[test]
fn scoped_blocks_are_freed_where_their_scope_ends() {
    let (allocator, stream) = allocator();
    let on_stream = allocator.on(&stream).unwrap();
    let live_bytes = || allocator.stats().live_bytes;
    let address = {
        let small = on_stream.allocate_scoped(Layout::new(700)).unwrap();
        let large = on_stream.allocate_scoped(Layout::new(PAGE).aligned_to(PAGE)).unwrap();
        assert_eq!(
            (small.bytes(), large.layout(), large.stream()),
            (700, Layout::new(PAGE).aligned_to(PAGE), stream.id())
        );
        assert!(large.address().is_aligned_to(PAGE));
        assert_eq!(live_bytes(), 700 + PAGE);
        // Another thread may free it, as long as the pool handle is there.
        std::thread::scope(|scope| scope.spawn(move || drop(large)).join()).unwrap();
        assert_eq!(live_bytes(), 700);
        small.address()
    };
    assert_eq!(live_bytes(), 0);
    let again = on_stream.allocate_scoped(Layout::new(700)).unwrap();
    assert_eq!(again.address(), address);
    // Given up by its handle, it is a raw block as any other.
    let raw = again.into_raw();
    assert_eq!((raw.address(), live_bytes()), (address, 700));
    on_stream.free_raw(raw).unwrap();
    assert!(is_dead(on_stream.free_raw(raw)));
    assert_eq!(allocator.audit(), Vec::<String>::new());
}

#[test]
fn scoped_blocks_of_a_capture_go_back_to_its_pool() {
    let (allocator, stream) = allocator();
    let on_stream = allocator.on(&stream).unwrap();
    let pool = allocator.graph_pool();
    let scope = stream.capture(&pool).unwrap();
    let captured = on_stream.allocate_scoped(Layout::new(KIB)).unwrap();
    assert_eq!((pool.held_bytes(), allocator.stats().live_bytes), (PAGE, KIB));
    scope.end().unwrap();
    let address = captured.address();
    drop(captured);
    assert_eq!((pool.held_bytes(), allocator.stats().live_bytes), (PAGE, 0));
    let scope = stream.capture(&pool).unwrap();
    assert_eq!(on_stream.allocate_scoped(Layout::new(KIB)).unwrap().address(), address);
    scope.end().unwrap();
    assert_eq!(allocator.audit(), Vec::<String>::new());
}

/// A block that another stream was recorded for is not used again before that stream's work is done.
#[test]
fn scoped_blocks_wait_for_the_streams_that_use_them() {
    let device =
        Emulator::new(EmulatorConfig::default().with_event_completion(EventCompletion::ByHand)).unwrap();
    let config = Config::builder().cross_stream(CrossStream::Never).build();
    let allocator = Allocator::new(device.clone(), config).unwrap();
    let (stream, theirs) = (allocator.register_stream(device.stream()), device.stream());
    let other = allocator.register_stream(theirs.clone());
    let on_stream = allocator.on(&stream).unwrap();
    let layout = Layout::new(PAGE);
    let block = on_stream.allocate_scoped(layout).unwrap();
    let address = block.address();
    block.record_stream(&other).unwrap();
    drop(block);
    assert_eq!(allocator.stats().pending_bytes, PAGE);
    assert_ne!(on_stream.allocate_scoped(layout).unwrap().address(), address);
    device.complete_stream(&theirs);
    // Pages of the stream's own are not given back yet, but what was pending is no more.
    allocator.trim();
    assert_eq!(allocator.stats().pending_bytes, 0);
    assert_eq!(allocator.audit(), Vec::<String>::new());
}

#[test]
fn blocks_and_streams_of_another_allocator_are_refused() {
    let (mine, theirs) = (allocator(), allocator());
    let on = |(allocator, stream): &(Allocator<Emulator>, Stream<Emulator>)| -> OnStream<Emulator> {
        allocator.on(stream).unwrap()
    };
    assert!(matches!(mine.0.on(&theirs.1), Err(Error::ForeignStream)));
    // Number for number the same block of the same stream.
    let blocks = [on(&mine).allocate_raw(Layout::new(PAGE)), on(&theirs).allocate_raw(Layout::new(PAGE))];
    let [block, foreign] = blocks.map(Result::unwrap);
    assert_eq!((block.stream(), block.address()), (foreign.stream(), foreign.address()));
    assert!(is_dead(on(&mine).free_raw(foreign)));
    assert_eq!(mine.0.stats().live_bytes, PAGE);
    on(&mine).free_raw(block).unwrap();
    on(&theirs).free_raw(foreign).unwrap();
}
