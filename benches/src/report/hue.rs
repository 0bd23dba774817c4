//! Colours: the same for an allocator in every chart, apart for people who see fewer of them, in light and dark.
//!
//! Main types: [`Hue`], [`HueBook`], [`Theme`]. Neighbours: `chart` writes them as CSS; `member` carries the hue.
//!
//! The first hues follow Okabe and Ito, "Color Universal Design" (2008), darkened or lightened until each has a
//! contrast of 3 to 1 and more with the paper (WCAG 2.2, 1.4.11).

use std::fmt::Write as _;

use super::label;
use crate::outcome::Outcome;

/// Number of hues for allocators.
const HUES: usize = 8;
/// Most characters of a name with its options.
const LONGEST_NAME: usize = 30;
/// Numbers of hues that some allocators have wherever they appear.
const GREY: usize = 7;
const SKY: usize = 5;

/// Colours of a light or of a dark page.
pub(super) struct Theme {
    /// Names and values of CSS variables.
    names: &'static [(&'static str, &'static str)],
    hues: [&'static str; HUES],
    /// By the order of the calls that change memory.
    calls: [&'static str; 9],
}

pub(super) const LIGHT: Theme = Theme {
    names: &[
        ("desk", "#f6f6f3"),
        ("paper", "#ffffff"),
        ("ink", "#1b1e23"),
        ("soft", "#59616c"),
        ("line", "#e0e0dc"),
        ("shade", "#eceeee"),
        ("accent", "#0b63a5"),
        ("best", "#e7f1ea"),
    ],
    hues: ["#0b63a5", "#c8501a", "#0a7d5c", "#a24a86", "#9a6f00", "#3389ad", "#6b4423", "#70767f"],
    calls: [
        "#5d6875", "#a3acb7", "#0d6f69", "#63b3ab", "#4c4799", "#9b96d6", "#b0306a", "#a3570d", "#e2a65c",
    ],
};

pub(super) const DARK: Theme = Theme {
    names: &[
        ("desk", "#121518"),
        ("paper", "#1a1e22"),
        ("ink", "#e8eaec"),
        ("soft", "#a0a9b3"),
        ("line", "#343a41"),
        ("shade", "#262b31"),
        ("accent", "#6bb6f2"),
        ("best", "#1f3a2b"),
    ],
    hues: ["#58abef", "#f4844e", "#36c295", "#dd8cc4", "#dfb030", "#93d4ee", "#c99a6f", "#a2aab4"],
    calls: [
        "#8793a1", "#5b6570", "#33ada4", "#1f6e68", "#8f88e0", "#5d57a6", "#e0699c", "#dd9038", "#8c5a1e",
    ],
};

impl Theme {
    fn colours(&self) -> impl Iterator<Item = (String, &'static str)> {
        let names = self.names.iter().map(|&(name, value)| (name.to_owned(), value));
        let hues = self.hues.iter().enumerate().map(|(index, &value)| (format!("h{index}"), value));
        let calls = self.calls.iter().enumerate().map(|(index, &value)| (format!("k{index}"), value));
        names.chain(hues).chain(calls)
    }

    /// The colours as CSS variables.
    pub(super) fn variables(&self) -> String {
        self.colours().fold(String::new(), |mut css, (name, value)| {
            let _ = write!(css, "--{name}:{value};");
            css
        })
    }

    /// The style sheet with the colours in place of the variables, for programs that know none.
    pub(super) fn fill_in(&self, css: &str) -> String {
        let fill = |css: String, (name, value): (String, &str)| css.replace(&format!("var(--{name})"), value);
        self.colours().fold(css.to_owned(), fill)
    }
}

/// Rules that give the classes `h0` and so on, and `k0` and so on, their colours: as a line, and as an area.
pub(super) fn rules() -> String {
    let names = LIGHT.colours().map(|(name, _)| name);
    let hues = names.filter(|name| name[1..].bytes().all(|byte| byte.is_ascii_digit()));
    hues.fold(String::new(), |mut css, name| {
        let _ = write!(css, ".{name}.fill{{fill:var(--{name})}}.{name}.line{{stroke:var(--{name})}}");
        css
    })
}

/// One allocator's looks: a class of the style sheet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hue {
    index: usize,
}

impl Hue {
    /// Concertina's.
    pub(super) const FIRST: Self = Self { index: 0 };

    /// The class of its colour, and the one that dashes its lines where all colours are taken.
    pub(super) fn class(self) -> String {
        let dashed = if self.index < HUES { "" } else { " dashed" };
        format!("h{}{dashed}", self.index % HUES)
    }
}

/// Which case has which hue.
pub(super) struct HueBook {
    /// Allocator and policy, with the hue.
    taken: Vec<((String, Option<String>), Hue)>,
}

impl HueBook {
    /// A hue for each allocator and policy among these. Concertina has blue, `direct` grey; others come in turn.
    pub(super) fn of<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Self {
        let mut cases: Vec<(String, Option<String>)> = Vec::new();
        for outcome in outcomes {
            let case = (outcome.allocator.clone(), outcome.policy.clone());
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
        let mut book = Self { taken: Vec::with_capacity(cases.len()) };
        let (known, others): (Vec<_>, Vec<_>) =
            cases.into_iter().partition(|(allocator, _)| !preferred(allocator).is_empty());
        for case in known.into_iter().chain(others) {
            let wanted = preferred(&case.0).iter().copied();
            let free = |index: &usize| book.taken.iter().all(|(_, hue)| hue.index != *index);
            let index = wanted.chain(1..HUES).chain([0]).chain(HUES..).find(free).unwrap_or(0);
            book.taken.push((case, Hue { index }));
        }
        book
    }

    /// The hue of a case.
    pub(super) fn hue(&self, outcome: &Outcome) -> Hue {
        let same = |((allocator, policy), _): &&((String, Option<String>), Hue)| {
            *allocator == outcome.allocator && *policy == outcome.policy
        };
        self.taken.iter().find(same).map_or(Hue::FIRST, |(_, hue)| *hue)
    }

    /// What the case is called in tables and charts: its allocator, and its policy where there are several. Long
    /// options have a number in their place.
    pub(super) fn name(&self, outcome: &Outcome) -> String {
        let allocator = &outcome.allocator;
        let number = self.numbered().into_iter().position(|other| other == allocator);
        let name = match number {
            Some(index) => format!("{}#{}", allocator.split(':').next().unwrap_or_default(), index + 1),
            None => allocator.clone(),
        };
        let policies = self.taken.iter().filter(|((other, _), _)| other == allocator).count();
        let name = match &outcome.policy {
            Some(policy) if policies > 1 => format!("{name} ({policy})"),
            _ => name,
        };
        label::clean(&name).into_owned()
    }

    /// The allocators whose names have numbers instead of options, in the order of the numbers from 1.
    pub(super) fn numbered(&self) -> Vec<&str> {
        let mut numbered: Vec<&str> = Vec::new();
        for ((allocator, _), _) in &self.taken {
            if allocator.contains(':')
                && allocator.chars().count() > LONGEST_NAME
                && !numbered.contains(&allocator.as_str())
            {
                numbered.push(allocator);
            }
        }
        numbered
    }
}

fn preferred(allocator: &str) -> &'static [usize] {
    match allocator {
        "concertina" => &[0, SKY],
        "direct" => &[GREY],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::{DARK, LIGHT, Theme, rules};

    /// Relative luminance by WCAG 2.2.
    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| {
            let value = u8::from_str_radix(&colour[at..at + 2], 16).expect("hexadecimal");
            let value = f64::from(value) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    fn contrast(theme: &Theme, a: &str, b: &str) -> f64 {
        let value = |name: &str| theme.colours().find(|(other, _)| other == name).expect("a colour").1;
        let [a, b] = [a, b].map(|name| luminance(value(name)));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn everything_stands_out_from_the_paper() {
        for theme in [&LIGHT, &DARK] {
            for hue in 0..8 {
                let contrast = contrast(theme, &format!("h{hue}"), "paper");
                assert!(contrast >= 3.0, "h{hue}: {contrast}");
            }
            for (text, paper) in [("ink", "paper"), ("soft", "paper"), ("soft", "desk"), ("ink", "best")] {
                let contrast = contrast(theme, text, paper);
                assert!(contrast >= 4.5, "{text} on {paper}: {contrast}");
            }
        }
    }

    #[test]
    fn no_variable_is_left_when_colours_are_filled_in() {
        let css = LIGHT.fill_in(&(rules() + "a{fill:var(--ink)}"));
        assert!(!css.contains("var(") && css.contains(".h0.fill{fill:#0b63a5}") && css.contains(".k8.line{"));
        let names = |theme: &Theme| theme.colours().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(&LIGHT), names(&DARK));
    }
}
