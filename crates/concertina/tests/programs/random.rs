//! Random programs: every invariant after every step, everything given back, and the same again the second time.
//!
//! Neighbours: `world` has what is checked.

use concertina::SegmentKind;
use proptest::prelude::*;

use crate::program::{any_setup, cases, malloc_setup, program};
use crate::world::{Outcome, run};

proptest! {
    #![proptest_config(cases(1200))]

    #[test]
    fn every_invariant_holds_after_every_step(program in program(any_setup(), 90)) {
        run(&program, |_, _, _| {}).end_empty();
    }

    #[test]
    fn every_invariant_holds_without_virtual_memory(program in program(malloc_setup(), 90)) {
        let world = run(&program, |_, _, _| {});
        prop_assert_eq!(world.allocator.segment_kind(), SegmentKind::Malloc);
        world.end_empty();
    }

    #[test]
    fn the_same_program_gives_the_same_addresses_and_calls(program in program(prop_oneof![3 => any_setup(), 1 => malloc_setup()], 60)) {
        let once = || {
            let mut outcomes = Vec::new();
            let world = run(&program, |_, _, outcome| {
                outcomes.push(match outcome {
                    Outcome::Allocated(address) => Ok(*address),
                    other => Err(format!("{other:?}")),
                });
            });
            let (stats, before_the_end) = (world.allocator.stats(), world.emulator().counts());
            let device = world.end();
            (outcomes, stats, before_the_end, device.counts())
        };
        prop_assert_eq!(once(), once());
    }
}
