//! Bins: freed blocks of one exact size each, kept whole to be used again at once.
//!
//! Main type: [`Bins`]. Neighbours: a small heap frees into bins and allocates from them first; they are emptied before
//! anything is stolen or created, since a block in a bin keeps its page from becoming free.

use concertina_vmm::sync::CACHE_LINES_BYTES;

/// Most bytes that the bins of a heap keep. Bins of any size, kept until needed, held 23 to 86 times the live bytes
/// hostage in simulation.
pub const BINS_BYTES: u64 = 1 << 20;

/// Largest block in steps that goes to a bin: 1 KiB, the scalars and flags that programs make by the thousand. A block
/// from a bin is not where best fit would have put it, and larger ones cost more than they save: with bins up to a
/// page the trace s6 needs 1.0098 times its live bytes, with none 1.0081, with these 1.0079.
pub const BIN_STEPS: u32 = 2;

/// Blocks that a bin has room for from the start: no two heaps' bins on one cache line.
const BIN_CAPACITY: usize = CACHE_LINES_BYTES / size_of::<u32>();

/// Freed blocks of a heap by exact size.
#[derive(Debug, Default)]
pub struct Bins {
    // By size in steps.
    bins: Vec<Vec<u32>>,
    steps: u64,
    blocks: usize,
}

impl Bins {
    /// Takes the block of exactly this size that was freed last.
    #[inline]
    pub fn pop(&mut self, steps: u32) -> Option<u32> {
        let block = self.bins.get_mut(steps as usize)?.pop()?;
        self.steps -= u64::from(steps);
        self.blocks -= 1;
        Some(block)
    }

    /// Keeps a block of this size, unless the bins are full.
    #[must_use]
    #[inline]
    pub fn push(&mut self, block: u32, steps: u32) -> bool {
        if (self.steps + u64::from(steps)) * crate::step::STEP_BYTES > BINS_BYTES {
            return false;
        }
        if self.bins.len() <= steps as usize {
            self.bins.resize_with(steps as usize + 1, || Vec::with_capacity(BIN_CAPACITY));
        }
        self.bins[steps as usize].push(block);
        self.steps += u64::from(steps);
        self.blocks += 1;
        true
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Bytes kept.
    pub fn bytes(&self) -> u64 {
        self.steps * crate::step::STEP_BYTES
    }

    /// Takes everything out, smaller sizes first.
    pub fn empty(&mut self) -> Vec<u32> {
        let mut blocks = Vec::with_capacity(self.blocks);
        for bin in &mut self.bins {
            blocks.append(bin);
        }
        self.steps = 0;
        self.blocks = 0;
        blocks
    }
}

#[cfg(test)]
mod tests;
