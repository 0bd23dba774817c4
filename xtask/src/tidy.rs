//! `cargo xtask tidy`: the house rules as a program.
//!
//! Main types: [`Finding`], [`Problem`], [`Tree`]. Neighbours: each file under `tidy/` is one family of rules, a
//! function from the [`Tree`] of files to findings; `.ci/run` calls this command.

mod dependencies;
mod documents;
mod layers;
mod machine;
mod sources;
mod tree;
mod unsafety;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;

use clap::Args;

use crate::error::XtaskError;
pub(crate) use tree::Tree;

/// Arguments of `tidy`: there are none yet.
#[derive(Clone, Copy, Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask tidy               every rule, over every file")]
pub(crate) struct TidyArgs {}

/// One broken rule at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The file, from the root of the repository.
    pub(crate) path: String,
    /// The line, counted from 1, where the rule is about a line.
    pub(crate) line: Option<usize>,
    /// The rule and the value that breaks it.
    pub(crate) problem: Problem,
}

/// What is wrong, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Problem {
    #[error("not readable as TOML: {0}")]
    BadToml(String),
    #[error("a crate that the layers do not know; give it a place in LAYERS of xtask/src/tidy/layers.rs")]
    UnknownCrate,
    #[error("the package here must be named `{expected}`, not `{found}`")]
    WrongPackageName { expected: &'static str, found: String },
    #[error("`{dependency}` does not lie below `{package}`: an arrow may only point down the layers")]
    UpwardArrow { package: &'static str, dependency: String },
    #[error("no `//!` header; say in it what the file is, its main types and its neighbours")]
    NoHeader,
    #[error("a file called `{0}` says nothing about what is in it; name it after its noun")]
    VagueName(String),
    #[error("{lines} lines are too many for one noun (at most {most}); split the file")]
    TooLong { lines: usize, most: usize },
    #[error("not readable as Rust: {0}")]
    NotRust(String),
    #[error("`unsafe` outside of the crates that may hold it ({0})")]
    Unsafe(String),
    #[error("the root of a safe crate must say `#![forbid(unsafe_code)]`")]
    UnsafeNotForbidden,
    #[error("`{command}` is not a command: {reason}")]
    UnknownCommand { command: String, reason: String },
    #[error("the link `{0}` leads nowhere")]
    BrokenLink(String),
    #[error("the link `{link}` names no heading of {file}")]
    BrokenAnchor { link: String, file: String },
    #[error("`{0}` is a path of one machine")]
    MachinePath(String),
    #[error("the dependency `{0}` is not described in docs/dependencies.md (what for, why this one)")]
    Undescribed(String),
    #[error("`{0}` is described but no manifest asks for it")]
    Unused(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.path, self.problem),
            None => write!(f, "{}: {}", self.path, self.problem),
        }
    }
}

/// The findings of all rules, in the order of the rules.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    layers::check(tree, &mut findings);
    sources::check(tree, &mut findings);
    unsafety::check(tree, &mut findings);
    documents::check(tree, &mut findings);
    machine::check(tree, &mut findings);
    dependencies::check(tree, &mut findings);
    findings
}

/// Checks the repository at `root` and prints what is wrong.
///
/// # Errors
/// [`XtaskError::Untidy`] if anything is, [`XtaskError::Io`] if a file can't be read.
pub(crate) fn run(root: &Path, _: TidyArgs) -> Result<(), XtaskError> {
    let tree = Tree::load(root)?;
    let findings = check(&tree);
    for finding in &findings {
        eprintln!("{finding}");
    }
    if findings.is_empty() {
        println!("tidy: {} files, nothing to say", tree.paths().count());
        Ok(())
    } else {
        Err(XtaskError::Untidy { findings: findings.len() })
    }
}
