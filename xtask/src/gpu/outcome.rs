//! What came out of the parts, as a table and as JSON.
//!
//! Main types: [`Outcome`], [`Status`]. Neighbours: `parts` makes them.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::bench::shortened;
use crate::error::XtaskError;
use crate::figures::{self, Column, table};
use crate::measured_device::DeviceFacts;

/// How something went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    /// As it should.
    Passed,
    /// Not as it should.
    Failed,
    /// It was stopped when its time was over, which says nothing against it.
    Stopped,
    /// It was not begun.
    Skipped,
}

/// One thing that was run, or not.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Outcome {
    /// The part that it belongs to.
    pub(super) part: &'static str,
    /// What it is.
    pub(super) what: String,
    /// How it went.
    pub(super) status: Status,
    /// How long it took.
    pub(super) took_ms: u64,
    /// A few words.
    pub(super) detail: String,
    /// What it wrote itself, if it is JSON.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(super) figures: Value,
}

impl Outcome {
    /// Something that was not begun, and why.
    pub(super) fn skipped(part: &'static str, what: impl Into<String>, why: impl Into<String>) -> Self {
        let (what, detail) = (what.into(), why.into());
        Self { part, what, status: Status::Skipped, took_ms: 0, detail, figures: Value::Null }
    }

    pub(super) fn took(mut self, time: Duration) -> Self {
        self.took_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self
    }
}

/// The table, within 100 columns.
pub(super) fn text(facts: &DeviceFacts, outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for line in facts.lines() {
        let _ = writeln!(text, "{}", shortened(&line, 100));
    }
    text.push('\n');
    let columns = [
        Column::left("part"),
        Column::left("what"),
        Column::left("outcome"),
        Column::right("s"),
        Column::left("found"),
    ];
    let mut rows = table(&columns, 1);
    for Outcome { part, what, status, took_ms, detail, .. } in outcomes {
        let status = match status {
            Status::Passed => "passed",
            Status::Failed => "FAILED",
            Status::Stopped => "stopped",
            Status::Skipped => "skipped",
        };
        rows.add_row([
            (*part).to_owned(),
            shortened(what, 33),
            status.to_owned(),
            format!("{:.1}", *took_ms as f64 / 1e3),
            shortened(detail, 41),
        ]);
    }
    text.push_str(&figures::text(&rows));
    let count = |status| outcomes.iter().filter(|outcome| outcome.status == status).count();
    let [passed, failed, stopped, skipped] =
        [Status::Passed, Status::Failed, Status::Stopped, Status::Skipped].map(count);
    let times = if facts.emulated { "MODELLED" } else { "measured" };
    let _ = writeln!(
        text,
        "\nbench: peak of mapped bytes, driver calls that change memory, time of all driver calls ({times})."
    );
    let _ = writeln!(text, "{passed} passed, {failed} failed, {stopped} stopped, {skipped} skipped");
    text
}

/// Everything, as JSON.
///
/// # Errors
/// It can't be written as such.
pub(super) fn json(facts: &DeviceFacts, outcomes: &[Outcome]) -> Result<String, XtaskError> {
    let whole = serde_json::json!({ "device": facts, "outcomes": outcomes });
    let text = serde_json::to_string_pretty(&whole);
    let text = text.map_err(|error| XtaskError::Measure { reason: error.to_string() })?;
    Ok(format!("{text}\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{Outcome, Status, text};
    use crate::measured_device::DeviceFacts;

    #[test]
    fn no_line_is_wider_than_100_columns() {
        let facts = DeviceFacts {
            name: "a GPU with a name of many words, ".repeat(5),
            emulated: true,
            date: "2026-12-31".to_owned(),
            driver_for_cuda: Some("13.0".to_owned()),
            kernel_module: None,
            concertina: "0.1.0",
            total_bytes: 143 << 30,
            free_bytes: 1,
            granularity_bytes: None,
            recommended_granularity_bytes: None,
            unmap_spans_mappings: String::new(),
            pools: String::new(),
            gpu_direct_rdma: String::new(),
            posix_fd_export: String::new(),
        };
        let wide = Outcome {
            part: "examples",
            what: "t5_resnet50_multiscale, concertina".to_owned(),
            status: Status::Stopped,
            took_ms: 459_900,
            detail: "a long story, ".repeat(9),
            figures: Value::Null,
        };
        let table = text(&facts, &[wide]);
        for line in table.lines() {
            assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        }
        assert!(table.contains("EMULATED") && table.contains("0 passed, 0 failed, 1 stopped"), "{table}");
    }
}
