//! The memory map: what lies behind the addresses of each allocator at one moment, page by page.
//!
//! Neighbours: `cells` puts pages together; `chart` frames the drawing.

use std::fmt::Write as _;

use concertina_trace::PicturePage;
use maud::{Markup, html};

use super::cells::{Cell, Cells, HeldCell};
use super::chart::{Chart, ChartKind, Drawing, Format, Key, Sign, both};
use super::member::Member;
use crate::number::{bytes, count};

/// Most cells of one allocator's map: with more, pages share a cell.
const CELLS: usize = 960;
/// From one cell to the next, in units.
const PITCH: f64 = 10.0;
/// Steps of the shade of held cells.
const SHADES: u64 = 6;

/// The chart; none if no picture shows anything.
pub(super) fn chart(members: &[Member<'_>]) -> Option<Chart> {
    let pictures = members.iter().filter_map(|member| Some((member, member.picture()?)));
    let pages: Vec<(&Member<'_>, Vec<PicturePage>)> =
        pictures.map(|(member, picture)| (member, picture.pages(member.page_bytes()))).collect();
    // Where some stopped before, the others show the moment that was asked for.
    let event = pages.iter().filter_map(|(member, _)| Some(member.picture()?.event)).max()?;
    let page_bytes = pages.first()?.0.page_bytes();
    let pages_each = (0..u64::BITS)
        .map(|power| 1 << power)
        .find(|each| pages.iter().all(|(_, pages)| Cells::of(pages, *each).len() <= CELLS))?;
    let maps: Vec<Map<'_, '_>> = pages
        .iter()
        .map(|(member, pages)| Map { member, event, page_bytes, cells: Cells::of(pages, pages_each) })
        .collect();
    let (wide, narrow) = both(|format| draw(&maps, format));
    let values: Vec<String> = maps.iter().map(Map::values).collect();
    let each =
        if pages_each == 1 { "one page".to_owned() } else { format!("{} held pages", count(pages_each)) };
    let note = format!(
        "After event {}. A square is {each} of {}, in the order of addresses: fuller for more live bytes.",
        count(event as u64),
        bytes(page_bytes)
    );
    Some(Chart {
        kind: ChartKind::Map,
        title: "Memory at one moment",
        note,
        keys: keys(),
        values: format!("[{}]", values.join(",")),
        wide,
        narrow,
    })
}

fn keys() -> Vec<Key> {
    let key = |class: &str, sign, text: &str| Key { class: class.to_owned(), sign, text: text.to_owned() };
    vec![
        key("fill h7 s6", Sign::Square, "held, all of it live"),
        key("fill h7 s1", Sign::Square, "held, little of it live"),
        key("hollow line h7", Sign::Square, "held and idle: no live bytes"),
        key("stale", Sign::Dot, "stale: mapped to memory that counts elsewhere"),
        key("gap", Sign::Dash, "not mapped; long runs are cut"),
    ]
}

/// One allocator's cells.
struct Map<'m, 'a> {
    member: &'m Member<'a>,
    /// The moment that the chart is of.
    event: usize,
    page_bytes: u64,
    cells: Vec<Cell>,
}

impl Map<'_, '_> {
    /// `[[kind, pages, idle pages, live bytes], …]`; kind 0 is held, 1 stale, 2 not mapped.
    fn values(&self) -> String {
        let cell = |cell: &Cell| match cell {
            Cell::Held(held) => format!("[0,{},{},{}]", held.pages(), held.idle_pages, held.live_bytes),
            Cell::Stale { pages } => format!("[1,{pages}]"),
            Cell::Gap { pages } => format!("[2,{pages}]"),
        };
        format!("[{}]", self.cells.iter().map(cell).collect::<Vec<_>>().join(","))
    }

    fn shade(&self, held: &HeldCell) -> u64 {
        let all = held.pages() * self.page_bytes;
        if held.live_bytes == 0 {
            0
        } else {
            (held.live_bytes * SHADES).div_ceil(all.max(1)).clamp(1, SHADES)
        }
    }

    /// One path for all cells that look alike, with its class.
    fn paths(&self, columns: usize) -> Vec<(String, String)> {
        let hue = self.member.hue.class();
        let mut paths: Vec<(String, String)> = Vec::new();
        for (index, cell) in self.cells.iter().enumerate() {
            let (class, shape) = self.look(cell, &hue);
            let at = paths.iter().position(|(known, _)| *known == class).unwrap_or_else(|| {
                paths.push((class, String::new()));
                paths.len() - 1
            });
            let (x, y) = ((index % columns) as f64 * PITCH, (index / columns) as f64 * PITCH);
            // A string takes whatever is written.
            let _ = match shape {
                Shape::Full => write!(paths[at].1, "M{x} {y}h9v9h-9z"),
                Shape::Hollow => write!(paths[at].1, "M{} {}h7.6v7.6h-7.6z", x + 0.7, y + 0.7),
                Shape::Dot => write!(paths[at].1, "M{} {}v3", x + 4.5, y + 3.0),
                Shape::Dash => write!(paths[at].1, "M{} {}h3", x + 3.0, y + 4.5),
            };
        }
        paths
    }

    fn look(&self, cell: &Cell, hue: &str) -> (String, Shape) {
        match cell {
            Cell::Held(held) => match self.shade(held) {
                0 => (format!("hollow line {hue}"), Shape::Hollow),
                shade => (format!("fill {hue} s{shade}"), Shape::Full),
            },
            Cell::Stale { .. } => ("stale".to_owned(), Shape::Dot),
            Cell::Gap { .. } => ("gap".to_owned(), Shape::Dash),
        }
    }

    /// What stands above the map.
    fn caption(&self) -> String {
        let Some(picture) = self.member.picture() else { return String::new() };
        let (mapped, live) = (picture.mapped_bytes, picture.live_bytes());
        let stopped = if picture.event < self.event { "when it stopped: " } else { "" };
        let share = 100.0 * live as f64 / mapped.max(1) as f64;
        format!("{stopped}{} mapped, {share:.1} % of it live", bytes(mapped))
    }
}

/// How a cell is drawn.
#[derive(Clone, Copy)]
enum Shape {
    Full,
    Hollow,
    Dot,
    Dash,
}

fn draw(maps: &[Map<'_, '_>], format: Format) -> Drawing {
    let columns = (format.width() / PITCH) as usize;
    let head = format.pick(24.0, 40.0);
    let mut top = 0.0;
    let mut placed = Vec::with_capacity(maps.len());
    for map in maps {
        placed.push((map, top));
        top += head + PITCH * map.cells.len().div_ceil(columns).max(1) as f64 + 14.0;
    }
    let body = html! {
        @for (index, (map, top)) in placed.into_iter().enumerate() { (strip(map, index, top, columns, format)) }
        rect.cursor x="-1" y="-1" width="11" height="11" {}
    };
    Drawing { height: top, body }
}

fn strip(map: &Map<'_, '_>, index: usize, top: f64, columns: usize, format: Format) -> Markup {
    let head = format.pick(24.0, 40.0);
    html! {
        g transform=(format!("translate(0 {top})")) {
            text.label.figure x="0" y="14" { (map.member.short_name()) }
            @match format {
                Format::Wide => text.tick.right x=(format.width()) y="14" { (map.caption()) },
                Format::Narrow => text.tick x="0" y="30" { (map.caption()) },
            }
        }
        g data-map=(index) data-name=(map.member.name) data-page=(map.page_bytes)
            data-place=(format!("{} {columns} {PITCH}", top + head))
            transform=(format!("translate(0 {})", top + head)) {
            @for (class, path) in map.paths(columns) { path class=(class) d=(path) {} }
        }
    }
}
