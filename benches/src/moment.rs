//! A moment of a trace, as the command line says it.
//!
//! Main types: [`Moment`], [`MomentError`]. Neighbours: `case` takes a picture of memory at the event that it stands
//! for.

use std::fmt;
use std::str::FromStr;

use concertina_trace::LoadedTrace;

/// When to look at memory: always after an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Moment {
    /// `peak`: the live peak of the trace.
    #[default]
    Peak,
    /// `event:N`: the event with this number, counted from 0.
    Event(usize),
    /// `mark:LABEL`: the first mark with this label.
    Mark(String),
}

/// A text that says no moment, or a moment that a trace does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MomentError {
    /// None of the forms.
    #[error("`{0}` is no moment; write peak, event:N or mark:LABEL")]
    Unknown(String),
    /// The trace is shorter.
    #[error("trace `{trace}` has no event {event}: it has {events}, counted from 0")]
    NoEvent {
        /// The trace.
        trace: String,
        /// The event that was asked for.
        event: usize,
        /// How many it has.
        events: usize,
    },
    /// The trace has no such mark.
    #[error("trace `{trace}` has no mark `{label}`; its marks: {known}")]
    NoMark {
        /// The trace.
        trace: String,
        /// The label that was asked for.
        label: String,
        /// The first labels that it has.
        known: String,
    },
}

/// How many labels an error lists.
const LISTED: usize = 8;

impl Moment {
    /// The event in this trace, counted from 0; 0 in a trace without events.
    ///
    /// # Errors
    /// The trace has no such event or mark.
    pub fn event(&self, trace: &LoadedTrace) -> Result<usize, MomentError> {
        let events = trace.steps().len();
        match self {
            Self::Peak => Ok(trace.live_peak().event),
            Self::Event(event) if *event < events => Ok(*event),
            Self::Event(event) => {
                Err(MomentError::NoEvent { trace: trace.name().to_owned(), event: *event, events })
            }
            Self::Mark(label) => {
                let mark = trace.marks().iter().find(|mark| *mark.label == **label);
                mark.map(|mark| mark.event).ok_or_else(|| MomentError::NoMark {
                    trace: trace.name().to_owned(),
                    label: label.clone(),
                    known: known_labels(trace),
                })
            }
        }
    }
}

fn known_labels(trace: &LoadedTrace) -> String {
    let marks = trace.marks();
    let mut known: Vec<&str> = marks.iter().take(LISTED).map(|mark| &*mark.label).collect();
    if marks.len() > LISTED {
        known.push("…");
    }
    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peak => f.write_str("peak"),
            Self::Event(event) => write!(f, "event:{event}"),
            Self::Mark(label) => write!(f, "mark:{label}"),
        }
    }
}

impl FromStr for Moment {
    type Err = MomentError;

    fn from_str(word: &str) -> Result<Self, MomentError> {
        let unknown = || MomentError::Unknown(word.to_owned());
        match word.split_once(':') {
            None if word == "peak" => Ok(Self::Peak),
            Some(("event", number)) => number.parse().map(Self::Event).map_err(|_| unknown()),
            Some(("mark", label)) if !label.is_empty() => Ok(Self::Mark(label.to_owned())),
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use concertina_trace::{LoadedTrace, TraceReader};

    use super::Moment;

    fn load(text: &str) -> LoadedTrace {
        let reader = TraceReader::new(text.as_bytes(), "mine").expect("a trace");
        LoadedTrace::read(reader).expect("a trace")
    }

    #[test]
    fn words_read_back_and_name_events() {
        let trace = load("alloc-trace 1\ni start: 1\na 1 5 0\na 2 9 0\nf 1\ni start: 1\nf 2\n");
        for (word, event) in [("peak", 2), ("event:5", 5), ("mark:start: 1", 0)] {
            let moment: Moment = word.parse().expect("a moment");
            assert_eq!((moment.to_string().as_str(), moment.event(&trace)), (word, Ok(event)));
        }
        assert_eq!(Moment::default().event(&load("alloc-trace 1\n")), Ok(0));
    }

    #[test]
    fn what_is_not_there_is_named() {
        for word in ["", "Peak", "event:", "event:-1", "mark:", "mark", "3"] {
            let error = word.parse::<Moment>().expect_err("no moment").to_string();
            assert_eq!(error, format!("`{word}` is no moment; write peak, event:N or mark:LABEL"));
        }
        let trace = load("alloc-trace 1\ni a\ni b\n");
        let said = |word: &str| {
            let moment: Moment = word.parse().expect("a moment");
            moment.event(&trace).expect_err("not there").to_string()
        };
        assert_eq!(said("event:2"), "trace `mine` has no event 2: it has 2, counted from 0");
        assert_eq!(said("mark:c"), "trace `mine` has no mark `c`; its marks: a, b");
    }
}
