//! The formats that can be imported, by name and by content.
//!
//! Main types: [`ImportFormat`]. Neighbours: `import` asks it which reader to take.

use std::fmt;
use std::str::FromStr;

use super::error::ImportErrorKind;
use super::pickle::Op;
use super::{lifetimes, table};
use crate::mistake::excerpt;
use crate::reader::FORMAT_NAME;

/// A format that can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImportFormat {
    /// What `torch.cuda.memory._dump_snapshot` writes, and pickles of `torch.cuda.memory._snapshot()` or
    /// `torch.cuda.memory_snapshot()`.
    PytorchSnapshot,
    /// What RMM's `logging_resource_adaptor` writes.
    RmmLog,
    /// A table of buffers: `id,lower,upper,size`.
    Lifetimes,
}

/// No format has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown format {name:?}: expected pytorch-snapshot, rmm-log or lifetimes")]
pub struct UnknownImportFormat {
    /// The name.
    pub name: String,
}

/// First bytes of files that hold others, and what they are called.
const PACKED: [(&[u8], &str); 4] =
    [(b"\x1f\x8b", "gzip"), (b"PK\x03\x04", "zip"), (b"\xfd7zXZ", "xz"), (b"BZh", "bzip2")];

impl ImportFormat {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::PytorchSnapshot, Self::RmmLog, Self::Lifetimes];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PytorchSnapshot => "pytorch-snapshot",
            Self::RmmLog => "rmm-log",
            Self::Lifetimes => "lifetimes",
        }
    }

    /// What it is, in words.
    pub const fn description(self) -> &'static str {
        match self {
            Self::PytorchSnapshot => "a PyTorch memory snapshot",
            Self::RmmLog => "an RMM event log",
            Self::Lifetimes => "a table of lifetimes",
        }
    }

    /// The format that begins like this.
    pub(super) fn of_content(bytes: &[u8]) -> Result<Self, ImportErrorKind> {
        if bytes.first().copied().and_then(Op::of) == Some(Op::Proto) {
            return Ok(Self::PytorchSnapshot);
        }
        if let Some((_, packing)) = PACKED.iter().find(|(magic, _)| bytes.starts_with(magic)) {
            return Err(ImportErrorKind::Packed { packing });
        }
        let start = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let line = start.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let unknown = || ImportErrorKind::UnknownFormat { found: excerpt(line) };
        let line = std::str::from_utf8(&line[..line.len().min(4096)]).map_err(|_| unknown())?;
        let has = |name: &&str| table::fields(line).any(|field| field.eq_ignore_ascii_case(name));
        if line.split(' ').next() == Some(FORMAT_NAME) {
            Err(ImportErrorKind::Trace)
        } else if line.contains("RMM LOG BEGIN") {
            Err(ImportErrorKind::RmmDebugLog)
        } else if ["Action", "Pointer"].iter().all(has) {
            Ok(Self::RmmLog)
        } else if lifetimes::LOWER.iter().any(has) && [lifetimes::UPPER, lifetimes::END].iter().any(has) {
            Ok(Self::Lifetimes)
        } else {
            Err(unknown())
        }
    }
}

impl fmt::Display for ImportFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ImportFormat {
    type Err = UnknownImportFormat;

    fn from_str(name: &str) -> Result<Self, UnknownImportFormat> {
        let found = Self::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| UnknownImportFormat { name: name.to_owned() })
    }
}
