//! The report that people look at: one page with tables and charts, or the charts alone.
//!
//! Main types: [`Report`], [`TraceReport`], [`Observed`], [`ChartFile`]. Neighbours: `case` has what goes in; `cargo
//! xtask bench` writes the files. Below, each chart has a file; `page` puts them together. Everything that a trace
//! names is escaped by the templates and cleaned by `label`.

mod axis;
mod calls_chart;
mod cells;
mod chart;
mod hue;
mod label;
mod map_chart;
mod member;
mod memory_chart;
mod metric;
mod page;
mod ratio_chart;
mod tables;

use std::collections::HashSet;

use concertina_trace::{Mark, Observation};

use crate::outcome::Outcome;
use chart::Chart;
use hue::HueBook;
use member::Member;

/// One case: its figures, and what was noted in a replay of it.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The figures.
    pub outcome: Outcome,
    /// Samples and a picture of memory; charts that need them are left out without.
    pub observation: Option<Observation>,
}

/// The cases of one trace.
#[derive(Clone, Debug, Default)]
pub struct TraceReport {
    /// The trace's name.
    pub name: String,
    /// Its marks.
    pub marks: Vec<Mark>,
    /// The cases, in the order of the tables.
    pub cases: Vec<Observed>,
}

/// Everything that was run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The command line that made it, for people to repeat.
    pub command: String,
    /// The traces, in the order of the page.
    pub traces: Vec<TraceReport>,
}

/// A chart as a file of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChartFile {
    /// A file name: ASCII letters, digits, `-`, `_`, and `.svg`. The same for the same traces.
    pub name: String,
    /// A whole SVG document, light and dark.
    pub svg: String,
}

/// A trace with its cases as the page shows them.
struct Section<'a> {
    trace: &'a TraceReport,
    /// A name that no other section has: for links and files.
    slug: String,
    members: Vec<Member<'a>>,
}

impl Report {
    /// The page: one HTML document that needs nothing else.
    pub fn page(&self) -> String {
        let hues = self.hues();
        page::page(self, &self.sections(&hues), &hues).into_string()
    }

    /// Every chart of the page as a file.
    pub fn chart_files(&self) -> Vec<ChartFile> {
        let hues = self.hues();
        let options = hues.numbered().into_iter().enumerate();
        let options: String = options.map(|(index, name)| format!(" #{}: {name}.", index + 1)).collect();
        let of_section = |section: &Section<'_>| {
            let file = |mut chart: Chart| {
                chart.note.push_str(&options);
                let svg = chart.standalone(&section.trace.name);
                ChartFile { name: file_name(&section.slug, chart.kind.name()), svg }
            };
            section.charts().into_iter().map(file).collect::<Vec<_>>()
        };
        self.sections(&hues).iter().flat_map(of_section).collect()
    }

    /// The names of the files that will be there in any case, one a trace: to see beforehand that they can be written.
    pub fn sure_files<'n>(traces: impl IntoIterator<Item = &'n str>) -> Vec<String> {
        let name = chart::ChartKind::Mapped.name();
        slugs(traces).iter().map(|slug| file_name(slug, name)).collect()
    }

    fn hues(&self) -> HueBook {
        HueBook::of(self.traces.iter().flat_map(|trace| &trace.cases).map(|case| &case.outcome))
    }

    fn sections(&self, hues: &HueBook) -> Vec<Section<'_>> {
        let slugs = slugs(self.traces.iter().map(|trace| trace.name.as_str()));
        let section = |(trace, slug): (_, _)| Section { trace, slug, members: Member::all(trace, hues) };
        self.traces.iter().zip(slugs).map(section).collect()
    }
}

impl Section<'_> {
    fn charts(&self) -> Vec<Chart> {
        let charts = [
            memory_chart::chart(&self.members, &self.trace.marks),
            ratio_chart::mapped(&self.members),
            ratio_chart::min_capacity(&self.members),
            calls_chart::chart(&self.members),
            map_chart::chart(&self.members),
        ];
        charts.into_iter().flatten().collect()
    }
}

fn file_name(slug: &str, chart: &str) -> String {
    format!("{slug}-{chart}.svg")
}

/// A safe name for each trace, no two alike.
fn slugs<'n>(names: impl IntoIterator<Item = &'n str>) -> Vec<String> {
    let mut taken = HashSet::new();
    let unique = |name| {
        let slug = label::slug(name);
        let numbered = (1..).map(|n| if n == 1 { slug.clone() } else { format!("{slug}-{n}") });
        numbered.into_iter().find(|slug| taken.insert(slug.clone())).unwrap_or(slug)
    };
    names.into_iter().map(unique).collect()
}

#[cfg(test)]
mod tests;
