//! The lines of a trace file, plain or zstd, with a bound on each.
//!
//! Main types: [`Lines`], [`Encoding`]. Neighbours: `reader` makes events of the lines, `mistake` names what fails.

use std::fmt;
use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};
use std::sync::Arc;

use zstd::stream::read::Decoder;

use crate::mistake::{Mistake, ReadError, ReadErrorKind, excerpt};

/// Longest line that is read, in bytes without the line break. Events need under 50; labels and headers are free
/// text.
pub const MAX_LINE_BYTES: usize = 64 * 1024;

/// First bytes of a zstd frame (RFC 8878, section 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Last three bytes of a skippable frame's magic number, which a zstd file may begin with; the first is 0x50 to 0x5f
/// (RFC 8878, section 3.1.2).
const SKIPPABLE_MAGIC_END: [u8; 3] = [0x2a, 0x4d, 0x18];

/// How the bytes of a trace file are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// Text as it is.
    Plain,
    /// Compressed with zstd.
    Zstd,
}

impl Encoding {
    /// What the first four bytes of a file (or fewer, if it is shorter) say. File names say nothing.
    pub fn of_magic(start: &[u8]) -> Self {
        let skippable = start.len() >= 4 && start[0] & 0xf0 == 0x50 && start[1..4] == SKIPPABLE_MAGIC_END;
        if start.starts_with(&ZSTD_MAGIC) || skippable { Self::Zstd } else { Self::Plain }
    }
}

type Whole<R> = Chain<Cursor<Vec<u8>>, R>;

enum Bytes<R: BufRead> {
    Plain(Whole<R>),
    Zstd(Box<BufReader<Decoder<'static, Whole<R>>>>),
}

/// Reads line by line. Memory stays bounded whatever the file holds.
pub(crate) struct Lines<R: BufRead> {
    file: Arc<str>,
    bytes: Bytes<R>,
    buffer: Vec<u8>,
    /// Number of the line in `buffer`, from 1; 0 before the first.
    number: u64,
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(mut source: R, file: Arc<str>) -> Result<Self, ReadError> {
        let fail = |error| ReadError { file: file.clone(), line: Some(1), kind: ReadErrorKind::Io(error) };
        let mut start = Vec::with_capacity(4);
        source.by_ref().take(4).read_to_end(&mut start).map_err(fail)?;
        let encoding = Encoding::of_magic(&start);
        let whole = Cursor::new(start).chain(source);
        let bytes = match encoding {
            Encoding::Plain => Bytes::Plain(whole),
            Encoding::Zstd => {
                Bytes::Zstd(Box::new(BufReader::new(Decoder::with_buffer(whole).map_err(fail)?)))
            }
        };
        Ok(Self { file, bytes, buffer: Vec::new(), number: 0 })
    }

    /// The name that errors show.
    pub(crate) fn file(&self) -> &Arc<str> {
        &self.file
    }

    /// Number of the last line read, from 1; 0 before the first.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn encoding(&self) -> Encoding {
        match self.bytes {
            Bytes::Plain(_) => Encoding::Plain,
            Bytes::Zstd(_) => Encoding::Zstd,
        }
    }

    /// An error at the last line read.
    pub(crate) fn error(&self, kind: impl Into<ReadErrorKind>) -> ReadError {
        ReadError { file: self.file.clone(), line: Some(self.number), kind: kind.into() }
    }

    /// The next line without its line break; none at the end.
    pub(crate) fn next(&mut self) -> Result<Option<&str>, ReadError> {
        self.buffer.clear();
        let filled = match &mut self.bytes {
            Bytes::Plain(bytes) => fill(bytes, &mut self.buffer).map_err(|error| match error {
                FillError::Io(error) => ReadErrorKind::Io(error),
                FillError::Long => Mistake::LongLine { most: MAX_LINE_BYTES }.into(),
            }),
            Bytes::Zstd(bytes) => fill(bytes.as_mut(), &mut self.buffer).map_err(|error| match error {
                // The decoder's own errors carry no code of the system's.
                FillError::Io(error) if error.raw_os_error().is_some() => ReadErrorKind::Io(error),
                FillError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    ReadErrorKind::Truncated
                }
                FillError::Io(error) => ReadErrorKind::Damaged(error),
                FillError::Long => Mistake::LongLine { most: MAX_LINE_BYTES }.into(),
            }),
        };
        match filled {
            Ok(false) => return Ok(None),
            Ok(true) => self.number += 1,
            Err(kind) => {
                self.number += 1;
                return Err(self.error(kind));
            }
        }
        match std::str::from_utf8(&self.buffer) {
            Ok(line) => Ok(Some(line)),
            Err(_) => {
                let kind = Mistake::NotUtf8 { found: excerpt(&self.buffer) };
                Err(ReadError { file: self.file.clone(), line: Some(self.number), kind: kind.into() })
            }
        }
    }
}

impl<R: BufRead> fmt::Debug for Lines<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines")
            .field("file", &self.file)
            .field("encoding", &self.encoding())
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

enum FillError {
    Io(io::Error),
    Long,
}

/// Appends one line to `buffer`, without its line break. False at the end of the source.
/// (`read_until` has no bound: a file of zeroes would be read into memory whole.)
fn fill(source: &mut impl BufRead, buffer: &mut Vec<u8>) -> Result<bool, FillError> {
    let mut any = false;
    loop {
        let available = match source.fill_buf() {
            Ok(available) => available,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(FillError::Io(error)),
        };
        if available.is_empty() {
            return Ok(any);
        }
        any = true;
        let (part, used) = match available.iter().position(|byte| *byte == b'\n') {
            Some(at) => (&available[..at], at + 1),
            None => (available, available.len()),
        };
        let ends = used > part.len();
        if buffer.len() + part.len() > MAX_LINE_BYTES {
            return Err(FillError::Long);
        }
        buffer.extend_from_slice(part);
        source.consume(used);
        if ends {
            return Ok(true);
        }
    }
}
