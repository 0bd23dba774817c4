//! `cargo xtask probe`: a CUDA driver measured: what its calls cost, which rules it keeps, how fast memory is.
//!
//! Main types: [`ProbeArgs`]. Neighbours: `concertina_bench::probe` measures; `probe/text` has the tables;
//! `bench --cost-table` takes the table that is written.

mod text;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use concertina_bench::probe::{Part, ProbePlan, ProbeReport, run as measure, to_toml};
use concertina_libcuda::DeviceConfig;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::error::XtaskError;
use crate::measured_device::{DeviceFacts, MeasuredDevice, OpenDevice, file_name};

/// Arguments of `probe`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask probe                            this machine's GPU, in less than four minutes
  cargo xtask probe --short                    the most telling figures, in a minute
  cargo xtask probe --out out/h200             files elsewhere than below docs/measurements
  cargo xtask bench t1 --cost-table nvidia-h200    the emulator with what was measured
  cargo xtask probe --device emulated-cuda     the same over the emulated libcuda: how it is tested")]
pub(crate) struct ProbeArgs {
    /// The device.
    #[arg(long, value_enum, default_value_t = MeasuredDevice::Cuda)]
    device: MeasuredDevice,

    /// Directory for NAME.toml, the cost table, and NAME.json, all figures [default: docs/measurements/NAME/DATE; of the
    /// emulated libcuda out/NAME].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Name of the table, for --cost-table [default: what the driver calls the device, as a file name].
    #[arg(long, value_name = "NAME", value_parser = table_name)]
    name: Option<String>,

    /// Measure less: fewer sizes, no mapping limit.
    #[arg(long)]
    short: bool,

    /// Calls behind each figure [default: 64; 16 with --short; 3 over the emulated libcuda].
    #[arg(long, value_name = "N")]
    repeat: Option<usize>,

    /// Seconds for all of it; each part has its share [default: 220; 60 with --short].
    #[arg(long, value_name = "N")]
    budget: Option<u64>,
}

fn table_name(name: &str) -> Result<String, String> {
    if !name.is_empty() && name == file_name(name) {
        Ok(name.to_owned())
    } else {
        Err(format!("`{name}` is no name of a file in small letters, digits, dots and dashes"))
    }
}

/// Everything that is written as JSON.
#[derive(Debug, Serialize)]
struct Written<'a> {
    device: &'a DeviceFacts,
    #[serde(flatten)]
    report: &'a ProbeReport,
}

impl ProbeArgs {
    fn plan(&self) -> ProbePlan {
        let plan = match (self.device, self.short) {
            (MeasuredDevice::EmulatedCuda, _) => ProbePlan::emulated(),
            (MeasuredDevice::Cuda, true) => ProbePlan::short(),
            (MeasuredDevice::Cuda, false) => ProbePlan::full(),
        };
        ProbePlan {
            repeat: self.repeat.unwrap_or(plan.repeat),
            budget: self.budget.map_or(plan.budget, Duration::from_secs),
            ..plan
        }
    }
}

/// Measures, prints tables, and writes the cost table and all figures.
///
/// # Errors
/// No such device, files that can't be written, or parts that failed.
pub(crate) fn run(root: &Path, args: ProbeArgs) -> Result<(), XtaskError> {
    let device = args.device.open(DeviceConfig::default())?;
    let facts = device.facts()?;
    let name = args.name.clone().unwrap_or_else(|| file_name(&facts.name));
    let directory = args.out.clone().unwrap_or_else(|| args.device.default_directory(root, &facts));
    // Before the work, so that it is not in vain.
    fs::create_dir_all(&directory).map_err(|source| XtaskError::io("write", &directory, source))?;

    let report = on(&device, &args.plan())?;
    print!("{}", text::text(&facts, &report));
    let mut comments = vec!["Measured by `cargo xtask probe`: host time of idle calls, medians.".to_owned()];
    comments.extend(facts.lines());
    let files = [
        (format!("{name}.toml"), to_toml(&report.cost_table(&name), &comments)),
        (format!("{name}.json"), json(&facts, &report)?),
    ];
    for (file, text) in files {
        let path = directory.join(file);
        fs::write(&path, text).map_err(|source| XtaskError::io("write", &path, source))?;
        println!("written: {}", path.strip_prefix(root).unwrap_or(&path).display());
    }
    let left = device.not_given_back();
    match (report.failed.len(), left) {
        (0, None) => Ok(()),
        (_, Some(reason)) => Err(XtaskError::Measure { reason }),
        (parts, None) => Err(XtaskError::ProbeParts { parts }),
    }
}

fn on(device: &OpenDevice, plan: &ProbePlan) -> Result<ProbeReport, XtaskError> {
    let [first, second] = device.streams()?;
    let bar = ProgressBar::new(Part::ALL.len() as u64);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed}  {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut begun = 0;
    let report = measure(device.cuda(), [&first, &second], plan, |part| {
        // Drawn between parts only: no thread of its own takes time from what is measured.
        bar.set_position(begun);
        bar.set_message(part.name());
        begun += 1;
    });
    bar.finish_and_clear();
    Ok(report)
}

fn json(facts: &DeviceFacts, report: &ProbeReport) -> Result<String, XtaskError> {
    let written = serde_json::to_string_pretty(&Written { device: facts, report });
    let text = written.map_err(|error| XtaskError::Measure { reason: error.to_string() })?;
    Ok(format!("{text}\n"))
}
