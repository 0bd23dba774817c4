//! Where `unsafe` may stand: in the crates that speak to C, in programs that launch kernels, and nowhere else.
//!
//! Neighbours: `layers` has the list of crates. The workspace's lints deny `unsafe_code` too; this rule also sees code
//! that is compiled out, and an `allow` that someone wrote over the lint.

use std::str::FromStr;

use proc_macro2::{TokenStream, TokenTree};

use super::layers::LAYERS;
use super::{Finding, Problem, Tree};

/// Directories that may hold `unsafe`: crates, one of them a bench that C programs load, examples and tests that launch
/// kernels, which cudarc makes `unsafe`, and a device that a peer in a bench calls through pointers.
pub(super) const ALLOWED: &[&str] = &[
    "crates/cuda",
    "crates/libcuda",
    "crates/capi",
    "benches/peer-capi",
    "crates/concertina/examples",
    "crates/concertina/tests/buffers",
    "benches/examples/speed/peers",
];

const FORBID: &str = "#![forbid(unsafe_code)]";

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for (path, text) in tree.texts(".rs") {
        if ALLOWED.iter().any(|directory| is_under(path, directory)) {
            continue;
        }
        let mut report = |line, problem| findings.push(Finding { path: path.to_owned(), line, problem });
        match TokenStream::from_str(text) {
            Ok(tokens) => {
                let mut lines = Vec::new();
                lines_of_unsafe(tokens, &mut lines);
                for line in lines {
                    report(Some(line), Problem::Unsafe(ALLOWED.join(", ")));
                }
            }
            Err(error) => report(Some(error.span().start().line), Problem::NotRust(error.to_string())),
        }
        let root = LAYERS.iter().any(|layer| {
            path.strip_prefix(layer.directory)
                .is_some_and(|rest| rest == "/src/lib.rs" || rest == "/src/main.rs")
        });
        if root && !text.lines().any(|line| line.trim() == FORBID) {
            report(None, Problem::UnsafeNotForbidden);
        }
    }
}

fn is_under(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

/// Tokens are what is left of a file without its comments and without the insides of its strings.
fn lines_of_unsafe(tokens: TokenStream, lines: &mut Vec<usize>) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) if ident == "unsafe" => lines.push(ident.span().start().line),
            TokenTree::Group(group) => lines_of_unsafe(group.stream(), lines),
            _ => {}
        }
    }
}
