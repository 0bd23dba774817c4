//! `cargo xtask sweep merge`: the results of several shards as those of one run.
//!
//! Main types: [`MergeArgs`]. Neighbours: `plan` says which points there are, `results` reads and writes them.

use std::collections::HashMap;
use std::path::PathBuf;

use clap::Args;

use super::error::SweepError;
use super::plan::Plan;
use super::results::{self, Recorded, ResultLine};
use super::run::of_this_sweep;
use crate::error::XtaskError;

/// Arguments of `sweep merge`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask sweep merge my.toml -o my.jsonl part-1.jsonl part-2.jsonl
  cargo xtask sweep merge my.toml -o so-far.jsonl part-1.jsonl --partial")]
pub(crate) struct MergeArgs {
    /// The description.
    #[arg(value_name = "SWEEP")]
    sweep: PathBuf,
    /// The results of its shards.
    #[arg(value_name = "RESULTS", required = true)]
    inputs: Vec<PathBuf>,
    /// The file to write, in the order of the grid.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Write also if points are missing.
    #[arg(long)]
    partial: bool,
}

/// Joins them.
///
/// # Errors
/// Results of another sweep, contradictions, missing points; nothing is written then.
pub(super) fn run(args: MergeArgs) -> Result<(), XtaskError> {
    let plan = Plan::open(&args.sweep)?;
    let mut all: HashMap<String, (String, ResultLine)> = HashMap::new();
    for input in &args.inputs {
        let found = results::read(input)?;
        of_this_sweep(&plan, input, found.clone())?;
        for Recorded { line, result } in found {
            let place = format!("{}:{line}", input.display());
            match all.get(&result.id) {
                Some((first, known)) if known.counted() != result.counted() => {
                    let point = result.point.to_string();
                    return Err(
                        SweepError::Contradiction { first: first.clone(), second: place, point }.into()
                    );
                }
                Some(_) => {}
                None => {
                    all.insert(result.id.clone(), (place, result));
                }
            }
        }
    }
    let lost: Vec<_> = plan.points.iter().filter(|planned| !all.contains_key(&planned.id)).collect();
    if let (Some(first), false) = (lost.first(), args.partial) {
        let point = first.point.to_string();
        return Err(SweepError::Missing { missing: lost.len(), points: plan.points.len(), point }.into());
    }
    let in_order: Vec<ResultLine> =
        plan.points.iter().filter_map(|planned| all.remove(&planned.id)).map(|(_, result)| result).collect();
    results::replace(&args.output, &in_order)?;
    println!("{}: {} of {} points", args.output.display(), in_order.len(), plan.points.len());
    Ok(())
}
