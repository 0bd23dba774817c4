//! What came out of a replay.
//!
//! Main types: [`ReplayReport`], [`ReplayFailure`], [`FailureCause`], [`MarkReport`]. Neighbours: `replay` makes it;
//! the benches and `xtask` print it.

use std::fmt;

use concertina_emulator::{Counts, Hang};
use concertina_vmm::Call;

use crate::checker::Violation;
use crate::latency::Latencies;
use crate::target::TargetError;
use crate::watch::Observation;

/// Figures of one replay. Counts are those of the emulator since it was made, so the calls with which the allocator
/// set itself up are among them, and those that give everything back after the last event are not.
#[derive(Debug)]
pub struct ReplayReport {
    /// Events that were replayed, the failed one not among them.
    pub events: usize,
    /// Most live bytes at once, as asked.
    pub live_peak_bytes: u64,
    /// Bytes that were live when the replay ended, as asked.
    pub live_bytes: u64,
    /// Most bytes of addresses in use for placement at once, as the allocator counts them.
    pub address_peak_bytes: u64,
    /// What the emulator counted: driver calls by kind, mapped and reserved bytes and their peaks, waits, modelled
    /// time.
    pub counts: Counts,
    /// How things stood when live bytes had reached their peak; none if the replay did not come so far.
    pub at_live_peak: Option<AtLivePeak>,
    /// Modelled time of the host inside each allocation that was served: of its driver calls, and with work also what they
    /// waited.
    pub latencies: Latencies,
    /// One a mark, in order, as far as the replay came.
    pub marks: Vec<MarkReport>,
    /// Modelled time until the device was done with all that the program had queued, in nanoseconds; with work only.
    pub device_ns: Option<u64>,
    /// Why the trace did not run to its end; none if it did.
    pub failure: Option<ReplayFailure>,
    /// What went wrong when the blocks that were live at the end were freed, after all figures were taken.
    pub cleanup_failure: Option<TargetError>,
    /// Time of the host from the first event to the last, in nanoseconds: of allocator and emulator. Only without the
    /// checker, which takes longer than both, and unwatched.
    pub host_ns: Option<u64>,
    /// What was noted on the way, if anybody asked.
    pub observation: Option<Observation>,
}

impl ReplayReport {
    /// Whether the trace ran to its end.
    pub const fn completed(&self) -> bool {
        self.failure.is_none()
    }

    /// Most physical memory at once that was not given back to the driver, in bytes.
    pub const fn mapped_peak_bytes(&self) -> u64 {
        self.counts.mapped_peak_bytes
    }

    /// Most addresses reserved at once, in bytes.
    pub const fn reserved_address_peak_bytes(&self) -> u64 {
        self.counts.reserved_peak_bytes
    }

    /// Events that the allocator recorded.
    pub fn event_records(&self) -> u64 {
        self.counts.of(Call::EventRecord)
    }

    /// Creates and mallocs that the driver refused. The allocator tried something else then, or gave up.
    pub fn allocation_retries(&self) -> u64 {
        self.counts.failed(Call::Create) + self.counts.failed(Call::Malloc)
    }

    /// Waits of a stream for an event that the allocator asked for, on the device.
    pub fn device_waits(&self) -> u64 {
        self.counts.of(Call::StreamWait)
    }

    /// Times that the allocator made the host wait. The program's own waits (`y`) are not among them.
    pub const fn host_waits(&self) -> u64 {
        self.counts.host_waits
    }

    /// Modelled time of all driver calls, in nanoseconds.
    pub const fn modelled_driver_ns(&self) -> u64 {
        self.counts.modelled_ns
    }
}

/// How things stood after the event at which live bytes reach their peak for the first time: the same event for every
/// allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtLivePeak {
    /// Physical memory not given back to the driver, in bytes.
    pub mapped_bytes: u64,
    /// Bytes that the allocator had set aside for the live blocks, rounding included, if it tells.
    pub block_bytes: Option<u64>,
}

/// How things stood at a mark.
#[derive(Clone, Debug)]
pub struct MarkReport {
    /// The mark's text.
    pub label: Box<str>,
    /// Which event it is, counted from 0.
    pub event: usize,
    /// Live bytes, as asked.
    pub live_bytes: u64,
    /// What the emulator had counted: running totals, and the mapped bytes of the moment.
    pub counts: Counts,
}

impl MarkReport {
    /// Running total of the driver calls that change memory.
    pub fn memory_calls(&self) -> u64 {
        self.counts.memory_calls()
    }

    /// Physical memory not given back to the driver, in bytes.
    pub const fn mapped_bytes(&self) -> u64 {
        self.counts.mapped_bytes
    }
}

/// Where and why a replay ended before the trace did.
#[derive(Debug)]
pub struct ReplayFailure {
    /// The event, counted from 0.
    pub event: usize,
    /// Its line in the trace's file, counted from 1.
    pub line: u64,
    /// What went wrong.
    pub cause: FailureCause,
}

impl fmt::Display for ReplayFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {} (line {}): {}", self.event, self.line, self.cause)
    }
}

impl std::error::Error for ReplayFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

/// What ended a replay.
#[derive(Debug, thiserror::Error)]
pub enum FailureCause {
    /// The allocator said no. Out of memory is a result; anything else is a defect of the allocator.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The checker found a block that can't be right: a defect of the allocator.
    #[error(transparent)]
    Violation(#[from] Box<Violation>),
    /// The program would wait without end: a defect of the allocator, which made a stream wait.
    #[error(transparent)]
    Hang(#[from] Box<Hang>),
}

impl From<Hang> for FailureCause {
    fn from(hang: Hang) -> Self {
        Self::Hang(Box::new(hang))
    }
}

impl FailureCause {
    /// Whether memory was short, and nothing else wrong.
    pub const fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Target(TargetError::OutOfMemory(_)))
    }
}
