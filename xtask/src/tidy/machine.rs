//! No text of the repository may name a path that exists on one machine only.
//!
//! Neighbours: the other rules on texts are in `documents`.

use super::{Finding, Problem, Tree};

/// First parts of paths that are someone's own. (Written without their slashes, so that this file passes.)
const OWN: &[&str] = &["home", "Users", "root", "work", "tmp", "mnt"];

/// Endings of the files that are looked at.
const ENDINGS: &[&str] = &[".rs", ".md", ".toml", ".sh", ".yml", ".yaml", ".py", ".ci/run"];

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for (path, text) in ENDINGS.iter().flat_map(|ending| tree.texts(ending)) {
        for (index, line) in text.lines().enumerate() {
            if let Some(found) = machine_path(line) {
                let problem = Problem::MachinePath(found.to_owned());
                findings.push(Finding { path: path.to_owned(), line: Some(index + 1), problem });
            }
        }
    }
}

/// The first absolute path of one machine in `line`.
fn machine_path(line: &str) -> Option<&str> {
    line.match_indices('/')
        .find_map(|(at, _)| {
            // A slash inside a relative path or an address is not the start of an absolute one.
            let inside = line[..at]
                .ends_with(|c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | '}'));
            let rest = &line[at + 1..];
            let own = OWN.iter().any(|own| rest.strip_prefix(own).is_some_and(|rest| rest.starts_with('/')));
            let end = rest
                .find(|c: char| c.is_whitespace() || matches!(c, '"' | '`' | '\'' | ')'))
                .unwrap_or(rest.len());
            (own && !inside).then(|| &line[at..=at + end])
        })
        .map(|found| found.trim_end_matches('/'))
}
