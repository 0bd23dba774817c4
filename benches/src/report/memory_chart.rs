//! The chart of live and mapped bytes over the events of a trace.
//!
//! Neighbours: `crates/trace` has the samples; `chart` frames the drawing.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use concertina_trace::{Mark, Sample};
use maud::{Markup, html};

use super::axis::{Scale, byte_ticks, count_ticks};
use super::chart::{Chart, ChartKind, Drawing, Format, Key, Sign, Unit, both};
use super::label;
use super::member::Member;

/// Most marks that get a line: more would hide the curves.
const MARKS: usize = 40;
/// Most marks whose labels are written in the chart.
const LABELS: usize = 6;
/// Height of a line of labels, in units.
const LINE: f64 = 15.0;

/// The chart; none if nobody watched.
pub(super) fn chart(members: &[Member<'_>], marks: &[Mark]) -> Option<Chart> {
    let curves = Curves::of(members, marks)?;
    let (wide, narrow) = both(|format| curves.draw(format));
    let live = Key { class: "live".to_owned(), sign: Sign::Square, text: "live, as asked".to_owned() };
    let mapped = members.iter().map(|member| Key {
        class: member.hue.class(),
        sign: Sign::Line,
        text: member.name.clone(),
    });
    Some(Chart {
        kind: ChartKind::Memory,
        title: "Live and mapped bytes over events",
        note:
            "Area: what the program has allocated. Lines: physical memory that each allocator holds for it."
                .to_owned(),
        keys: std::iter::once(live).chain(mapped).collect(),
        values: curves.values(),
        wide,
        narrow,
    })
}

/// What is drawn.
struct Curves<'a, 'm> {
    members: &'m [Member<'a>],
    marks: &'m [Mark],
    /// Those of the member that came furthest.
    live: &'a [Sample],
    last_event: usize,
    highest: u64,
    capacity: Option<u64>,
}

impl<'a, 'm> Curves<'a, 'm> {
    fn of(members: &'m [Member<'a>], marks: &'m [Mark]) -> Option<Self> {
        let reach = |member: &&Member<'a>| member.samples().last().map_or(0, |sample| sample.event);
        let live = members.iter().max_by_key(reach)?.samples();
        let last_event = live.last()?.event;
        let samples = members.iter().flat_map(|member| member.samples());
        let highest = samples.map(|sample| sample.mapped_bytes.max(sample.live_bytes)).max()?;
        // Where memory is ample, its end would leave the curves no room.
        let near = |capacity: &u64| *capacity as f64 <= 1.25 * highest as f64;
        let capacity = members.iter().find_map(|member| member.whole("/capacity_bytes")).filter(near);
        Some(Self { members, marks, live, last_event, highest: highest.max(capacity.unwrap_or(0)), capacity })
    }

    fn draw(&self, format: Format) -> Drawing {
        let (width, height) = (format.width(), format.pick(320.0, 230.0));
        let (left, right) = format.pick((64.0, width - 158.0), (2.0, width - 4.0));
        let (top, bottom) = (22.0, height - 34.0);
        let x = Scale::new((0.0, self.last_event as f64), (left, right));
        let y = Scale::new((0.0, self.highest as f64 * 1.04), (bottom, top));
        let body = html! {
            g data-plot=(format!("{left} {right} {}", self.last_event)) {
                (self.grid(format, (left, right), y))
                @for (tick, text) in count_ticks(self.last_event as u64, format.pick(7.0, 3.0)) {
                    @let class = if tick == 0.0 { "tick" } else { "tick middle" };
                    text class=(class) x=(x.at(tick)) y=(bottom + 16.0) { (text) }
                }
                text.tick.right x=(right) y=(bottom + 31.0) { "events" }
                (self.mark_lines(format, x, (top, bottom)))
                path.live d=(area(self.live, x, y)) {}
                path.liveline d=(line(self.live, |sample| sample.live_bytes, x, y)) {}
                @for member in self.members {
                    path class=(format!("line {}", member.hue.class()))
                        d=(line(member.samples(), |sample| sample.mapped_bytes, x, y)) {
                        title { (member.name) ": mapped bytes" }
                    }
                }
                (self.stops(x, y))
                @if format == Format::Wide { (self.end_labels(x, y, (top, bottom), right)) }
                path.cursor d=(format!("M0 {top}V{bottom}")) {}
            }
        };
        Drawing { height, body }
    }

    fn grid(&self, format: Format, (left, right): (f64, f64), y: Scale) -> Markup {
        html! {
            @for (tick, text) in byte_ticks(self.highest, format.pick(5.0, 4.0)) {
                path class=(if tick == 0.0 { "base" } else { "grid" }) d=(format!("M{left} {}H{right}", y.at(tick))) {}
                @match format {
                    Format::Wide => text.tick.right x=(left - 8.0) y=(y.at(tick) + 4.0) { (text) },
                    Format::Narrow => text.tick x=(left) y=(y.at(tick) - 4.0) { (text) },
                }
            }
            @if let Some(capacity) = self.capacity {
                path.limit d=(format!("M{left} {}H{right}", y.at(capacity as f64))) {}
                text.tick.right x=(right) y=(y.at(capacity as f64) - 5.0) { "the device's memory" }
            }
        }
    }

    fn mark_lines(&self, format: Format, x: Scale, (top, bottom): (f64, f64)) -> Markup {
        let every = self.marks.len().div_ceil(MARKS).max(1);
        let labels = format == Format::Wide && self.marks.len() <= LABELS;
        let marks = self.marks.iter().step_by(every).filter(|mark| mark.event <= self.last_event);
        html! {
            @for mark in marks {
                @let at = x.at(mark.event as f64);
                path.mark d=(format!("M{at} {top}V{bottom}")) { title { "mark: " (label::clean(&mark.label)) } }
                @if labels { text.tick x=(at + 3.0) y=(top - 8.0) { (label::short(&mark.label, 18)) } }
            }
        }
    }

    /// Names at the ends of the lines, pushed apart until all can be read.
    fn end_labels(&self, x: Scale, y: Scale, (top, bottom): (f64, f64), right: f64) -> Markup {
        let mut labels: Vec<(f64, f64, f64, &Member<'_>)> = Vec::new();
        for member in self.members {
            if let Some(last) = member.samples().last() {
                let (end, height) = (x.at(last.event as f64), y.at(last.mapped_bytes as f64));
                labels.push((height, end, height, member));
            }
        }
        labels.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut least = top;
        for label in &mut labels {
            label.0 = label.0.max(least);
            least = label.0 + LINE;
        }
        let mut most = bottom;
        for label in labels.iter_mut().rev() {
            label.0 = label.0.min(most);
            most = label.0 - LINE;
        }
        html! {
            @for (label, end, height, member) in labels {
                @let hue = member.hue.class();
                // From where a line stopped a leader would look as if it went on.
                @if end == right {
                    path class=(format!("leader line {hue}"))
                        d=(format!("M{end} {height}L{} {height}L{} {}", right + 4.0, right + 14.0, Unit(label))) {}
                }
                text class=(format!("label fill {hue}")) x=(right + 18.0) y=(Unit(label + 4.0)) {
                    (label::short(&member.name, 21)) @if end < right { " ✕" }
                }
            }
        }
    }

    /// A cross where a line stopped before the trace's end.
    fn stops(&self, x: Scale, y: Scale) -> Markup {
        let last = |member: &Member<'_>| {
            member.samples().last().filter(|sample| sample.event < self.last_event).copied()
        };
        html! {
            @for (member, last) in self.members.iter().filter_map(|member| Some((member, last(member)?))) {
                @let (at, height) = (x.at(last.event as f64), y.at(last.mapped_bytes as f64));
                path class=(format!("line stop {}", member.hue.class()))
                    d=(format!("M{} {}l9 9m0 -9l-9 9", Unit(at - 4.5), Unit(height - 4.5))) {
                    title { (member.name) " stopped" }
                }
            }
        }
    }

    /// `[[event, …], [live, …], [mapped of the first, …], …]` at the events that all members were sampled at as far as
    /// they came; null where one did not come so far.
    fn values(&self) -> String {
        let mapped: Vec<BTreeMap<usize, u64>> = self
            .members
            .iter()
            .map(|member| member.samples().iter().map(|sample| (sample.event, sample.mapped_bytes)).collect())
            .collect();
        let told = |of: &BTreeMap<usize, u64>, event| {
            of.contains_key(&event) || of.last_key_value().is_none_or(|(last, _)| *last < event)
        };
        let shared: Vec<&Sample> =
            self.live.iter().filter(|sample| mapped.iter().all(|of| told(of, sample.event))).collect();
        let mut rows = vec![
            list(shared.iter().map(|sample| Some(sample.event as u64))),
            list(shared.iter().map(|sample| Some(sample.live_bytes))),
        ];
        rows.extend(mapped.iter().map(|of| list(shared.iter().map(|sample| of.get(&sample.event).copied()))));
        format!("[{}]", rows.join(","))
    }
}

fn list(values: impl Iterator<Item = Option<u64>>) -> String {
    let texts = values.map(|value| value.map_or_else(|| "null".to_owned(), |value| value.to_string()));
    format!("[{}]", texts.collect::<Vec<_>>().join(","))
}

/// Steps from sample to sample: what holds after one event holds until the next.
fn line(samples: &[Sample], of: impl Fn(&Sample) -> u64, x: Scale, y: Scale) -> String {
    let mut path = String::new();
    let mut before = None;
    for sample in samples {
        let (at, height) = (x.at(sample.event as f64), y.at(of(sample) as f64));
        // A string takes whatever is written.
        let _ = match before {
            None => write!(path, "M{at} {height}"),
            Some((_, same)) if same == height => continue,
            Some((same, _)) if same == at => write!(path, "V{height}"),
            Some(_) => write!(path, "H{at}V{height}"),
        };
        before = Some((at, height));
    }
    if let Some(last) = samples.last() {
        let _ = write!(path, "H{}", x.at(last.event as f64));
    }
    path
}

fn area(samples: &[Sample], x: Scale, y: Scale) -> String {
    match samples.first() {
        Some(first) => format!(
            "{}V{}H{}Z",
            line(samples, |sample| sample.live_bytes, x, y),
            y.at(0.0),
            x.at(first.event as f64)
        ),
        None => String::new(),
    }
}
