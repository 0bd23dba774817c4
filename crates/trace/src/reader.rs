//! Reads a trace event by event, checking each against the format and against the events before.
//!
//! Main types: [`TraceReader`], [`Trace`]. Neighbours: `lines` gives the lines, `event` reads one, `live` knows which
//! IDs are live, `loaded` keeps a whole trace for a timed replay.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::event::Event;
use crate::header::Header;
use crate::lines::{Encoding, Lines};
use crate::live::LiveIds;
use crate::mistake::{Mistake, ReadError, excerpt};

/// The format's name, at the start of the first line.
pub(crate) const FORMAT_NAME: &str = "alloc-trace";
/// The one version of the format that exists.
pub(crate) const FORMAT_VERSION: &str = "1";

/// A stream of events. Memory grows with the IDs that are live, not with the length of the trace.
///
/// An iterator over `Result<Event, ReadError>` that ends after the first error.
#[derive(Debug)]
pub struct TraceReader<R: BufRead> {
    lines: Lines<R>,
    header: Header,
    live: LiveIds,
    state: State,
    last_slot: Option<u32>,
}

#[derive(Debug)]
enum State {
    /// The first line below the headers was read with them.
    First(Event),
    Open,
    Ended,
}

impl TraceReader<BufReader<File>> {
    /// Opens a file, plain or zstd (its content decides, not its name), and reads the headers.
    ///
    /// # Errors
    /// What the system says of the file, or what is wrong in the first lines.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let file = File::open(path).map_err(|error| ReadError::open(path, error))?;
        Self::new(BufReader::with_capacity(64 * 1024, file), &path.display().to_string())
    }
}

impl<R: BufRead> TraceReader<R> {
    /// Reads from any source; errors call it `file`. Reads the headers and the line below them.
    ///
    /// # Errors
    /// What is wrong in these lines, or in the source.
    pub fn new(source: R, file: &str) -> Result<Self, ReadError> {
        let mut lines = Lines::new(source, file.into())?;
        let opening = lines.next()?.map(check_first_line);
        match opening {
            Some(Ok(())) => {}
            Some(Err(mistake)) => return Err(lines.error(mistake)),
            None => {
                let error = lines.error(Mistake::NotATrace { found: String::new() });
                return Err(ReadError { line: Some(1), ..error });
            }
        }
        let mut header = Header::new();
        let state = loop {
            let Some(line) = lines.next()? else { break State::Ended };
            let read = match header.push_line(line) {
                Ok(true) => continue,
                Ok(false) => line.parse::<Event>(),
                Err(mistake) => Err(mistake),
            };
            match read {
                Ok(event) => break State::First(event),
                Err(mistake) => return Err(lines.error(mistake)),
            }
        };
        Ok(Self { lines, header, live: LiveIds::default(), state, last_slot: None })
    }

    /// The `# key: value` lines.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The file's path, or the name that the source was given.
    pub fn file(&self) -> &str {
        self.lines.file()
    }

    /// Whether the source is compressed.
    pub fn encoding(&self) -> Encoding {
        self.lines.encoding()
    }

    /// Line of the last event read, counted from 1.
    pub fn line(&self) -> u64 {
        self.lines.number()
    }

    /// Bytes that are live after the last event read, as asked.
    pub const fn live_bytes(&self) -> u64 {
        self.live.bytes()
    }

    /// Slot of the block that the last event read names: below [`slot_count`](Self::slot_count).
    pub(crate) const fn last_slot(&self) -> Option<u32> {
        self.last_slot
    }

    pub(crate) fn slot_count(&self) -> u32 {
        self.live.slot_count()
    }

    fn read(&mut self) -> Result<Option<Event>, ReadError> {
        let event = match std::mem::replace(&mut self.state, State::Open) {
            State::Ended => return Ok(None),
            State::First(event) => event,
            State::Open => {
                let Some(line) = self.lines.next()? else { return Ok(None) };
                match line.parse::<Event>() {
                    Ok(event) => event,
                    Err(mistake) => return Err(self.lines.error(mistake)),
                }
            }
        };
        match self.live.apply(&event, self.lines.number()) {
            Ok(slot) => self.last_slot = slot,
            Err(mistake) => return Err(self.lines.error(mistake)),
        }
        Ok(Some(event))
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<Event, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let State::Ended = self.state {
            return None;
        }
        let read = self.read();
        if !matches!(read, Ok(Some(_))) {
            self.state = State::Ended;
        }
        read.transpose()
    }
}

fn check_first_line(line: &str) -> Result<(), Mistake> {
    match line.split_once(' ') {
        Some((FORMAT_NAME, FORMAT_VERSION)) => Ok(()),
        Some((FORMAT_NAME, version)) => Err(Mistake::UnknownVersion { found: excerpt(version.as_bytes()) }),
        _ => Err(Mistake::NotATrace { found: excerpt(line.as_bytes()) }),
    }
}

/// A whole trace in memory, as it stands in its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The `# key: value` lines.
    pub header: Header,
    /// The events, in order.
    pub events: Vec<Event>,
}

impl Trace {
    /// Reads a file, plain or zstd.
    ///
    /// # Errors
    /// As [`TraceReader`].
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        TraceReader::open(path)?.into_trace()
    }

    /// Line of the first event in the file that the trace would be written to, counted from 1.
    pub fn first_event_line(&self) -> u64 {
        2 + self.header.len() as u64
    }
}

impl<R: BufRead> TraceReader<R> {
    /// The rest of the events, kept as they are.
    ///
    /// # Errors
    /// The first one.
    pub fn into_trace(mut self) -> Result<Trace, ReadError> {
        let events = self.by_ref().collect::<Result<_, _>>()?;
        Ok(Trace { header: self.header, events })
    }
}

#[cfg(test)]
mod tests;
