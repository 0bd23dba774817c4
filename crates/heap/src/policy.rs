//! The choices that a user makes for an allocator.
//!
//! Main types: [`Policy`], [`CrossStream`], [`StaleRule`], [`Settings`]. Neighbours: `ladder` follows them.

use concertina_vmm::{Driver, Order, Use};

/// When a frame is created in preference to a steal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Never: steal first, create only when no frame is free. Least memory, most maps while a program warms up.
    Lean,
    /// While mapped bytes after the creation are at most [`BALANCED_SLACK`] over the peak of live bytes.
    #[default]
    Balanced,
}

/// What `balanced` lets mapped bytes exceed the peak of live bytes by: one twentieth. On the random trace s6 it takes
/// less than half the maps of `lean`.
pub const BALANCED_SLACK: f64 = 0.05;

impl Policy {
    /// Most mapped bytes up to which this policy creates rather than steals, for a peak of live bytes.
    pub fn create_first_bytes(self, live_peak_bytes: u64) -> u64 {
        match self {
            Self::Lean => 0,
            // A twentieth in whole numbers: the same on every machine.
            Self::Balanced => live_peak_bytes + live_peak_bytes / 20,
        }
    }

    /// The name used in options and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lean => "lean",
            Self::Balanced => "balanced",
        }
    }
}

/// Whether a frame that another stream used last may be taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CrossStream {
    /// No: frames stay with the stream that they first served, until it is retired and all its work is done.
    Never,
    /// Only once that use is seen done: nothing is ever put into a stream.
    Completed,
    /// Yes: the taking stream waits for that use, on the device. Not for streams that may hang on one another, such as
    /// those of collectives that wait for other ranks.
    #[default]
    DeviceWait,
}

impl CrossStream {
    /// Whether the stream whose order is asked about may take a frame with such a last use.
    pub(crate) fn allows<D: Driver>(self, order: &Order<'_, D>, use_: Use) -> bool {
        match self {
            Self::Never => order.is_own(use_),
            Self::Completed => order.is_before(use_),
            Self::DeviceWait => true,
        }
    }
}

/// What becomes of a page whose frame was stolen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StaleRule {
    /// It stays mapped, so that it can be revived with no driver call.
    #[default]
    Keep,
    /// It is unmapped as soon as its last use is seen done, so that a use after free faults. For debugging.
    Eager,
}

/// The settings of one allocator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// When to create rather than steal.
    pub policy: Policy,
    /// Whether streams serve one another.
    pub cross_stream: CrossStream,
    /// What becomes of stale pages.
    pub stale: StaleRule,
    /// Most mapped bytes; `None` leaves that to the device.
    pub limit_bytes: Option<u64>,
    /// Bytes of each reservation; `None` lets them grow with the heap, from a small part of the device up to all of it.
    pub reservation_bytes: Option<u64>,
}
