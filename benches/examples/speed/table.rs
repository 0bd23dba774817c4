//! Rows of times, as people read them: at most 100 columns.
//!
//! Neighbours: every section prints with it.

use std::fmt;
use std::hint::black_box;
use std::io::{self, Write as _};
use std::process;
use std::time::Instant;

use concertina_bench::chunks::Spread;
use concertina_bench::churn::Churn;
use concertina_bench::contender::ByHandle;

/// Prints a line. When nobody reads any more, nothing is left to measure for: a closed pipe is no failure of ours.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    if writeln!(io::stdout(), "{text}").is_err() {
        process::exit(0);
    }
}

/// Opens a section: what is measured, and how, a line each.
pub(crate) fn title(name: &str, lines: &[&str]) {
    say(format_args!("\n== {name}"));
    for line in lines {
        say(format_args!("   {line}"));
    }
}

/// The names of the columns below.
pub(crate) fn head(case: &str, ratio: &str) {
    say(format_args!(
        "{case:<26} {:<20} {:>9} {:>9} {:>9}  {ratio:>20}",
        "contender", "best 1 %", "median", "p99"
    ));
}

/// One row in ns, with its best 1 % and its median as ratios to those of `base`, if there is one to compare with.
pub(crate) fn row(case: &str, contender: &str, spread: &Spread, base: Option<&Spread>) {
    let ratio = base.map_or_else(String::new, |base| {
        format!("{:.2} ({:.2})", spread.best() / base.best(), spread.median() / base.median())
    });
    let [best, median, p99] = [spread.best(), spread.median(), spread.p99()].map(ns);
    say(format_args!("{case:<26} {contender:<20} {best:>9} {median:>9} {p99:>9}  {ratio:>20}"));
}

/// Tells what the statistics of an allocator at rest take.
pub(crate) fn stats_row(case: &str, churn: &Churn<ByHandle>) {
    let look = |_| {
        let begun = Instant::now();
        black_box(churn.contender().allocator().stats());
        begun.elapsed().as_nanos() as f64
    };
    row(&format!("stats(), {case}"), "concertina", &Spread::of((0..200).map(look).collect()), None);
}

/// Nanoseconds with a decimal where it says something.
pub(crate) fn ns(value: f64) -> String {
    if value.is_nan() {
        "none".to_owned()
    } else if value < 1_000.0 {
        format!("{value:.1}")
    } else {
        concertina_bench::number::count(value as u64)
    }
}
