//! One event of a trace, from its line and back.
//!
//! Main types: [`Event`], [`Letter`]. Neighbours: `reader` and `writer` turn files into events and back, `live`
//! checks what only the events before can tell, `loaded` keeps them with their IDs resolved.

use std::fmt;
use std::str::FromStr;

use crate::mistake::{Field, Mistake, excerpt};

/// What a program asked of its allocator, or did with its streams. One line of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// `a ID SIZE STREAM`: a block of `bytes` (1 or more, as asked for) on `stream`.
    Allocate {
        /// The block's name from here to its free.
        id: u64,
        /// Size in bytes, not rounded.
        bytes: u64,
        /// The stream in whose order the block is used and freed.
        stream: u32,
    },
    /// `f ID`: the block is freed, in the order of the stream that it was allocated on.
    Free {
        /// The block.
        id: u64,
    },
    /// `u ID STREAM`: work queued on `stream` up to here uses the block too.
    RecordStream {
        /// The block.
        id: u64,
        /// The other stream.
        stream: u32,
    },
    /// `w STREAM ON`: work queued on `stream` from here on waits for all work queued on `on` up to here.
    StreamWait {
        /// The stream that waits.
        stream: u32,
        /// The stream that it waits for.
        on: u32,
    },
    /// `y STREAM` or `y *`: the host waits for one stream, or (`None`) for the whole device.
    Synchronize {
        /// The stream, or none for the device.
        stream: Option<u32>,
    },
    /// `e`: the program asks that cached memory goes back to the driver.
    ReleaseCached,
    /// `i LABEL`: a mark, such as the start of a training step.
    Mark {
        /// Text to the end of the line; not empty.
        label: Box<str>,
    },
}

macro_rules! letters {
    ($($(#[$doc:meta])* $variant:ident = $letter:literal $noun:literal,)*) => {
        /// The letter that a line of a trace begins with.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Letter {
            $($(#[$doc])* $variant,)*
        }

        impl Letter {
            /// Every letter, in the order in which the format lists them.
            pub const ALL: [Self; 7] = [$(Self::$variant),*];

            /// The letter itself.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $letter,)* }
            }

            /// What its events are called in a table.
            pub const fn noun(self) -> &'static str {
                match self { $(Self::$variant => $noun,)* }
            }

            fn from_field(field: &str) -> Option<Self> {
                match field { $($letter => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

letters! {
    /// Allocate.
    A = "a" "allocations",
    /// Free.
    F = "f" "frees",
    /// Used on another stream.
    U = "u" "uses on another stream",
    /// A stream waits for another.
    W = "w" "waits between streams",
    /// The host waits.
    Y = "y" "waits of the host",
    /// Release cached memory.
    E = "e" "releases of cached memory",
    /// A mark.
    I = "i" "marks",
}

impl fmt::Display for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Event {
    /// The letter of its line.
    pub const fn letter(&self) -> Letter {
        match self {
            Self::Allocate { .. } => Letter::A,
            Self::Free { .. } => Letter::F,
            Self::RecordStream { .. } => Letter::U,
            Self::StreamWait { .. } => Letter::W,
            Self::Synchronize { .. } => Letter::Y,
            Self::ReleaseCached => Letter::E,
            Self::Mark { .. } => Letter::I,
        }
    }

    /// Checks what a line of its own can show: a size of 0, a label that is empty or holds a line break.
    ///
    /// # Errors
    /// The mistake that a reader would find, or would read as something else.
    pub fn check(&self) -> Result<(), Mistake> {
        match self {
            Self::Allocate { id, bytes: 0, .. } => Err(Mistake::SizeZero { id: *id }),
            Self::Mark { label } if label.is_empty() => {
                Err(Mistake::MissingField { letter: Letter::I, field: Field::Label })
            }
            Self::Mark { label } if label.contains('\n') => {
                Err(Mistake::LineBreak { found: excerpt(label.as_bytes()) })
            }
            _ => Ok(()),
        }
    }
}

/// The event's line, without the line break.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocate { id, bytes, stream } => write!(f, "a {id} {bytes} {stream}"),
            Self::Free { id } => write!(f, "f {id}"),
            Self::RecordStream { id, stream } => write!(f, "u {id} {stream}"),
            Self::StreamWait { stream, on } => write!(f, "w {stream} {on}"),
            Self::Synchronize { stream: Some(stream) } => write!(f, "y {stream}"),
            Self::Synchronize { stream: None } => f.write_str("y *"),
            Self::ReleaseCached => f.write_str("e"),
            Self::Mark { label } => write!(f, "i {label}"),
        }
    }
}

/// Reads one line, without its line break.
impl FromStr for Event {
    type Err = Mistake;

    fn from_str(line: &str) -> Result<Self, Mistake> {
        let mut fields = Fields::of(line)?;
        let event = match fields.letter {
            Letter::A => Self::Allocate {
                id: fields.number(Field::Id)?,
                bytes: fields.number(Field::Size)?,
                stream: fields.stream(Field::Stream)?,
            },
            Letter::F => Self::Free { id: fields.number(Field::Id)? },
            Letter::U => {
                Self::RecordStream { id: fields.number(Field::Id)?, stream: fields.stream(Field::Stream)? }
            }
            Letter::W => {
                Self::StreamWait { stream: fields.stream(Field::Stream)?, on: fields.stream(Field::On)? }
            }
            Letter::Y if fields.rest == Some("*") => {
                fields.rest = None;
                Self::Synchronize { stream: None }
            }
            Letter::Y => Self::Synchronize { stream: Some(fields.stream(Field::Stream)?) },
            Letter::E => Self::ReleaseCached,
            Letter::I => Self::Mark { label: fields.rest.take().unwrap_or("").into() },
        };
        fields.end()?;
        event.check()?;
        Ok(event)
    }
}

/// What is left of a line.
struct Fields<'a> {
    letter: Letter,
    /// Text after the next space; none at the end of the line.
    rest: Option<&'a str>,
}

impl<'a> Fields<'a> {
    fn of(line: &'a str) -> Result<Self, Mistake> {
        if line.is_empty() {
            return Err(Mistake::EmptyLine);
        }
        let (first, rest) = split(line);
        match Letter::from_field(first) {
            Some(letter) => Ok(Self { letter, rest }),
            None if first.starts_with('#') => Err(Mistake::LateHeader { found: excerpt(line.as_bytes()) }),
            None => Err(Mistake::UnknownLetter { found: excerpt(first.as_bytes()) }),
        }
    }

    fn next(&mut self, field: Field) -> Result<&'a str, Mistake> {
        let Some(rest) = self.rest else {
            return Err(Mistake::MissingField { letter: self.letter, field });
        };
        let (value, rest) = split(rest);
        self.rest = rest;
        Ok(value)
    }

    fn number(&mut self, field: Field) -> Result<u64, Mistake> {
        let text = self.next(field)?;
        // `u64::from_str` would let a plus sign pass.
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Mistake::MalformedField { field, found: excerpt(text.as_bytes()) });
        }
        text.parse().map_err(|_| Mistake::TooLarge { field, found: excerpt(text.as_bytes()), most: u64::MAX })
    }

    fn stream(&mut self, field: Field) -> Result<u32, Mistake> {
        let number = self.number(field)?;
        u32::try_from(number).map_err(|_| Mistake::TooLarge {
            field,
            found: number.to_string(),
            most: u64::from(u32::MAX),
        })
    }

    fn end(self) -> Result<(), Mistake> {
        match self.rest {
            None => Ok(()),
            Some(rest) => Err(Mistake::ExtraField { letter: self.letter, found: excerpt(rest.as_bytes()) }),
        }
    }
}

fn split(text: &str) -> (&str, Option<&str>) {
    match text.split_once(' ') {
        Some((first, rest)) => (first, Some(rest)),
        None => (text, None),
    }
}

#[cfg(test)]
mod tests;
