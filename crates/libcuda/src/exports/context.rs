//! Initialisation, devices and contexts.
//!
//! Main types: none. Neighbours: `attribute` knows the devices' properties, `machine` the contexts.
//!
//! There are primary contexts only. Releasing one destroys nothing, so that what the program forgot is seen as a leak.

use core::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::Ordering;

use crate::abi::Handle;
use crate::attribute;
use crate::code::Code;
use crate::entry::{Out, entry_points, give};
use crate::exports::give_text;
use crate::machine;

/// Bytes of a `CUuuid`.
const UUID_BYTES: usize = 16;

entry_points! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        machine::initialize()
    }

    fn cuDeviceGetCount(count: Out<'_, c_int>) {
        let machine = machine::get()?;
        give(count, machine.devices.len() as c_int)
    }

    fn cuDeviceGet(device: Out<'_, c_int>, ordinal: c_int) {
        machine::get()?.device(ordinal)?;
        give(device, ordinal)
    }

    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) {
        machine::get()?.device(device)?;
        let length = usize::try_from(length).map_err(|_| Code::INVALID_VALUE)?;
        // SAFETY: the manual asks for a buffer of that length.
        unsafe { give_text("Concertina emulated device", name, length) }
    }

    fn cuDeviceGetUuid(uuid: Out<'_, [u8; UUID_BYTES]>, device: c_int) {
        machine::get()?.device(device)?;
        give(uuid, attribute::uuid(device))
    }

    fn cuDeviceGetUuid_v2(uuid: Out<'_, [u8; UUID_BYTES]>, device: c_int) {
        machine::get()?.device(device)?;
        give(uuid, attribute::uuid(device))
    }

    fn cuDeviceTotalMem_v2(bytes: Out<'_, usize>, device: c_int) {
        let machine = machine::get()?;
        machine.device(device)?;
        give(bytes, machine.config.capacity_bytes as usize)
    }

    fn cuDeviceGetAttribute(value: Out<'_, c_int>, attribute: c_int, device: c_int) {
        let machine = machine::get()?;
        machine.device(device)?;
        give(value, attribute::of(attribute, &machine.config)?)
    }

    fn cuDeviceGetPCIBusId(text: *mut c_char, length: c_int, device: c_int) {
        machine::get()?.device(device)?;
        let length = usize::try_from(length).map_err(|_| Code::INVALID_VALUE)?;
        // SAFETY: the manual asks for a buffer of that length.
        unsafe { give_text(&format!("0000:{:02x}:00.0", device + 1), text, length) }
    }

    fn cuDeviceComputeCapability(major: Out<'_, c_int>, minor: Out<'_, c_int>, device: c_int) {
        machine::get()?.device(device)?;
        let (high, low) = attribute::COMPUTE_CAPABILITY;
        give(major, high)?;
        give(minor, low)
    }

    fn cuDeviceCanAccessPeer(can: Out<'_, c_int>, device: c_int, peer: c_int) {
        let machine = machine::get()?;
        machine.device(device)?;
        machine.device(peer)?;
        give(can, 0)
    }

    fn cuDeviceGetP2PAttribute(value: Out<'_, c_int>, _attribute: c_int, device: c_int, peer: c_int) {
        let machine = machine::get()?;
        machine.device(device)?;
        machine.device(peer)?;
        if device == peer {
            return Err(Code::INVALID_DEVICE);
        }
        give(value, 0)
    }

    fn cuCtxEnablePeerAccess(peer: Handle, _flags: c_uint) {
        machine::get()?.of_context(peer)?;
        Err(Code::PEER_ACCESS_UNSUPPORTED)
    }

    fn cuCtxDisablePeerAccess(peer: Handle) {
        machine::get()?.of_context(peer)?;
        Err(Code::PEER_ACCESS_NOT_ENABLED)
    }

    fn cuDevicePrimaryCtxRetain(context: Out<'_, Handle>, device: c_int) {
        let machine = machine::get()?;
        let device = machine.device(device)?;
        give(context, device.context)?;
        device.retained.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let machine = machine::get()?;
        let retained = &machine.device(device)?.retained;
        let one_less = |count: u32| count.checked_sub(1);
        let released = retained.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
        released.map(|_| ()).map_err(|_| Code::INVALID_CONTEXT)
    }

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<'_, c_uint>, active: Out<'_, c_int>) {
        let machine = machine::get()?;
        let device = machine.device(device)?;
        give(flags, device.context_flags.load(Ordering::Relaxed))?;
        give(active, c_int::from(device.retained.load(Ordering::Acquire) > 0))
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) {
        machine::get()?.device(device)?.context_flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetCurrent(context: Out<'_, Handle>) {
        machine::get()?;
        give(context, machine::current_context())
    }

    fn cuCtxSetCurrent(context: Handle) {
        let machine = machine::get()?;
        if context != 0 {
            machine.of_context(context)?;
        }
        machine::set_current_context(context);
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: Handle) {
        machine::get()?.of_context(context)?;
        machine::push_context(context);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<'_, Handle>) {
        machine::get()?;
        let was = machine::pop_context()?;
        // Null: not wanted.
        if context.is_some() { give(context, was) } else { Ok(()) }
    }

    fn cuCtxGetDevice(device: Out<'_, c_int>) {
        let machine = machine::get()?;
        give(device, machine.current()?.ordinal as c_int)
    }

    fn cuCtxGetApiVersion(context: Handle, version: Out<'_, c_uint>) {
        let machine = machine::get()?;
        if context == 0 {
            machine.current()?;
        } else {
            machine.of_context(context)?;
        }
        give(version, 3020)
    }

    fn cuCtxGetFlags(flags: Out<'_, c_uint>) {
        let machine = machine::get()?;
        give(flags, machine.current()?.context_flags.load(Ordering::Relaxed))
    }

    fn cuCtxSetFlags(flags: c_uint) {
        let machine = machine::get()?;
        machine.current()?.context_flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetLimit(value: Out<'_, usize>, _limit: c_uint) {
        let machine = machine::get()?;
        machine.current()?;
        give(value, 0)
    }

    fn cuCtxSetLimit(_limit: c_uint, _value: usize) {
        let machine = machine::get()?;
        machine.current()?;
        Ok(())
    }

    fn cuCtxGetCacheConfig(config: Out<'_, c_uint>) {
        let machine = machine::get()?;
        machine.current()?;
        give(config, 0)
    }

    fn cuCtxSetCacheConfig(_config: c_uint) {
        let machine = machine::get()?;
        machine.current()?;
        Ok(())
    }

    fn cuCtxGetStreamPriorityRange(least: Out<'_, c_int>, greatest: Out<'_, c_int>) {
        let machine = machine::get()?;
        machine.current()?;
        // Null: not wanted.
        if least.is_some() {
            give(least, 0)?;
        }
        if greatest.is_some() { give(greatest, attribute::GREATEST_PRIORITY) } else { Ok(()) }
    }

    fn cuProfilerStart() {
        machine::get()?;
        Ok(())
    }

    fn cuProfilerStop() {
        machine::get()?;
        Ok(())
    }

    fn cuCtxSynchronize() {
        let machine = machine::get()?;
        let device = machine.current()?;
        machine.captures.check_wait_for_all()?;
        device.synchronize()
    }
}
