//! `cargo xtask trace stat`: what is in a trace.
//!
//! Main types: [`StatArgs`]. Neighbours: `concertina_trace` measures, `figures` writes numbers.

use clap::Args;
use concertina_bench::TraceFile;
use concertina_trace::{Letter, LoadedTrace, TraceStat};

use crate::error::XtaskError;
use crate::figures::{self, Column, bytes, count, table};

/// Arguments of `trace stat`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask trace stat t1                 a bundled trace
  cargo xtask trace stat my.trace.zst       a file")]
pub(crate) struct StatArgs {
    /// A bundled trace's name, long (t1_gpt2_train) or short (t1), or a file.
    #[arg(value_name = "TRACE")]
    trace: String,
}

/// Measures the trace and prints its figures.
pub(super) fn run(args: StatArgs) -> Result<(), XtaskError> {
    let trace = LoadedTrace::open(TraceFile::find(&args.trace)?.path())?;
    let stat = TraceStat::of(&trace);

    for (key, value) in trace.header().lines() {
        println!("{key}: {value}");
    }
    println!();
    print_events(&stat);
    print_memory(&stat);
    println!();
    print_sizes(&stat);
    if stat.streams.len() > 1 {
        println!();
        print_streams(&stat);
    }
    for wrong in &stat.disagreements {
        println!("the header says {}: {}, the events say {}", wrong.key, wrong.declared, wrong.found);
    }
    Ok(())
}

fn print_events(stat: &TraceStat) {
    println!("{:>14} events", count(stat.events.total()));
    for letter in Letter::ALL {
        let events = stat.events.of(letter);
        if events > 0 {
            println!("{:>14} {}", count(events), letter.noun());
        }
    }
}

fn print_memory(stat: &TraceStat) {
    let (peak, end, lives) = (&stat.live_peak, &stat.live_at_end, &stat.lifetimes);
    println!("live peak      {} in {} blocks, at line {}", bytes(peak.bytes), count(peak.blocks), peak.line);
    println!("live at end    {} in {} blocks", bytes(end.bytes), count(end.blocks));
    println!(
        "sizes          {} to {}, {} different",
        bytes(stat.smallest_bytes),
        bytes(stat.largest_bytes),
        count(stat.distinct_sizes)
    );
    println!(
        "lifetimes      in events: half at most {}, 90 % {}, 99 % {}, the longest {}; {} never freed",
        count(lives.median),
        count(lives.p90),
        count(lives.p99),
        count(lives.most),
        count(lives.never_freed)
    );
}

fn print_sizes(stat: &TraceStat) {
    let mut sizes =
        table(&[Column::left("from"), Column::right("allocations"), Column::right("bytes in all")], 2);
    for class in &stat.sizes {
        let all = u64::try_from(class.bytes).unwrap_or(u64::MAX);
        sizes.add_row([bytes(class.from_bytes), count(class.allocations), bytes(all)]);
    }
    print!("{}", figures::text(&sizes));
}

fn print_streams(stat: &TraceStat) {
    let columns = [
        Column::left("stream"),
        Column::right("allocations"),
        Column::right("bytes in all"),
        Column::right("uses"),
    ];
    let mut streams = table(&columns, 2);
    for stream in &stat.streams {
        let all = u64::try_from(stream.bytes).unwrap_or(u64::MAX);
        streams.add_row([
            stream.stream.to_string(),
            count(stream.allocations),
            bytes(all),
            count(stream.uses),
        ]);
    }
    print!("{}", figures::text(&streams));
}
