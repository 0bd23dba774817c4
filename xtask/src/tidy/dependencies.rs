//! Every dependency is described in `docs/dependencies.md`, and nothing else is.
//!
//! Neighbours: `layers` reads the manifests. A page without a row for a dependency means that nobody said why it is
//! there.

use std::collections::BTreeSet;

use super::layers::{Manifest, line_of};
use super::{Finding, Problem, Tree};

const PAGE: &str = "docs/dependencies.md";

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let described: Vec<(usize, &str)> = described(tree.text(PAGE).unwrap_or_default()).collect();
    let mut used = BTreeSet::new();
    for (path, text) in tree.texts("Cargo.toml") {
        // What is not readable was reported by `layers`.
        let Ok(manifest) = Manifest::parse(text) else { continue };
        for dependency in manifest.dependencies.into_iter().filter(|dependency| !dependency.internal) {
            let is_described = described.iter().any(|(_, name)| *name == dependency.package);
            if !is_described && !used.contains(&dependency.package) {
                let line = line_of(text, &dependency.package);
                let problem = Problem::Undescribed(dependency.package.clone());
                findings.push(Finding { path: path.to_owned(), line, problem });
            }
            used.insert(dependency.package);
        }
    }
    for (line, name) in described {
        if !used.contains(name) {
            let problem = Problem::Unused(name.to_owned());
            findings.push(Finding { path: PAGE.to_owned(), line: Some(line), problem });
        }
    }
}

/// The names in the first column of the page's table, each with its line.
fn described(page: &str) -> impl Iterator<Item = (usize, &str)> {
    page.lines().enumerate().filter_map(|(index, line)| {
        let (name, _) = line.strip_prefix("| `")?.split_once('`')?;
        Some((index + 1, name))
    })
}
