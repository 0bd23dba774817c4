//! A chart: drawn twice, for wide and for narrow screens, as a part of the page or as a file of its own.
//!
//! Main types: [`Chart`], [`ChartKind`], [`Drawing`], [`Format`], [`Key`]. Neighbours: each chart has a file that makes
//! one; `chart.css` has the looks, and the page's script shows values where one points.

use std::fmt::{self, Write as _};

use maud::{Markup, PreEscaped, html};

use super::hue::{self, DARK, LIGHT};
use super::label;

/// Looks of everything inside of the drawings, with variables for colours.
pub(super) const STYLE: &str = include_str!("chart.css");

/// For which screen a chart is drawn. Text has the same size on both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// A desk.
    Wide,
    /// A phone.
    Narrow,
}

impl Format {
    /// Width of a drawing in its own units, about a pixel each.
    pub(super) const fn width(self) -> f64 {
        match self {
            Self::Wide => 960.0,
            Self::Narrow => 320.0,
        }
    }

    /// One of two values.
    pub(super) fn pick<T>(self, wide: T, narrow: T) -> T {
        match self {
            Self::Wide => wide,
            Self::Narrow => narrow,
        }
    }
}

/// Which chart it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChartKind {
    /// Live and mapped bytes over events.
    Memory,
    /// Mapped over live.
    Mapped,
    /// Minimum capacity over live.
    MinCapacity,
    /// Driver calls by kind.
    Calls,
    /// Memory at a moment.
    Map,
}

impl ChartKind {
    /// Its name in files and attributes.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Mapped => "mapped",
            Self::MinCapacity => "min-capacity",
            Self::Calls => "calls",
            Self::Map => "map",
        }
    }
}

/// What is drawn, in units from the upper left corner.
pub(super) struct Drawing {
    /// Height in units of the width's.
    pub(super) height: f64,
    /// Elements of SVG.
    pub(super) body: Markup,
}

/// An entry of the key: what a colour or a sign means.
pub(super) struct Key {
    /// Classes of the sign's shape.
    pub(super) class: String,
    /// Whether it is a line or an area.
    pub(super) sign: Sign,
    /// The meaning.
    pub(super) text: String,
}

/// The shape beside a key's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// A line.
    Line,
    /// A square.
    Square,
    /// A dot as small as in the map.
    Dot,
    /// A dash as small as in the map.
    Dash,
}

/// A chart with all that belongs to it.
pub(super) struct Chart {
    /// Which one.
    pub(super) kind: ChartKind,
    /// What it shows, in a few words.
    pub(super) title: &'static str,
    /// How to read it, in a sentence or two.
    pub(super) note: String,
    /// What the colours mean.
    pub(super) keys: Vec<Key>,
    /// Exact values for the script: arrays of numbers, in JSON.
    pub(super) values: String,
    /// For a wide screen.
    pub(super) wide: Drawing,
    /// For a narrow one.
    pub(super) narrow: Drawing,
}

/// A coordinate as it is written: to a tenth, without a tenth that is 0.
pub(super) struct Unit(pub(super) f64);

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0 * 10.0).round() / 10.0;
        write!(f, "{tenths}")
    }
}

/// An estimate of a text's width in units, at the size of labels. Nobody can measure a font here.
pub(super) fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 6.7
}

impl Sign {
    fn draw(self, class: &str) -> Markup {
        match self {
            Self::Line => html! { path class=(format!("line {class}")) d="M0 8H18" {} },
            Self::Square => html! { rect class=(class) x="3" y="2" width="12" height="12" {} },
            Self::Dot => html! { path class=(class) d="M9 7v3" {} },
            Self::Dash => html! { path class=(class) d="M6 8.5h5" {} },
        }
    }
}

impl Chart {
    /// The chart as a figure of a page; `trace` is the trace's name.
    pub(super) fn figure(&self, trace: &str) -> Markup {
        let name = format!("{}: {}", self.title, label::clean(trace));
        html! {
            figure.chart data-chart=(self.kind.name()) data-values=(self.values) {
                figcaption {
                    h3 { (self.title) }
                    p.note { (self.note) }
                }
                ul.keys {
                    @for key in &self.keys {
                        li {
                            svg width="18" height="16" viewBox="0 0 18 16" aria-hidden="true" {
                                (key.sign.draw(&key.class))
                            }
                            span { (key.text) }
                        }
                    }
                }
                div.plot tabindex="0" role="group" aria-label=(format!("{name}. Arrow keys go through the values.")) {
                    @for (format, drawing) in [(Format::Wide, &self.wide), (Format::Narrow, &self.narrow)] {
                        svg class=(format.pick("wide", "narrow")) role="img" aria-label=(name)
                            viewBox=(format!("0 0 {} {}", format.width(), Unit(drawing.height))) {
                            (drawing.body)
                        }
                    }
                }
                p.readout aria-live="polite" { "Point at the chart, or focus it and use the arrow keys." }
            }
        }
    }

    /// The chart as a file: a document with its own style, in which light and dark are the viewer's choice.
    pub(super) fn standalone(&self, trace: &str) -> String {
        const MARGIN: f64 = 24.0;
        let (width, keys) = (Format::Wide.width(), self.key_rows());
        let top = 66.0 + 22.0 * keys.len() as f64;
        let (all_width, all_height) = (width + 2.0 * MARGIN, top + self.wide.height + MARGIN);
        let trace = label::clean(trace);
        let svg = html! {
            svg xmlns="http://www.w3.org/2000/svg" role="img" font-family="system-ui, sans-serif"
                width=(Unit(all_width)) height=(Unit(all_height))
                viewBox=(format!("0 0 {} {}", Unit(all_width), Unit(all_height))) {
                title { (self.title) ": " (trace) }
                desc { (label::clean(&self.note)) }
                style { (PreEscaped(sheet())) }
                rect.paper width="100%" height="100%" {}
                text.title x=(MARGIN) y="34" { (label::short(&format!("{trace}: {}", self.title), 90)) }
                text.tick x=(MARGIN) y="54" { (label::short(&self.note, 150)) }
                @for (row, keys) in keys.iter().enumerate() {
                    @for (x, key) in keys {
                        g transform=(format!("translate({} {})", Unit(MARGIN + x), Unit(64.0 + 22.0 * row as f64))) {
                            (key.sign.draw(&key.class))
                            text.label x="24" y="12" { (key.text) }
                        }
                    }
                }
                g transform=(format!("translate({MARGIN} {})", Unit(top))) { (self.wide.body) }
            }
        };
        format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}\n", svg.into_string())
    }

    /// The keys in rows that are no wider than the chart, each with where it begins.
    fn key_rows(&self) -> Vec<Vec<(f64, &Key)>> {
        let mut rows: Vec<Vec<(f64, &Key)>> = Vec::new();
        let mut x = f64::INFINITY;
        for key in &self.keys {
            let width = 44.0 + text_width(&key.text);
            if x + width > Format::Wide.width() {
                rows.push(Vec::new());
                x = 0.0;
            }
            if let Some(row) = rows.last_mut() {
                row.push((x, key));
            }
            x += width;
        }
        rows
    }
}

/// The style sheet of a file, with values in place of variables.
fn sheet() -> String {
    let css = format!("{STYLE}{}", hue::rules());
    let mut sheet = LIGHT.fill_in(&css);
    let _ = write!(sheet, "@media (prefers-color-scheme:dark){{{}}}", DARK.fill_in(&css));
    sheet
}

/// Both drawings of one chart.
pub(super) fn both(draw: impl Fn(Format) -> Drawing) -> (Drawing, Drawing) {
    (draw(Format::Wide), draw(Format::Narrow))
}
