//! `cargo xtask gpu`: all that a machine with a GPU is for, in one go: the driver's contract, the examples, the probe in
//! short, and a bench of the traces that fit.
//!
//! Main types: [`GpuArgs`]. Neighbours: each part is a process of its own (`gpu/child`), so that one that loses the device,
//! or never ends, takes nothing else with it; `gpu/parts` says what they are; `gpu/outcome` what came out.

mod child;
mod outcome;
mod parts;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use concertina_libcuda::DeviceConfig;
use indicatif::{ProgressBar, ProgressStyle};

use crate::error::XtaskError;
use crate::measured_device::{DeviceFacts, MeasuredDevice, file_name};
use outcome::{Outcome, Status};

/// Arguments of `gpu`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask gpu                                       everything, in less than eight minutes
  cargo xtask gpu --parts contract,bench --traces t1    two parts, one trace
  cargo xtask gpu --device emulated-cuda --traces s1    how the command is tested, without a GPU")]
pub(crate) struct GpuArgs {
    /// The device.
    #[arg(long, value_enum, default_value_t = MeasuredDevice::Cuda)]
    device: MeasuredDevice,

    /// Parts to run, in this order whatever order they are given in.
    #[arg(long, value_enum, value_name = "PARTS", value_delimiter = ',', default_values_t = Part::ALL.iter().copied())]
    parts: Vec<Part>,

    /// Traces of the bench: names of bundled ones, long or short, or files [default: all bundled].
    #[arg(long, value_name = "TRACES", value_delimiter = ',')]
    traces: Vec<String>,

    /// Directory for gpu.json, what the probe writes, and logs of what failed [default: docs/measurements/NAME/DATE; of the
    /// emulated libcuda out/NAME].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Seconds for all of it. What there is no time for is skipped, and said.
    #[arg(long, value_name = "N", default_value_t = 450)]
    budget: u64,
}

/// One part of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The contract of the driver traits.
    Contract,
    /// The examples of the crate concertina.
    Examples,
    /// The probe in its short form.
    Probe,
    /// The traces that fit, on concertina, and on cudaMalloc as far as time allows.
    Bench,
}

impl Part {
    const ALL: &[Self] = &[Self::Contract, Self::Examples, Self::Probe, Self::Bench];
}

/// Where logs are, from the directory of the results.
const LOGS: &str = "logs";

/// What every part needs to know.
#[derive(Debug)]
struct Whole<'a> {
    root: &'a Path,
    device: MeasuredDevice,
    facts: DeviceFacts,
    /// Name of the cost table.
    name: String,
    directory: PathBuf,
    deadline: Instant,
    bar: ProgressBar,
    outcomes: Vec<Outcome>,
}

/// Runs the parts, prints a table and writes the outcomes. A part that fails stops no other.
///
/// # Errors
/// No such device, bad input, a file that can't be written, or parts that failed.
pub(crate) fn run(root: &Path, args: GpuArgs) -> Result<(), XtaskError> {
    let deadline = Instant::now() + Duration::from_secs(args.budget);
    let traces = parts::traces(&args.traces)?;
    // Closed again at once: the parts have the device for themselves.
    let facts = args.device.open(DeviceConfig::default())?.facts()?;
    let name = file_name(&facts.name);
    let directory = args.out.unwrap_or_else(|| args.device.default_directory(root, &facts));
    let directory = if directory.is_absolute() { directory } else { root.join(directory) };
    fs::create_dir_all(&directory).map_err(|source| XtaskError::io("write", &directory, source))?;

    let bar = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{spinner} {elapsed}  {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    let (device, outcomes) = (args.device, Vec::new());
    let mut whole = Whole { root, device, facts, name, directory, deadline, bar, outcomes };
    for part in Part::ALL.iter().filter(|part| args.parts.contains(part)) {
        match part {
            Part::Contract => parts::contract(&mut whole),
            Part::Examples => parts::examples(&mut whole),
            Part::Probe => parts::probe(&mut whole),
            Part::Bench => parts::bench(&mut whole, &traces),
        }
    }
    whole.bar.finish_and_clear();
    print!("{}", outcome::text(&whole.facts, &whole.outcomes));
    let path = whole.directory.join("gpu.json");
    let written = fs::write(&path, outcome::json(&whole.facts, &whole.outcomes)?);
    written.map_err(|source| XtaskError::io("write", &path, source))?;
    println!("written: {}", path.strip_prefix(root).unwrap_or(&path).display());
    let logs = whole.directory.join(LOGS);
    // Goes only if nothing is in it: there are logs of what failed.
    if fs::remove_dir(&logs).is_err() && logs.is_dir() {
        println!("logs: {}", logs.strip_prefix(root).unwrap_or(&logs).display());
    }
    match whole.outcomes.iter().filter(|outcome| outcome.status == Status::Failed).count() {
        0 => Ok(()),
        parts => Err(XtaskError::DeviceParts { parts }),
    }
}
