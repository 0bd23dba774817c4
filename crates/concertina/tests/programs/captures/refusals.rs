//! What a capture forbids, by name; and driver calls that fail in one.
//!
//! Main types: none. Neighbours: `captures` has the bench.

use concertina::{CaptureError, DriverErrorKind, Error, Growth, Layout};
use concertina_emulator::Fault;
use concertina_vmm::{Call, CaptureStatus};

use super::{Bench, PAGE};

#[track_caller]
fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> CaptureError {
    match result {
        Err(Error::Capture(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn memory_that_is_not_held_is_refused_with_what_to_reserve() {
    let bench = Bench::new(32);
    let pool = bench.allocator.graph_pool_with(Growth::Held);
    pool.reserve(4 * PAGE, bench.stream(0)).unwrap();
    let stream = bench.stream(0).id();
    let mut reserved = 4 * PAGE;
    for _ in 0..2 {
        let scope = bench.begin(0, &pool);
        let calls = bench.calls();
        let held: Vec<_> = (0..2).map_while(|_| bench.try_allocate(3, 0).ok()).collect();
        if held.len() == 2 {
            bench.end(0, scope);
            break;
        }
        let error = refusal(bench.try_allocate(3, 0));
        let needed_bytes = 6 * PAGE;
        assert_eq!(
            error,
            CaptureError::NotHeld { stream, asked_bytes: 3 * PAGE, held_bytes: reserved, needed_bytes }
        );
        assert!(
            error.to_string().contains("Reserve 12582912 bytes on the stream before the capture"),
            "{error}"
        );
        // That many calls: only the question whether the driver knows of another end.
        assert_eq!(bench.calls(), calls);
        bench.check();
        drop(held);
        bench.end(0, scope);
        pool.reserve(needed_bytes, bench.stream(0)).unwrap();
        reserved = pool.held_bytes();
    }
    assert_eq!(reserved, 6 * PAGE);
    drop(pool);
    bench.ends_empty();
}

#[test]
fn a_capture_without_a_scope_is_found_out_where_calls_would_be_made() {
    let bench = Bench::new(32);
    drop(bench.allocate(2, 0));
    bench.set_status(0, CaptureStatus::Active);
    let before = bench.calls();
    let error = refusal(bench.try_allocate(4, 0));
    assert_eq!(error, CaptureError::NoScope { stream: bench.stream(0).id() });
    assert!(error.to_string().contains("open a scope with `Stream::capture`"), "{error}");
    let asked = bench.calls().iter().zip(&before).filter(|(now, then)| now != then).count();
    assert_eq!(asked, 1, "only the question itself");
    // Nothing was broken: the same goes well afterwards.
    bench.set_status(0, CaptureStatus::None);
    drop(bench.allocate(4, 0));
    bench.ends_empty();
}

#[test]
fn what_runs_or_grows_is_refused_in_a_capture() {
    let bench = Bench::new(32);
    let (pool, stream) = (bench.allocator.graph_pool(), bench.stream(0).id());
    let mut growable = bench.allocator.reserve_growable(8 * PAGE, bench.stream(0)).unwrap();
    growable.grow_to(PAGE / 2).unwrap();
    let scope = bench.begin(0, &pool);
    let calls = bench.calls();
    assert_eq!(refusal(bench.stream(0).capture(&pool)), CaptureError::Twice { stream });
    assert_eq!(
        refusal(pool.reserve(PAGE, bench.stream(0))),
        CaptureError::InCapture { stream, what: "a reservation" }
    );
    let launched = pool.launch(bench.stream(0), || panic!("not to be launched"));
    assert_eq!(refusal(launched), CaptureError::InCapture { stream, what: "a launch" });
    growable.grow_to(PAGE).unwrap();
    assert_eq!(refusal(growable.grow_to(2 * PAGE)), CaptureError::OtherPool { stream });
    assert_eq!(growable.bytes(), PAGE);
    assert_eq!(bench.calls(), calls);
    bench.end(0, scope);
    growable.grow_to(2 * PAGE).unwrap();
    drop((growable, pool));
    bench.ends_empty();
}

#[test]
fn a_broken_capture_and_one_that_has_not_ended_are_told() {
    let bench = Bench::new(32);
    let (pool, stream) = (bench.allocator.graph_pool(), bench.stream(0).id());
    bench.set_status(0, CaptureStatus::Invalidated);
    assert_eq!(refusal(bench.stream(0).capture(&pool)), CaptureError::Broken { stream });
    bench.set_status(0, CaptureStatus::None);

    bench.write_and_free(bench.allocate(32, 0), 0);
    let scope = bench.begin(0, &pool);
    assert_eq!(refusal(scope.end()), CaptureError::NotEnded { stream });
    // It still counts: neither is memory had there, nor an event recorded.
    assert_eq!(refusal(bench.try_allocate(33, 0)), CaptureError::OtherPool { stream });
    bench.allocator.trim();
    bench.allocator.trim();
    bench.check();
    // As soon as the driver says so, it is over.
    bench.set_status(0, CaptureStatus::None);
    drop(bench.allocate(32, 1));
    assert_eq!(bench.count(Call::StreamWait), 1);
    drop(pool);
    bench.ends_empty();
}

#[test]
fn pools_and_streams_of_other_allocators_are_refused() {
    let (bench, other) = (Bench::new(8), Bench::new(8));
    let pool = other.allocator.graph_pool();
    assert!(matches!(bench.stream(0).capture(&pool), Err(Error::ForeignStream)));
    assert!(matches!(pool.reserve(PAGE, bench.stream(0)), Err(Error::ForeignStream)));
    assert!(matches!(pool.launch(bench.stream(0), || ()), Err(Error::ForeignStream)));
    assert!(matches!(other.allocator.graph_pool().reserve(0, other.stream(0)), Err(Error::Request(_))));
    drop(pool);
    bench.ends_empty();
    other.ends_empty();
}

/// Whichever call fails, everything is as before, and the same goes well when it is made again.
#[test]
fn after_a_failed_call_the_capture_goes_on() {
    let calls =
        [Call::CaptureStatus, Call::EventCreate, Call::EventRecord, Call::Reserve, Call::Create, Call::Map];
    for call in calls.into_iter().chain([Call::SetAccess, Call::Unmap, Call::Release, Call::StreamWait]) {
        for nth in 1..8 {
            let bench = Bench::new(12);
            bench.write_and_free(bench.allocate(6, 1), 1);
            bench.device.fail(Fault::once(call, nth, DriverErrorKind::Invalid));
            let again = |step: &dyn Fn() -> bool| assert!(step() || step(), "{call} {nth}");
            let pool = bench.allocator.graph_pool();
            again(&|| pool.reserve(2 * PAGE, bench.stream(0)).is_ok());
            let scope = bench.stream(0).capture(&pool).or_else(|_| bench.stream(0).capture(&pool)).unwrap();
            bench.set_status(0, CaptureStatus::Active);
            let layout = Layout::new(5 * PAGE);
            let allocate = || bench.allocator.allocate(layout, bench.stream(0));
            let block = allocate().or_else(|_| allocate()).unwrap();
            bench.check();
            bench.set_status(0, CaptureStatus::None);
            let _ = scope.end();
            again(&|| pool.launch(bench.stream(1), || ()).is_ok());
            drop((block, pool));
            let other = bench.try_allocate(12, 2).or_else(|_| bench.try_allocate(12, 2)).unwrap();
            bench.check();
            drop(other);
            bench.device.clear_faults();
            bench.ends_empty();
        }
    }
}
