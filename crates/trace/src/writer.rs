//! Writes traces, plain or zstd. What it writes, the reader reads: mistakes are refused before they reach the file.
//!
//! Main types: [`TraceWriter`], [`WriteError`]. Neighbours: `event` and `header` give the lines, `live` checks the
//! IDs.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use zstd::stream::write::Encoder;

use crate::event::Event;
use crate::header::Header;
use crate::lines::{Encoding, MAX_LINE_BYTES};
use crate::live::LiveIds;
use crate::mistake::Mistake;
use crate::reader::{FORMAT_NAME, FORMAT_VERSION, Trace};

/// zstd level of written traces: a million events of a training program take 573 KB and 5 s at 19, 962 KB and 0.2 s
/// at 12. A trace is written once, kept and read often, and reading is as fast at any level.
const ZSTD_LEVEL: i32 = 19;

/// Why a trace can't be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The trace would break the format.
    #[error("line {line}: {mistake}")]
    Mistake {
        /// The line that would have been written, counted from 1.
        line: u64,
        /// What is wrong with it.
        mistake: Mistake,
    },
    /// The system can't write the file.
    #[error("can't write: {0}")]
    Io(#[from] io::Error),
}

enum Bytes<W: Write> {
    Plain(BufWriter<W>),
    Zstd(BufWriter<Encoder<'static, W>>),
}

/// Writes a trace event by event. [`finish`](Self::finish) ends the file; without it, a zstd file is cut off.
pub struct TraceWriter<W: Write> {
    bytes: Bytes<W>,
    live: LiveIds,
    line: u64,
    buffer: Vec<u8>,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace: first line and header.
    ///
    /// # Errors
    /// [`WriteError::Io`], or a header line that is too long.
    pub fn new(target: W, encoding: Encoding, header: &Header) -> Result<Self, WriteError> {
        let bytes = match encoding {
            Encoding::Plain => Bytes::Plain(BufWriter::new(target)),
            Encoding::Zstd => {
                let mut encoder = Encoder::new(target, ZSTD_LEVEL)?;
                encoder.include_checksum(true)?;
                Bytes::Zstd(BufWriter::with_capacity(64 * 1024, encoder))
            }
        };
        let mut writer = Self { bytes, live: LiveIds::default(), line: 0, buffer: Vec::new() };
        writer.write_line(&format_args!("{FORMAT_NAME} {FORMAT_VERSION}"))?;
        for (key, value) in header.lines() {
            writer.write_line(&format_args!("# {key}: {value}"))?;
        }
        Ok(writer)
    }

    /// Writes one event.
    ///
    /// # Errors
    /// [`WriteError::Mistake`] if a reader would refuse it here; nothing is written then, and the next event may
    /// follow.
    pub fn write(&mut self, event: &Event) -> Result<(), WriteError> {
        let mistake = |mistake| WriteError::Mistake { line: self.line + 1, mistake };
        event.check().map_err(mistake)?;
        if let Event::Mark { label } = event
            && label.len() + "i ".len() > MAX_LINE_BYTES
        {
            return Err(mistake(Mistake::LongLine { most: MAX_LINE_BYTES }));
        }
        self.live.apply(event, self.line + 1).map_err(mistake)?;
        self.write_line(event)
    }

    /// Ends the file and gives the target back.
    ///
    /// # Errors
    /// What the system says.
    pub fn finish(self) -> Result<W, WriteError> {
        Ok(match self.bytes {
            Bytes::Plain(buffered) => buffered.into_inner().map_err(io::IntoInnerError::into_error)?,
            Bytes::Zstd(buffered) => {
                buffered.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?
            }
        })
    }

    fn write_line(&mut self, line: &dyn fmt::Display) -> Result<(), WriteError> {
        self.buffer.clear();
        writeln!(self.buffer, "{line}")?;
        if self.buffer.len() > MAX_LINE_BYTES + 1 {
            let mistake = Mistake::LongLine { most: MAX_LINE_BYTES };
            return Err(WriteError::Mistake { line: self.line + 1, mistake });
        }
        match &mut self.bytes {
            Bytes::Plain(bytes) => bytes.write_all(&self.buffer)?,
            Bytes::Zstd(bytes) => bytes.write_all(&self.buffer)?,
        }
        self.line += 1;
        Ok(())
    }
}

impl<W: Write> fmt::Debug for TraceWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceWriter").field("line", &self.line).finish_non_exhaustive()
    }
}

impl Trace {
    /// Writes the whole trace.
    ///
    /// # Errors
    /// As [`TraceWriter`].
    pub fn write<W: Write>(&self, target: W, encoding: Encoding) -> Result<W, WriteError> {
        let mut writer = TraceWriter::new(target, encoding, &self.header)?;
        for event in &self.events {
            writer.write(event)?;
        }
        writer.finish()
    }

    /// Writes the whole trace to a file, which is replaced if it exists.
    ///
    /// # Errors
    /// As [`TraceWriter`].
    pub fn save(&self, path: &Path, encoding: Encoding) -> Result<(), WriteError> {
        self.write(File::create(path)?, encoding)?.flush()?;
        Ok(())
    }
}
