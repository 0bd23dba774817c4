//! `cargo xtask trace convert`: plain to zstd and back, checked on the way.
//!
//! Main types: [`ConvertArgs`]. Neighbours: reader and writer are `concertina_trace`'s.

use std::fs::File;
use std::path::{Path, PathBuf};

use clap::Args;
use concertina_trace::{TraceReader, TraceWriter, WriteError};

use super::{encoding_of, write_whole};
use crate::error::XtaskError;

/// Arguments of `trace convert`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask trace convert my.trace my.trace.zst      compress
  cargo xtask trace convert my.trace.zst my.trace      back to text")]
pub(crate) struct ConvertArgs {
    /// The trace to read, plain or compressed.
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// The file to write; with the ending .zst it is compressed. An older file of this name is replaced.
    #[arg(value_name = "OUT")]
    output: PathBuf,
}

/// Reads the one and writes the other, event by event. Nothing is left at `OUT` if the input is no whole trace.
pub(super) fn run(args: ConvertArgs) -> Result<(), XtaskError> {
    let mut reader = TraceReader::open(&args.input)?;
    let events = write_whole(&args.output, |part| copy(&mut reader, part, &args.output))?;
    println!("{}: {events} events", args.output.display());
    Ok(())
}

fn copy<R: std::io::BufRead>(
    reader: &mut TraceReader<R>,
    part: &Path,
    output: &Path,
) -> Result<u64, XtaskError> {
    let written = |source: WriteError| XtaskError::WriteTrace { path: output.to_owned(), source };
    let file = File::create(part).map_err(|source| XtaskError::io("write", output, source))?;
    let mut writer = TraceWriter::new(file, encoding_of(output), reader.header()).map_err(written)?;
    let mut events = 0;
    for event in reader {
        writer.write(&event?).map_err(written)?;
        events += 1;
    }
    writer.finish().map_err(written)?;
    Ok(events)
}
