//! `cargo xtask trace`: look at traces, make them, import them, convert them.
//!
//! Main types: [`TraceArgs`], [`TraceCommand`]. Neighbours: one file a command below; the format and the generators are
//! `concertina_trace`'s.

mod convert;
mod generate;
mod import;
mod stat;

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use concertina_trace::Encoding;

use crate::error::XtaskError;

/// Arguments of `trace`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask trace stat t1
  cargo xtask trace gen random --seed 7 --out random.trace.zst
  cargo xtask trace import snapshot.pickle -o my.trace.zst
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
    /// Make a trace of a PyTorch memory snapshot, an RMM log or a table of buffer lifetimes.
    Import(import::ImportArgs),
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
        TraceCommand::Import(args) => import::run(args),
    }
}

/// How a file of this name is written: compressed if it ends in `.zst`.
fn encoding_of(path: &Path) -> Encoding {
    if path.extension().is_some_and(|ending| ending == "zst") { Encoding::Zstd } else { Encoding::Plain }
}

/// Lets `write` make a file, and gives it the name `output` if that succeeds; else nothing is left there.
fn write_whole<T>(
    output: &Path,
    write: impl FnOnce(&Path) -> Result<T, XtaskError>,
) -> Result<T, XtaskError> {
    let part = part_of(output);
    let result = write(&part).and_then(|value| {
        let renamed = fs::rename(&part, output);
        renamed.map(|()| value).map_err(|source| XtaskError::io("write", output, source))
    });
    if result.is_err() {
        // The file may not be there yet; what went wrong first is what the user should see.
        let _ = fs::remove_file(&part);
    }
    result
}

/// The name under which the file is written until it is whole.
fn part_of(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".part");
    name.into()
}
