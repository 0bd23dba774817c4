//! The table that `bench` prints: a row a case, within 100 columns.
//!
//! Neighbours: `docs/bench.md` defines the columns; `figures` has the looks.

use concertina_bench::{AllocationNs, Capacity, Outcome};

use super::{DeviceArgs, DeviceName};
use crate::figures::{self, Column, count, milliseconds, rough_count, table};

/// A column and what it says of an outcome.
type Shown = (Column, fn(&Outcome) -> String);

/// What was searched for, and takes the place of other figures.
#[derive(Clone, Copy, Debug)]
struct Searched {
    capacity: bool,
    largest: bool,
}

/// Which of the figures that there are fit in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    /// Memory, calls and host time.
    Ample,
    /// What allocators do when memory is short.
    Pressure,
    /// The time of the device in place of addresses and host time.
    Work,
}

impl View {
    fn of(device: &DeviceArgs) -> Self {
        match (device.work, device.capacity) {
            (Some(_), _) => Self::Work,
            (None, Capacity::TimesLive(_)) => Self::Pressure,
            (None, Capacity::Bytes(_)) => Self::Ample,
        }
    }

    /// Most characters of a trace's name.
    const fn name_width(self) -> usize {
        match self {
            Self::Ample => 19,
            Self::Pressure => 16,
            Self::Work => 15,
        }
    }

    /// The columns behind the names, in order.
    fn columns(self, device: DeviceName, searched: Searched) -> Vec<Shown> {
        let driver_time = match device {
            DeviceName::Emulated | DeviceName::EmulatedCuda => "modelled\ndriver ms",
            DeviceName::Cuda => "measured\ndriver ms",
        };
        let live: Shown =
            (Column::right("live\nGB"), |outcome| format!("{:.2}", outcome.live_peak_bytes as f64 / 1e9));
        let mapped: Shown =
            (Column::right("mapped\n/live"), |outcome| format!("{:.4}", outcome.mapped_over_live));
        let addresses: Shown =
            (Column::right("addr.\n/live"), |outcome| format!("{:.2}", outcome.address_over_live));
        let capacity: [Shown; 2] = [
            (Column::right("min.\n/live"), |outcome| {
                outcome.min_capacity_over_live.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.4}"))
            }),
            (Column::right("fails\nabove"), |outcome| {
                outcome.failures_above.map_or_else(|| "-".to_owned(), count)
            }),
        ];
        let calls: Shown = (Column::right("driver\ncalls"), |outcome| rough_count(outcome.memory_calls()));
        let driver: Shown = (Column::right(driver_time), |outcome| {
            milliseconds(outcome.measured_driver_ns.unwrap_or(outcome.modelled_driver_ns))
        });
        let fences: Shown =
            (Column::right("\nfences"), |outcome| rough_count(outcome.fences.records + outcome.fences.waits));
        let waits: Shown = (Column::right("host\nwaits"), |outcome| rough_count(outcome.host_waits));
        let ns: Shown = (Column::right("ns/\nevent"), |outcome| format!("{:.0}", outcome.host_ns_per_event));
        let retries: Shown = (Column::right("re-\ntries"), |outcome| rough_count(outcome.allocation_retries));
        let quantiles: [Shown; 2] = [
            (Column::right("p50\nµs"), |outcome| microseconds(outcome, |times| times.p50)),
            (Column::right("p99\nµs"), |outcome| microseconds(outcome, |times| times.p99)),
        ];
        let longest: Shown = (Column::right("max\nms"), |outcome| {
            allocation_ns(outcome).map_or_else(|| "-".to_owned(), |times| milliseconds(times.max))
        });
        let device_waits: Shown =
            (Column::right("device\nwaits"), |outcome| rough_count(outcome.device_waits));
        let device_time: Shown = (Column::right("modelled\ndevice ms"), |outcome| {
            milliseconds(outcome.modelled_device_ns.unwrap_or(0))
        });
        let ratios: [Shown; 2] = [
            (Column::right("/un-\nlim."), |outcome| ratio(outcome.device_ns_over_unlimited)),
            (Column::right("/ker-\nnels"), |outcome| ratio(outcome.device_ns_over_kernels)),
        ];
        let largest: Shown =
            (Column::right("max.\n/free"), |outcome| ratio(outcome.largest_request_over_free));
        let or_capacity = |others: [Shown; 2]| if searched.capacity { capacity } else { others };
        let or_largest = |other: Shown| if searched.largest { largest } else { other };
        match self {
            Self::Ample => {
                let [first, second] = or_capacity([addresses, fences]);
                let columns = if searched.capacity {
                    [live, mapped, first, second, calls, driver, waits, or_largest(ns)]
                } else {
                    [live, mapped, first, calls, driver, second, waits, or_largest(ns)]
                };
                columns.to_vec()
            }
            Self::Pressure => {
                let [first, second] = or_capacity(quantiles);
                vec![mapped, calls, driver, retries, waits, first, second, or_largest(longest)]
            }
            Self::Work => {
                let [first, second] = or_capacity(ratios);
                vec![mapped, calls, driver, or_largest(device_waits), waits, device_time, first, second]
            }
        }
    }
}

/// Modelled times inside an allocation, or those measured on a GPU.
fn allocation_ns(outcome: &Outcome) -> Option<AllocationNs> {
    outcome.modelled_allocation_ns.or(outcome.measured_allocation_ns)
}

fn microseconds(outcome: &Outcome, of: fn(AllocationNs) -> u64) -> String {
    allocation_ns(outcome).map_or_else(|| "-".to_owned(), |times| rough_count(of(times).div_ceil(1_000)))
}

/// The table, what failed, and the legend.
pub(super) fn report(outcomes: &[Outcome], device: &DeviceArgs) -> String {
    let view = View::of(device);
    let searched = Searched {
        capacity: outcomes.iter().any(|outcome| outcome.failures_above.is_some()),
        largest: outcomes.iter().any(|outcome| outcome.largest_request_over_free.is_some()),
    };
    let figures = view.columns(device.device, searched);
    let names = [Column::left("\ntrace"), Column::left("\nallocator"), Column::left("\npolicy")];
    let heads: Vec<Column> = names.into_iter().chain(figures.iter().map(|&(column, _)| column)).collect();
    let mut rows = table(&heads, 1);
    let options = options(outcomes);
    let mut last = "";
    for outcome in outcomes {
        // The name stands once for all rows of a trace.
        let name = if outcome.trace == last { "" } else { &outcome.trace };
        last = &outcome.trace;
        let name = shortened(name, view.name_width());
        let names = [name, marked_allocator(outcome, &options), policy(outcome)];
        rows.add_row(names.into_iter().chain(figures.iter().map(|(_, cell)| cell(outcome))));
    }
    let mut text = figures::text(&rows);
    for (index, allocator) in options.iter().enumerate() {
        text.push_str(&format!("#{}: {allocator}\n", index + 1));
    }
    for outcome in outcomes.iter().filter(|outcome| !outcome.completed) {
        text.push_str(&failure_line(outcome));
    }
    text.push_str(&legend(device, view, searched));
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

/// The same, marked if the trace did not run to its end.
fn marked_allocator(outcome: &Outcome, options: &[&str]) -> String {
    let incomplete = if outcome.completed { "" } else { "*" };
    format!("{}{incomplete}", short_allocator(&outcome.allocator, options))
}

fn policy(outcome: &Outcome) -> String {
    outcome.policy.clone().unwrap_or_else(|| "-".to_owned())
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

fn legend(device: &DeviceArgs, view: View, searched: Searched) -> String {
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
    let mut found = String::new();
    if searched.capacity {
        found.push_str(
            "min./live: the smallest device on which the trace runs to its end, over live. fails above: how many
of eight larger ones were too small.
",
        );
    }
    if searched.largest {
        found.push_str("max./free: the largest request served at the live peak, over the bytes free then.\n");
    }
    let figures = match view {
        View::Ample => format!(
            "live: peak of bytes as asked, in 10^9. mapped: peak of physical bytes. addr.: addresses in use.
driver calls: those that change memory. fences: events recorded and waits on the device. host waits:
times that the host waited for the device. k: thousands (all digits with --json). Driver ms are
{times}.
ns/event is this host's time, the driver included."
        ),
        View::Pressure => format!(
            "mapped/live: peak of physical bytes over that of bytes as asked. driver calls: that change memory.
retries: creates and mallocs that the driver refused. host waits: times that the host waited for the
device. p50, p99, max: of the driver's time inside an allocation. All times are
{times}."
        ),
        View::Work => format!(
            "mapped/live: peak of physical bytes over that of bytes as asked. driver calls: that change memory.
device waits, host waits: that the allocator made streams, or the host, wait. Driver and device ms
are {times}.
device ms: until the device was done with all kernels, which are made up. /unlim.: over the same
with unlimited memory; /kernels: over that of the kernels alone, without an allocator."
        ),
    };
    format!("\n{figures}\n{found}Device: {line}.\nMore: docs/bench.md, docs/metrics.md, benches/README.md.\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::Parser as _;
    use concertina_bench::{AllocationNs, Failure, Fences, Outcome};

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
            utilisation: 1.0,
            fragmentation: 0.0,
            packed_floor_bytes: 47_351_594_496,
            mapped_at_live_peak_bytes: None,
            internal_at_live_peak_bytes: None,
            external_at_live_peak_bytes: None,
            live_bytes_by_mark: Vec::new(),
            mapped_bytes_by_mark: Vec::new(),
            allocation_retries: 99_999,
            modelled_allocation_ns: Some(AllocationNs {
                p50: 99_999_000,
                p99: 999_999_999,
                max: 99_999_000_000,
            }),
            measured_allocation_ns: None,
            largest_request_bytes: None,
            largest_request_over_free: None,
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

    /// The report of these rows for a device by these options, if no line of it is too wide.
    fn narrow(rows: &[Outcome], options: &[&str]) -> String {
        let line = ["line"].iter().chain(options);
        let text = report(rows, &Line::parse_from(line).device);
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        }
        text
    }

    fn wide_rows() -> Vec<Outcome> {
        vec![
            wide("t5_resnet50_multiscale", "concertina", Some("balanced")),
            wide("a_trace_of_someone_with_a_very_long_name", "direct", None),
            Outcome {
                completed: false,
                ..wide("t1_gpt2_train", "pytorch-expandable:large_segment_size_mb:64", None)
            },
        ]
    }

    #[test]
    fn no_line_is_wider_than_100_columns() {
        let text = narrow(&wide_rows(), &[]);
        assert!(text.contains("MODELLED") && text.contains("modelled") && text.contains("80 GiB"), "{text}");
        assert!(text.contains("fences") && text.contains("1234") && !text.contains("min./live"), "{text}");
    }

    #[test]
    fn on_a_tight_device_what_allocations_take_is_in_the_table() {
        let text = narrow(&wide_rows(), &["--capacity", "1.02x"]);
        for part in ["1.02 × live", "tries", "99,999", "p99", "1,000k", "MODELLED"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("ns/event"), "{text}");
    }

    #[test]
    fn with_work_the_device_is_in_the_table() {
        let line = ["--capacity", "1.02x", "--work", "18446744073709551615"];
        let mut row = wide("t5_resnet50_multiscale", "concertina", Some("balanced"));
        row.work_seed = Some(u64::MAX);
        row.modelled_device_ns = Some(99_999_900_000);
        row.device_ns_over_unlimited = Some(12.345_678);
        row.device_ns_over_kernels = Some(98.765_432);
        let text = narrow(&[row], &line);
        for part in ["device ms", "99,999", "12.346", "98.765", "work by seed 18446744073709551615"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn what_was_searched_for_is_in_every_table() {
        let mut rows = wide_rows();
        rows[0].min_capacity_over_live = Some(12.345_678);
        rows[0].failures_above = Some(8);
        rows[0].largest_request_over_free = Some(0.987_654);
        for options in [&[][..], &["--capacity", "1.02x"], &["--work", "1"]] {
            let text = narrow(&rows, options);
            assert!(
                text.contains("fails") && text.contains("12.3457") && text.contains("min./live"),
                "{text}"
            );
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
