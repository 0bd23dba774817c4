//! `cargo xtask sweep`: a grid of experiments, described in a file.
//!
//! Main types: [`SweepArgs`]. Neighbours: `sweep/plan` reads the description and lays out the points,
//! `sweep/results` keeps what came out, `sweep/run` runs it, `sweep/merge` and `sweep/show` are the commands on results.

mod error;
mod merge;
mod plan;
mod point;
mod results;
mod run;
mod shard;
mod show;

use clap::{Args, Subcommand};

use crate::error::XtaskError;
pub(crate) use error::SweepError;

/// Arguments of `sweep`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    arg_required_else_help = true
)]
#[command(after_help = "Examples:
  cargo xtask sweep docs/sweeps/granularity.toml --dry-run     what would be run
  cargo xtask sweep docs/sweeps/granularity.toml               go on where it was left
  cargo xtask sweep my.toml -o part-3.jsonl --shard 3/8        one job of eight of a cluster
  cargo xtask sweep my.toml --jobs 1                           host times that mean something
  cargo xtask sweep merge my.toml -o my.jsonl part-1.jsonl part-2.jsonl
  cargo xtask sweep show docs/sweeps/granularity.jsonl --where capacity=80GiB --where policy=lean
docs/sweeps.md has the format of a description and a worked example.")]
pub(crate) struct SweepArgs {
    /// What to do with results.
    #[command(subcommand)]
    command: Option<SweepCommand>,
    #[command(flatten)]
    run: Option<run::RunArgs>,
}

/// The commands on results.
#[derive(Debug, Subcommand)]
enum SweepCommand {
    /// Join the results of several shards, in the order of the grid.
    Merge(merge::MergeArgs),
    /// Print one figure of all points as a table.
    Show(show::ShowArgs),
}

/// Runs what is missing of a sweep, or one of the commands.
///
/// # Errors
/// Bad input, or a file that can't be read or written.
pub(crate) fn run(args: SweepArgs) -> Result<(), XtaskError> {
    match (args.command, args.run) {
        (Some(SweepCommand::Merge(args)), _) => merge::run(args),
        (Some(SweepCommand::Show(args)), _) => show::run(args),
        (None, Some(args)) => run::run(args),
        // Nothing at all is answered with the help.
        (None, None) => Ok(()),
    }
}
