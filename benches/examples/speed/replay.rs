//! What an event of a whole trace costs, on a new allocator and on one that has run the trace already.
//!
//! Neighbours: `concertina_bench::passes` has the loop and takes the driver's time off.

use std::process;

use concertina_bench::chunks::Spread;
use concertina_bench::number::count;
use concertina_bench::passes::{Pass, Passes};
use concertina_bench::{CaseError, DeviceSpec, PolicyName, TraceFile};
use concertina_trace::LoadedTrace;

use crate::table;

/// Training, training with sequences of any length, serving.
const TRACES: [&str; 3] = ["t1", "t2", "t7"];

/// Allocators that each trace is run on, by turns.
const ALLOCATORS: usize = 5;

/// Passes of each allocator: one cold one, the second, and later ones.
const PASSES: usize = 5;

/// Replays.
pub(crate) fn replay() {
    if let Err(error) = run() {
        eprintln!("error: {error}");
        process::exit(1);
    }
}

fn run() -> Result<(), CaseError> {
    let device = DeviceSpec::default();
    let mut traces = Vec::new();
    for word in TRACES {
        let file = TraceFile::find(word).unwrap_or_else(|error| panic!("{error}"));
        traces.push(LoadedTrace::open(file.path()).unwrap_or_else(|error| panic!("{error}")));
    }
    let cost = Passes { trace: &traces[0], device: &device }.clocked_device()?.cost_of_a_call();
    table::title(
        "replay: a whole trace in `balanced`, ns an event",
        &[
            "`driver`: in calls of the emulated driver. `host`: all the rest, the replay's own loop in it, of five",
            &format!(
                "allocators by turns. The clock's own {} ns a call are in `host`. `raw`: without handles;",
                cost.as_nanos()
            ),
            "blocks are freed by their stream (`OnStream`).",
        ],
    );
    table::say(format_args!(
        "{:<24} {:<12} {:>8} {:>7} {:>8} {:>10} {:>12} {:>12}",
        "trace", "pass", "events", "calls", "driver", "host, best", "host, median", "host, worst"
    ));
    let mut runs: Vec<Vec<Vec<Pass>>> = vec![Vec::new(); traces.len()];
    let mut raw_runs = runs.clone();
    for _ in 0..ALLOCATORS {
        for (trace, (runs, raw_runs)) in traces.iter().zip(runs.iter_mut().zip(&mut raw_runs)) {
            let passes = Passes { trace, device: &device };
            runs.push(passes.on_concertina(PolicyName::Balanced, PASSES)?);
            raw_runs.push(passes.on_concertina_raw(PolicyName::Balanced, PASSES)?);
        }
    }
    for (trace, (runs, raw_runs)) in traces.iter().zip(runs.iter().zip(&raw_runs)) {
        row(trace.name(), "(loop)", Passes { trace, device: &device }.on_nobody(ALLOCATORS)?);
        row(trace.name(), "cold", runs.iter().map(|passes| passes[0]).collect());
        row(trace.name(), "second", runs.iter().map(|passes| passes[1]).collect());
        row(trace.name(), "later", runs.iter().flat_map(|passes| passes[2..].to_vec()).collect());
        row(trace.name(), "second, raw", raw_runs.iter().map(|passes| passes[1]).collect());
        row(trace.name(), "later, raw", raw_runs.iter().flat_map(|passes| passes[2..].to_vec()).collect());
    }
    Ok(())
}

fn row(trace: &str, pass: &str, passes: Vec<Pass>) {
    let host = Spread::of(passes.iter().map(Pass::ns_an_event).collect());
    let driver = Spread::of(passes.iter().map(Pass::driver_ns_an_event).collect());
    // All allocators of one trace make the same calls in the same pass; later passes may differ.
    let calls = passes.iter().map(|pass| pass.driver_calls).max().unwrap_or(0);
    let events = passes.first().map_or(0, |pass| pass.events);
    let [best, median, worst] = [0, 500, 1_000].map(|part| table::ns(host.quantile(part)));
    table::say(format_args!(
        "{trace:<24} {pass:<12} {:>8} {:>7} {:>8} {best:>10} {median:>12} {worst:>12}",
        count(events),
        count(calls),
        table::ns(driver.median()),
    ));
}
