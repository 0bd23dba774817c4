//! Pinned memory of the host.
//!
//! Main types: none. Neighbours: `pinned` keeps the ranges.

use core::ffi::{c_uint, c_void};

use crate::code::{Code, Outcome};
use crate::entry::{Out, entry_points, give};
use crate::machine::{self, Machine};

fn allocate(start: Out<'_, *mut c_void>, bytes: usize) -> Outcome {
    let machine = machine::get()?;
    machine.current()?;
    if start.is_none() {
        return Err(Code::INVALID_VALUE);
    }
    give(start, machine.pinned.allocate(bytes)? as *mut c_void)
}

/// Work of any device may be using it.
fn wait_for_all(machine: &Machine) -> Outcome {
    machine.devices.iter().try_for_each(|device| device.synchronize())
}

entry_points! {
    fn cuMemHostAlloc(start: Out<'_, *mut c_void>, bytes: usize, _flags: c_uint) {
        allocate(start, bytes)
    }

    fn cuMemAllocHost_v2(start: Out<'_, *mut c_void>, bytes: usize) {
        allocate(start, bytes)
    }

    fn cuMemFreeHost(start: *mut c_void) {
        let machine = machine::get()?;
        wait_for_all(&machine)?;
        machine.pinned.free(start as usize)
    }

    fn cuMemHostRegister_v2(start: *mut c_void, bytes: usize, _flags: c_uint) {
        let machine = machine::get()?;
        machine.current()?;
        machine.pinned.register(start as usize, bytes)
    }

    fn cuMemHostUnregister(start: *mut c_void) {
        let machine = machine::get()?;
        wait_for_all(&machine)?;
        machine.pinned.unregister(start as usize)
    }

    fn cuMemHostGetDevicePointer_v2(address: Out<'_, u64>, start: *mut c_void, flags: c_uint) {
        let machine = machine::get()?;
        if flags != 0 || !machine.pinned.contains(start as usize, 1) {
            return Err(Code::INVALID_VALUE);
        }
        give(address, start as u64)
    }
}
