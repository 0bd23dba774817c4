//! `cargo xtask replay`: one trace on one allocator, mark by mark.
//!
//! Main types: [`ReplayArgs`]. Neighbours: `concertina_bench` runs the case.

use std::ops::Range;

use clap::Args;
use concertina_bench::{AllocatorName, Case, PolicyName, Run, TraceFile};
use concertina_emulator::Counts;
use concertina_trace::{LoadedTrace, MarkReport};
use concertina_vmm::Call;

use crate::bench::{DeviceArgs, shortened};
use crate::error::XtaskError;
use crate::figures::{self, Column, bytes, count, milliseconds, table};

/// Arguments of `replay`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask replay t1                                what concertina did at each mark
  cargo xtask replay s2 --allocator direct             the same trace on cudaMalloc
  cargo xtask replay t7 --marks 0 --capacity 1.02x     every mark, on a tight device
  cargo xtask replay s7 --work 1 --check               with kernels on the streams, looking for races
  cargo xtask replay t1 --device emulated-cuda         through the crate cuda, over an emulated libcuda")]
pub(crate) struct ReplayArgs {
    /// A bundled trace's name, long (t1_gpt2_train) or short (t1), or a file.
    #[arg(value_name = "TRACE")]
    pub(crate) trace: String,

    /// The allocator.
    #[arg(long, value_name = "NAME", default_value_t = AllocatorName::Concertina)]
    pub(crate) allocator: AllocatorName,

    /// The policy of concertina: lean or balanced.
    #[arg(long, value_name = "NAME", default_value_t = PolicyName::Balanced)]
    pub(crate) policy: PolicyName,

    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    /// Replay a second time and check every block; with --work also that nothing races.
    #[arg(long)]
    pub(crate) check: bool,

    /// Most lines of marks to print, the first and the last ones; 0 for all.
    #[arg(long, value_name = "N", default_value_t = 24)]
    pub(crate) marks: usize,
}

/// Replays the trace and prints what happened.
///
/// # Errors
/// Bad input, or an allocator that failed.
pub(crate) fn run(args: ReplayArgs) -> Result<(), XtaskError> {
    let device = args.device.spec()?;
    let trace = LoadedTrace::open(TraceFile::find(&args.trace)?.path())?;
    let case = Case { trace: &trace, allocator: args.allocator, policy: args.policy, device: &device };
    let mut run = case.run()?;
    if args.check {
        run.outcome.adopt_defect(case.check()?.outcome);
    }
    print_marks(&run, args.marks);
    print_totals(&run);
    if run.outcome.is_defect() { Err(XtaskError::Defects { cases: 1 }) } else { Ok(()) }
}

/// Widest label that is shown whole.
const LABEL: usize = 24;

/// A row a mark: what is live and mapped there, and the driver calls since the row before.
fn print_marks(run: &Run, most: usize) {
    let kinds: Vec<Call> = Call::ALL.iter().copied().filter(|call| call.is_memory_call()).collect();
    let kinds: Vec<Call> = kinds.into_iter().filter(|call| run.end.counts.of(*call) > 0).collect();
    let columns = [
        Column::left("mark"),
        Column::right("at event"),
        Column::right("live"),
        Column::right("mapped"),
        Column::right("calls"),
    ];
    let columns: Vec<Column> =
        columns.into_iter().chain(kinds.iter().map(|call| Column::right(call.name()))).collect();
    let mut rows = table(&columns, 2);
    let moments: Vec<&MarkReport> = run.marks.iter().chain([&run.end]).collect();
    let left_out = left_out(moments.len(), most);
    let mut before = Counts::default();
    for (index, moment) in moments.iter().enumerate() {
        if index == left_out.start && !left_out.is_empty() {
            rows.add_row([format!("… {} left out …", count(left_out.len() as u64))]);
        }
        if !left_out.contains(&index) {
            rows.add_row(row(moment, &before, &kinds));
        }
        before = moment.counts;
    }
    print!("{}", figures::text(&rows));
    println!(
        "live: bytes as asked. calls: driver calls that change memory since the row above's mark, then by kind."
    );
    if !left_out.is_empty() {
        println!("--marks 0 shows every mark.");
    }
}

/// Which of `rows` rows are not shown if at most `most` are (0: all): the ones in the middle. The last row stays.
fn left_out(rows: usize, most: usize) -> Range<usize> {
    if most == 0 || rows <= most {
        return 0..0;
    }
    let last = most / 2;
    most - last..rows - last.max(1)
}

fn row(moment: &MarkReport, before: &Counts, kinds: &[Call]) -> Vec<String> {
    let since = |call: Call| moment.counts.of(call) - before.of(call);
    let calls = moment.counts.memory_calls() - before.memory_calls();
    let start = [
        shortened(&moment.label, LABEL),
        count(moment.event as u64),
        bytes(moment.live_bytes),
        bytes(moment.counts.mapped_bytes),
        count(calls),
    ];
    start.into_iter().chain(kinds.iter().map(|call| count(since(*call)))).collect()
}

fn print_totals(run: &Run) {
    let outcome = &run.outcome;
    let policy = outcome.policy.as_ref().map(|policy| format!(", {policy}")).unwrap_or_default();
    println!("\n{} on {}{policy}", outcome.trace, outcome.allocator);
    println!("device             {}, {}", outcome.device, bytes(outcome.capacity_bytes));
    if let (Some(event), Some(error)) = (outcome.failed_at_event, &outcome.error) {
        println!("stopped            at event {}: {error}", count(event));
    }
    println!(
        "live peak          {} ({} bytes)",
        bytes(outcome.live_peak_bytes),
        count(outcome.live_peak_bytes)
    );
    println!(
        "mapped peak        {}, {:.4} × live",
        bytes(outcome.mapped_peak_bytes),
        outcome.mapped_over_live
    );
    println!(
        "addresses in use   {}, {:.2} × live",
        bytes(outcome.address_peak_bytes),
        outcome.address_over_live
    );
    println!("driver calls       {} that change memory", count(outcome.memory_calls()));
    let kinds = outcome.driver_calls.iter().filter(|(_, calls)| **calls > 0);
    for (kind, calls) in kinds {
        println!("{:>18} {kind}", count(*calls));
    }
    println!("last of them       {}", last_call(run));
    println!(
        "fences             {} records, {} waits",
        count(outcome.fences.records),
        count(outcome.fences.waits)
    );
    println!("host waits         {}", count(outcome.host_waits));
    if let Some(ns) = outcome.modelled_device_ns {
        let over = |ratio: Option<f64>, what| {
            ratio.map(|ratio| format!(", {ratio:.4} × {what}")).unwrap_or_default()
        };
        println!(
            "device time        {} ms, modelled{}{}",
            milliseconds(ns),
            over(outcome.device_ns_over_unlimited, "unlimited"),
            over(outcome.device_ns_over_kernels, "kernels alone")
        );
    }
    match outcome.measured_driver_ns {
        Some(ns) => println!("driver time        {} ms, measured", milliseconds(ns)),
        None => println!(
            "driver time        {} ms, modelled from the cost table {}",
            milliseconds(outcome.modelled_driver_ns),
            outcome.cost_table
        ),
    }
    println!("host time          {:.0} ns an event on this machine", outcome.host_ns_per_event);
}

/// After which mark the last driver call that changes memory was made.
fn last_call(run: &Run) -> String {
    let all = run.end.counts.memory_calls();
    match run.marks.iter().position(|mark| mark.counts.memory_calls() == all) {
        _ if all == 0 => "none".to_owned(),
        Some(0) => "before the first mark".to_owned(),
        Some(index) => format!(
            "between marks {} and {} of {}",
            count(index as u64),
            count(index as u64 + 1),
            count(run.marks.len() as u64)
        ),
        None => "after the last mark".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::left_out;

    #[test]
    fn rows_are_left_out_in_the_middle() {
        assert_eq!(left_out(10, 0), 0..0);
        assert_eq!(left_out(10, 10), 0..0);
        assert_eq!(left_out(10, 4), 2..8);
        assert_eq!(left_out(10, 5), 3..8);
        assert_eq!(left_out(10, 1), 1..9);
    }
}
