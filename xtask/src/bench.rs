//! `cargo xtask bench`: traces on allocators, side by side.
//!
//! Main types: [`BenchArgs`]. Neighbours: `concertina_bench` runs each case; `bench/report` prints the outcomes.

mod out_file;
mod report;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::thread;

use clap::{ArgGroup, Args, ValueEnum};
use concertina_bench::{
    AllocatorList, Capacity, Case, CaseError, DeviceKind, DeviceSpec, Fineness, Granularity, Moment,
    Observed, Outcome, PolicyName, Report, TraceFile, TraceReport, in_parallel,
};
use concertina_emulator::CostTable;
use concertina_trace::{LoadedTrace, Observation, Watch};
use indicatif::{ProgressBar, ProgressStyle};

use crate::error::XtaskError;
use crate::measured_device::MEASUREMENTS;
use crate::process::repository_root;
use out_file::{OutFile, OutFolder};
pub(crate) use report::shortened;

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("pictures").args(["html", "svg"]).multiple(true))]
#[command(after_help = "Examples:
  cargo xtask bench                                     all bundled traces, all allocators
  cargo xtask bench t1 s7 --policy both                 two traces, both policies
  cargo xtask bench t2 --allocators pytorch,pytorch:max_split_size_mb:128,concertina
                                                        PyTorch's allocator with and without an option
  cargo xtask bench t7 --capacity 1.02x                 a device of 1.02 times what lives at once
  cargo xtask bench --min-capacity                      the smallest device that each allocator needs
  cargo xtask bench t1 --capacity 1.1x --largest        how much of what is free can be had at once
  cargo xtask bench cases --capacity 1.02x              what went wrong for users of other allocators
  cargo xtask bench rmm1245 vllm41268                   two of these cases
  cargo xtask bench s7 --work 1 --check                 with kernels on the streams, looking for races
  cargo xtask bench --event-lag 1000 --json out.json    events complete late; the figures as JSON
  cargo xtask bench --html out.html                     a page with tables and charts, for a browser
  cargo xtask bench t5 --svg out --at mark:start        the charts alone, with memory as it was at a mark
  cargo xtask bench my.trace.zst --cost-table a100      a trace of your own
  cargo xtask bench t1 --device emulated-cuda           through the crate cuda, over an emulated libcuda
  cargo xtask bench t1 --device cuda                    on this machine's GPU")]
pub(crate) struct BenchArgs {
    /// Traces: names of bundled ones, long (t1_gpt2_train) or short (t1), of public cases (docs/cases.md: kvcached359,
    /// mlx3886, pytorch35901, pytorch96995, pytorch123548, pytorch172056, pytorch193400, pytorch-devlog, rmm35, rmm1245,
    /// rmm1664, rmm1957, vllm41268, vllm52950, vpmm; `cases` for all of them), or files [default: all bundled].
    #[arg(value_name = "TRACES")]
    pub(crate) traces: Vec<String>,

    /// Allocators to compare: names between commas. Those of PyTorch take options after a colon, as in
    /// PYTORCH_CUDA_ALLOC_CONF.
    #[arg(long, value_name = "NAMES", default_value_t = AllocatorList::default())]
    pub(crate) allocators: AllocatorList,

    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    /// When concertina takes new frames rather than free ones: lean, balanced or both.
    #[arg(long, value_enum, default_value_t = PolicyChoice::Balanced)]
    pub(crate) policy: PolicyChoice,

    /// Search for the smallest device on which each trace runs to its end, to a thousandth.
    #[arg(long)]
    pub(crate) min_capacity: bool,

    /// Search to one granularity.
    #[arg(long, requires = "min_capacity")]
    pub(crate) exact: bool,

    /// Search for the largest request that is served when most is live.
    #[arg(long)]
    pub(crate) largest: bool,

    /// How many searches to run at once [default: as many as there are cores].
    #[arg(long, value_name = "N")]
    pub(crate) jobs: Option<NonZeroUsize>,

    /// Write the outcomes to this file as JSON (the keys are in docs/bench.md).
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write a page with tables and charts to this file, for a browser. Each case is replayed once more for it.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Write the charts of the page to this directory, as SVG files.
    #[arg(long, value_name = "DIR")]
    pub(crate) svg: Option<PathBuf>,

    /// The moment that the memory map shows: peak (of live bytes), event:N or mark:LABEL.
    #[arg(long, value_name = "MOMENT", default_value_t = Moment::Peak, requires = "pictures")]
    pub(crate) at: Moment,

    /// Replay each case a second time and check that live blocks never share memory and are always mapped; with --work
    /// also that nothing races.
    #[arg(long)]
    pub(crate) check: bool,
}

/// The device that a trace is replayed on.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeviceArgs {
    /// The device. With `cuda`, the options below are not for it.
    #[arg(long, value_enum, default_value_t = DeviceName::Emulated)]
    pub(crate) device: DeviceName,

    /// Memory of the device: 80GiB, 500MB, plain bytes, or 1.02x: times the live peak of the trace.
    #[arg(long, value_name = "SIZE", default_value = "80GiB")]
    pub(crate) capacity: Capacity,

    /// The driver's smallest mappable size, a power of two.
    #[arg(long, value_name = "SIZE", default_value = "2MiB")]
    pub(crate) granularity: Granularity,

    /// How many further operations an event needs to complete.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "work")]
    pub(crate) event_lag: u64,

    /// Queue made-up kernels for the trace's events, with durations by this seed: on the virtual clock of `emulated` only.
    #[arg(long, value_name = "SEED")]
    pub(crate) work: Option<u64>,

    /// What driver calls cost: h100, a100, a TOML file, or the name of one below docs/measurements.
    #[arg(long, value_name = "TABLE", default_value = "h100")]
    pub(crate) cost_table: String,

    /// Most mappings at once; no limit if not given.
    #[arg(long, value_name = "N")]
    pub(crate) max_mappings: Option<u64>,
}

/// Which device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceName {
    /// The emulated CUDA device: bookkeeping, no GPU.
    Emulated,
    /// The same behind an emulated libcuda, called by the crate cuda: as a GPU would be.
    EmulatedCuda,
    /// GPU 0 of this machine.
    Cuda,
}

impl From<DeviceName> for DeviceKind {
    fn from(name: DeviceName) -> Self {
        match name {
            DeviceName::Emulated => Self::Emulated,
            DeviceName::EmulatedCuda => Self::EmulatedCuda,
            DeviceName::Cuda => Self::Cuda,
        }
    }
}

/// Which policies of Concertina.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyChoice {
    /// Steal before creating.
    Lean,
    /// Create up to 1.05 times the live peak, then steal.
    Balanced,
    /// Each in a row of its own.
    Both,
}

impl PolicyChoice {
    /// The policies to run.
    pub(crate) fn policies(self) -> &'static [PolicyName] {
        match self {
            Self::Lean => &[PolicyName::Lean],
            Self::Balanced => &[PolicyName::Balanced],
            Self::Both => PolicyName::ALL,
        }
    }
}

/// Runs the cases and prints the table.
///
/// # Errors
/// Bad input, an allocator that failed, or a file that can't be written.
pub(crate) fn run(args: BenchArgs) -> Result<(), XtaskError> {
    let device = args.device.spec()?;
    if args.check && device.kind == DeviceKind::Cuda {
        return Err(CaseError::Unchecked.into());
    }
    if (args.min_capacity || args.largest) && device.kind == DeviceKind::Cuda {
        return Err(CaseError::FixedCapacity.into());
    }
    if device.work.is_some() && device.kind != DeviceKind::Emulated {
        return Err(CaseError::NoWork.into());
    }
    let traces = load(&args.traces)?;
    for trace in &traces {
        device.config(trace.live_peak().bytes)?;
    }
    let watches = watches(&args, &traces)?;
    let json = args.json.as_deref().map(OutFile::open).transpose()?;
    let html = args.html.as_deref().map(OutFile::open).transpose()?;
    let charts = Report::sure_files(traces.iter().map(LoadedTrace::name));
    let svg = args.svg.as_deref().map(|path| OutFolder::open(path, &charts)).transpose()?;

    let cases = cases(&args, &traces, &device);
    let progress = progress(&cases, 1 + u64::from(args.check) + u64::from(watches.is_some()));
    let mut outcomes = Vec::with_capacity(cases.len());
    let mut observations = Vec::with_capacity(cases.len());
    for (index, case) in cases.iter().enumerate() {
        progress.set_message(format!("{} {}", case.trace.name(), case.allocator));
        let mut outcome = case.run()?.outcome;
        progress.inc(case.trace.steps().len() as u64);
        if args.check {
            outcome.adopt_defect(case.check()?.outcome);
            progress.inc(case.trace.steps().len() as u64);
        }
        outcomes.push(outcome);
        if let Some(watches) = &watches {
            let watch = &watches[index / (cases.len() / traces.len())];
            observations.push(case.observe(watch)?);
            progress.inc(case.trace.steps().len() as u64);
        }
    }
    progress.finish_and_clear();
    if args.min_capacity {
        let fineness = if args.exact { Fineness::Granularity } else { Fineness::Thousandth };
        let found = search(&args, &cases, "minimum capacity", |case| case.min_capacity(fineness))?;
        outcomes.iter_mut().zip(found).for_each(|(outcome, found)| outcome.adopt_min_capacity(found));
    }
    if args.largest {
        let found = search(&args, &cases, "largest request", |case| case.largest_request())?;
        outcomes.iter_mut().zip(found).for_each(|(outcome, found)| outcome.adopt_largest_request(found));
    }

    print!("{}", report::report(&outcomes, &args.device));
    if let Some(json) = json {
        let text = serde_json::to_string_pretty(&outcomes).map_err(|error| json.failed(error.into()))?;
        json.write(&format!("{text}\n"))?;
    }
    if watches.is_some() {
        let report = picture(&traces, &outcomes, observations);
        if let Some(html) = html {
            html.write(&report.page())?;
        }
        if let Some(svg) = svg {
            report.chart_files().iter().try_for_each(|chart| svg.write(&chart.name, &chart.svg))?;
        }
    }
    match outcomes.iter().filter(|outcome| outcome.is_defect()).count() {
        0 => Ok(()),
        cases => Err(XtaskError::Defects { cases }),
    }
}

/// Reads all traces before the first one runs, so that a bad one is told at once.
fn load(words: &[String]) -> Result<Vec<LoadedTrace>, XtaskError> {
    let files = match words {
        [] => TraceFile::bundled(),
        words => words.iter().map(|word| TraceFile::find_all(word)).collect::<Result<Vec<_>, _>>()?.concat(),
    };
    files.iter().map(|file| Ok(LoadedTrace::open(file.path())?)).collect()
}

/// In how many parts of a trace two events are sampled: about as many as a chart has pixels for.
const WINDOWS: usize = 320;

/// What to note for each trace, if a page or charts are asked for.
fn watches(args: &BenchArgs, traces: &[LoadedTrace]) -> Result<Option<Vec<Watch>>, XtaskError> {
    if args.html.is_none() && args.svg.is_none() {
        return Ok(None);
    }
    let watch = |trace: &LoadedTrace| Ok(Watch::evenly(trace, WINDOWS).with_picture(args.at.event(trace)?));
    traces.iter().map(watch).collect::<Result<_, _>>().map(Some)
}

/// Puts together what people look at. All traces have as many cases, in their order.
fn picture(traces: &[LoadedTrace], outcomes: &[Outcome], observations: Vec<Observation>) -> Report {
    let words = std::env::args().skip(1);
    let command = words.map(|word| shlex::try_quote(&word).map_or(word.clone(), Into::into));
    let command = ["cargo xtask".to_owned()].into_iter().chain(command).collect::<Vec<_>>().join(" ");
    let observed = |(outcome, observation): (&Outcome, Observation)| Observed {
        outcome: outcome.clone(),
        observation: Some(observation),
    };
    let mut cases = outcomes.iter().zip(observations).map(observed);
    let per_trace = outcomes.len() / traces.len().max(1);
    let traces = traces.iter().map(|trace| TraceReport {
        name: trace.name().to_owned(),
        marks: trace.marks().to_vec(),
        cases: cases.by_ref().take(per_trace).collect(),
    });
    Report { command, traces: traces.collect() }
}

fn cases<'a>(args: &BenchArgs, traces: &'a [LoadedTrace], device: &'a DeviceSpec) -> Vec<Case<'a>> {
    let mut cases = Vec::new();
    for trace in traces {
        for &allocator in &args.allocators.0 {
            let policies =
                if allocator.has_policy() { args.policy.policies() } else { &[PolicyName::Balanced] };
            cases.extend(policies.iter().map(|&policy| Case { trace, allocator, policy, device }));
        }
    }
    cases
}

/// Searches for something in every case, in several at once, after the replays whose time was taken.
fn search<R: Send>(
    args: &BenchArgs,
    cases: &[Case<'_>],
    what: &str,
    find: impl Fn(&Case<'_>) -> Result<R, CaseError> + Sync,
) -> Result<Vec<R>, XtaskError> {
    let cores = || thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let bar = bar(cases.len() as u64, "{bar:30} {pos}/{len}  {msg}");
    let found = in_parallel(args.jobs.unwrap_or_else(cores), cases, |case| {
        bar.set_message(format!("{what}: {} {}", case.trace.name(), case.allocator));
        let found = find(case);
        bar.inc(1);
        found
    });
    bar.finish_and_clear();
    Ok(found.into_iter().collect::<Result<_, _>>()?)
}

/// Counts events of all replays; hidden where there is no terminal. Drawn between cases only: no thread of its own
/// takes time from the one that is measured.
fn progress(cases: &[Case<'_>], replays: u64) -> ProgressBar {
    let events: u64 = cases.iter().map(|case| case.trace.steps().len() as u64).sum();
    bar(replays * events, "{bar:30} {percent:>3} %  {msg}")
}

fn bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    let style = ProgressStyle::with_template(template);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

impl DeviceArgs {
    /// The device that is described.
    ///
    /// # Errors
    /// A cost table that can't be read, or an option that a GPU doesn't take.
    pub(crate) fn spec(&self) -> Result<DeviceSpec, XtaskError> {
        let cost_table = CostTable::find(&self.cost_table, &repository_root().join(MEASUREMENTS))?;
        let spec = DeviceSpec {
            kind: self.device.into(),
            capacity: self.capacity,
            granularity: self.granularity,
            event_lag: self.event_lag,
            work: self.work,
            cost_table,
            max_mappings: self.max_mappings,
        };
        if spec.kind == DeviceKind::Cuda
            && let Some(option) = given(&spec)
        {
            return Err(XtaskError::NotForGpu { option });
        }
        Ok(spec)
    }
}

/// The first option that describes an emulated device, if one was given.
fn given(spec: &DeviceSpec) -> Option<&'static str> {
    let default = DeviceSpec::default();
    let options = [
        ("--capacity", spec.capacity != default.capacity),
        ("--granularity", spec.granularity != default.granularity),
        ("--event-lag", spec.event_lag != default.event_lag),
        ("--work", spec.work.is_some()),
        ("--cost-table", spec.cost_table != default.cost_table),
        ("--max-mappings", spec.max_mappings != default.max_mappings),
    ];
    options.into_iter().find_map(|(option, given)| given.then_some(option))
}
