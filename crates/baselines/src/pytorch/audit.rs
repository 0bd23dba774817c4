//! What must hold of the books at any time, for tests.
//!
//! Neighbours: `tests` runs random programs on it.

use std::collections::BTreeMap;

use concertina_vmm::Driver;

use super::Pytorch;
use super::block::{Block, BlockId, BlockState};
use super::rounding::{PoolKind, STEP_BYTES};

/// Everything that does not hold.
pub(crate) fn audit<D: Driver>(allocator: &Pytorch<D>) -> Vec<String> {
    let mut wrong = Vec::new();
    let blocks: BTreeMap<BlockId, &Block> = allocator.blocks.iter().collect();
    let (mut reserved, mut live, mut active, mut requested) = (0, 0, 0, 0);
    for (&id, block) in &blocks {
        if block.bytes == 0 || block.bytes % STEP_BYTES != 0 {
            wrong.push(format!("block of {} bytes at {:#x}", block.bytes, block.address));
        }
        if block.state != BlockState::Unmapped {
            reserved += block.bytes;
        }
        live += if block.state == BlockState::Live { block.bytes } else { 0 };
        if !block.is_allocatable() {
            active += block.bytes;
            requested += block.requested_bytes;
        }
        let outstanding = block.outstanding_events > 0 || !block.used_on.is_empty();
        if block.state == BlockState::Pending && !outstanding {
            wrong.push(format!("pending without an event at {:#x}", block.address));
        }
        if block.is_allocatable() && outstanding {
            wrong.push(format!("free with an event outstanding at {:#x}", block.address));
        }
        if let Some(next) = block.next.map(|next| blocks[&next]) {
            if next.prev != Some(id) || next.address != block.address + block.bytes {
                wrong.push(format!("{:#x} does not follow {:#x}", next.address, block.address));
            }
            if next.state == block.state && block.is_allocatable() {
                wrong.push(format!("{:#x} is not joined to {:#x}", next.address, block.address));
            }
        }
    }
    for (name, wanted, counted) in [
        ("reserved", reserved, allocator.stats.reserved.current),
        ("allocated", live, allocator.stats.allocated.current),
        ("active", active, allocator.stats.active.current),
        ("requested", requested, allocator.stats.requested.current),
    ] {
        if wanted != counted {
            wrong.push(format!("{counted} bytes {name}, the blocks have {wanted}"));
        }
    }
    for (kind, pool) in [(PoolKind::Small, &allocator.small), (PoolKind::Large, &allocator.large)] {
        let mine = |state| blocks.values().filter(|b| b.pool == kind && b.state == state).count();
        let wanted = (mine(BlockState::Free), mine(BlockState::Unmapped));
        if pool.sizes() != wanted {
            wrong.push(format!("{kind:?} pool has {:?} blocks, not {wanted:?}", pool.sizes()));
        }
        wrong.extend(pool.misplaced(&allocator.blocks));
    }
    wrong
}
