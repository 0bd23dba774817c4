//! `cargo xtask sweep FILE`: the points of a grid, one after another or several at once, each written down as it is done.
//!
//! Main types: [`RunArgs`]. Neighbours: `plan` has the points, `results` the file; `concertina_bench` runs each.

use std::collections::HashMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use clap::Args;
use concertina_bench::{Case, in_parallel};
use indicatif::{ProgressBar, ProgressStyle};

use super::error::SweepError;
use super::plan::{Plan, Planned, Room};
use super::results::{self, Recorded, ResultFile, ResultLine};
use super::shard::Shard;
use crate::error::XtaskError;

/// Arguments of a sweep that is run.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The description: a TOML file.
    #[arg(value_name = "SWEEP")]
    sweep: PathBuf,
    /// The results, a JSON line a point; points that are there are not run again [default: the name of SWEEP with
    /// the ending .jsonl, in the current folder].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Only the points of one part of the grid, counted from 1.
    #[arg(long, value_name = "I/N", default_value_t = Shard::WHOLE)]
    shard: Shard,
    /// How many points to run at once; with more than one the host times are noise [default: the cores].
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Forget the results that are there.
    #[arg(long)]
    fresh: bool,
    /// Print the points, run none.
    #[arg(long)]
    dry_run: bool,
}

/// Runs what is missing.
///
/// # Errors
/// A bad description, a results file of another sweep, a file that can't be written, or runs that ended in a defect.
pub(super) fn run(args: RunArgs) -> Result<(), XtaskError> {
    let plan = Plan::open(&args.sweep)?;
    let places = plan.points.iter().enumerate();
    let mine: Vec<&Planned> =
        places.filter(|(place, _)| args.shard.has(*place)).map(|(_, planned)| planned).collect();
    if args.dry_run {
        mine.iter().for_each(|planned| println!("{}  {}", planned.id, planned.point));
        println!("{} points of {}", mine.len(), plan.points.len());
        return Ok(());
    }
    let output = args.output.clone().unwrap_or_else(|| default_output(&args.sweep));
    if args.fresh
        && let Err(source) = fs::remove_file(&output)
        && source.kind() != std::io::ErrorKind::NotFound
    {
        return Err(XtaskError::io("write", &output, source));
    }
    let (mut file, found) = ResultFile::open(&output)?;
    let mut done = of_this_sweep(&plan, &output, found)?;
    let missing: Vec<&Planned> =
        mine.iter().copied().filter(|planned| !done.contains_key(planned.id.as_str())).collect();
    let ran = missing.len();
    let jobs = args.jobs.unwrap_or_else(|| thread::available_parallelism().unwrap_or(NonZeroUsize::MIN));
    run_missing(&plan, &missing, jobs, |result| {
        file.append(&result)?;
        done.insert(result.id.clone(), result);
        Ok(())
    })?;
    drop(file);

    // In the order of the grid, whoever was done first.
    let in_order: Vec<ResultLine> =
        plan.points.iter().filter_map(|planned| done.get(&planned.id).cloned()).collect();
    results::replace(&output, &in_order)?;
    tell(&output, &mine, &done, ran);
    let of_mine = mine.iter().filter_map(|planned| done.get(&planned.id)?.outcome.as_ref());
    match of_mine.filter(|outcome| outcome.is_defect()).count() {
        0 => Ok(()),
        cases => Err(XtaskError::Defects { cases }),
    }
}

fn default_output(sweep: &Path) -> PathBuf {
    PathBuf::from(sweep.file_stem().unwrap_or_default()).with_extension("jsonl")
}

/// Results by the id of their point; all must be of this sweep.
pub(super) fn of_this_sweep(
    plan: &Plan,
    path: &Path,
    found: Vec<Recorded>,
) -> Result<HashMap<String, ResultLine>, XtaskError> {
    let known: HashMap<&str, &Planned> =
        plan.points.iter().map(|planned| (planned.id.as_str(), planned)).collect();
    let mut done = HashMap::new();
    for Recorded { line, result } in found {
        if known.get(result.id.as_str()).is_none_or(|planned| planned.point != result.point) {
            let point = result.point.to_string();
            return Err(SweepError::Stranger { path: path.to_owned(), line, point }.into());
        }
        done.insert(result.id.clone(), result);
    }
    Ok(done)
}

/// Runs points on several threads, and hands each result over on this one.
fn run_missing(
    plan: &Plan,
    missing: &[&Planned],
    jobs: NonZeroUsize,
    mut take: impl FnMut(ResultLine) -> Result<(), XtaskError>,
) -> Result<(), XtaskError> {
    let bar = ProgressBar::new(missing.len() as u64);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {eta} left  {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let (sender, receiver) = mpsc::channel();
    let outcome = thread::scope(|scope| {
        scope.spawn(move || {
            in_parallel(jobs, missing, |planned| {
                // Nobody listens any more after a failed write: then there is no use in running.
                let _ = sender.send(run_one(plan, planned));
            })
        });
        for result in receiver {
            bar.inc(1);
            bar.set_message(result.point.to_string());
            take(result)?;
        }
        Ok(())
    });
    bar.finish_and_clear();
    outcome
}

/// Runs one point. That it can't be run is a result.
pub(super) fn run_one(plan: &Plan, planned: &Planned) -> ResultLine {
    let case = Case {
        trace: &plan.traces[planned.trace],
        allocator: planned.allocator,
        policy: planned.policy,
        device: &planned.device,
    };
    let ran = case.run().and_then(|run| {
        let mut outcome = run.outcome;
        // Series are for one run; of many they would be most of the file.
        outcome.marks.clear();
        outcome.driver_calls_by_mark.clear();
        outcome.live_bytes_by_mark.clear();
        outcome.mapped_bytes_by_mark.clear();
        if let Room::Searched(fineness) = planned.room {
            outcome.adopt_min_capacity(case.min_capacity(fineness)?);
        }
        Ok(outcome)
    });
    let (outcome, error) = match ran {
        Ok(outcome) => (Some(outcome), None),
        Err(error) => (None, Some(error.to_string())),
    };
    ResultLine { id: planned.id.clone(), point: planned.point.clone(), outcome, error }
}

fn tell(output: &Path, mine: &[&Planned], done: &HashMap<String, ResultLine>, ran: usize) {
    let results = || mine.iter().filter_map(|planned| done.get(&planned.id));
    let completed = results().filter(|result| result.outcome.as_ref().is_some_and(|of| of.completed)).count();
    let errors = results().filter(|result| result.error.is_some()).count();
    let stopped = mine.len() - completed - errors;
    println!(
        "{}: {} points, {ran} of them run now; {completed} completed, {stopped} stopped early, {errors} could not \
         begin",
        output.display(),
        mine.len()
    );
    println!("cargo xtask sweep show {}", output.display());
}

#[cfg(test)]
mod tests;
