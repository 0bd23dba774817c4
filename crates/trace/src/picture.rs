//! What memory looked like at one moment: the live blocks, and what the device had behind its addresses.
//!
//! Main types: [`Picture`], [`PictureBlock`], [`PicturePage`], [`PageState`]. Neighbours: `watch` takes it; the benches
//! draw it.

use std::collections::HashMap;

use concertina_emulator::{BackingId, Counts, Piece};
use concertina_vmm::Address;

use crate::device::ReplayDevice;

/// A block that was live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PictureBlock {
    /// Where it begins.
    pub address: Address,
    /// Its size in bytes, as asked.
    pub bytes: u64,
}

/// Memory after one event, seen from outside: through the page tables of the device, and by the blocks that the program
/// had. What an allocator takes for pending, free or rounded up is not told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// The event, counted from 0.
    pub event: usize,
    /// Physical bytes not given back to the driver.
    pub mapped_bytes: u64,
    /// Bytes of addresses that reservations took.
    pub reserved_bytes: u64,
    /// The live blocks, by address.
    blocks: Vec<PictureBlock>,
    /// What was mapped, by address.
    pieces: Vec<Piece>,
}

/// A page of address space with something behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PicturePage {
    /// Its address over the page size.
    pub number: u64,
    /// Bytes of live blocks in it, as asked.
    pub live_bytes: u64,
    /// What it is.
    pub state: PageState,
}

/// What a page with something behind it is, seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageState {
    /// A live block has bytes here.
    Live,
    /// No live bytes, here or in another page with the same memory.
    Idle,
    /// A second mapping of memory that another page counts for: one with live bytes, or else the first by address.
    Stale,
}

/// One page's worth of physical memory.
type FrameKey = (BackingId, u64);

impl Picture {
    /// What there is now.
    pub(crate) fn take(
        event: usize,
        counts: &Counts,
        device: &dyn ReplayDevice,
        mut blocks: Vec<PictureBlock>,
    ) -> Self {
        let mut pieces = Vec::new();
        device.resolve_range_into(Address::new(0), u64::MAX, &mut pieces);
        pieces.retain(|piece| piece.backing.is_some());
        blocks.sort_unstable();
        let (mapped_bytes, reserved_bytes) = (counts.mapped_bytes, counts.reserved_bytes);
        Self { event, mapped_bytes, reserved_bytes, blocks, pieces }
    }

    /// The live blocks, by address.
    pub fn blocks(&self) -> &[PictureBlock] {
        &self.blocks
    }

    /// Live bytes, as asked.
    pub fn live_bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.bytes).sum()
    }

    /// Whether the device told nothing although something was mapped: nobody looks through a GPU's page tables.
    pub const fn is_blind(&self) -> bool {
        self.pieces.is_empty() && self.mapped_bytes > 0
    }

    /// The pages of `page_bytes` (the granularity, above 0) that have something behind them, by address. Those that are
    /// live or idle have all memory that is mapped anywhere, each byte once.
    pub fn pages(&self, page_bytes: u64) -> Vec<PicturePage> {
        let page_bytes = page_bytes.max(1);
        let (mut pages, keys) = self.mapped_pages(page_bytes);
        self.fill_in_live(&mut pages, page_bytes);
        let mut counting: HashMap<FrameKey, usize> = HashMap::with_capacity(pages.len());
        for (index, key) in keys.iter().enumerate() {
            let holder = counting.entry(*key).or_insert(index);
            if pages[*holder].live_bytes == 0 && pages[index].live_bytes > 0 {
                *holder = index;
            }
        }
        for (index, key) in keys.iter().enumerate() {
            pages[index].state = match pages[index].live_bytes {
                0 if counting[key] == index => PageState::Idle,
                0 => PageState::Stale,
                _ => PageState::Live,
            };
        }
        pages
    }

    /// Every page that a piece reaches into, and the memory behind it.
    fn mapped_pages(&self, page_bytes: u64) -> (Vec<PicturePage>, Vec<FrameKey>) {
        let mut pages: Vec<PicturePage> = Vec::new();
        let mut keys = Vec::new();
        for piece in &self.pieces {
            let Some(backing) = piece.backing else { continue };
            let start = piece.address.get();
            let last = start.saturating_add(piece.bytes - 1) / page_bytes;
            for number in start / page_bytes..=last {
                // Small mallocs share a page: it has been seen with the one before.
                if pages.last().is_some_and(|page| page.number == number) {
                    continue;
                }
                let into = (number * page_bytes).saturating_sub(start);
                keys.push((backing.memory, (backing.offset_bytes + into) / page_bytes));
                pages.push(PicturePage { number, live_bytes: 0, state: PageState::Idle });
            }
        }
        (pages, keys)
    }

    fn fill_in_live(&self, pages: &mut [PicturePage], page_bytes: u64) {
        let mut at = 0;
        for block in &self.blocks {
            let (start, end) = (block.address.get(), block.address.get().saturating_add(block.bytes));
            while pages.get(at).is_some_and(|page| page.number < start / page_bytes) {
                at += 1;
            }
            for page in pages[at..].iter_mut().take_while(|page| page.number * page_bytes < end) {
                let page_start = page.number * page_bytes;
                let shared = end.min(page_start.saturating_add(page_bytes)) - start.max(page_start);
                page.live_bytes += shared;
            }
        }
    }
}

#[cfg(test)]
mod tests;
