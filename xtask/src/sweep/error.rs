//! What can be wrong with a sweep's files.
//!
//! Main types: [`SweepError`]. Neighbours: `plan`, `results`, `shard` and `show` return it; `XtaskError` carries it on.

use std::path::PathBuf;

/// A description, a results file or a choice that can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SweepError {
    /// The description is no TOML, or has a key or a value that it may not have.
    #[error("{}: {message}", path.display())]
    Description {
        /// The file.
        path: PathBuf,
        /// Where and what, in one line.
        message: String,
    },
    /// A word in the description stands for nothing.
    #[error("{}: {key}: {reason}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The list that it stands in.
        key: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The grid is too large to be meant.
    #[error("{}: the grid has {points} points; a sweep has at most {most}", path.display())]
    TooManyPoints {
        /// The file.
        path: PathBuf,
        /// The product of the lists' lengths.
        points: u128,
        /// The most that there may be.
        most: u128,
    },
    /// A line of a results file is none.
    #[error("{}:{line}: no result of a sweep: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// A result is of another sweep, or of another version of this tool.
    #[error(
        "{}:{line}: {point} is no point of this sweep, or was run on another trace or by another version; write \
         elsewhere, or begin anew with --fresh",
        path.display()
    )]
    Stranger {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The point, as the line describes it.
        point: String,
    },
    /// Two results of one point differ in something that is counted.
    #[error(
        "{first} and {second} have different results for {point}: one of them was not made by this program; leave one out"
    )]
    Contradiction {
        /// File and line of the first.
        first: String,
        /// File and line of the second.
        second: String,
        /// The point.
        point: String,
    },
    /// Points without a result.
    #[error(
        "{missing} of {points} points have no result, the first is {point}; run the missing shards, or merge with --partial"
    )]
    Missing {
        /// How many.
        missing: usize,
        /// Of how many.
        points: usize,
        /// The first of them.
        point: String,
    },
    /// A key that results don't have.
    #[error("no {role} `{key}`; there are: {known}")]
    UnknownKey {
        /// What it was to be: a row, a column, a value.
        role: &'static str,
        /// The word.
        key: String,
        /// What there is, between commas.
        known: String,
    },
    /// Several results belong into one cell.
    #[error(
        "row {row}, column {column} has several results, which differ in {keys}; choose with --where {first}=..."
    )]
    Crowded {
        /// The row.
        row: String,
        /// The column.
        column: String,
        /// All keys in which they differ, between commas.
        keys: String,
        /// The first of these.
        first: String,
    },
    /// Nothing is left to be shown.
    #[error("no result is left after --where; {results} were read")]
    Nothing {
        /// How many there were.
        results: usize,
    },
}
