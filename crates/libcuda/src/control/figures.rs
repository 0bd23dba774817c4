//! What the library tells about its devices.
//!
//! Main types: [`Counts`], [`Held`]. Neighbours: `Library::counts` and `Library::held` give them.

use core::fmt;

use concertina_vmm::Call;

use crate::abi::{RawCounts, RawHeld};

/// Calls, modelled time and memory of one device since the last reset, or since the counting was restarted, as the emulator below counted them.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    raw: RawCounts,
}

impl Counts {
    pub(crate) const fn new(raw: RawCounts) -> Self {
        Self { raw }
    }

    /// The same figures as the emulator's own type has them.
    pub fn to_emulator(&self) -> concertina_emulator::Counts {
        let raw = &self.raw;
        let mut counts = concertina_emulator::Counts::default();
        for &call in Call::ALL {
            let index = call as usize;
            counts = counts.with_calls(call, raw.done[index], raw.failed[index], raw.time_ns[index]);
        }
        counts.mapped_bytes = raw.mapped_bytes;
        counts.mapped_peak_bytes = raw.mapped_peak_bytes;
        counts.reserved_bytes = raw.reserved_bytes;
        counts.reserved_peak_bytes = raw.reserved_peak_bytes;
        counts.mappings = raw.mappings;
        counts.mappings_peak = raw.mappings_peak;
        counts.handles = raw.handles;
        counts.host_waits = raw.host_waits;
        counts.modelled_ns = raw.modelled_ns;
        counts.calls_after_lost = raw.calls_after_lost;
        counts
    }

    /// Calls of one kind that were done. A malloc is one of `cuMemAlloc`, or one that a pool made.
    pub fn of(&self, call: Call) -> u64 {
        self.raw.done[call as usize]
    }

    /// Calls of one kind that the emulator refused or failed by chance. Those that failed by name never reached it: see
    /// [`Library::failures`](crate::Library::failures).
    pub fn failed(&self, call: Call) -> u64 {
        self.raw.failed[call as usize]
    }

    /// Modelled time of the calls of one kind, in nanoseconds.
    pub fn modelled_ns_of(&self, call: Call) -> u64 {
        self.raw.time_ns[call as usize]
    }

    /// Each kind with how many calls of it were done.
    pub fn iter(&self) -> impl Iterator<Item = (Call, u64)> + '_ {
        Call::ALL.iter().map(|&call| (call, self.of(call)))
    }

    /// Calls that were done and changed reservations, frames or mappings.
    pub fn memory_calls(&self) -> u64 {
        self.iter().filter(|(call, _)| call.is_memory_call()).map(|(_, count)| count).sum()
    }

    /// Physical bytes not given back: of frames, and of the granules behind mallocs.
    pub const fn mapped_bytes(&self) -> u64 {
        self.raw.mapped_bytes
    }

    /// Most of them at once.
    pub const fn mapped_peak_bytes(&self) -> u64 {
        self.raw.mapped_peak_bytes
    }

    /// Bytes of addresses that reservations take.
    pub const fn reserved_bytes(&self) -> u64 {
        self.raw.reserved_bytes
    }

    /// Most of them at once.
    pub const fn reserved_peak_bytes(&self) -> u64 {
        self.raw.reserved_peak_bytes
    }

    /// Mappings now.
    pub const fn mappings(&self) -> u64 {
        self.raw.mappings
    }

    /// Most mappings at once.
    pub const fn mappings_peak(&self) -> u64 {
        self.raw.mappings_peak
    }

    /// Handles created or retained, and not released.
    pub const fn handles(&self) -> u64 {
        self.raw.handles
    }

    /// Times that a driver call made the host wait, by the emulator's model.
    pub const fn host_waits(&self) -> u64 {
        self.raw.host_waits
    }

    /// Modelled time of all calls, in nanoseconds.
    pub const fn modelled_ns(&self) -> u64 {
        self.raw.modelled_ns
    }

    /// Calls made after the devices were lost. Right programs make none.
    pub const fn calls_after_lost(&self) -> u64 {
        self.raw.calls_after_lost
    }
}

/// What one device holds for the program: at the end, the leaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Reservations.
    pub reservations: u64,
    /// Bytes of addresses that they take.
    pub reserved_bytes: u64,
    /// Mappings.
    pub mappings: u64,
    /// Handles not released.
    pub handles: u64,
    /// Frames whose memory is not free.
    pub frames: u64,
    /// Live mallocs, those that pools made for the program included.
    pub mallocs: u64,
    /// Physical bytes of frames and mallocs.
    pub mapped_bytes: u64,
    /// Events not destroyed.
    pub events: u64,
    /// Streams not destroyed.
    pub streams: u64,
    /// Ranges of pinned memory, of all devices.
    pub pinned: u64,
    /// Modules not unloaded, of all devices.
    pub modules: u64,
    /// Graphs not destroyed, those made ready to run counted apart; of all devices.
    pub graphs: u64,
    /// How often the primary context is retained.
    pub contexts: u64,
}

impl Held {
    pub(crate) const fn new(raw: RawHeld) -> Self {
        Self {
            reservations: raw.reservations,
            reserved_bytes: raw.reserved_bytes,
            mappings: raw.mappings,
            handles: raw.handles,
            frames: raw.frames,
            mallocs: raw.mallocs,
            mapped_bytes: raw.mapped_bytes,
            events: raw.events,
            streams: raw.streams,
            pinned: raw.pinned,
            modules: raw.modules,
            graphs: raw.graphs,
            contexts: raw.contexts,
        }
    }

    /// Whether everything was given back.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} reservations of {} bytes, {} mappings, {} handles, {} frames, {} mallocs, {} bytes mapped, {} events, \
             {} streams, {} pinned ranges, {} modules, {} graphs, {} contexts",
            self.reservations,
            self.reserved_bytes,
            self.mappings,
            self.handles,
            self.frames,
            self.mallocs,
            self.mapped_bytes,
            self.events,
            self.streams,
            self.pinned,
            self.modules,
            self.graphs,
            self.contexts
        )
    }
}
