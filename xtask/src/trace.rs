//! `cargo xtask trace`: look at traces, make them, convert them.
//!
//! Main types: [`TraceArgs`], [`TraceCommand`]. Neighbours: the format and the generators are `concertina_trace`'s.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::error::XtaskError;

/// Arguments of `trace`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask trace stat t1")]
pub(crate) struct TraceArgs {
    /// What to do with traces.
    #[command(subcommand)]
    pub(crate) command: TraceCommand,
}

/// The commands on traces.
#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Print what is in a trace.
    #[command(after_help = "Examples:
  cargo xtask trace stat t1                 a bundled trace
  cargo xtask trace stat my.trace.zst       a file")]
    Stat {
        /// A bundled trace's name or a file.
        #[arg(value_name = "TRACE")]
        trace: String,
    },
    /// Make a trace from a seed.
    #[command(after_help = "Examples:
  cargo xtask trace gen random --seed 7 --out random.trace.zst")]
    Gen {
        /// Which generator.
        #[arg(value_name = "KIND")]
        kind: String,
        /// The seed: the same one gives the same trace.
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        /// The file to write; with the ending .zst it is compressed.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Write a trace anew, plain or compressed as the ending of OUT says.
    #[command(after_help = "Examples:
  cargo xtask trace convert my.trace my.trace.zst      compress
  cargo xtask trace convert my.trace.zst my.trace      back to text")]
    Convert {
        /// The trace to read.
        #[arg(value_name = "IN")]
        input: PathBuf,
        /// The file to write.
        #[arg(value_name = "OUT")]
        output: PathBuf,
    },
}

/// Runs one of them.
///
/// # Errors
/// Bad input, or a file that can't be read or written.
pub(crate) fn run(args: TraceArgs) -> Result<(), XtaskError> {
    let _ = args;
    Ok(())
}
