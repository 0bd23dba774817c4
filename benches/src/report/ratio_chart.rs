//! Bar charts of quotients that can't be less than 1: mapped over live, minimum capacity over live.
//!
//! Neighbours: `chart` frames the drawing; the figures are the outcome's.

use maud::{Markup, html};

use super::axis::{Scale, ticks};
use super::chart::{Chart, ChartKind, Drawing, Format, both};
use super::label;
use super::member::Member;

/// The chart of the peaks of mapped over live bytes.
pub(super) fn mapped(members: &[Member<'_>]) -> Option<Chart> {
    let rows = rows(members, "/mapped_over_live");
    let note = "Peak of physical memory over the peak of live bytes. Bars begin at 1, the least that is possible; \
        shorter is better.";
    chart(ChartKind::Mapped, "Mapped over live", note, &rows)
}

/// The chart of the smallest device that is enough, over the live peak; none if nobody searched for it.
pub(super) fn min_capacity(members: &[Member<'_>]) -> Option<Chart> {
    let rows = rows(members, "/min_capacity_over_live");
    let note = "The smallest device on which the trace runs to its end, over the live peak. Bars begin at 1; shorter \
        is better.";
    chart(ChartKind::MinCapacity, "Minimum capacity over live", note, &rows)
}

/// A bar: what it stands for, and how long it is if that is known.
struct Bar<'m, 'a> {
    member: &'m Member<'a>,
    ratio: Option<f64>,
}

impl Bar<'_, '_> {
    /// The figure as text, with a star if it is of a run that did not complete.
    fn figure(&self) -> String {
        let star = if self.member.completed() { "" } else { "*" };
        self.ratio.map_or_else(|| "none found".to_owned(), |ratio| format!("{ratio:.4}{star}"))
    }
}

fn rows<'m, 'a>(members: &'m [Member<'a>], pointer: &str) -> Vec<Bar<'m, 'a>> {
    members.iter().map(|member| Bar { member, ratio: member.number(pointer) }).collect()
}

fn chart(kind: ChartKind, title: &'static str, note: &str, bars: &[Bar<'_, '_>]) -> Option<Chart> {
    let most = bars
        .iter()
        .filter_map(|bar| bar.ratio)
        .fold(None, |most: Option<f64>, ratio| Some(most.map_or(ratio, |most| most.max(ratio))))?;
    let incomplete = bars.iter().any(|bar| !bar.member.completed());
    let star = if incomplete { " *: the run did not complete." } else { "" };
    let (wide, narrow) = both(|format| draw(bars, title, most.max(1.02), format));
    let note = format!("{note}{star}");
    Some(Chart { kind, title, note, keys: Vec::new(), values: String::new(), wide, narrow })
}

fn draw(bars: &[Bar<'_, '_>], title: &str, most: f64, format: Format) -> Drawing {
    let pitch = format.pick(30.0, 42.0);
    let (left, right) = format.pick((170.0, 870.0), (0.0, format.width() - 62.0));
    let bottom = pitch * bars.len() as f64 + 6.0;
    let x = Scale::new((1.0, most), (left, right));
    let body = html! {
        @for tick in ticks(1.0, most, format.pick(6.0, 3.0)) {
            path class=(if tick == 1.0 { "base" } else { "grid" }) d=(format!("M{} 2V{bottom}", x.at(tick))) {}
            text class=(if format == Format::Narrow && tick == 1.0 { "tick" } else { "tick middle" })
                x=(x.at(tick)) y=(bottom + 15.0) { (format!("{tick:.2}")) }
        }
        @for (index, bar) in bars.iter().enumerate() { (row(bar, title, pitch * index as f64, x, format)) }
    };
    Drawing { height: bottom + 22.0, body }
}

fn row(bar: &Bar<'_, '_>, title: &str, top: f64, x: Scale, format: Format) -> Markup {
    let (start, end) = (x.at(1.0), x.at(bar.ratio.unwrap_or(1.0).max(1.0)));
    let (bar_top, thick) = format.pick((top + 7.0, 18.0), (top + 20.0, 16.0));
    let told = format!("{}: {}: {}", bar.member.name, title.to_lowercase(), bar.figure());
    html! {
        g.hit data-text=(told) {
            title { (told) }
            @match format {
                Format::Wide => text.label.right x=(start - 12.0) y=(bar_top + 13.5) { (bar.member.short_name()) },
                Format::Narrow => text.label x="0" y=(top + 15.0) { (label::short(&bar.member.name, 44)) },
            }
            rect class=(format!("fill {}", bar.member.hue.class())) x=(start) y=(bar_top)
                width=(((end - start).max(2.0) * 10.0).round() / 10.0) height=(thick) rx="1.5" {}
            text.label.figure x=(end + 7.0) y=(bar_top + 13.0) { (bar.figure()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::min_capacity;
    use crate::report::member::Member;

    #[test]
    fn bars_are_as_long_as_what_is_above_1() {
        let members = [
            Member::of_figures("a", json!({"completed": true, "min_capacity_over_live": 1.1})),
            Member::of_figures("b", json!({"completed": true, "min_capacity_over_live": 1.2})),
            Member::of_figures("c", json!({"completed": true, "min_capacity_over_live": null})),
        ];
        let chart = min_capacity(&members).expect("somebody searched");
        let drawn = chart.wide.body.into_string();
        // 700 units from 1 to the most: half of them, all of them.
        for bar in ["x=\"170\" y=\"7\" width=\"350\"", "x=\"170\" y=\"37\" width=\"700\""] {
            assert!(drawn.contains(bar), "{bar}: {drawn}");
        }
        for text in ["a: minimum capacity over live: 1.1000", "c: minimum capacity over live: none found"] {
            assert!(drawn.contains(text), "{text}: {drawn}");
        }
        let nobody = [Member::of_figures("a", json!({"completed": true}))];
        assert!(min_capacity(&nobody).is_none());
    }
}
