//! What came out of a measurement.
//!
//! Main types: [`ProbeReport`], [`Timing`], [`Fit`], [`Wait`], [`RuleFinding`], [`Bandwidth`], [`MappingLimit`]. Neighbours:
//! `cargo xtask probe` prints it and writes it as JSON, whose keys are the fields' names; `cost_table` makes a table of it.

use serde::Serialize;

/// Everything that was measured on one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProbeReport {
    /// What calls took, in the order in which they were measured.
    pub timings: Vec<Timing>,
    /// What one more mapping adds to a call.
    pub fits: Vec<Fit>,
    /// Which calls wait for a kernel.
    pub waits: Vec<Wait>,
    /// Which rules hold.
    pub rules: Vec<RuleFinding>,
    /// Smallest mappable sizes by what memory is created for.
    pub fresh_memory: Vec<FreshMemory>,
    /// How fast memory is.
    pub bandwidth: Vec<Bandwidth>,
    /// How many mappings there were at once, if that was tried.
    pub mapping_limit: Option<MappingLimit>,
    /// What could not be measured, and why: no memory for it, no such function, no time.
    pub left_out: Vec<LeftOut>,
    /// Parts that ended with a call that should not have failed.
    pub failed: Vec<LeftOut>,
    /// The whole, in milliseconds.
    pub took_ms: u64,
}

/// What the device did while a call was timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Nothing.
    Idle,
    /// A kernel ran on another stream, from before the call until after.
    UnderKernel,
}

impl Load {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::UnderKernel => "kernel",
        }
    }
}

/// What a call took, or several alike that were made one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// The call: a name of `concertina_vmm::Call`, or one that no driver trait has.
    pub call: &'static str,
    /// What the device did meanwhile.
    pub load: Load,
    /// Bytes of each frame, mapping, reservation or malloc; 0 where there is none.
    pub bytes: u64,
    /// Mappings that it was about; 1 where that says nothing.
    pub mappings: u64,
    /// Calls that one time is the sum of.
    pub driver_calls: u64,
    /// How often it was timed.
    pub repeats: usize,
    /// The median, in nanoseconds.
    pub median_ns: u64,
    /// A tenth took at most this, in nanoseconds.
    pub p10_ns: u64,
    /// Nine tenths took at most this, in nanoseconds.
    pub p90_ns: u64,
    /// The shortest, in nanoseconds.
    pub least_ns: u64,
}

/// A line through what one call took by the number of mappings that it covered (least squares over the medians).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// The call.
    pub call: &'static str,
    /// What the device did meanwhile.
    pub load: Load,
    /// Bytes of each mapping.
    pub bytes: u64,
    /// Nanoseconds of a call over no mapping.
    pub base_ns: f64,
    /// Nanoseconds that each mapping adds.
    pub per_mapping_ns: f64,
}

/// One call made while a kernel ran that has nothing to do with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wait {
    /// The call.
    pub call: &'static str,
    /// What it took, in nanoseconds.
    pub took_ns: u64,
    /// How long the kernel would have run from its launch on, in nanoseconds.
    pub kernel_ns: u64,
    /// Whether the kernel had ended when the call returned.
    pub waited: bool,
}

/// What was thought that a driver does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Expected {
    /// The call is refused, and nothing has changed.
    Refused,
    /// The call does it.
    Done,
    /// No source says.
    NotKnown,
}

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// It was refused.
    Refused,
    /// It was done.
    Done,
    /// It could not be tried.
    NotTried,
}

/// One rule, and what the driver made of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleFinding {
    /// What was tried, in a few words.
    pub rule: &'static str,
    /// What was expected.
    pub expected: Expected,
    /// What happened.
    pub found: Found,
    /// Values, and the driver's words.
    pub detail: String,
}

impl RuleFinding {
    /// Whether it is as expected; nothing where nothing was expected, or it was not tried.
    pub fn holds(&self) -> Option<bool> {
        match (self.expected, self.found) {
            (Expected::NotKnown, _) | (_, Found::NotTried) => None,
            (Expected::Refused, found) => Some(found == Found::Refused),
            (Expected::Done, found) => Some(found == Found::Done),
        }
    }
}

/// What memory created for a purpose is like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FreshMemory {
    /// The purpose.
    pub purpose: &'static str,
    /// Its smallest mappable size in bytes.
    pub granularity_bytes: u64,
}

/// What memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// One malloc.
    Malloc,
    /// Frames in the order in which they were created.
    InOrder,
    /// Frames in a random order.
    Shuffled,
}

impl Memory {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malloc => "malloc",
            Self::InOrder => "in order",
            Self::Shuffled => "shuffled",
        }
    }
}

/// What the device did with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// The driver's memset wrote all of it.
    Write,
    /// The driver's copy read one half and wrote the other: bytes of one half are counted.
    Copy,
    /// A kernel read 4 bytes at random places; 32 bytes are counted for each, what memory gives at least.
    RandomReads,
}

impl Pattern {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Copy => "copy",
            Self::RandomReads => "random reads",
        }
    }
}

/// How fast one kind of memory is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bandwidth {
    /// What it is made of.
    pub memory: Memory,
    /// Bytes of each frame; 0 of a malloc.
    pub frame_bytes: u64,
    /// Bytes of all of it.
    pub area_bytes: u64,
    /// What was done with it.
    pub pattern: Pattern,
    /// Bytes that one time is about.
    pub counted_bytes: u64,
    /// How often it was timed.
    pub repeats: usize,
    /// The median, in nanoseconds, with the launch and the wait.
    pub median_ns: u64,
    /// Bytes a second of the median.
    pub bytes_per_second: f64,
    /// That of a malloc divided by this: how many times slower it is.
    pub times_slower_than_malloc: f64,
}

/// How many mappings of one frame there were at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MappingLimit {
    /// Bytes of each.
    pub bytes: u64,
    /// How many were mapped and accessible.
    pub mappings: u64,
    /// What the driver said to one more; nothing if no more were tried.
    pub refusal: Option<String>,
}

/// Something that is not in the report, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
}
