//! The tables that `probe` prints, within 100 columns.
//!
//! Main types: none. Neighbours: the JSON has every figure, also those that have no room here.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use concertina_bench::probe::{Bandwidth, Expected, Found, LeftOut, Pattern, ProbeReport, Timing};

use crate::bench::shortened;
use crate::figures::{self, Column, bytes, count, table};
use crate::measured_device::DeviceFacts;

/// Columns of figures beside each other.
const BESIDE: usize = 6;

/// Widest line.
const WIDTH: usize = 100;

/// All tables.
pub(super) fn text(facts: &DeviceFacts, report: &ProbeReport) -> String {
    let mut text = String::new();
    for line in facts.lines() {
        let _ = writeln!(text, "{}", shortened(&line, WIDTH));
    }
    by_size(&mut text, report);
    by_mappings(&mut text, report);
    others(&mut text, report);
    waits(&mut text, report);
    rules(&mut text, report);
    bandwidth(&mut text, report);
    rest(&mut text, report);
    text
}

/// Microseconds of nanoseconds.
fn microseconds(nanoseconds: u64) -> String {
    match nanoseconds {
        0..1_000_000 => format!("{:.2}", nanoseconds as f64 / 1e3),
        _ => count((nanoseconds + 500) / 1_000),
    }
}

/// A row for each call and load, a column for each of the values that `key` tells of a timing.
fn grid<'t>(
    text: &mut String,
    title: &str,
    timings: &[&'t Timing],
    row: impl Fn(&Timing) -> (&'t str, String),
    key: impl Fn(&Timing) -> u64,
    head: impl Fn(u64) -> String,
) {
    let keys: Vec<u64> = timings.iter().map(|t| key(t)).collect::<BTreeSet<_>>().into_iter().collect();
    let mut names: Vec<(&str, String)> = Vec::new();
    for timing in timings {
        let name = row(timing);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    for keys in keys.chunks(BESIDE) {
        let _ = writeln!(text, "\n{title}");
        let heads: Vec<String> = keys.iter().map(|key| head(*key)).collect();
        let columns = [Column::left("call"), Column::left("load")];
        let columns = columns.into_iter().chain(heads.iter().map(|_| Column::right("")));
        let mut rows = table(&columns.collect::<Vec<_>>(), 2);
        rows.set_header(["call", "while"].map(str::to_owned).into_iter().chain(heads));
        for (call, load) in &names {
            let figure = |wanted: u64| {
                let mut found =
                    timings.iter().filter(|t| row(t) == (*call, load.clone()) && key(t) == wanted);
                found.next_back().map_or("-".to_owned(), |timing| microseconds(timing.median_ns))
            };
            rows.add_row(
                [(*call).to_owned(), load.clone()].into_iter().chain(keys.iter().map(|key| figure(*key))),
            );
        }
        text.push_str(&figures::text(&rows));
    }
}

fn by_size(text: &mut String, report: &ProbeReport) {
    let single: Vec<&Timing> = report.timings.iter().filter(|t| t.mappings == 1 && t.bytes > 0).collect();
    let row = |timing: &Timing| (timing.call, timing.load.name().to_owned());
    grid(text, "One call, by bytes of what it is about: medians in µs", &single, row, |t| t.bytes, bytes);
}

fn by_mappings(text: &mut String, report: &ProbeReport) {
    let several: Vec<&Timing> = report.timings.iter().filter(|t| t.mappings > 1).collect();
    let row = |timing: &Timing| {
        let way = if timing.driver_calls == 1 { "one call" } else { "a call each" };
        (timing.call, format!("{}, {way}", timing.load.name()))
    };
    let head = |mappings: u64| format!("{} mappings", count(mappings));
    grid(
        text,
        "Several mappings of a page: medians in µs of all of them",
        &several,
        row,
        |t| t.mappings,
        head,
    );
    for fit in &report.fits {
        let (base, each) = (fit.base_ns / 1e3, fit.per_mapping_ns / 1e3);
        let load = fit.load.name();
        let _ = writeln!(text, "{}, {load}: {base:.2} µs and {each:.3} µs a mapping, fitted", fit.call);
    }
}

fn others(text: &mut String, report: &ProbeReport) {
    let others: Vec<&Timing> = report.timings.iter().filter(|timing| timing.bytes == 0).collect();
    if others.is_empty() {
        return;
    }
    let _ = writeln!(text, "\nOther calls, in µs");
    let columns = [Column::left("call"), Column::right("median"), Column::right("p10"), Column::right("p90")];
    let mut rows = table(&columns, 2);
    for timing in others {
        let figures = [timing.median_ns, timing.p10_ns, timing.p90_ns].map(microseconds);
        rows.add_row([timing.call.to_owned()].into_iter().chain(figures));
    }
    text.push_str(&figures::text(&rows));
}

fn waits(text: &mut String, report: &ProbeReport) {
    let Some(first) = report.waits.first() else { return };
    let kernel = microseconds(first.kernel_ns);
    let _ = writeln!(text, "\nWhile a kernel ran elsewhere for {kernel} µs");
    let mut rows = table(&[Column::left("call"), Column::right("took µs"), Column::left("waited for it")], 2);
    for wait in &report.waits {
        let waited = if wait.waited { "yes" } else { "no" };
        rows.add_row([wait.call.to_owned(), microseconds(wait.took_ns), waited.to_owned()]);
    }
    text.push_str(&figures::text(&rows));
}

fn rules(text: &mut String, report: &ProbeReport) {
    if report.rules.is_empty() {
        return;
    }
    let _ = writeln!(text, "\nRules (! where it is otherwise than expected)");
    let columns = [Column::left(""), Column::left("tried"), Column::left("expected"), Column::left("found")];
    let mut rows = table(&columns, 2);
    for finding in &report.rules {
        let mark = if finding.holds() == Some(false) { "!" } else { "" };
        let expected = match finding.expected {
            Expected::Refused => "refused",
            Expected::Done => "done",
            Expected::NotKnown => "not known",
        };
        let found = match finding.found {
            Found::Refused => "refused",
            Found::Done => "done",
            Found::NotTried => "not tried",
        };
        rows.add_row([mark, finding.rule, expected, found]);
    }
    text.push_str(&figures::text(&rows));
}

fn bandwidth(text: &mut String, report: &ProbeReport) {
    let Some(first) = report.bandwidth.first() else { return };
    let size = bytes(first.area_bytes);
    let _ = writeln!(text, "\n{size} of memory: GB/s, and how many times slower than one malloc");
    let columns = [
        Column::left("memory"),
        Column::right("frames"),
        Column::left("what"),
        Column::right("GB/s"),
        Column::right("slower"),
    ];
    let mut rows = table(&columns, 2);
    for found in &report.bandwidth {
        let Bandwidth { memory, frame_bytes, pattern, bytes_per_second, .. } = found;
        let frames = if *frame_bytes == 0 { "-".to_owned() } else { bytes(*frame_bytes) };
        let name = if *pattern == Pattern::Write { memory.name() } else { "" };
        rows.add_row([
            name.to_owned(),
            frames,
            pattern.name().to_owned(),
            format!("{:.1}", bytes_per_second / 1e9),
            format!("{:.3}", found.times_slower_than_malloc),
        ]);
    }
    text.push_str(&figures::text(&rows));
}

fn rest(text: &mut String, report: &ProbeReport) {
    text.push('\n');
    for found in &report.fresh_memory {
        let _ = writeln!(text, "pages of memory for {}: {}", found.purpose, bytes(found.granularity_bytes));
    }
    if let Some(limit) = &report.mapping_limit {
        let end = match &limit.refusal {
            None => "and no more were tried".to_owned(),
            Some(refusal) => format!("then: {refusal}"),
        };
        let line = format!("mappings at once: {}, {end}", count(limit.mappings));
        let _ = writeln!(text, "{}", shortened(&line, WIDTH));
    }
    let broken = report.rules.iter().filter(|finding| finding.holds() == Some(false)).count();
    let _ = writeln!(text, "{broken} of {} rules are otherwise than expected", report.rules.len());
    for (what, list) in [("left out", &report.left_out), ("FAILED", &report.failed)] {
        for LeftOut { what: name, why } in list {
            let _ = writeln!(text, "{}", shortened(&format!("{what}: {name}: {why}"), WIDTH));
        }
    }
    let _ = writeln!(text, "{:.1} s", report.took_ms as f64 / 1e3);
}
