//! Launches of graphs, and what becomes of a pool's memory when nobody needs it any more.
//!
//! Main types: none. Neighbours: `captures` has the bench. The race detector looks on: a launch that is not in order with
//! another use of the same frames, or an unmap under one, is a report.

use concertina::{Error, Growth};
use concertina_vmm::Call;

use super::{Bench, Graph, PAGE, Pool};

/// A graph that writes so many pages, which are free again when it is captured.
fn capture(bench: &Bench, pool: &Pool, stream: usize, pages: u64) -> Graph {
    let mut graph = Graph::default();
    let scope = bench.begin(stream, pool);
    graph.write(&bench.allocate(pages, stream));
    bench.end(stream, scope);
    graph
}

#[test]
fn launches_of_one_pool_come_one_behind_the_other() {
    let bench = Bench::new(16);
    let pool = bench.allocator.graph_pool();
    let first = capture(&bench, &pool, 0, 4);
    let second = capture(&bench, &pool, 0, 3);
    assert_eq!(first.writes[0].0, second.writes[0].0, "the second has what the first has freed");
    let waits = || bench.count(Call::StreamWait);
    bench.launch(&first, &pool, 0);
    bench.launch(&second, &pool, 0);
    assert_eq!(waits(), 0, "on one stream that costs nothing");
    bench.launch(&first, &pool, 1);
    assert_eq!(waits(), 1);
    bench.launch(&second, &pool, 1);
    assert_eq!(waits(), 1);
    bench.launch(&first, &pool, 2);
    assert_eq!(waits(), 3, "behind the last launch, and the last free in the captures");
    bench.check();
    drop(pool);
    bench.ends_empty();
}

#[test]
fn a_launch_comes_behind_work_outside_of_graphs() {
    let bench = Bench::new(16);
    let pool = bench.allocator.graph_pool();
    let scope = bench.begin(0, &pool);
    let mut first = Graph::default();
    let result = bench.allocate(4, 0);
    first.write(&result);
    bench.end(0, scope);
    bench.launch(&first, &pool, 0);
    // The result is used on its stream, and freed; the next graph has its memory.
    bench.write_and_free(result, 0);
    let second = capture(&bench, &pool, 0, 4);
    assert_eq!(first.writes, second.writes);
    bench.launch(&second, &pool, 1);
    assert_eq!(bench.count(Call::StreamWait), 1);
    bench.check();
    drop(pool);
    bench.ends_empty();
}

#[test]
fn a_launch_goes_on_while_another_graph_is_captured_into_the_pool() {
    let bench = Bench::new(16);
    let pool = bench.allocator.graph_pool();
    let graph = capture(&bench, &pool, 0, 4);
    let scope = bench.begin(0, &pool);
    drop(bench.allocate(4, 0));
    bench.launch(&graph, &pool, 1);
    bench.end(0, scope);
    bench.launch(&graph, &pool, 0);
    bench.check();
    drop(pool);
    bench.ends_empty();
}

/// A block of a later capture is written before that is launched, where an earlier graph of the pool may still write.
#[test]
fn work_on_a_new_block_comes_behind_the_launches_so_far() {
    let bench = Bench::new(16);
    let pool = bench.allocator.graph_pool();
    let graph = capture(&bench, &pool, 0, 4);
    let scope = bench.begin(0, &pool);
    bench.launch(&graph, &pool, 1);
    let input = bench.allocate(4, 0);
    assert_eq!(input.address(), graph.writes[0].0);
    bench.end(0, scope);
    assert_eq!(bench.count(Call::StreamWait), 1);
    bench.write_and_free(input, 0);
    bench.check();
    drop(pool);
    bench.ends_empty();
}

#[test]
fn the_frames_of_a_pool_that_has_ended_serve_others_behind_its_launches() {
    let bench = Bench::new(8);
    let pool = bench.allocator.graph_pool();
    let graph = capture(&bench, &pool, 0, 8);
    // On its own stream, on another one: the free in the capture comes before both.
    bench.launch(&graph, &pool, 0);
    bench.launch(&graph, &pool, 1);
    let clone = pool.clone();
    drop(pool);
    assert!(bench.try_allocate(1, 2).unwrap_err().is_out_of_memory(), "a clone is the same pool");
    drop(clone);
    assert_eq!(bench.allocator.stats().pinned_bytes, 0);
    let block = bench.allocate(8, 2);
    bench.write_and_free(block, 2);
    bench.check();
    let counts = bench.device.counts();
    assert_eq!(counts.of(Call::Unmap), 0, "the launches may still run");
    assert_eq!(counts.host_waits, 0);
    // The pool's mappings and addresses go when the launches are done.
    let reservations = bench.device.leaks().reservations;
    bench.device.complete_all();
    bench.allocator.trim();
    assert_eq!(bench.device.leaks().reservations, reservations - 1);
    bench.ends_empty();
}

/// The mapping of a page is used by launches on several streams: it stays until all of them are done.
#[test]
fn mappings_stay_until_every_launch_is_done() {
    for late in [0, 1] {
        let bench = Bench::new(8);
        let pool = bench.allocator.graph_pool();
        let graph = capture(&bench, &pool, 0, 8);
        bench.launch(&graph, &pool, 1 - late);
        bench.device.complete_all();
        bench.launch(&graph, &pool, late);
        bench.device.complete_stream(&bench.streams[1 - late].1);
        drop(pool);
        bench.allocator.trim();
        bench.allocator.unmap_stale_to(0);
        assert_eq!(bench.count(Call::Unmap), 0, "{late}");
        assert_eq!(bench.allocator.stats().mapped_bytes, 8 * PAGE);
        bench.check();
        bench.device.complete_all();
        assert_eq!(bench.allocator.trim().released_bytes, 8 * PAGE);
        bench.ends_empty();
    }
}

#[test]
fn a_block_that_lives_on_keeps_the_pages_of_its_heap() {
    let bench = Bench::new(16);
    let pool = bench.allocator.graph_pool();
    let (scope, fork) = (bench.begin(0, &pool), bench.begin(1, &pool));
    let result = bench.allocate(1, 0);
    drop((bench.allocate(7, 0), bench.allocate(3, 1)));
    bench.end(1, fork);
    bench.end(0, scope);
    assert_eq!(bench.allocator.stats().pinned_bytes, 11 * PAGE);
    drop(pool);
    assert_eq!(bench.allocator.stats().pinned_bytes, 8 * PAGE, "the other heap has gone");
    assert_eq!(bench.allocator.trim_wait().unwrap().released_bytes, 3 * PAGE);
    bench.write_and_free(result, 0);
    assert_eq!(bench.allocator.stats().pinned_bytes, 0);
    assert_eq!(bench.allocator.trim_wait().unwrap().released_bytes, 8 * PAGE);
    bench.ends_empty();
}

#[test]
fn a_raw_block_of_a_pool_is_freed_as_any_other() {
    let bench = Bench::new(16);
    let pool = bench.allocator.graph_pool();
    let scope = bench.begin(0, &pool);
    let raw = bench.allocate(2, 0).into_raw();
    bench.end(0, scope);
    drop(pool);
    bench.allocator.record_stream_raw(raw, bench.stream(1)).unwrap();
    bench.allocator.free_raw(raw).unwrap();
    assert!(matches!(bench.allocator.free_raw(raw), Err(Error::NotLive(_))));
    bench.device.complete_all();
    assert_eq!(bench.allocator.trim().released_bytes, 2 * PAGE);
    bench.ends_empty();
}

#[test]
fn a_pool_outlives_its_stream() {
    let mut bench = Bench::new(8);
    let pool = bench.allocator.graph_pool_with(Growth::Create);
    let graph = capture(&bench, &pool, 0, 6);
    drop(bench.allocate(2, 0));
    drop(bench.streams.remove(0));
    bench.launch(&graph, &pool, 0);
    assert!(bench.try_allocate(3, 1).unwrap_err().is_out_of_memory());
    drop(pool);
    bench.write_and_free(bench.allocate(8, 1), 1);
    bench.check();
    bench.device.complete_all();
    let reservations = bench.device.leaks().reservations;
    bench.allocator.trim();
    assert_eq!(
        bench.device.leaks().reservations,
        reservations - 2,
        "that of its stream's heap, and the pool's"
    );
    bench.ends_empty();
}

#[test]
fn a_pool_keeps_the_allocator() {
    let bench = Bench::new(8);
    let pool = bench.allocator.graph_pool();
    drop(bench.streams);
    assert!(matches!(bench.allocator.close(), Err(Error::InUse(1))));
    drop(pool);
}
