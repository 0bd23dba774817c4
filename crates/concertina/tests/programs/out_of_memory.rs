//! The report of a request that could not be served, on every one of a random program.
//!
//! Neighbours: `verdicts` has an example of each verdict.
//!
//! The figures are those of the model, and the largest request that the report promises is served when it comes next.

use concertina::{Allocator, Config, CrossStream, Error, HostWait, Layout, OutOfMemory};
use concertina_emulator::{Emulator, EventCompletion, Work};
use proptest::prelude::*;

use crate::program::{MIB, Op, Setup, any_setup, cases, malloc_setup, program, roomy};
use crate::world::{Outcome, World, run};

/// Every figure that the model knows.
fn check_figures(world: &World, layout: Layout, report: &OutOfMemory) {
    let (stats, counts) = (world.allocator.stats(), world.emulator().counts());
    let page = world.setup.page_bytes;
    assert_eq!((report.asked_bytes, report.alignment), (layout.bytes(), layout.alignment().max(512)));
    assert_eq!(report.live_bytes, world.live_bytes());
    assert_eq!(report.mapped_bytes, counts.mapped_bytes);
    assert_eq!(report.limit_bytes, world.setup.limit.map(|pages| pages * page));
    assert_eq!(report.device_free_bytes, Some(world.setup.device * page - counts.mapped_bytes));
    assert_eq!(report.pending_bytes, stats.pending_bytes);
    assert_eq!(report.free_bytes, stats.free_bytes);
    assert_eq!(report.free_bytes, report.free_frames * page);
    assert_eq!(report.stranded_bytes, stats.stranded_bytes);
    assert_eq!(report.pinned_bytes, 0);
    assert!(report.withheld_bytes <= report.free_bytes);
    let text = report.to_string();
    assert!(text.contains(report.verdict.meaning()) && text.contains(report.verdict.advice()), "{text}");
}

/// The report of a refused request, and how it was made.
fn refused(world: &World, op: &Op, outcome: &Outcome) -> Option<(OutOfMemory, Layout, usize)> {
    match (op, outcome) {
        (Op::Allocate { size, alignment, stream }, Outcome::OutOfMemory(report)) => {
            Some(((**report).clone(), world.layout(*size, *alignment), *stream))
        }
        _ => None,
    }
}

fn allocate_and_free(world: &mut World, bytes: u64, stream: usize) -> Outcome {
    let outcome = world.allocate(Layout::new(bytes), stream);
    if !outcome.is_refused() {
        world.check();
        world.free(world.live.len() - 1);
    }
    outcome
}

/// Devices on which all that is free may serve any stream at once.
fn free_for_all(setup: impl Strategy<Value = Setup>) -> impl Strategy<Value = Setup> {
    setup.prop_map(|setup| Setup {
        completion: EventCompletion::AtOnce,
        cross_stream: CrossStream::DeviceWait,
        ..setup
    })
}

/// A kernel elsewhere that reads a freed block ends before, in the middle of and after a request for its bytes: whatever
/// the moment, the request is served or its report says that it would not be.
#[test]
fn refusal_and_report_are_of_one_moment() {
    let pages = 4;
    for setup in [Setup::plain(2 * MIB, pages), Setup::without_virtual_memory(pages)] {
        let (mut served, mut refused) = (0, 0);
        for kernel_ns in (0..200_000).step_by(100) {
            let device =
                Emulator::new(setup.emulator().with_event_completion(EventCompletion::ByClock)).unwrap();
            let config =
                Config::builder().cross_stream(CrossStream::Never).host_wait(HostWait::Never).build();
            let allocator = Allocator::new(device.clone(), config).unwrap();
            let own = device.stream();
            let [home, reader] = [device.stream(), own.clone()].map(|own| allocator.register_stream(own));
            let layout = Layout::new(pages * setup.page_bytes);
            let block = allocator.allocate(layout, &home).unwrap();
            let read = Work::new("read").reading(block.address(), layout.bytes());
            device.queue(&own, read.lasting(kernel_ns));
            block.record_stream(&reader).unwrap();
            drop(block);
            match allocator.allocate(layout, &home) {
                Ok(_) => served += 1,
                Err(Error::OutOfMemory(report)) => {
                    refused += 1;
                    assert!(report.largest_bytes < layout.bytes(), "a kernel of {kernel_ns} ns: {report}");
                }
                Err(error) => panic!("a kernel of {kernel_ns} ns: {error}"),
            }
        }
        assert!(served > 100 && refused > 100, "{served} served and {refused} refused: {setup:?}");
    }
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn its_figures_are_true_and_its_promise_is_kept(
        program in program(prop_oneof![any_setup(), malloc_setup()], 90),
    ) {
        run(&program, |world, op, outcome| {
            let Some((report, layout, stream)) = refused(world, op, outcome) else { return };
            check_figures(world, layout, &report);
            // Where a small block has no page left, a large one may still fit beside other large ones.
            let other_heap = layout.bytes() <= MIB && report.largest_bytes > MIB;
            let aligned = layout.alignment() > 512;
            assert!(report.largest_bytes < layout.bytes() || other_heap || aligned, "{report}");
            if report.largest_bytes > 0 {
                let promised = allocate_and_free(world, report.largest_bytes, stream);
                assert!(!promised.is_refused(), "promised {report:?}\nthen {promised:?}");
            }
        });
    }

    #[test]
    fn no_request_larger_by_a_page_would_have_succeeded(
        program in program(free_for_all(prop_oneof![roomy(), malloc_setup()]), 90),
    ) {
        run(&program, |world, op, outcome| {
            let Some((report, _, stream)) = refused(world, op, outcome) else { return };
            let larger = allocate_and_free(world, report.largest_bytes + world.setup.page_bytes, stream);
            assert!(larger.is_refused(), "{report:?}\nbut {larger:?}");
        });
    }
}
