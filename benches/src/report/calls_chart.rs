//! The chart of driver calls that change memory, by kind: a stacked bar for each allocator.
//!
//! Neighbours: `chart` frames the drawing; `tables` has the same in numbers.

use concertina_vmm::Call;
use maud::{Markup, html};

use super::axis::{Scale, count_ticks};
use super::chart::{Chart, ChartKind, Drawing, Format, Key, Sign, both};
use super::label;
use super::member::Member;
use crate::number::count;

/// The kinds that change memory, in the order of their colours.
pub(super) fn kinds() -> impl Iterator<Item = Call> {
    Call::ALL.iter().copied().filter(|call| call.is_memory_call())
}

/// Calls of each kind, and their sum.
struct Bar<'m, 'a> {
    member: &'m Member<'a>,
    calls: Vec<u64>,
}

impl Bar<'_, '_> {
    fn sum(&self) -> u64 {
        self.calls.iter().sum()
    }
}

/// The chart; none if there is nothing to compare.
pub(super) fn chart(members: &[Member<'_>]) -> Option<Chart> {
    let bars: Vec<Bar<'_, '_>> = members
        .iter()
        .map(|member| {
            let calls =
                kinds().map(|call| member.whole(&format!("/driver_calls/{}", call.name())).unwrap_or(0));
            Bar { member, calls: calls.collect() }
        })
        .collect();
    let most = bars.iter().map(Bar::sum).max()?;
    let (wide, narrow) = both(|format| draw(&bars, most, format));
    let used = |index: usize| bars.iter().any(|bar| bar.calls[index] > 0);
    let keys = kinds().enumerate().filter(|(index, _)| used(*index)).map(|(index, call)| Key {
        class: format!("fill k{index}"),
        sign: Sign::Square,
        text: call.name().to_owned(),
    });
    Some(Chart {
        kind: ChartKind::Calls,
        title: "Driver calls by kind",
        note: "Calls that change memory, in the whole run. Shorter is better.".to_owned(),
        keys: keys.collect(),
        values: String::new(),
        wide,
        narrow,
    })
}

fn draw(bars: &[Bar<'_, '_>], most: u64, format: Format) -> Drawing {
    let pitch = format.pick(30.0, 42.0);
    let (left, right) = format.pick((170.0, 870.0), (0.0, format.width() - 62.0));
    let bottom = pitch * bars.len() as f64 + 6.0;
    let x = Scale::new((0.0, most.max(1) as f64), (left, right));
    let body = html! {
        @for (tick, text) in count_ticks(most, format.pick(6.0, 3.0)) {
            path class=(if tick == 0.0 { "base" } else { "grid" }) d=(format!("M{} 2V{bottom}", x.at(tick))) {}
            text class=(if format == Format::Narrow && tick == 0.0 { "tick" } else { "tick middle" })
                x=(x.at(tick)) y=(bottom + 15.0) { (text) }
        }
        @for (index, bar) in bars.iter().enumerate() { (row(bar, pitch * index as f64, x, format)) }
    };
    Drawing { height: bottom + 22.0, body }
}

fn row(bar: &Bar<'_, '_>, top: f64, x: Scale, format: Format) -> Markup {
    let (bar_top, thick) = format.pick((top + 7.0, 18.0), (top + 20.0, 16.0));
    let name = &bar.member.name;
    let mut parts = Vec::new();
    let mut before = 0;
    for (index, (call, calls)) in kinds().zip(bar.calls.iter().copied()).enumerate() {
        if calls > 0 {
            parts.push((index, call, calls, x.at(before as f64), x.at((before + calls) as f64)));
        }
        before += calls;
    }
    html! {
        @match format {
            Format::Wide => text.label.right x=(x.at(0.0) - 12.0) y=(bar_top + 13.5) { (bar.member.short_name()) },
            Format::Narrow => text.label x="0" y=(top + 15.0) { (label::short(name, 44)) },
        }
        @for (index, call, calls, start, end) in parts {
            @let told = format!("{name}: {}: {} of {} calls", call.name(), count(calls), count(bar.sum()));
            g.hit data-text=(told) {
                title { (told) }
                rect class=(format!("parts fill k{index}")) x=(start) y=(bar_top)
                    width=(((end - start).max(0.5) * 10.0).round() / 10.0) height=(thick) {}
            }
        }
        text.label.figure x=(x.at(before as f64) + 7.0) y=(bar_top + 13.0) { (count(bar.sum())) }
    }
}
