//! `cargo xtask test`: every test there is.
//!
//! Main types: [`TestArgs`]. Neighbours: `process` prints and runs the steps; the random schedules come from
//! `crates/vmm/src/sync.rs`.

use std::path::Path;

use clap::Args;

use crate::error::XtaskError;
use crate::process::Step;

/// Arguments of `test`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask test                       everything: tests, doc tests, random schedules
  cargo xtask test -- --nocapture        with what the tests print
  cargo xtask test -- steal              only tests with `steal` in their names")]
pub(crate) struct TestArgs {
    /// Arguments for the test programs.
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub(crate) rest: Vec<String>,
}

/// Runs the tests, step by step, until one fails.
///
/// # Errors
/// The step that failed or could not be started.
pub(crate) fn run(root: &Path, args: TestArgs) -> Result<(), XtaskError> {
    let mut steps = vec![
        Step::cargo(&["test", "--workspace", "--lib", "--bins", "--tests", "--examples"]),
        Step::cargo(&["test", "--workspace", "--doc"]),
    ];
    if !args.rest.is_empty() {
        steps = steps.into_iter().map(|step| step.with(&["--"]).with(&args.rest)).collect();
    }
    steps.iter().try_for_each(|step| step.run(root))
}
