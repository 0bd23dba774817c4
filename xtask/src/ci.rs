//! `cargo xtask ci`: what must pass before a change is merged.
//!
//! Main types: [`CiArgs`]. Neighbours: the steps stand in `.ci/run`, which a machine calls without this command.

use std::path::Path;

use clap::Args;

use crate::error::XtaskError;
use crate::process::Step;

/// Arguments of `ci`: there are none yet.
#[derive(Clone, Copy, Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask ci                 the same as .ci/run")]
pub(crate) struct CiArgs {}

/// Runs `.ci/run`.
///
/// # Errors
/// The script's failure.
pub(crate) fn run(root: &Path, _: CiArgs) -> Result<(), XtaskError> {
    Step::program("bash").with(&[".ci/run"]).run(root)
}
