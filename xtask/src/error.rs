//! Why a command did not do its work, and the exit code that says so.
//!
//! Main types: [`XtaskError`]. Neighbours: `main` prints it in one line; the commands return it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use concertina_bench::{CaseError, MomentError, UnknownTrace};
use concertina_emulator::{ConfigError, CostFileError};
use concertina_trace::{GeneratorError, ImportError, ReadError, WriteError};

use crate::sweep::SweepError;

/// A command's failure. What the user typed or handed in is exit code 2; everything else is 1.
#[derive(Debug, thiserror::Error)]
pub(crate) enum XtaskError {
    /// A file can't be read or written.
    #[error("can't {action} {}: {source}", path.display())]
    Io {
        /// What was tried: `read`, `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// No such trace.
    #[error(transparent)]
    UnknownTrace(#[from] UnknownTrace),
    /// A moment that a trace does not have.
    #[error(transparent)]
    Moment(#[from] MomentError),
    /// A trace that can't be read.
    #[error(transparent)]
    ReadTrace(#[from] ReadError),
    /// A file that can't be imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A trace that can't be made as asked.
    #[error(transparent)]
    Generator(#[from] GeneratorError),
    /// A trace that can't be written.
    #[error("{}: {source}", path.display())]
    WriteTrace {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: WriteError,
    },
    /// A cost table that can't be read.
    #[error(transparent)]
    CostTable(#[from] CostFileError),
    /// A device that can't be.
    #[error("the device can't be made: {0}")]
    Device(#[from] ConfigError),
    /// An option that describes an emulated device, for a real one.
    #[error("{option} describes an emulated device; with --device cuda leave it out")]
    NotForGpu {
        /// The option.
        option: &'static str,
    },
    /// The device could not be measured.
    #[error("can't measure the device: {reason}")]
    Measure {
        /// What the driver says.
        reason: String,
    },
    /// Parts of the measurement of a driver failed; they were printed.
    #[error("{parts} parts of the measurement failed")]
    ProbeParts {
        /// How many.
        parts: usize,
    },
    /// A driver breaks its contract; the cases were printed.
    #[error("{cases} cases of the driver's contract failed")]
    Contract {
        /// How many.
        cases: usize,
    },
    /// Parts of the run on a device failed; they were printed.
    #[error("{parts} parts failed on this device")]
    DeviceParts {
        /// How many.
        parts: usize,
    },
    /// A run that could not begin.
    #[error(transparent)]
    Case(#[from] CaseError),
    /// Runs ended in a defect, which was printed.
    #[error("{cases} runs ended in a defect of an allocator")]
    Defects {
        /// How many.
        cases: usize,
    },
    /// A sweep's description, results or choice that can't be used.
    #[error(transparent)]
    Sweep(#[from] SweepError),
    /// A program that a command runs could not be started.
    #[error("can't start `{command}`: {source}")]
    Start {
        /// The command line.
        command: String,
        /// What the system says.
        source: io::Error,
    },
    /// A program that a command runs failed.
    #[error("`{command}` failed with {status}")]
    Step {
        /// The command line.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// Pairs of an allocation and its free take more instructions than they may; they were printed.
    #[error("{pairs} pairs take more instructions than their ceiling")]
    Instructions {
        /// How many.
        pairs: usize,
    },
    /// House rules are broken; they were printed.
    #[error("tidy: {findings} findings")]
    Untidy {
        /// How many.
        findings: usize,
    },
}

impl XtaskError {
    /// A failed `action` on the file `path`.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }

    /// The process's exit code.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Io { .. }
            | Self::UnknownTrace(_)
            | Self::Moment(_)
            | Self::ReadTrace(_)
            | Self::Import(_)
            | Self::Generator(_)
            | Self::WriteTrace { .. }
            | Self::CostTable(_)
            | Self::Device(_)
            | Self::NotForGpu { .. }
            | Self::Sweep(_)
            | Self::Case(
                CaseError::Device(_)
                | CaseError::Cuda(_)
                | CaseError::Unchecked
                | CaseError::NoWork
                | CaseError::FixedCapacity,
            ) => ExitCode::from(2),
            Self::Case(CaseError::SetUp { .. })
            | Self::Measure { .. }
            | Self::ProbeParts { .. }
            | Self::Contract { .. }
            | Self::DeviceParts { .. }
            | Self::Defects { .. }
            | Self::Start { .. }
            | Self::Step { .. }
            | Self::Instructions { .. }
            | Self::Untidy { .. } => ExitCode::FAILURE,
        }
    }
}
