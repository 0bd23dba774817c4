//! What the driver's own malloc does with granules. Modelled: no driver documents it.
//!
//! Main types: [`MallocArea`]. Neighbours: `physical` has the memory, `device` calls.
//!
//! The model: a request of 1 MiB or more (or of a granule or more, if that is less) takes whole granules. Smaller ones
//! are rounded to 256 bytes and packed, by first fit, into granules that only small ones share; such a granule goes
//! back when its last block does. 256 bytes is the alignment that the CUDA Programming Guide promises for
//! `cudaMalloc`.
//!
//! A run of granules lies at the lowest address where it fits; what is given back joins its neighbours. Two live mallocs
//! never share an address.

use std::collections::BTreeMap;

use crate::address_gaps::AddressGaps;
use crate::physical::{Physical, Purpose};
use crate::rule::{Refusal, Rule};
use crate::slab::Key;

/// Rounding and alignment of small blocks, in bytes.
const SMALL_STEP: u64 = 256;
/// Requests below this many bytes share granules.
const SMALL_LIMIT: u64 = 1 << 20;

#[derive(Debug)]
enum Use {
    Whole(Key),
    Shared(SharedGranule),
}

#[derive(Debug)]
struct Run {
    bytes: u64,
    used: Use,
}

/// A granule that small blocks share. Offsets and lengths in bytes.
#[derive(Debug)]
struct SharedGranule {
    frame: Key,
    blocks: BTreeMap<u64, u64>,
    /// Free ranges (offset, length), by offset; neighbours are joined.
    gaps: Vec<(u64, u64)>,
    /// No gap is longer.
    longest: u64,
}

impl SharedGranule {
    fn new(frame: Key, bytes: u64) -> Self {
        Self { frame, blocks: BTreeMap::new(), gaps: vec![(0, bytes)], longest: bytes }
    }

    fn take(&mut self, bytes: u64) -> Option<u64> {
        if self.longest < bytes {
            return None;
        }
        let Some(index) = self.gaps.iter().position(|&(_, length)| length >= bytes) else {
            self.longest = self.gaps.iter().map(|&(_, length)| length).max().unwrap_or(0);
            return None;
        };
        let (offset, length) = self.gaps[index];
        if length == bytes {
            self.gaps.remove(index);
        } else {
            self.gaps[index] = (offset + bytes, length - bytes);
        }
        self.blocks.insert(offset, bytes);
        Some(offset)
    }

    /// Gives back the block at exactly this offset, if there is one.
    fn give_back(&mut self, offset: u64) -> Option<()> {
        let bytes = self.blocks.remove(&offset)?;
        let index = self.gaps.partition_point(|&(gap, _)| gap < offset);
        let (mut start, mut end) = (offset, offset + bytes);
        let mut joined = index..index;
        if let Some(&(gap, length)) = self.gaps.get(index).filter(|&&(gap, _)| gap == end) {
            end = gap + length;
            joined.end += 1;
        }
        let before = index.checked_sub(1).map(|before| self.gaps[before]);
        if let Some((gap, _)) = before.filter(|(gap, length)| gap + length == start) {
            start = gap;
            joined.start -= 1;
        }
        self.longest = self.longest.max(end - start);
        self.gaps.splice(joined, [(start, end - start)]);
        Some(())
    }
}

#[derive(Debug)]
pub(crate) struct MallocArea {
    granularity: u64,
    /// Where addresses of mallocs begin and end: below all reservations.
    base: u64,
    end: u64,
    /// Live ones, by address.
    runs: BTreeMap<u64, Run>,
    /// Between them.
    gaps: AddressGaps,
    /// Runs that small blocks share, by address.
    shared: Vec<u64>,
    live: u64,
}

/// What a malloc took: the costs differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Granules,
    SmallBlock,
}

impl MallocArea {
    pub(crate) fn new(granularity: u64, base: u64, end: u64) -> Self {
        let gaps = AddressGaps::of(base..end);
        Self { granularity, base, end, runs: BTreeMap::new(), gaps, shared: Vec::new(), live: 0 }
    }

    pub(crate) const fn live(&self) -> u64 {
        self.live
    }

    /// The address of `bytes` (above 0) of new memory.
    pub(crate) fn malloc(&mut self, bytes: u64, memory: &mut Physical) -> Result<(u64, Taken), Refusal> {
        let (address, taken) = if bytes < SMALL_LIMIT.min(self.granularity) {
            (self.take_small(bytes.next_multiple_of(SMALL_STEP), memory)?, Taken::SmallBlock)
        } else {
            // Rounding up to a whole granule leaves 64 bits only for sizes that no device has.
            let bytes = bytes.div_ceil(self.granularity).saturating_mul(self.granularity);
            (self.take_run(bytes, memory, Use::Whole)?, Taken::Granules)
        };
        self.live += 1;
        Ok((address, taken))
    }

    fn take_small(&mut self, bytes: u64, memory: &mut Physical) -> Result<u64, Refusal> {
        for &start in &self.shared {
            if let Some(Run { used: Use::Shared(granule), .. }) = self.runs.get_mut(&start)
                && let Some(offset) = granule.take(bytes)
            {
                return Ok(start + offset);
            }
        }
        let granularity = self.granularity;
        let start = self.take_run(granularity, memory, |frame| {
            let mut granule = SharedGranule::new(frame, granularity);
            granule.take(bytes);
            Use::Shared(granule)
        })?;
        let place = self.shared.partition_point(|&other| other < start);
        self.shared.insert(place, start);
        Ok(start)
    }

    /// The address of a new run of so many bytes, whole granules.
    fn take_run(
        &mut self,
        bytes: u64,
        memory: &mut Physical,
        used: impl FnOnce(Key) -> Use,
    ) -> Result<u64, Refusal> {
        let Some(start) = self.gaps.lowest(bytes) else {
            return Err(Refusal::Full(format!("no {bytes} bytes of addresses for a malloc")));
        };
        let Some(frame) = memory.take(bytes, Purpose::Malloc) else {
            return Err(Refusal::Full(format!("{bytes} bytes; {} are free", memory.free_bytes())));
        };
        self.gaps.take(start, bytes);
        self.runs.insert(start, Run { bytes, used: used(frame) });
        Ok(start)
    }

    /// The run that an address lies in, and where it begins.
    fn run_of(&self, address: u64) -> Option<(u64, &Run)> {
        let (&start, run) = self.runs.range(..=address).next_back()?;
        (address - start < run.bytes).then_some((start, run))
    }

    pub(crate) fn check_live(&self, address: u64) -> Result<(), Refusal> {
        let live = self.run_of(address).is_some_and(|(start, run)| match &run.used {
            Use::Whole(_) => address == start,
            Use::Shared(granule) => granule.blocks.contains_key(&(address - start)),
        });
        if live {
            return Ok(());
        }
        Rule::FreeNotOneMalloc.broken(|| format!("no live malloc begins at {address:#x}"))
    }

    /// Gives back a malloc that was checked to be live.
    pub(crate) fn free(&mut self, address: u64, memory: &mut Physical) {
        let Some((&start, run)) = self.runs.range_mut(..=address).next_back() else { return };
        let frame = match &mut run.used {
            Use::Whole(frame) => *frame,
            Use::Shared(granule) => {
                if granule.give_back(address - start).is_none() {
                    return;
                }
                if !granule.blocks.is_empty() {
                    self.live -= 1;
                    return;
                }
                self.shared.retain(|&other| other != start);
                granule.frame
            }
        };
        self.live -= 1;
        self.gaps.give_back(start, run.bytes);
        self.runs.remove(&start);
        memory.give_up_handle(frame.slot);
    }

    /// The memory behind an address and the offset in it, if it lies in a live malloc; and for how many bytes from
    /// there the answer holds. For addresses below all reservations.
    pub(crate) fn behind(&self, address: u64) -> (Option<(Key, u64)>, u64) {
        let Some((start, run)) = self.run_of(address) else {
            let next = self.runs.range(address..).next().map_or(self.end, |(&start, _)| start);
            let end = if address < self.base { self.base } else { next };
            return (None, end - address);
        };
        let bytes = run.bytes;
        let offset = address - start;
        match &run.used {
            Use::Whole(frame) => (Some((*frame, offset)), bytes - offset),
            Use::Shared(granule) => match granule.blocks.range(..=offset).next_back() {
                Some((&start, &length)) if offset < start + length => {
                    (Some((granule.frame, offset)), start + length - offset)
                }
                _ => {
                    let next = granule.blocks.range(offset..).next().map_or(bytes, |(&start, _)| start);
                    (None, next - offset)
                }
            },
        }
    }

    /// Live mallocs, counted one by one.
    pub(crate) fn recount(&self) -> u64 {
        let of_run = |run: &Run| match &run.used {
            Use::Whole(_) => 1,
            Use::Shared(granule) => granule.blocks.len() as u64,
        };
        self.runs.values().map(of_run).sum()
    }
}
