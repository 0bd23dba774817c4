//! The page: a head with what was run, the traces at a glance, and a section for each.
//!
//! Neighbours: `tables` and the charts have its parts; `page.css` and `page.js` are put into it.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::STYLE;
use super::hue::{self, DARK, HueBook, LIGHT};
use super::member::Member;
use super::{Report, Section, label, tables};
use crate::number::{bytes, count};

const PAGE_STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// Nothing is loaded from anywhere, even if something slips through.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

const FOOT: &str = "Bytes and driver calls are counted, exact, and the same on every machine. Figures marked \
    MODELLED come from a cost table and not from a GPU. ns / event is the time of the host that ran this. Every figure is \
    defined in docs/bench.md.";

/// The whole page.
pub(super) fn page(report: &Report, sections: &[Section<'_>], hues: &HueBook) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="color-scheme" content="light dark";
                title { "Concertina bench: " (label::short(&names(sections), 80)) }
                link rel="icon" href="data:,";
                style { (PreEscaped(sheet())) }
            }
            body {
                header {
                    div.top {
                        h1 { "GPU allocators, side by side" }
                        button #theme type="button" aria-label="Light, dark, or as the system has it" {
                            "Theme: system"
                        }
                    }
                    (what_was_run(report, sections))
                }
                main {
                    @for (index, allocator) in hues.numbered().into_iter().enumerate() {
                        p.legend { b { "#" (index + 1) } ": " (label::clean(allocator)) }
                    }
                    (legend())
                    @if sections.len() > 1 {
                        section.card #overview {
                            h2 { "All traces" }
                            (tables::overview(sections))
                        }
                    }
                    @for section in sections { (trace(section)) }
                }
                footer {
                    p { (FOOT) }
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}

fn sheet() -> String {
    let (light, dark) = (LIGHT.variables(), DARK.variables());
    let colours = format!(
        ":root{{color-scheme:light dark;{light}}}\
         @media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\
         :root[data-theme=dark]{{color-scheme:dark;{dark}}}:root[data-theme=light]{{color-scheme:light}}"
    );
    // What has a colour of its own comes last.
    format!("{colours}{PAGE_STYLE}{STYLE}{}", hue::rules())
}

fn names(sections: &[Section<'_>]) -> String {
    sections.iter().map(|section| section.trace.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Device, costs, version, command line.
fn what_was_run(report: &Report, sections: &[Section<'_>]) -> Markup {
    let members = || sections.iter().flat_map(|section| &section.members);
    let all = |of: &dyn Fn(&Member<'_>) -> Option<String>| {
        let mut texts: Vec<String> = Vec::new();
        for text in members().filter_map(of) {
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        match texts.as_slice() {
            [first, _, _, ..] => format!("{first} and {} more", texts.len() - 1),
            few => few.join(", "),
        }
    };
    let text = |pointer: &'static str| all(&|member| member.text(pointer).map(str::to_owned));
    let device = text("/device");
    let events = all(&|member| {
        Some(match member.whole("/work_seed") {
            Some(seed) => format!("work by seed {seed}"),
            None => format!("event lag {}", member.whole("/event_lag")?),
        })
    });
    let costs = match device.as_str() {
        "cuda" => "measured on a GPU".to_owned(),
        _ => format!("{}: driver times are MODELLED, not measured on a GPU", text("/cost_table")),
    };
    let facts = [
        ("Device", device),
        ("Memory", all(&|member| member.whole("/capacity_bytes").map(bytes))),
        ("Granularity", all(&|member| member.whole("/granularity_bytes").map(bytes))),
        ("Events", events),
        ("Cost table", costs),
        ("Concertina", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    html! {
        dl.facts {
            @for (name, value) in facts {
                div { dt { (name) } dd { (label::short(&value, 160)) } }
            }
        }
        pre.command tabindex="0" aria-label="Command line" { (label::clean(&report.command)) }
    }
}

fn legend() -> Markup {
    html! {
        p.legend {
            span.sign { "★" } " the best of its row, among the runs that completed; none where all are alike. "
            "* the run did not complete: its figures end where it did."
        }
    }
}

fn trace(section: &Section<'_>) -> Markup {
    let members = &section.members;
    let most = |pointer: &str| members.iter().filter_map(|member| member.whole(pointer)).max().unwrap_or(0);
    html! {
        section.card.trace id=(section.slug) {
            h2 { (label::clean(&section.trace.name)) }
            p.note {
                (count(most("/events"))) " events, "
                (bytes(most("/live_peak_bytes"))) " live at the peak, on a device of "
                (bytes(most("/capacity_bytes")))
            }
            (tables::figures(section))
            (tables::failures(members))
            @for chart in section.charts() { (chart.figure(&section.trace.name)) }
            details {
                summary { "The charts in numbers" }
                (tables::map(members))
                (tables::calls(members))
                (tables::marks(members, &section.trace.marks))
            }
        }
    }
}
