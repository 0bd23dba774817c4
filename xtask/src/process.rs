//! Other programs that a command runs, each printed before it starts.
//!
//! Main types: [`Step`]. Neighbours: `test` and `ci` are lists of steps.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::XtaskError;

/// The root of the checkout that this program was built from.
pub(crate) fn repository_root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_owned()
}

/// One program and its arguments, run in the root of the repository.
#[derive(Debug)]
pub(crate) struct Step {
    words: Vec<String>,
    environment: Vec<(&'static str, &'static str)>,
}

impl Step {
    /// `cargo` with these arguments; the same cargo that runs this program.
    pub(crate) fn cargo(arguments: &[&str]) -> Self {
        Self::program("cargo").with(arguments)
    }

    /// The program of this name.
    pub(crate) fn program(name: &str) -> Self {
        Self { words: vec![name.to_owned()], environment: Vec::new() }
    }

    /// The same step with more arguments.
    #[must_use]
    pub(crate) fn with<S: AsRef<str>>(mut self, arguments: &[S]) -> Self {
        self.words.extend(arguments.iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// The same step with an environment variable set.
    #[must_use]
    pub(crate) fn environment(mut self, name: &'static str, value: &'static str) -> Self {
        self.environment.push((name, value));
        self
    }

    /// The step as one would type it.
    pub(crate) fn command_line(&self) -> String {
        let environment = self.environment.iter().map(|(name, value)| format!("{name}=\"{value}\""));
        environment.chain(self.words.iter().cloned()).collect::<Vec<_>>().join(" ")
    }

    /// Prints the command line and runs it in `directory`.
    ///
    /// # Errors
    /// [`XtaskError::Start`] if the program can't be started, [`XtaskError::Step`] if it fails.
    pub(crate) fn run(&self, directory: &Path) -> Result<(), XtaskError> {
        let command = self.command_line();
        eprintln!("$ {command}");
        let program = match self.words[0].as_str() {
            "cargo" => std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()),
            other => other.into(),
        };
        let status = Command::new(program)
            .args(&self.words[1..])
            .envs(self.environment.iter().copied())
            .current_dir(directory)
            .status()
            .map_err(|source| XtaskError::Start { command: command.clone(), source })?;
        if status.success() { Ok(()) } else { Err(XtaskError::Step { command, status }) }
    }
}
