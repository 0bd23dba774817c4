//! Memory that is accessible at once: `cuMemAlloc` and what tells about memory.
//!
//! Main types: none. Neighbours: `memory` does it; `pool` has the asynchronous kind.

use crate::code::Code;
use crate::entry::{Out, entry_points, give};
use crate::machine;
use crate::memory::Owner;

entry_points! {
    fn cuMemGetInfo_v2(free: Out<'_, usize>, total: Out<'_, usize>) {
        use concertina_vmm::Driver as _;
        let machine = machine::get()?;
        let info = machine.current()?.memory.emulator.memory_info()?;
        give(free, info.free_bytes as usize)?;
        give(total, info.total_bytes as usize)
    }

    fn cuMemAlloc_v2(address: Out<'_, u64>, bytes: usize) {
        let machine = machine::get()?;
        let device = machine.current()?;
        if address.is_none() {
            return Err(Code::INVALID_VALUE);
        }
        give(address, device.memory.malloc(bytes as u64, Owner::Program)?)
    }

    fn cuMemFree_v2(address: u64) {
        let machine = machine::get()?;
        let device = machine.current()?;
        if address == 0 {
            return Ok(());
        }
        let owner = machine.of_address(address)?;
        device.synchronize()?;
        if owner.ordinal != device.ordinal {
            owner.synchronize()?;
        }
        // What came from a pool goes back there, with nothing to wait for.
        if owner.pools.free_unused(address) {
            return owner.pools.trim_to_thresholds();
        }
        owner.memory.free(address, Owner::Program)
    }

    fn cuMemGetAddressRange_v2(start: Out<'_, u64>, bytes: Out<'_, usize>, address: u64) {
        let machine = machine::get()?;
        let device = machine.of_address(address)?;
        let (first, length, owner) = device.memory.malloc_of(address).ok_or(Code::NOT_FOUND)?;
        if owner == Owner::Pool && !device.pools.owns(first) {
            return Err(Code::NOT_FOUND);
        }
        // Null: not wanted.
        if start.is_some() {
            give(start, first)?;
        }
        if bytes.is_some() { give(bytes, length as usize) } else { Ok(()) }
    }
}
