//! The tables of the page: all traces at a glance, the figures of one, and what its charts show in numbers.
//!
//! Neighbours: `metric` has the rows; `page` puts the tables in their places.

use concertina_trace::{Mark, Sample};
use maud::{Markup, html};

use super::cells::MapFigures;
use super::member::Member;
use super::metric::{Figured, Metric, OVERVIEW};
use super::{Section, label};
use crate::number::{bytes, count};

/// What the table of the memory map shows.
const MAP: &str = "Memory at that moment. Pages with live bytes, idle pages and what no address leads to are all that \
    is mapped.";
/// Most marks in a table; of more, some at equal distances.
const MARKS: usize = 200;

/// A table with what it shows, in a box of its own that scrolls if it is too wide, as people with a keyboard can.
fn boxed(name: &str, caption: &str, table: &Markup) -> Markup {
    html! {
        @if !caption.is_empty() { p.caption { (caption) } }
        div.box tabindex="0" role="region" aria-label=(name) { (table) }
    }
}

/// One figure. The best has a sign, too: not all see colours.
fn cell(key: &str, figured: Option<&Figured>, completed: bool) -> Markup {
    html! {
        @match figured {
            None => td { "–" },
            Some(Figured { value, text, best }) => {
                td.best[*best].stopped[!completed] data-key=(key) data-value=(value) {
                    @if *best { span.sign { "★" } span.unseen { "best: " } }
                    (text)
                    @if !completed { "*" }
                }
            }
        }
    }
}

/// A head for each allocator, with its colour.
fn heads(members: &[Member<'_>]) -> Markup {
    html! {
        @for member in members {
            th scope="col" {
                span.head {
                    svg width="10" height="10" viewBox="0 0 10 10" aria-hidden="true" {
                        rect class=(format!("fill {}", member.hue.class())) width="10" height="10" rx="2" {}
                    }
                    // Names with options may break behind each.
                    span { @for part in member.name.split_inclusive([':', ',']) { (part) wbr; } }
                }
            }
        }
    }
}

/// Mapped over live for all traces. The columns are the cases of the first trace: all traces have the same.
pub(super) fn overview(sections: &[Section<'_>]) -> Markup {
    let first = sections.first().map_or(&[][..], |section| &section.members);
    let table = html! {
        table.figures data-table="overview" {
            thead { tr { th scope="col" { "trace" } (heads(first)) } }
            tbody {
                @for section in sections {
                    tr data-trace=(section.slug) {
                        @let name = label::short(&section.trace.name, 48);
                        th scope="row" {
                            a href=(format!("#{}", section.slug)) {
                                @for part in name.split_inclusive('_') { (part) wbr; }
                            }
                        }
                        @for (figured, member) in OVERVIEW.row(&section.members).iter().zip(&section.members) {
                            (cell(OVERVIEW.key(), figured.as_ref(), member.completed()))
                        }
                    }
                }
            }
        }
    };
    boxed(
        "Overview",
        "Peak of physical memory over the peak of live bytes. 1 is the least that is possible.",
        &table,
    )
}

/// The figures of one trace: a row a metric, a column a case.
pub(super) fn figures(section: &Section<'_>) -> Markup {
    let members = &section.members;
    let table = html! {
        table.figures data-table=(section.slug) {
            thead { tr { th scope="col" { "less is better" } (heads(members)) } }
            tbody {
                @for metric in Metric::of(members) {
                    tr {
                        th scope="row" { (metric.name) }
                        @for (figured, member) in metric.row(members).iter().zip(members) {
                            (cell(metric.key(), figured.as_ref(), member.completed()))
                        }
                    }
                }
            }
        }
    };
    boxed("Figures", "", &table)
}

/// What stopped, and why.
pub(super) fn failures(members: &[Member<'_>]) -> Markup {
    html! {
        @for member in members {
            @if let Some(failure) = member.failure() {
                p.failure {
                    "* " b { (member.name) } " stopped: " (failure)
                    @if let Some(error) = member.text("/error") { ". " (label::short(error, 300)) }
                }
            }
        }
    }
}

/// Driver calls by kind.
pub(super) fn calls(members: &[Member<'_>]) -> Markup {
    let table = html! {
        table.figures data-table="calls" {
            thead { tr { th scope="col" { "kind" } (heads(members)) } }
            tbody {
                @for call in concertina_vmm::Call::ALL {
                    @let pointer = format!("/driver_calls/{}", call.name());
                    @if members.iter().any(|member| member.whole(&pointer).is_some_and(|calls| calls > 0)) {
                        tr {
                            th scope="row" { (call.name()) @if !call.is_memory_call() { " (changes no memory)" } }
                            @for member in members { td { (member.whole(&pointer).map(count).unwrap_or_default()) } }
                        }
                    }
                }
            }
        }
    };
    boxed("Driver calls", "Driver calls that were done.", &table)
}

/// The memory map in bytes.
pub(super) fn map(members: &[Member<'_>]) -> Markup {
    let with = || members.iter().filter_map(|member| Some((member, member.picture()?)));
    let figures: Vec<(&Member<'_>, u64, u64, MapFigures)> = with()
        .map(|(member, picture)| {
            let page_bytes = member.page_bytes();
            let figures = MapFigures::of(&picture.pages(page_bytes), page_bytes, picture.mapped_bytes);
            (member, picture.mapped_bytes, picture.reserved_bytes, figures)
        })
        .collect();
    let table = html! {
        table.figures data-table="map" {
            thead {
                tr {
                    th scope="col" { "allocator" }
                    @for head in ["live", "mapped", "pages with live bytes", "idle pages", "longest idle run",
                        "no address leads to", "stale pages", "addresses reserved"] {
                        th scope="col" { (head) }
                    }
                }
            }
            tbody {
                @for (member, mapped, reserved, figures) in &figures {
                    tr {
                        th scope="row" { (member.name) }
                        @for value in [figures.live, *mapped, figures.in_live_pages, figures.idle, figures.longest_idle,
                            figures.unmapped, figures.stale, *reserved] {
                            td data-value=(value) { (bytes(value)) }
                        }
                    }
                }
            }
        }
    };
    html! { @if !figures.is_empty() { (boxed("Memory at one moment", MAP, &table)) } }
}

/// Live and mapped bytes at the marks, and addresses reserved.
pub(super) fn marks(members: &[Member<'_>], marks: &[Mark]) -> Markup {
    let at = |member: &Member<'_>, event: usize| -> Option<Sample> {
        let samples = member.samples();
        let index = samples.binary_search_by_key(&event, |sample| sample.event).ok()?;
        samples.get(index).copied()
    };
    let every = marks.len().div_ceil(MARKS).max(1);
    let shown = || marks.iter().step_by(every);
    let thinned = if every > 1 {
        format!(" One of {every}, of {} in all.", count(marks.len() as u64))
    } else {
        String::new()
    };
    let caption =
        format!("At the marks of the trace: mapped bytes, and in brackets the addresses reserved.{thinned}");
    let table = html! {
        table.figures data-table="marks" {
            thead {
                tr { @for head in ["mark", "event", "live"] { th scope="col" { (head) } } (heads(members)) }
            }
            tbody {
                @for mark in shown() {
                    tr {
                        th scope="row" { (label::short(&mark.label, 60)) }
                        td { (count(mark.event as u64)) }
                        td {
                            @let live = members.iter().find_map(|member| at(member, mark.event));
                            (live.map_or_else(|| "–".to_owned(), |sample| bytes(sample.live_bytes)))
                        }
                        @for member in members {
                            td {
                                @match at(member, mark.event) {
                                    Some(Sample { mapped_bytes, reserved_bytes, .. }) => {
                                        (bytes(mapped_bytes)) " (" (bytes(reserved_bytes)) ")"
                                    }
                                    None => "–",
                                }
                            }
                        }
                    }
                }
            }
        }
    };
    let reached = shown().any(|mark| members.iter().any(|member| at(member, mark.event).is_some()));
    html! { @if reached { (boxed("Marks", &caption, &table)) } }
}
