//! What the emulator counts.
//!
//! Main types: [`Counts`], [`Held`]. Neighbours: `device` keeps them; the benches print them, tests compare them with a
//! recount.

use core::fmt;

use concertina_vmm::Call;

/// Calls, modelled time and memory of one emulator, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub(crate) done: [u64; Call::COUNT],
    pub(crate) failed: [u64; Call::COUNT],
    pub(crate) time_ns: [u64; Call::COUNT],
    /// Physical bytes not given back to the driver: of frames, and of the granules behind mallocs.
    pub mapped_bytes: u64,
    /// Most of `mapped_bytes` at once.
    pub mapped_peak_bytes: u64,
    /// Bytes of addresses that reservations take now.
    pub reserved_bytes: u64,
    /// Most of `reserved_bytes` at once.
    pub reserved_peak_bytes: u64,
    /// Mappings now.
    pub mappings: u64,
    /// Most mappings at once.
    pub mappings_peak: u64,
    /// Handles created and not released.
    pub handles: u64,
    /// Times that a driver call made the host wait for the device: an event synchronise on an event that was not
    /// complete, and every free. The program's own waits are not counted.
    pub host_waits: u64,
    /// Modelled time of all calls that were done, in nanoseconds.
    pub modelled_ns: u64,
    /// Calls made after the device was lost. Right users make none.
    pub calls_after_lost: u64,
}

impl Counts {
    /// Calls of one kind that were done.
    pub fn of(&self, call: Call) -> u64 {
        self.done[call as usize]
    }

    /// Calls of one kind that failed: refused, out of memory, or told to fail.
    pub fn failed(&self, call: Call) -> u64 {
        self.failed[call as usize]
    }

    /// Modelled time of the calls of one kind, in nanoseconds.
    pub fn modelled_ns_of(&self, call: Call) -> u64 {
        self.time_ns[call as usize]
    }

    /// Calls that were done and changed reservations, frames or mappings: what "no driver call" counts.
    pub fn memory_calls(&self) -> u64 {
        self.iter().filter(|(call, _)| call.is_memory_call()).map(|(_, count)| count).sum()
    }

    /// The same with other figures for the calls of one kind, for whoever gets them from elsewhere; times in nanoseconds.
    #[must_use]
    pub fn with_calls(mut self, call: Call, done: u64, failed: u64, modelled_ns: u64) -> Self {
        let index = call as usize;
        (self.done[index], self.failed[index], self.time_ns[index]) = (done, failed, modelled_ns);
        self
    }

    /// Counted from now on: no calls, no times, and what is taken now as the peaks.
    pub(crate) fn restarted(&self) -> Self {
        Self {
            mapped_bytes: self.mapped_bytes,
            mapped_peak_bytes: self.mapped_bytes,
            reserved_bytes: self.reserved_bytes,
            reserved_peak_bytes: self.reserved_bytes,
            mappings: self.mappings,
            mappings_peak: self.mappings,
            handles: self.handles,
            ..Self::default()
        }
    }

    /// Each kind with how many calls of it were done; the kind has its name.
    pub fn iter(&self) -> impl Iterator<Item = (Call, u64)> + '_ {
        Call::ALL.iter().map(|&call| (call, self.of(call)))
    }
}

/// What is taken and not given back: what a recount finds, and what a leak is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Reservations.
    pub reservations: u64,
    /// Bytes of addresses that they take.
    pub reserved_bytes: u64,
    /// Mappings.
    pub mappings: u64,
    /// Handles created and not released.
    pub handles: u64,
    /// Frames whose memory is not free: with a handle, or with a mapping left.
    pub frames: u64,
    /// Live mallocs.
    pub mallocs: u64,
    /// Physical bytes of the frames and of the granules behind mallocs.
    pub mapped_bytes: u64,
    /// Events not destroyed.
    pub events: u64,
}

impl Held {
    /// Whether everything was given back.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} reservations of {} bytes, {} mappings, {} handles, {} frames, {} mallocs, {} bytes mapped, {} events",
            self.reservations,
            self.reserved_bytes,
            self.mappings,
            self.handles,
            self.frames,
            self.mallocs,
            self.mapped_bytes,
            self.events
        )
    }
}
