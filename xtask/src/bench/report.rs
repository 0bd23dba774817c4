//! The table that `bench` prints: a row a case, within 100 columns.
//!
//! Neighbours: `docs/bench.md` defines the columns; `figures` has the looks.

use concertina_bench::Outcome;

use super::{DeviceArgs, DeviceName};
use crate::figures::{self, Column, count, milliseconds, rough_count, table};

/// The columns, in order. The head of the driver's time says whether it is modelled. With work, that of the device takes
/// the place of addresses and host time.
fn columns(device: DeviceName, work: Option<u64>) -> Vec<Column> {
    let driver_time = match device {
        DeviceName::Emulated | DeviceName::EmulatedCuda => "modelled\ndriver ms",
        DeviceName::Cuda => "measured\ndriver ms",
    };
    let mut columns = vec![Column::left("\ntrace"), Column::left("\nallocator"), Column::left("\npolicy")];
    if work.is_none() {
        columns.push(Column::right("live\nGB"));
    }
    columns.push(Column::right("mapped\n/live"));
    if work.is_none() {
        columns.push(Column::right("addr.\n/live"));
    }
    columns.extend([Column::right("driver\ncalls"), Column::right(driver_time)]);
    columns.extend(match work {
        None => {
            [Column::right("\nfences"), Column::right("host\nwaits"), Column::right("ns/\nevent")].to_vec()
        }
        Some(_) => [
            Column::right("device\nwaits"),
            Column::right("host\nwaits"),
            Column::right("modelled\ndevice ms"),
            Column::right("/un-\nlim."),
            Column::right("/ker-\nnels"),
        ]
        .to_vec(),
    });
    columns
}

/// The table, what failed, and the legend.
pub(super) fn report(outcomes: &[Outcome], device: &DeviceArgs) -> String {
    let mut rows = table(&columns(device.device, device.work), 1);
    let options = options(outcomes);
    let mut last = "";
    for outcome in outcomes {
        // The name stands once for all rows of a trace.
        let name = if outcome.trace == last { "" } else { &outcome.trace };
        last = &outcome.trace;
        rows.add_row(row(name, outcome, &options));
    }
    let mut text = figures::text(&rows);
    for (index, allocator) in options.iter().enumerate() {
        text.push_str(&format!("#{}: {allocator}\n", index + 1));
    }
    for outcome in outcomes.iter().filter(|outcome| !outcome.completed) {
        text.push_str(&failure_line(outcome));
    }
    text.push_str(&legend(device));
    text
}

/// The allocators that have options, each once.
fn options(outcomes: &[Outcome]) -> Vec<&str> {
    let mut options: Vec<&str> = Vec::new();
    for allocator in outcomes.iter().map(|outcome| outcome.allocator.as_str()) {
        if allocator.contains(':') && !options.contains(&allocator) {
            options.push(allocator);
        }
    }
    options
}

/// The allocator's name, short enough for its column; where it has options, with the number of the line below the table
/// that has them.
fn short_allocator(allocator: &str, options: &[&str]) -> String {
    let name = match allocator.split(':').next().unwrap_or(allocator) {
        "pytorch-expandable" => "pytorch-exp",
        name => name,
    };
    match options.iter().position(|known| *known == allocator) {
        Some(index) => format!("{name}#{}", index + 1),
        None => name.to_owned(),
    }
}

fn row(name: &str, outcome: &Outcome, options: &[&str]) -> Vec<String> {
    let incomplete = if outcome.completed { "" } else { "*" };
    let mut cells = vec![
        shortened(name, if outcome.work_seed.is_none() { 20 } else { 16 }),
        format!("{}{incomplete}", short_allocator(&outcome.allocator, options)),
        outcome.policy.clone().unwrap_or_else(|| "-".to_owned()),
    ];
    if outcome.work_seed.is_none() {
        cells.push(format!("{:.2}", outcome.live_peak_bytes as f64 / 1e9));
    }
    cells.push(format!("{:.4}", outcome.mapped_over_live));
    if outcome.work_seed.is_none() {
        cells.push(format!("{:.2}", outcome.address_over_live));
    }
    cells.extend([
        rough_count(outcome.memory_calls()),
        milliseconds(outcome.measured_driver_ns.unwrap_or(outcome.modelled_driver_ns)),
    ]);
    cells.extend(match outcome.work_seed {
        None => vec![
            rough_count(outcome.fences.records + outcome.fences.waits),
            rough_count(outcome.host_waits),
            format!("{:.0}", outcome.host_ns_per_event),
        ],
        Some(_) => vec![
            rough_count(outcome.device_waits),
            rough_count(outcome.host_waits),
            milliseconds(outcome.modelled_device_ns.unwrap_or(0)),
            ratio(outcome.device_ns_over_unlimited),
            ratio(outcome.device_ns_over_kernels),
        ],
    });
    cells
}

/// A quotient of times, if there is one.
fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"))
}

/// At most `most` characters of `text`; a cut is shown.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// One line of what failed; an error of several lines is cut to its first.
fn failure_line(outcome: &Outcome) -> String {
    let policy = outcome.policy.as_ref().map(|policy| format!(" ({policy})")).unwrap_or_default();
    let event = outcome.failed_at_event.map(count).unwrap_or_default();
    let error = outcome.error.as_deref().and_then(|error| error.lines().next()).unwrap_or_default();
    format!("* {}, {}{policy}, stopped at event {event}: {error}\n", outcome.trace, outcome.allocator)
}

fn legend(device: &DeviceArgs) -> String {
    let (times, line) = match device.device {
        DeviceName::Cuda => ("measured on this machine's GPU".to_owned(), "cuda".to_owned()),
        name => {
            let times = format!("MODELLED from the cost table {}, not measured on a GPU", device.cost_table);
            let way = if name == DeviceName::Emulated { "emulated" } else { "emulated, by libcuda" };
            let (granularity, lag) = (device.granularity, device.event_lag);
            let events =
                device.work.map_or_else(|| format!("event lag {lag}"), |seed| format!("work by seed {seed}"));
            (times, format!("{way}, {}, granularity {granularity}, {events}", device.capacity))
        }
    };
    if device.work.is_some() {
        return format!(
            "
mapped/live: peak of physical bytes over that of bytes as asked. driver calls: that change memory.
device waits, host waits: that the allocator made streams, or the host, wait. Driver and device ms
are {times}.
device ms: until the device was done with all kernels, which are made up. /unlim.: over the same
with unlimited memory; /kernels: over that of the kernels alone, without an allocator.
Device: {line}.
More: docs/bench.md, benches/README.md.
"
        );
    }
    format!(
        "
live: peak of bytes as asked, in 10^9. mapped: peak of physical bytes. addr.: addresses in use.
driver calls: those that change memory. fences: events recorded and waits on the device. host waits:
times that the host waited for the device. k: thousands (all digits with --json). Driver ms are
{times}.
ns/event is this host's time, the driver included.
Device: {line}.
More: docs/bench.md, benches/README.md.
"
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::Parser as _;
    use concertina_bench::{Failure, Fences, Outcome};

    use super::report;
    use crate::bench::DeviceArgs;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        device: DeviceArgs,
    }

    /// A row whose figures are as wide as any that the bundled traces give.
    fn wide(trace: &str, allocator: &str, policy: Option<&str>) -> Outcome {
        Outcome {
            trace: trace.to_owned(),
            allocator: allocator.to_owned(),
            policy: policy.map(str::to_owned),
            device: "emulated".to_owned(),
            capacity_bytes: 80 << 30,
            granularity_bytes: 2 << 20,
            event_lag: 0,
            work_seed: None,
            cost_table: "h100".to_owned(),
            events: 700_399,
            live_peak_bytes: 47_350_763_652,
            mapped_peak_bytes: 47_350_763_652,
            mapped_over_live: 1.0,
            address_peak_bytes: 0,
            address_over_live: 3.77,
            reserved_address_peak_bytes: 0,
            completed: true,
            failure: None,
            failed_at_event: None,
            error: None,
            driver_calls: BTreeMap::from([
                ("malloc".into(), 700_000),
                ("free".into(), 300_000),
                ("event_query".into(), 5),
            ]),
            driver_calls_by_mark: Vec::new(),
            marks: Vec::new(),
            fences: Fences { records: 100_000, waits: 99_999 },
            device_waits: 99_999,
            modelled_device_ns: None,
            device_ns_over_unlimited: None,
            device_ns_over_kernels: None,
            modelled_driver_ns: 99_999_900_000,
            measured_driver_ns: None,
            min_capacity_bytes: None,
            min_capacity_over_live: None,
            failures_above: None,
            host_waits: 350_000,
            host_ns_per_event: 1_234.5,
        }
    }

    fn device() -> DeviceArgs {
        Line::parse_from(["line", "--capacity", "1.02x"]).device
    }

    #[test]
    fn no_line_is_wider_than_100_columns() {
        let rows = [
            wide("t5_resnet50_multiscale", "concertina", Some("balanced")),
            wide("a_trace_of_someone_with_a_very_long_name", "direct", None),
            Outcome {
                completed: false,
                ..wide("t1_gpt2_train", "pytorch-expandable:large_segment_size_mb:64", None)
            },
        ];
        let text = report(&rows, &device());
        for line in text.lines() {
            assert!(line.trim_end().chars().count() <= 100, "{} columns: {line}", line.chars().count());
        }
        assert!(
            text.contains("MODELLED") && text.contains("modelled") && text.contains("1.02 × live"),
            "{text}"
        );
    }

    #[test]
    fn with_work_the_device_is_in_the_table() {
        let line = ["line", "--capacity", "1.02x", "--work", "18446744073709551615"];
        let mut row = wide("t5_resnet50_multiscale", "concertina", Some("balanced"));
        row.work_seed = Some(u64::MAX);
        row.modelled_device_ns = Some(99_999_900_000);
        row.device_ns_over_unlimited = Some(12.345_678);
        row.device_ns_over_kernels = Some(98.765_432);
        let text = report(&[row], &Line::parse_from(line).device);
        for line in text.lines() {
            assert!(line.trim_end().chars().count() <= 100, "{} columns: {line}", line.chars().count());
        }
        for part in ["device ms", "99,999", "12.346", "98.765", "work by seed 18446744073709551615"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_trace_is_named_once_and_only_memory_calls_are_counted() {
        let rows = [wide("t1", "direct", None), wide("t1", "concertina", Some("lean"))];
        let text = report(&rows, &device());
        assert_eq!(text.matches("t1").count(), 1, "{text}");
        assert!(text.contains("1,000k"), "{text}");
    }

    #[test]
    fn options_stand_below_the_table() {
        let [split, divisions] = ["pytorch:max_split_size_mb:128", "pytorch:roundup_power2_divisions:4"];
        let rows = [wide("t1", split, None), wide("t1", divisions, None), wide("t2", split, None)];
        let text = report(&rows, &device());
        assert_eq!(
            (text.matches("pytorch#1 ").count(), text.matches("pytorch#2 ").count()),
            (2, 1),
            "{text}"
        );
        assert!(text.contains(&format!("\n#1: {split}\n#2: {divisions}\n")), "{text}");
    }

    #[test]
    fn what_failed_is_said_below_the_table() {
        let mut row = wide("t1", "concertina", Some("lean"));
        row.completed = false;
        row.failure = Some(Failure::OutOfMemory);
        row.failed_at_event = Some(18_208);
        row.error = Some("out of memory: 2 MiB\nmore".to_owned());
        let text = report(&[row], &device());
        let line = "* t1, concertina (lean), stopped at event 18,208: out of memory: 2 MiB\n";
        assert!(text.contains("concertina*") && text.contains(line), "{text}");
    }
}
