//! The storm: two million operations of two thousand programs, under the race detector.
//!
//! Neighbours: `program` makes and runs them. `CONCERTINA_STORM_SEEDS` says how many programs, instead of that;
//! `CONCERTINA_STORM_SEED` runs one, as a failure named it.

use std::panic;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::coverage::Coverage;
use crate::op::CALLS;
use crate::program::{Failure, Program};
use crate::site::Together;

/// Steps of a program.
const STEPS: usize = 1_000;

/// A number of the environment.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

/// Runs the programs of all seeds, on so many threads as there are cores, until one fails.
fn storm(seeds: u64, threads: usize, together: Together) -> Coverage {
    let seeds = match number("CONCERTINA_STORM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CONCERTINA_STORM_SEEDS").unwrap_or(seeds),
    };
    let next = AtomicU64::new(seeds.start);
    let failed: Mutex<Option<(Program, String)>> = Mutex::default();
    let coverage: Mutex<Coverage> = Mutex::default();
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let program = Program::new(seed, threads, STEPS);
            match program.run(together) {
                Ok(covered) => coverage.lock().unwrap().merge(covered),
                Err(why) => {
                    next.store(seeds.end, Ordering::Relaxed);
                    failed.lock().unwrap().get_or_insert((program, why));
                }
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
    if let Some((program, why)) = failed.into_inner().unwrap() {
        let seed = program.seed;
        let failure = match together {
            Together::InTurn => shortened(program, why),
            // The next run may go otherwise.
            Together::AtOnce => Failure { program, why },
        };
        panic!("CONCERTINA_STORM_SEED={seed} fails: {failure}");
    }
    coverage.into_inner().unwrap()
}

/// Shortens without a message from each of the runs that fail.
fn shortened(program: Program, why: String) -> Failure {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let failure = program.shortened(why, |program| program.run(Together::InTurn).err());
    panic::set_hook(hook);
    failure
}

/// So much must have happened, in all programs together, or they show nothing.
fn assert_covered(coverage: &Coverage, least: &[(&str, u64)]) {
    if number("CONCERTINA_STORM_SEED").is_some() || number("CONCERTINA_STORM_SEEDS").is_some() {
        return;
    }
    let short = least.iter().filter(|(what, least)| coverage.of(what) < *least);
    let short: Vec<_> =
        short.map(|(what, least)| format!("{what}: {} of {least}", coverage.of(what))).collect();
    assert!(short.is_empty(), "too little: {short:?}; {coverage:#?}");
}

#[test]
fn two_million_operations_in_turn_give_no_report() {
    let coverage = storm(2_000, 3, Together::InTurn);
    let least = [
        ("stolen frames", 100_000),
        ("revived pages", 10_000),
        ("replaced pages", 1_000),
        ("waits on the device", 10_000),
        ("waits of the host", 1_000),
        ("streams retired", 10_000),
        ("collectives", 100),
        ("stale pages unmapped in a quiet moment", 1_000),
        ("moved segments", 100),
        ("growths", 10_000),
        ("shrinks", 10_000),
        ("out of memory", 10_000),
        ("failed requests", 1_000),
    ];
    assert_covered(&coverage, &least);
    for call in CALLS {
        assert_covered(&coverage, &[(&format!("{call} failed"), 20)]);
    }
}

#[test]
fn threads_of_the_system_at_once_give_no_report() {
    let coverage = storm(400, 4, Together::AtOnce);
    let least = [("stolen frames", 10_000), ("waits on the device", 1_000), ("streams retired", 1_000)];
    assert_covered(&coverage, &least);
}
