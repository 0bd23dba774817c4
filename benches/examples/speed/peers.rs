//! Crates that do a like job on the host, as contenders.
//!
//! Main types: [`OffsetAllocator`], [`GpuAllocator`]. Neighbours: `concertina_bench::contender` has the trait;
//! `benches/peers.rs` includes this file, too. The limit of what a pair can cost is that of the program's own
//! allocator, mimalloc: see `HostHeap`.

#[path = "peers/vulkan.rs"]
mod vulkan;

use concertina_bench::contender::Contender;
use offset_allocator::{Allocation, Allocator};

pub(crate) use vulkan::GpuAllocator;

/// Bytes of one unit: as Concertina's steps.
const UNIT: u64 = 512;

/// Units of the whole range, 1 TiB: more than any loop here has live at once.
const UNITS: u32 = 1 << 31;

/// Blocks that there may be at once, used and free.
const BLOCKS: u32 = 1 << 22;

/// The crate `offset-allocator`: Sebastian Aaltonen's allocator of offsets in a range, which is two-level segregated
/// fit. Knows one range and no stream.
#[derive(Debug)]
pub(crate) struct OffsetAllocator(Allocator<u32>);

impl Default for OffsetAllocator {
    fn default() -> Self {
        Self(Allocator::with_max_allocs(UNITS, BLOCKS))
    }
}

impl Contender for OffsetAllocator {
    type Block = Allocation<u32>;

    fn name(&self) -> &'static str {
        "offset-allocator"
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Self::Block {
        let units = u32::try_from(bytes.div_ceil(UNIT)).expect("less than the range");
        self.0.allocate(units).expect("the range is large enough")
    }

    #[inline]
    fn free(&mut self, block: Self::Block) {
        self.0.free(block);
    }
}
