//! What the driver's own malloc does with granules. Modelled: no driver documents it.
//!
//! Main types: [`MallocArea`]. Neighbours: `physical` has the memory, `device` calls.
//!
//! The model: a request of 1 MiB or more (or of a granule or more, if that is less) takes whole granules. Smaller ones
//! are rounded to 256 bytes and packed, by first fit, into granules that only small ones share; such a granule goes
//! back when its last block does. 256 bytes is the alignment that the CUDA Programming Guide promises for
//! `cudaMalloc`.
//!
//! Addresses are cut once into runs of granules; a run that was given back serves requests of exactly its length.
//! So a lookup is a binary search, and two live mallocs never share an address.

use std::collections::BTreeMap;

use crate::physical::{Physical, Purpose};
use crate::rule::{Refusal, Rule};
use crate::slab::Key;

/// Rounding and alignment of small blocks, in bytes.
const SMALL_STEP: u64 = 256;
/// Requests below this many bytes share granules.
const SMALL_LIMIT: u64 = 1 << 20;

#[derive(Debug)]
enum Use {
    Idle,
    Whole(Key),
    Shared(SharedGranule),
}

#[derive(Debug)]
struct Run {
    start: u64,
    granules: u64,
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
    /// By address: each begins where the one before ends.
    runs: Vec<Run>,
    /// Runs given back, by their length in granules.
    idle: BTreeMap<u64, Vec<usize>>,
    /// Runs that small blocks share, by address.
    shared: Vec<usize>,
    live: u64,
}

/// What a malloc took: the costs differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Granules,
    SmallBlock,
}

impl MallocArea {
    pub(crate) const fn new(granularity: u64, base: u64, end: u64) -> Self {
        Self { granularity, base, end, runs: Vec::new(), idle: BTreeMap::new(), shared: Vec::new(), live: 0 }
    }

    pub(crate) const fn live(&self) -> u64 {
        self.live
    }

    /// The address of `bytes` (above 0) of new memory.
    pub(crate) fn malloc(&mut self, bytes: u64, memory: &mut Physical) -> Result<(u64, Taken), Refusal> {
        let (address, taken) = if bytes < SMALL_LIMIT.min(self.granularity) {
            (self.take_small(bytes.next_multiple_of(SMALL_STEP), memory)?, Taken::SmallBlock)
        } else {
            let run = self.take_run(bytes.div_ceil(self.granularity), memory)?;
            (self.runs[run].start, Taken::Granules)
        };
        self.live += 1;
        Ok((address, taken))
    }

    fn take_small(&mut self, bytes: u64, memory: &mut Physical) -> Result<u64, Refusal> {
        for &index in &self.shared {
            let run = &mut self.runs[index];
            if let Use::Shared(granule) = &mut run.used
                && let Some(offset) = granule.take(bytes)
            {
                return Ok(run.start + offset);
            }
        }
        let index = self.take_run(1, memory)?;
        let place = self.shared.partition_point(|&other| other < index);
        self.shared.insert(place, index);
        let run = &mut self.runs[index];
        if let Use::Whole(frame) = run.used {
            let mut granule = SharedGranule::new(frame, self.granularity);
            granule.take(bytes);
            run.used = Use::Shared(granule);
        }
        Ok(run.start)
    }

    fn take_run(&mut self, granules: u64, memory: &mut Physical) -> Result<usize, Refusal> {
        // Rounding up to a whole granule leaves 64 bits only for sizes that no device has.
        let bytes = granules.saturating_mul(self.granularity);
        let start = self.runs.last().map_or(self.base, |run| run.start + run.granules * self.granularity);
        let idle = self.idle.get_mut(&granules).filter(|runs| !runs.is_empty());
        if idle.is_none() && self.end - start < bytes {
            return Err(Refusal::Full(format!("no {bytes} bytes of addresses for a malloc")));
        }
        let Some(frame) = memory.take(bytes, Purpose::Malloc) else {
            return Err(Refusal::Full(format!("{bytes} bytes; {} are free", memory.free_bytes())));
        };
        let index = idle.and_then(Vec::pop).unwrap_or_else(|| {
            self.runs.push(Run { start, granules, used: Use::Idle });
            self.runs.len() - 1
        });
        self.runs[index].used = Use::Whole(frame);
        Ok(index)
    }

    /// The run that an address lies in.
    fn run_of(&self, address: u64) -> Option<usize> {
        let index = self.runs.partition_point(|run| run.start <= address).checked_sub(1)?;
        let run = &self.runs[index];
        (address < run.start + run.granules * self.granularity).then_some(index)
    }

    pub(crate) fn check_live(&self, address: u64) -> Result<(), Refusal> {
        let live = self.run_of(address).is_some_and(|index| {
            let run = &self.runs[index];
            match &run.used {
                Use::Idle => false,
                Use::Whole(_) => address == run.start,
                Use::Shared(granule) => granule.blocks.contains_key(&(address - run.start)),
            }
        });
        if live {
            return Ok(());
        }
        Rule::FreeNotOneMalloc.broken(|| format!("no live malloc begins at {address:#x}"))
    }

    /// Gives back a malloc that was checked to be live.
    pub(crate) fn free(&mut self, address: u64, memory: &mut Physical) {
        let Some(index) = self.run_of(address) else { return };
        let run = &mut self.runs[index];
        let frame = match &mut run.used {
            Use::Idle => return,
            Use::Whole(frame) => *frame,
            Use::Shared(granule) => {
                if granule.give_back(address - run.start).is_none() {
                    return;
                }
                if !granule.blocks.is_empty() {
                    self.live -= 1;
                    return;
                }
                self.shared.retain(|&other| other != index);
                granule.frame
            }
        };
        self.live -= 1;
        run.used = Use::Idle;
        self.idle.entry(run.granules).or_default().push(index);
        memory.give_up_handle(frame.slot);
    }

    /// The memory behind an address and the offset in it, if it lies in a live malloc; and for how many bytes from
    /// there the answer holds. For addresses below all reservations.
    pub(crate) fn behind(&self, address: u64) -> (Option<(Key, u64)>, u64) {
        let Some(index) = self.run_of(address) else {
            let end = if address < self.base { self.base } else { self.end };
            return (None, end - address);
        };
        let run = &self.runs[index];
        let bytes = run.granules * self.granularity;
        let offset = address - run.start;
        match &run.used {
            Use::Idle => (None, bytes - offset),
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
            Use::Idle => 0,
            Use::Whole(_) => 1,
            Use::Shared(granule) => granule.blocks.len() as u64,
        };
        self.runs.iter().map(of_run).sum()
    }
}
