//! `cargo xtask speed`: host time of a pair of an allocation and its free, side by side with peers and by what there is
//! beside it.
//!
//! Main types: [`SpeedArgs`]. Neighbours: `benches/examples/speed` is the program, with an allocator of its own;
//! `instructions` counts what this one times.

use std::path::Path;

use clap::Args;
use concertina_bench::SpeedSection;

use crate::error::XtaskError;
use crate::process::Step;

/// Arguments of `speed`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask speed                      all sections, about a minute
  cargo xtask speed hot churn            beside mimalloc, offset-allocator, gpu-allocator
  cargo xtask speed live mapped          how costs grow with live blocks and mapped pages
  cargo xtask speed replay               whole traces, cold and warm
benches/README.md has the method. Times are of this machine, now: compare within one run.")]
pub(crate) struct SpeedArgs {
    /// What to measure, in this order whatever order it is given in: hot, single, churn, threads, snapshot, handover,
    /// live, mapped, replay [default: all].
    #[arg(value_name = "SECTIONS")]
    sections: Vec<SpeedSection>,
}

/// Builds the program and runs it.
///
/// # Errors
/// The build's failure, or the program's.
pub(crate) fn run(root: &Path, args: SpeedArgs) -> Result<(), XtaskError> {
    let words: Vec<&str> = args.sections.iter().map(|section| section.name()).collect();
    let program =
        ["run", "--release", "--quiet", "--package", "concertina-bench", "--example", "speed", "--"];
    Step::cargo(&program).with(&words).run(root)
}
