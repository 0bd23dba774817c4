//! `cargo xtask sweep show`: one figure of all points, by two of their keys.
//!
//! Main types: [`ShowArgs`], [`Pivot`]. Neighbours: `results` reads the points.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use clap::Args;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde_json::Value;

use super::error::SweepError;
use super::point::Point;
use super::results::{self, ResultLine};
use crate::error::XtaskError;

/// Columns of a terminal that a table keeps to.
const WIDTH: u16 = 100;

/// Arguments of `sweep show`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask sweep show docs/sweeps/granularity.jsonl --where capacity=80GiB --where policy=lean
  cargo xtask sweep show docs/sweeps/granularity.jsonl --columns granularity --value modelled_driver_ns \\
      --where allocator=concertina --where policy=lean --where capacity=1.02x
  cargo xtask sweep show my.jsonl --rows allocator --columns timing --csv my.csv")]
pub(crate) struct ShowArgs {
    /// Results of a sweep.
    #[arg(value_name = "RESULTS")]
    results: PathBuf,
    /// What has a row each: trace, allocator, policy, capacity, granularity, timing, cost_table or max_mappings.
    #[arg(long, value_name = "KEY", default_value = "trace")]
    rows: String,
    /// What has a column each.
    #[arg(long, value_name = "KEY", default_value = "allocator")]
    columns: String,
    /// The figure: a key of docs/bench.md.
    #[arg(long, value_name = "KEY", default_value = "mapped_over_live")]
    value: String,
    /// Only points where a key has this value.
    #[arg(long = "where", value_name = "KEY=VALUE", value_parser = condition)]
    conditions: Vec<(String, String)>,
    /// Also write the table to this file, with commas.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

fn condition(word: &str) -> Result<(String, String), String> {
    let pair = word.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    pair.ok_or_else(|| "write key=value".to_owned())
}

/// Prints the table.
///
/// # Errors
/// A file of no results, a key that they don't have, or more than one result for a cell.
pub(super) fn run(args: ShowArgs) -> Result<(), XtaskError> {
    let found: Vec<ResultLine> =
        results::read(&args.results)?.into_iter().map(|recorded| recorded.result).collect();
    let conditions: Vec<(&str, &str)> =
        args.conditions.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let pivot = Pivot::new(&found, &args.rows, &args.columns, &args.value, &conditions)?;
    println!("{} ({} by {})", args.value, args.rows, args.columns);
    println!("{}", pivot.table());
    if let Some(path) = &args.csv {
        fs::write(path, pivot.csv()).map_err(|source| XtaskError::io("write", path, source))?;
    }
    Ok(())
}

/// A table of one figure.
#[derive(Debug)]
pub(crate) struct Pivot {
    corner: String,
    columns: Vec<String>,
    /// Each with its head.
    rows: Vec<(String, Vec<String>)>,
}

impl Pivot {
    /// Rows and columns in the order in which results have them.
    ///
    /// # Errors
    /// [`SweepError::UnknownKey`], [`SweepError::Crowded`], [`SweepError::Nothing`].
    pub(crate) fn new(
        results: &[ResultLine],
        rows: &str,
        columns: &str,
        value: &str,
        conditions: &[(&str, &str)],
    ) -> Result<Self, SweepError> {
        let keys = || conditions.iter().map(|(key, _)| *key);
        for (role, key) in
            [("row", rows), ("column", columns)].into_iter().chain(keys().map(|key| ("key", key)))
        {
            if !Point::KEYS.contains(&key) {
                let known = Point::KEYS.join(", ");
                return Err(SweepError::UnknownKey { role, key: key.to_owned(), known });
            }
        }
        check_value(results, value)?;
        let meets = |result: &&ResultLine| {
            conditions.iter().all(|(key, wanted)| result.point.get(key) == Some(wanted))
        };
        let chosen: Vec<&ResultLine> = results.iter().filter(meets).collect();
        if chosen.is_empty() {
            return Err(SweepError::Nothing { results: results.len() });
        }
        let of = |result: &ResultLine, key: &str| result.point.get(key).unwrap_or_default().to_owned();
        let (mut row_heads, mut column_heads) = (Vec::new(), Vec::new());
        let mut cells: BTreeMap<(String, String), Vec<&ResultLine>> = BTreeMap::new();
        for result in chosen {
            let (row, column) = (of(result, rows), of(result, columns));
            for (heads, head) in [(&mut row_heads, &row), (&mut column_heads, &column)] {
                if !heads.contains(head) {
                    heads.push(head.clone());
                }
            }
            cells.entry((row, column)).or_default().push(result);
        }
        let cell = |row: &String, column: &String| match cells
            .get(&(row.clone(), column.clone()))
            .map(Vec::as_slice)
        {
            None => Ok(String::new()),
            Some([result]) => Ok(figure(result, value)),
            Some(several) => Err(crowded(row, column, several)),
        };
        let line = |row: &String| {
            let figures = column_heads.iter().map(|column| cell(row, column));
            Ok((row.clone(), figures.collect::<Result<_, SweepError>>()?))
        };
        let lines = row_heads.iter().map(line).collect::<Result<_, SweepError>>()?;
        Ok(Self { corner: rows.to_owned(), columns: column_heads, rows: lines })
    }

    /// For a terminal.
    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(comfy_table::presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
        table.set_header([&self.corner].into_iter().chain(&self.columns));
        for (head, figures) in &self.rows {
            table.add_row([head].into_iter().chain(figures));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    /// With commas (RFC 4180).
    pub(crate) fn csv(&self) -> String {
        let mut text = String::new();
        let heads = [&self.corner].into_iter().chain(&self.columns);
        let mut add = |fields: Vec<&String>| {
            let fields: Vec<String> = fields.into_iter().map(|field| quoted(field)).collect();
            text.push_str(&fields.join(","));
            text.push_str("\r\n");
        };
        add(heads.collect());
        for (head, figures) in &self.rows {
            add([head].into_iter().chain(figures).collect());
        }
        text
    }
}

fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

/// The outcome as JSON has it.
fn outcome_of(result: &ResultLine) -> Option<Value> {
    serde_json::to_value(result.outcome.as_ref()?).ok()
}

/// That some result has a figure of this name: `driver_calls.map` means a part.
fn check_value(results: &[ResultLine], value: &str) -> Result<(), SweepError> {
    let mut known = BTreeSet::new();
    for outcome in results.iter().filter_map(outcome_of) {
        if found_in(&outcome, value).is_some() {
            return Ok(());
        }
        if let Value::Object(of) = outcome {
            known.extend(of.into_iter().filter(|(_, value)| value.is_number()).map(|(key, _)| key));
        }
    }
    let known = known.into_iter().collect::<Vec<_>>().join(", ");
    Err(SweepError::UnknownKey { role: "value", key: value.to_owned(), known })
}

fn found_in<'a>(outcome: &'a Value, value: &str) -> Option<&'a Value> {
    let found = value.split('.').try_fold(outcome, |at, key| at.get(key))?;
    (found.is_number() || found.is_boolean() || found.is_string()).then_some(found)
}

/// What stands in a cell: the figure; for a trace that did not run to its end, where it stopped, too.
fn figure(result: &ResultLine, value: &str) -> String {
    let Some(outcome) = &result.outcome else { return "error".to_owned() };
    let json = outcome_of(result);
    let found = json.as_ref().and_then(|json| found_in(json, value));
    let figure = match found {
        None => "-".to_owned(),
        Some(Value::Number(number)) => match number.as_u64() {
            Some(whole) => whole.to_string(),
            None => format!("{:.4}", number.as_f64().unwrap_or(f64::NAN)),
        },
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    if outcome.completed { figure } else { format!("stopped ({figure})") }
}

fn crowded(row: &str, column: &str, several: &[&ResultLine]) -> SweepError {
    let differ = |key: &&&str| several.iter().any(|of| of.point.get(key) != several[0].point.get(key));
    let keys: Vec<&str> = Point::KEYS.iter().filter(differ).copied().collect();
    SweepError::Crowded {
        row: row.to_owned(),
        column: column.to_owned(),
        keys: keys.join(", "),
        first: keys.first().copied().unwrap_or_default().to_owned(),
    }
}
