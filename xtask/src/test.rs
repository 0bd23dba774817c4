//! `cargo xtask test`: every test there is.
//!
//! Main types: [`TestArgs`]. Neighbours: `process` prints and runs the steps; the random schedules come from
//! `crates/vmm/src/sync.rs`.

use std::fs;
use std::path::Path;

use clap::Args;

use crate::error::XtaskError;
use crate::process::Step;

/// Arguments of `test`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask test                       everything: tests, doc tests, schedules, examples
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
    // What is behind a feature is tested, too.
    let all = ["test", "--workspace", "--features", "concertina/cuda"];
    let mut steps = vec![
        Step::cargo(&all).with(&["--lib", "--bins", "--tests", "--examples", "--no-fail-fast"]),
        Step::cargo(&all).with(&["--doc"]),
    ];
    steps.extend(schedules(root)?);
    if args.rest.is_empty() {
        steps.extend(examples(root)?);
    } else {
        steps = steps.into_iter().map(|step| step.with(&["--"]).with(&args.rest)).collect();
    }
    steps.iter().try_for_each(|step| step.run(root))
}

/// The examples as a user runs them, without a GPU: they check their own results. (The profile is that of the tests, so
/// that little has to be built again.)
fn examples(root: &Path) -> Result<Vec<Step>, XtaskError> {
    const OF_PACKAGES: [(&str, &str, &[&str]); 2] = [
        ("crates/concertina", "concertina", &["--features", "cuda", "--", "--emulated"]),
        ("crates/libcuda", "concertina-libcuda", &[]),
    ];
    let mut steps = Vec::new();
    for (folder, package, arguments) in OF_PACKAGES {
        let folder = root.join(folder).join("examples");
        let failed = |source| XtaskError::io("read", &folder, source);
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            if path.extension().is_some_and(|extension| extension == "rs") {
                let run = ["run", "--quiet", "--profile", "test", "--package", package, "--example", &name];
                steps.push(Step::cargo(&run).with(arguments));
            }
        }
    }
    steps.sort_by_key(Step::command_line);
    Ok(steps)
}

/// The tests under a scheduler, built apart with a `--cfg` that puts every lock of the library under it: those of
/// `tests/schedules.rs` of each crate that has some under random schedules, those of `tests/models.rs` under all.
fn schedules(root: &Path) -> Result<Vec<Step>, XtaskError> {
    let crates = root.join("crates");
    let failed = |source| XtaskError::io("read", &crates, source);
    let mut steps = Vec::new();
    for entry in fs::read_dir(&crates).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kinds =
            [("schedules", "--cfg shuttle", "target/shuttle"), ("models", "--cfg loom", "target/loom")];
        for (test, flags, target) in kinds {
            if !entry.path().join(format!("tests/{test}.rs")).is_file() {
                continue;
            }
            let manifest = format!("crates/{}/Cargo.toml", entry.file_name().to_string_lossy());
            let arguments = ["test", "--manifest-path", &manifest, "--test", test, "--target-dir", target];
            steps.push(Step::cargo(&arguments).environment("RUSTFLAGS", flags));
        }
    }
    steps.sort_by_key(Step::command_line);
    Ok(steps)
}
