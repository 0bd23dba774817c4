//! `cargo xtask trace`: look at traces, make them, convert them.
//!
//! Main types: [`TraceArgs`], [`TraceCommand`]. Neighbours: one file a command below; the format and the generators are
//! `concertina_trace`'s.

mod convert;
mod generate;
mod stat;

use std::path::Path;

use clap::{Args, Subcommand};
use concertina_trace::Encoding;

use crate::error::XtaskError;

/// Arguments of `trace`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask trace stat t1
  cargo xtask trace gen random --seed 7 --out random.trace.zst
  cargo xtask trace convert random.trace.zst random.trace")]
pub(crate) struct TraceArgs {
    /// What to do with traces.
    #[command(subcommand)]
    pub(crate) command: TraceCommand,
}

/// The commands on traces.
#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Print what is in a trace: events, sizes, streams, lifetimes, the live peak.
    Stat(stat::StatArgs),
    /// Make a trace by rule and seed.
    Gen(generate::GenerateArgs),
    /// Write a trace anew, plain or compressed as the ending of the new file says.
    Convert(convert::ConvertArgs),
}

/// Runs one of them.
///
/// # Errors
/// Bad input, or a file that can't be read or written.
pub(crate) fn run(args: TraceArgs) -> Result<(), XtaskError> {
    match args.command {
        TraceCommand::Stat(args) => stat::run(args),
        TraceCommand::Gen(args) => generate::run(args),
        TraceCommand::Convert(args) => convert::run(args),
    }
}

/// How a file of this name is written: compressed if it ends in `.zst`.
fn encoding_of(path: &Path) -> Encoding {
    if path.extension().is_some_and(|ending| ending == "zst") { Encoding::Zstd } else { Encoding::Plain }
}
