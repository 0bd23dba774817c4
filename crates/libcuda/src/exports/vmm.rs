//! Virtual memory: reservations, handles of physical memory, mappings, access.
//!
//! Main types: none. Neighbours: `memory` does it, after the emulator has checked it.

use core::ffi::{c_int, c_uint, c_ulonglong, c_void};

use crate::abi::{ALLOCATION_PINNED, AccessDesc, AllocationProp, LOCATION_DEVICE, Location};
use crate::code::{Code, Outcome};
use crate::device::Device;
use crate::entry::{Out, entry_points, give};
use crate::exports::array;
use crate::host_pages::Protection;
use crate::machine::{self, Machine};

/// `CU_MEM_ACCESS_FLAGS_PROT_READ` and `..._READWRITE`.
const READ: u32 = 1;
const READ_WRITE: u32 = 3;

fn check_supported(machine: &Machine) -> Outcome {
    if machine.config.virtual_memory { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
}

/// The device of a location.
fn located(machine: &Machine, location: Location) -> Outcome<&Device> {
    if location.kind != LOCATION_DEVICE {
        return Err(Code::NOT_SUPPORTED);
    }
    machine.device(location.id as c_int)
}

/// The device that memory with these properties would lie on.
fn device_for<'a>(machine: &'a Machine, properties: Option<&AllocationProp>) -> Outcome<&'a Device> {
    check_supported(machine)?;
    let properties = properties.ok_or(Code::INVALID_VALUE)?;
    if properties.kind != ALLOCATION_PINNED {
        return Err(Code::INVALID_VALUE);
    }
    // No export to other processes, no compression.
    if properties.handle_types != 0 || properties.compression != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    located(machine, properties.location)
}

/// Handles carry their device in the upper bits, so that one device's is not taken for another's.
const DEVICE_SHIFT: u32 = 60;

fn public_handle(device: &Device, number: u64) -> u64 {
    number | u64::from(device.ordinal) << DEVICE_SHIFT
}

fn split_handle(machine: &Machine, handle: u64) -> Outcome<(&Device, u64)> {
    let device = machine.devices.get((handle >> DEVICE_SHIFT) as usize).ok_or(Code::INVALID_VALUE)?;
    Ok((device, handle & ((1 << DEVICE_SHIFT) - 1)))
}

fn of_address(machine: &Machine, address: u64) -> Outcome<&Device> {
    check_supported(machine)?;
    // An address of nobody is refused by the emulator, by the name of the rule.
    Ok(machine.of_address(address).unwrap_or(&machine.devices[0]))
}

entry_points! {
    fn cuMemGetAllocationGranularity(
        bytes: Out<'_, usize>, properties: Option<&AllocationProp>, _option: c_uint,
    ) {
        let machine = machine::get()?;
        let device = device_for(&machine, properties)?;
        give(bytes, device.memory.granularity as usize)
    }

    fn cuMemAddressReserve(
        address: Out<'_, u64>, bytes: usize, alignment: usize, _wish: u64, flags: c_ulonglong,
    ) {
        let machine = machine::get()?;
        check_supported(&machine)?;
        if flags != 0 || address.is_none() {
            return Err(Code::INVALID_VALUE);
        }
        // Addresses belong to no device in CUDA; here each device has its own, and the current one gives.
        let device = machine.current().unwrap_or(&machine.devices[0]);
        give(address, device.memory.reserve(bytes as u64, alignment as u64)?)
    }

    fn cuMemAddressFree(address: u64, bytes: usize) {
        let machine = machine::get()?;
        of_address(&machine, address)?.memory.unreserve(address, bytes as u64)
    }

    fn cuMemCreate(
        handle: Out<'_, u64>, bytes: usize, properties: Option<&AllocationProp>, flags: c_ulonglong,
    ) {
        let machine = machine::get()?;
        let device = device_for(&machine, properties)?;
        let properties = properties.ok_or(Code::INVALID_VALUE)?;
        if flags != 0 || handle.is_none() {
            return Err(Code::INVALID_VALUE);
        }
        give(handle, public_handle(device, device.memory.create(bytes as u64, properties)?))
    }

    fn cuMemRelease(handle: u64) {
        let machine = machine::get()?;
        check_supported(&machine)?;
        let (device, number) = split_handle(&machine, handle)?;
        device.memory.release(number)
    }

    fn cuMemRetainAllocationHandle(handle: Out<'_, u64>, address: *mut c_void) {
        let machine = machine::get()?;
        let device = of_address(&machine, address as u64)?;
        if handle.is_none() {
            return Err(Code::INVALID_VALUE);
        }
        give(handle, public_handle(device, device.memory.retain(address as u64)?))
    }

    fn cuMemGetAllocationPropertiesFromHandle(properties: Out<'_, AllocationProp>, handle: u64) {
        let machine = machine::get()?;
        check_supported(&machine)?;
        let (device, number) = split_handle(&machine, handle)?;
        give(properties, device.memory.properties_of(number)?)
    }

    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong) {
        let machine = machine::get()?;
        if offset != 0 || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let device = of_address(&machine, address)?;
        let (owner, number) = split_handle(&machine, handle)?;
        if owner.ordinal != device.ordinal {
            // Memory of one device at addresses of another: CUDA can, this can't.
            return Err(Code::NOT_SUPPORTED);
        }
        device.memory.map(address, bytes as u64, number)
    }

    fn cuMemUnmap(address: u64, bytes: usize) {
        let machine = machine::get()?;
        of_address(&machine, address)?.memory.unmap(address, bytes as u64)
    }

    fn cuMemSetAccess(address: u64, bytes: usize, accesses: *const AccessDesc, count: usize) {
        let machine = machine::get()?;
        let device = of_address(&machine, address)?;
        // SAFETY: the manual asks for an array of that length.
        let accesses = unsafe { array(accesses, count) }?;
        let mut protection = None;
        for access in accesses {
            if located(&machine, access.location)?.ordinal != device.ordinal {
                return Err(Code::PEER_ACCESS_UNSUPPORTED);
            }
            protection = Some(match access.flags {
                0 => Protection::None,
                READ => Protection::Read,
                READ_WRITE => Protection::ReadWrite,
                _ => return Err(Code::INVALID_VALUE),
            });
        }
        let protection = protection.ok_or(Code::INVALID_VALUE)?;
        device.memory.set_access(address, bytes as u64, protection)
    }

    fn cuMemGetAccess(flags: Out<'_, c_ulonglong>, location: Option<&Location>, address: u64) {
        let machine = machine::get()?;
        let device = of_address(&machine, address)?;
        let asked = located(&machine, *location.ok_or(Code::INVALID_VALUE)?)?;
        let protection = device.memory.access(address)?;
        let value = match protection {
            _ if asked.ordinal != device.ordinal => 0,
            Protection::None => 0,
            Protection::Read => READ,
            Protection::ReadWrite => READ_WRITE,
        };
        give(flags, c_ulonglong::from(value))
    }

    fn cuMemExportToShareableHandle(
        _shared: *mut c_void, _handle: u64, _kind: c_uint, _flags: c_ulonglong,
    ) {
        machine::get()?;
        Err(Code::NOT_SUPPORTED)
    }

    fn cuMemImportFromShareableHandle(_handle: Out<'_, u64>, _shared: *mut c_void, _kind: c_uint) {
        machine::get()?;
        Err(Code::NOT_SUPPORTED)
    }
}
