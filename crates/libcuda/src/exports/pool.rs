//! Memory in the order of a stream, and its pools.
//!
//! Main types: none. Neighbours: `pool` has the model.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use crate::abi::{ALLOCATION_PINNED, AccessDesc, Handle, LOCATION_DEVICE, PoolProps};
use crate::code::{Code, Outcome};
use crate::device::Device;
use crate::entry::{Out, entry_points, give};
use crate::exports::array;
use crate::machine::{self, Machine};
use crate::memory::Owner;
use crate::pool::Pool;

/// Values of `CUmemPool_attribute`: three about reuse, which change nothing here; the release threshold; and figures.
const REUSE: core::ops::RangeInclusive<c_uint> = 1..=3;
const RELEASE_THRESHOLD: c_uint = 4;
const RESERVED_CURRENT: c_uint = 5;
const RESERVED_HIGH: c_uint = 6;
const USED_CURRENT: c_uint = 7;
const USED_HIGH: c_uint = 8;

fn check_supported(machine: &Machine) -> Outcome {
    if machine.config.memory_pools { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
}

fn find(machine: &Machine, handle: Handle) -> Outcome<(&Device, Arc<Pool>)> {
    check_supported(machine)?;
    let mut devices = machine.devices.iter();
    devices
        .find_map(|device| device.pools.get(handle).ok().map(|pool| (device, pool)))
        .ok_or(Code::INVALID_VALUE)
}

entry_points! {
    fn cuMemAllocAsync(address: Out<'_, u64>, bytes: usize, stream: Handle) {
        let machine = machine::get()?;
        check_supported(&machine)?;
        let (stream, device) = machine.stream(stream)?;
        stream.check_not_capturing()?;
        if bytes == 0 || address.is_none() {
            return Err(Code::INVALID_VALUE);
        }
        give(address, device.pools.allocate(device.pools.current(), bytes as u64, &stream)?)
    }

    fn cuMemAllocFromPoolAsync(address: Out<'_, u64>, bytes: usize, pool: Handle, stream: Handle) {
        let machine = machine::get()?;
        let (_, pool) = find(&machine, pool)?;
        let (stream, device) = machine.stream(stream)?;
        stream.check_not_capturing()?;
        if bytes == 0 || address.is_none() || pool.device != device.ordinal {
            return Err(Code::INVALID_VALUE);
        }
        give(address, device.pools.allocate(pool, bytes as u64, &stream)?)
    }

    fn cuMemFreeAsync(address: u64, stream: Handle) {
        let machine = machine::get()?;
        check_supported(&machine)?;
        let (stream, device) = machine.stream(stream)?;
        stream.check_not_capturing()?;
        // The stream may be another device's: what counts is when the block is free.
        let owner = machine.of_address(address)?;
        if !owner.pools.owns(address) {
            // CUDA also takes what `cuMemAlloc` gave; here only as that waits.
            let (start, _, of) = owner.memory.malloc_of(address).ok_or(Code::INVALID_VALUE)?;
            if start != address || of != Owner::Program {
                return Err(Code::INVALID_VALUE);
            }
            device.synchronize()?;
            owner.synchronize()?;
            return owner.memory.free(address, Owner::Program);
        }
        let record = device.mark(&stream)?;
        let emulated = (owner.ordinal == device.ordinal).then(|| stream.emulated.clone());
        owner.pools.free(address, &stream, emulated, record);
        Ok(())
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<'_, Handle>, device: c_int) {
        let machine = machine::get()?;
        check_supported(&machine)?;
        give(pool, machine.device(device)?.pools.default_pool().handle)
    }

    fn cuDeviceGetMemPool(pool: Out<'_, Handle>, device: c_int) {
        let machine = machine::get()?;
        check_supported(&machine)?;
        give(pool, machine.device(device)?.pools.current().handle)
    }

    fn cuDeviceSetMemPool(device: c_int, pool: Handle) {
        let machine = machine::get()?;
        let (owner, pool) = find(&machine, pool)?;
        if owner.ordinal != machine.device(device)?.ordinal {
            return Err(Code::INVALID_VALUE);
        }
        owner.pools.set_current(pool);
        Ok(())
    }

    fn cuMemPoolCreate(pool: Out<'_, Handle>, properties: Option<&PoolProps>) {
        let machine = machine::get()?;
        check_supported(&machine)?;
        let properties = properties.ok_or(Code::INVALID_VALUE)?;
        if properties.kind != ALLOCATION_PINNED || pool.is_none() {
            return Err(Code::INVALID_VALUE);
        }
        if properties.handle_types != 0 || properties.location.kind != LOCATION_DEVICE {
            return Err(Code::NOT_SUPPORTED);
        }
        let device = machine.device(properties.location.id)?;
        give(pool, device.pools.create(&device.memory).handle)
    }

    fn cuMemPoolDestroy(pool: Handle) {
        let machine = machine::get()?;
        let (device, pool) = find(&machine, pool)?;
        device.pools.destroy(pool.handle)
    }

    fn cuMemPoolTrimTo(pool: Handle, keep: usize) {
        let machine = machine::get()?;
        find(&machine, pool)?.1.trim(keep as u64)
    }

    fn cuMemPoolSetAttribute(pool: Handle, attribute: c_uint, value: *mut c_void) {
        let machine = machine::get()?;
        let (_, pool) = find(&machine, pool)?;
        if value.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        match attribute {
            attribute if REUSE.contains(&attribute) => {}
            RELEASE_THRESHOLD => {
                // SAFETY: the manual asks for 64 bits of this attribute.
                pool.set_threshold(unsafe { value.cast::<u64>().read_unaligned() });
            }
            RESERVED_HIGH | USED_HIGH => pool.forget_peaks(),
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: Handle, attribute: c_uint, value: *mut c_void) {
        let machine = machine::get()?;
        let (_, pool) = find(&machine, pool)?;
        if value.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let figures = pool.figures();
        let figure = match attribute {
            attribute if REUSE.contains(&attribute) => {
                // SAFETY: the manual asks for 32 bits of these attributes.
                unsafe { value.cast::<u32>().write_unaligned(1) };
                return Ok(());
            }
            RELEASE_THRESHOLD => figures.threshold,
            RESERVED_CURRENT => figures.reserved,
            RESERVED_HIGH => figures.reserved_peak,
            USED_CURRENT => figures.used,
            USED_HIGH => figures.used_peak,
            _ => return Err(Code::INVALID_VALUE),
        };
        // SAFETY: the manual asks for 64 bits of these attributes.
        unsafe { value.cast::<u64>().write_unaligned(figure) };
        Ok(())
    }

    fn cuMemPoolSetAccess(pool: Handle, accesses: *const AccessDesc, count: usize) {
        let machine = machine::get()?;
        let (device, _) = find(&machine, pool)?;
        // SAFETY: the manual asks for an array of that length.
        let accesses = unsafe { array(accesses, count) }?;
        let own = |access: &AccessDesc| access.location.id == device.ordinal as c_int;
        if accesses.iter().all(own) { Ok(()) } else { Err(Code::PEER_ACCESS_UNSUPPORTED) }
    }
}
