//! How sizes are rounded: of blocks, and of the segments that are asked for.
//!
//! Main types: [`Divisions`], `PoolKind`. Neighbours: `conf` has the options, `request` asks.
//!
//! Source: PyTorch 2.11, `c10/cuda/CUDACachingAllocator.cpp` (`round_size`, `roundup_power2_next_division`,
//! `get_pool`, `get_allocation_size`) and the constants of `c10/core/AllocatorConfig.h`.

use std::fmt;

use super::conf::PytorchConf;

pub(crate) const MIB: u64 = 1 << 20;
/// `kMinBlockSize`: blocks are multiples of it.
pub(crate) const STEP_BYTES: u64 = 512;
/// `kSmallSize`: the largest request of the small pool; and the largest rest that stays with a large block.
pub(crate) const SMALL_BYTES: u64 = MIB;
/// `kSmallBuffer`: a segment of the small pool, and a frame of its expandable segments.
pub(crate) const SMALL_SEGMENT_BYTES: u64 = 2 * MIB;
/// `kMinLargeAlloc`: requests from here on get a segment of their own size.
const OWN_SEGMENT_BYTES: u64 = 10 * MIB;
/// `kRoundLarge`: such segments are multiples of it.
const OWN_SEGMENT_STEP_BYTES: u64 = 2 * MIB;

/// Which of the two pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolKind {
    Small,
    Large,
}

impl PoolKind {
    /// The pool for blocks of this (rounded) size.
    pub(crate) const fn of(bytes: u64) -> Self {
        if bytes <= SMALL_BYTES { Self::Small } else { Self::Large }
    }
}

/// Steps that sizes are rounded up to between two powers of two, for each of 16 intervals: 1 MiB (and all below),
/// 2 MiB, 4 MiB, ... 32 GiB (and all above). 0 and 1: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Divisions([u64; Self::INTERVALS]);

impl Divisions {
    const INTERVALS: usize = 16;

    /// The same number everywhere.
    pub const fn all(divisions: u64) -> Self {
        Self([divisions; Self::INTERVALS])
    }

    /// The interval that begins at so many MiB, a power of two; the last one for more.
    pub(crate) fn interval_of_mb(megabytes: u64) -> usize {
        (megabytes.max(1).ilog2() as usize).min(Self::INTERVALS - 1)
    }

    pub(crate) fn set(&mut self, interval: usize, divisions: u64) {
        self.0[interval] = divisions;
    }

    pub(crate) fn set_below(&mut self, interval: usize, divisions: u64) {
        self.0[..interval].fill(divisions);
    }

    /// All above `interval`. Without one, PyTorch takes it to be the first.
    pub(crate) fn set_above(&mut self, interval: Option<usize>, divisions: u64) {
        self.0[interval.unwrap_or(0) + 1..].fill(divisions);
    }

    /// The number for blocks of `bytes` (above 0).
    pub fn at(&self, bytes: u64) -> u64 {
        self.0[Self::interval_of_mb(bytes >> MIB.ilog2())]
    }
}

impl fmt::Display for Divisions {
    /// As the option is written: one number, or a list.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = &self.0;
        if rest.iter().all(|other| other == first) && *first > 0 {
            return write!(f, "{first}");
        }
        let list: Vec<String> = self
            .0
            .iter()
            .enumerate()
            .map(|(interval, value)| format!("{}:{value}", 1_u64 << interval))
            .collect();
        write!(f, "[{}]", list.join(","))
    }
}

/// The size of the block that a request of `bytes` (above 0, below 1 EiB) needs.
pub(crate) fn block_bytes(bytes: u64, conf: &PytorchConf) -> u64 {
    if bytes < STEP_BYTES {
        return STEP_BYTES;
    }
    let divisions = conf.divisions.at(bytes);
    if divisions > 1 && bytes > STEP_BYTES.saturating_mul(divisions) {
        // Of that many equal steps between the powers of two around it, the next. A step is 512 bytes at least here.
        return bytes.next_multiple_of((1 << bytes.ilog2()) / divisions);
    }
    bytes.next_multiple_of(STEP_BYTES)
}

/// The segment that is asked for when nothing is free for a block of `bytes`.
pub(crate) fn segment_bytes(bytes: u64, conf: &PytorchConf) -> u64 {
    match bytes {
        0..=SMALL_BYTES => SMALL_SEGMENT_BYTES,
        _ if bytes < OWN_SEGMENT_BYTES => conf.large_segment_bytes,
        _ => bytes.next_multiple_of(OWN_SEGMENT_STEP_BYTES),
    }
}

#[cfg(test)]
mod tests;
