//! Copies and fills.
//!
//! Main types: none. Neighbours: `reach` does them, on the stream's worker.
//!
//! As on a device: what comes from pageable memory has been read when the call returns, a copy to pageable memory is done
//! when the call returns, and with pinned memory both are left to the stream.

use core::ffi::{c_uchar, c_uint, c_ushort, c_void};
use std::sync::Arc;

use crate::abi::Handle;
use crate::code::{Code, Outcome};
use crate::entry::entry_points;
use crate::machine::{self, Machine};
use crate::reach::{Intent, Pattern, Place};
use crate::work::Work;

/// Whether the call waits until it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Yes,
    No,
}

/// One address space: what is no device's is the host's.
fn any_place(machine: &Machine, address: u64) -> Place {
    match machine.of_address(address) {
        Ok(device) => Place::Device(Arc::clone(&device.memory), address),
        Err(_) => Place::Host(address as usize),
    }
}

/// An address that must be a device's. Of no bytes any one is right, as null is for an empty buffer.
fn device_place(machine: &Machine, address: u64, bytes: usize) -> Outcome<Place> {
    match any_place(machine, address) {
        Place::Host(_) if bytes > 0 => Err(Code::INVALID_VALUE),
        place => Ok(place),
    }
}

fn copy(machine: &Machine, to: Place, from: Place, bytes: usize, stream: Handle, wait: Wait) -> Outcome {
    let (stream, device) = machine.stream(stream)?;
    if bytes == 0 {
        return Ok(());
    }
    let length = bytes as u64;
    to.check(length, Intent::Write)?;
    from.check(length, Intent::Read)?;
    let captured = stream.capture().is_some();
    // A graph reads and writes host memory whenever it runs, and whoever captures waits for nothing.
    let pinned = |start| captured || machine.pinned.contains(start, bytes);
    let mut wait = wait;
    let work = match from {
        Place::Host(start) if wait == Wait::No && !pinned(start) => {
            // SAFETY: the manual asks for that many readable bytes there, until the call returns.
            let bytes = unsafe { core::slice::from_raw_parts(start as *const u8, bytes) };
            Work::Write { to: to.clone(), bytes: bytes.into() }
        }
        from => Work::Copy { to: to.clone(), from, bytes: length },
    };
    if let Place::Host(start) = to
        && !pinned(start)
    {
        wait = Wait::Yes;
    }
    device.submit(&stream, work)?;
    if wait == Wait::Yes && !captured {
        stream.synchronize();
        machine::check_alive()?;
        device.saw(&stream)?;
    }
    Ok(())
}

fn fill(address: u64, pattern: Pattern, count: usize, stream: Handle, wait: Wait) -> Outcome {
    let machine = machine::get()?;
    let (stream, device) = machine.stream(stream)?;
    if count == 0 {
        return Ok(());
    }
    let bytes = (count as u64).checked_mul(pattern.width()).ok_or(Code::INVALID_VALUE)?;
    if !address.is_multiple_of(pattern.width()) {
        return Err(Code::INVALID_VALUE);
    }
    let to = device_place(&machine, address, count)?;
    to.check(bytes, Intent::Write)?;
    device.submit(&stream, Work::Fill { to, pattern, count: count as u64 })?;
    if wait == Wait::Yes && stream.capture().is_none() {
        stream.synchronize();
        machine::check_alive()?;
        device.saw(&stream)?;
    }
    Ok(())
}

fn to_device(to: u64, from: *const c_void, bytes: usize, stream: Handle, wait: Wait) -> Outcome {
    let machine = machine::get()?;
    let to = device_place(&machine, to, bytes)?;
    copy(&machine, to, Place::Host(from as usize), bytes, stream, wait)
}

fn to_host(to: *mut c_void, from: u64, bytes: usize, stream: Handle, wait: Wait) -> Outcome {
    let machine = machine::get()?;
    let from = device_place(&machine, from, bytes)?;
    copy(&machine, Place::Host(to as usize), from, bytes, stream, wait)
}

fn on_device(to: u64, from: u64, bytes: usize, stream: Handle, wait: Wait) -> Outcome {
    let machine = machine::get()?;
    let (to, from) = (device_place(&machine, to, bytes)?, device_place(&machine, from, bytes)?);
    copy(&machine, to, from, bytes, stream, wait)
}

fn anywhere(to: u64, from: u64, bytes: usize, stream: Handle, wait: Wait) -> Outcome {
    let machine = machine::get()?;
    copy(&machine, any_place(&machine, to), any_place(&machine, from), bytes, stream, wait)
}

entry_points! {
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) {
        to_device(to, from, bytes, 0, Wait::Yes)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle) {
        to_device(to, from, bytes, stream, Wait::No)
    }

    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) {
        to_host(to, from, bytes, 0, Wait::Yes)
    }

    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: Handle) {
        to_host(to, from, bytes, stream, Wait::No)
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        on_device(to, from, bytes, 0, Wait::No)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) {
        on_device(to, from, bytes, stream, Wait::No)
    }

    fn cuMemcpy(to: u64, from: u64, bytes: usize) {
        anywhere(to, from, bytes, 0, Wait::Yes)
    }

    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle) {
        anywhere(to, from, bytes, stream, Wait::No)
    }

    fn cuMemcpyPeer(to: u64, _to_context: Handle, from: u64, _from_context: Handle, bytes: usize) {
        on_device(to, from, bytes, 0, Wait::No)
    }

    fn cuMemcpyPeerAsync(
        to: u64, _to_context: Handle, from: u64, _from_context: Handle, bytes: usize, stream: Handle,
    ) {
        on_device(to, from, bytes, stream, Wait::No)
    }

    fn cuMemsetD8_v2(address: u64, value: c_uchar, count: usize) {
        fill(address, Pattern::Bytes(value), count, 0, Wait::No)
    }

    fn cuMemsetD8Async(address: u64, value: c_uchar, count: usize, stream: Handle) {
        fill(address, Pattern::Bytes(value), count, stream, Wait::No)
    }

    fn cuMemsetD16_v2(address: u64, value: c_ushort, count: usize) {
        fill(address, Pattern::Pairs(value.to_ne_bytes()), count, 0, Wait::No)
    }

    fn cuMemsetD16Async(address: u64, value: c_ushort, count: usize, stream: Handle) {
        fill(address, Pattern::Pairs(value.to_ne_bytes()), count, stream, Wait::No)
    }

    fn cuMemsetD32_v2(address: u64, value: c_uint, count: usize) {
        fill(address, Pattern::Quads(value.to_ne_bytes()), count, 0, Wait::No)
    }

    fn cuMemsetD32Async(address: u64, value: c_uint, count: usize, stream: Handle) {
        fill(address, Pattern::Quads(value.to_ne_bytes()), count, stream, Wait::No)
    }
}
