//! Rules on a Rust file as a whole: its header, its name, its length.
//!
//! Neighbours: `unsafety` looks at what is in it.

use super::{Finding, Problem, Tree};

/// Most lines of a source file. The aim is 400; beyond this a file holds more than one noun.
pub(super) const MOST_LINES: usize = 600;

/// Names that say nothing.
const VAGUE: &[&str] = &["base", "helpers", "misc", "util", "utils"];

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for (path, text) in tree.texts(".rs") {
        let mut report = |line, problem| findings.push(Finding { path: path.to_owned(), line, problem });
        if !text.starts_with("//!") {
            report(Some(1), Problem::NoHeader);
        }
        if let Some(part) = path.trim_end_matches(".rs").split('/').find(|part| VAGUE.contains(part)) {
            report(None, Problem::VagueName(part.to_owned()));
        }
        let lines = text.lines().count();
        if lines > MOST_LINES {
            report(None, Problem::TooLong { lines, most: MOST_LINES });
        }
    }
}
