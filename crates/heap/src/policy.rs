//! The choices that a user makes for an allocator.
//!
//! Main types: [`Policy`], [`StaleRule`], [`HostWait`], [`Settings`]. Neighbours: `ladder` follows them; [`CrossStream`] is the
//! fences'.

use concertina_vmm::CrossStream;

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

/// What becomes of a page whose frame was stolen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StaleRule {
    /// It stays mapped, so that it can be revived with no driver call.
    #[default]
    Keep,
    /// It is unmapped as soon as its last use is seen done, so that a use after free faults. For debugging.
    Eager,
}

/// Whether a request may make the host wait for work on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HostWait {
    /// No: what only a wait could free is reported as out of memory.
    Never,
    /// When the request would otherwise be out of memory: for as little work as will do, and that is done sooner or
    /// later. Not for programs in which work on the device waits for something that this very thread does later.
    #[default]
    LastResort,
}

/// Live blocks of a heap from which on its frees are deferred, if nothing else is set: their records, and those of the holes between
/// them, take 3 MiB, which is more than the cache that a core has for itself. A pair among 100,000 blocks is faster by a third,
/// among 30,000 by a tenth, among 1,000 by nothing (docs/decisions/021).
pub const DEFERRED_FROM_BLOCKS: u64 = 1 << 16;

/// The settings of one allocator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// When to create rather than steal.
    pub policy: Policy,
    /// Whether streams serve one another; the rule of those that are registered without one of their own.
    pub cross_stream: CrossStream,
    /// Whether a request may make the host wait.
    pub host_wait: HostWait,
    /// What becomes of stale pages.
    pub stale: StaleRule,
    /// Most mapped bytes; `None` leaves that to the device.
    pub limit_bytes: Option<u64>,
    /// Bytes of each reservation; `None` lets them grow with the heap, from a small part of the device up to all of it.
    pub reservation_bytes: Option<u64>,
    /// Live blocks of a heap from which on its frees are deferred; `None` for [`DEFERRED_FROM_BLOCKS`].
    pub deferred_from_blocks: Option<u64>,
}
