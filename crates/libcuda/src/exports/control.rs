//! The functions that no driver has: what device to be, what to fail, what was counted, which kernels there are.
//!
//! Main types: none. Neighbours: `control` is their Rust side; `abi` has the structs. They answer with result codes as the
//! driver's functions do, but aren't counted and never fail on command.

use core::ffi::c_char;
use std::io;
use std::sync::Arc;

use concertina_emulator::{CallFilter, Fault};
use concertina_vmm::{Address, Call};

use crate::abi::{CALLS, INTERFACE, RawConfig, RawCounts, RawHeld, RawKernel, RawPiece};
use crate::code::{Code, Outcome};
use crate::control::DeviceConfig;
use crate::entry::{Out, Symbol, give};
use crate::exports::{array, give_text, symbols, text};
use crate::failure::{self, Failure, Repeat};
use crate::kernel::Kernel;
use crate::machine::{self, Machine};

fn answer(outcome: Outcome) -> u32 {
    outcome.err().unwrap_or(Code::SUCCESS).get()
}

fn installed() -> Outcome<Arc<Machine>> {
    machine::installed().ok_or(Code::NOT_INITIALIZED)
}

/// # Safety
/// Null, or a text.
unsafe fn symbol(name: *const c_char) -> Outcome<&'static Symbol> {
    // SAFETY: the caller says so.
    let name = unsafe { text(name) }?;
    symbols().find(|symbol| symbol.name == name).ok_or(Code::NOT_FOUND)
}

/// The version of these functions and their structs.
#[unsafe(no_mangle)]
extern "C" fn concertina_libcuda_interface() -> u32 {
    INTERFACE
}

/// Makes a fresh machine: nothing allocated, nothing counted, no failures, no kernels. Waits for the old one's work. No
/// other thread may be inside the library.
#[unsafe(no_mangle)]
extern "C" fn concertina_libcuda_reset(config: Option<&RawConfig>) -> u32 {
    let reset = || {
        let config = DeviceConfig::from_raw(config.ok_or(Code::INVALID_VALUE)?)?;
        config.check().map_err(|_| Code::INVALID_VALUE)?;
        machine::replace(config).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => Code::INVALID_VALUE,
            _ => Code::OPERATING_SYSTEM,
        })?;
        failure::clear();
        Kernel::forget_all();
        symbols().for_each(Symbol::forget_counts);
        Ok(())
    };
    answer(reset())
}

/// Most mappings that one device holds at once; 0 for no limit.
#[unsafe(no_mangle)]
extern "C" fn concertina_libcuda_max_mappings() -> u64 {
    machine::installed().and_then(|machine| machine.max_mappings).unwrap_or(0)
}

/// What the emulator of one device has counted.
#[unsafe(no_mangle)]
extern "C" fn concertina_libcuda_counts(device: u32, counts: Out<'_, RawCounts>) -> u32 {
    let tell = || {
        let machine = installed()?;
        let device = machine.devices.get(device as usize).ok_or(Code::INVALID_DEVICE)?;
        let of = device.memory.emulator.counts();
        let by_call = |count: fn(&concertina_emulator::Counts, Call) -> u64| {
            let mut figures = [0; CALLS];
            for &call in Call::ALL {
                figures[call as usize] = count(&of, call);
            }
            figures
        };
        let figures = RawCounts {
            done: by_call(concertina_emulator::Counts::of),
            failed: by_call(concertina_emulator::Counts::failed),
            time_ns: by_call(concertina_emulator::Counts::modelled_ns_of),
            mapped_bytes: of.mapped_bytes,
            mapped_peak_bytes: of.mapped_peak_bytes,
            reserved_bytes: of.reserved_bytes,
            reserved_peak_bytes: of.reserved_peak_bytes,
            mappings: of.mappings,
            mappings_peak: of.mappings_peak,
            handles: of.handles,
            host_waits: of.host_waits,
            modelled_ns: of.modelled_ns,
            calls_after_lost: machine::calls_after_lost(),
        };
        give(counts, figures)
    };
    answer(tell())
}

/// Modelled time that the host has spent in driver calls of one device, in nanoseconds; 0 without such a device.
#[unsafe(no_mangle)]
extern "C" fn concertina_libcuda_ns_in_calls(device: u32) -> u64 {
    let machine = installed().ok();
    let device = machine.as_ref().and_then(|machine| machine.devices.get(device as usize));
    device.map_or(0, |device| device.memory.emulator.ns_in_calls())
}

/// The emulator of one device counts from 0 again, and its peaks from what is taken now.
#[unsafe(no_mangle)]
extern "C" fn concertina_libcuda_restart_counts(device: u32) -> u32 {
    let restart = || {
        let machine = installed()?;
        let device = machine.devices.get(device as usize).ok_or(Code::INVALID_DEVICE)?;
        device.memory.emulator.restart_counts();
        Ok(())
    };
    answer(restart())
}

/// What one device holds for the program, after all work is done and the pools have given back what nobody has.
#[unsafe(no_mangle)]
extern "C" fn concertina_libcuda_held(device: u32, held: Out<'_, RawHeld>) -> u32 {
    let tell = || {
        let machine = installed()?;
        let device = machine.devices.get(device as usize).ok_or(Code::INVALID_DEVICE)?;
        device.drain();
        // A lost device gives nothing back; then what is left is what is held.
        let _ = device.pools.trim_all();
        let of = device.memory.emulator.leaks();
        let figures = RawHeld {
            reservations: of.reservations,
            reserved_bytes: of.reserved_bytes,
            mappings: of.mappings,
            handles: of.handles,
            frames: of.frames,
            mallocs: of.mallocs,
            mapped_bytes: of.mapped_bytes,
            events: of.events,
            streams: device.streams.len(),
            pinned: machine.pinned.len(),
            modules: machine.modules.loaded.len(),
            graphs: machine.graphs.len() + machine.executables.len(),
            contexts: u64::from(device.retained.load(std::sync::atomic::Ordering::Acquire)),
        };
        give(held, figures)
    };
    answer(tell())
}

/// What the emulator of one device has behind a range of addresses: the number of pieces that it takes, the first ones of
/// which are written to where there is room.
#[unsafe(no_mangle)]
extern "C" fn concertina_libcuda_resolve(
    device: u32,
    address: u64,
    bytes: u64,
    pieces: *mut RawPiece,
    room: usize,
) -> usize {
    let Ok(machine) = installed() else { return 0 };
    let Some(device) = machine.devices.get(device as usize) else { return 0 };
    let found = device.memory.emulator.resolve_range(Address::new(address), bytes);
    for (index, piece) in found.iter().take(room).enumerate() {
        let backing = piece.backing;
        let raw = RawPiece {
            address: piece.address.get(),
            bytes: piece.bytes,
            memory: backing.map_or(0, |backing| backing.memory.to_raw()),
            offset_bytes: backing.map_or(0, |backing| backing.offset_bytes),
            accessible: u64::from(backing.is_some_and(|backing| backing.accessible)),
        };
        // SAFETY: the caller gives room for that many.
        unsafe { pieces.wrapping_add(index).write(raw) };
    }
    found.len()
}

/// Writes the rules that calls on one device broke, a line each. The bytes that all of them need, without the zero.
#[unsafe(no_mangle)]
extern "C" fn concertina_libcuda_broken_rules(device: u32, buffer: *mut c_char, length: usize) -> usize {
    let Ok(machine) = installed() else { return 0 };
    let Some(device) = machine.devices.get(device as usize) else { return 0 };
    let lines: Vec<String> = device.memory.emulator.broken_rules().iter().map(ToString::to_string).collect();
    let lines = lines.join("\n");
    // SAFETY: the caller gives a buffer of that length, or null.
    let _ = unsafe { give_text(&lines, buffer, length) };
    lines.len()
}

/// Writes what the race detector found on one device, a line each. The bytes that all of them need, without the zero.
#[unsafe(no_mangle)]
extern "C" fn concertina_libcuda_races(device: u32, buffer: *mut c_char, length: usize) -> usize {
    let Ok(machine) = installed() else { return 0 };
    let Some(device) = machine.devices.get(device as usize) else { return 0 };
    let lines: Vec<String> = device.memory.emulator.races().iter().map(ToString::to_string).collect();
    let lines = lines.join("\n");
    // SAFETY: the caller gives a buffer of that length, or null.
    let _ = unsafe { give_text(&lines, buffer, length) };
    lines.len()
}

/// How often a function of the driver was called, and how often it failed.
#[unsafe(no_mangle)]
extern "C" fn concertina_libcuda_calls(name: *const c_char, made: Out<'_, u64>, failed: Out<'_, u64>) -> u32 {
    let tell = || {
        // SAFETY: the caller gives a text.
        let counts = unsafe { symbol(name) }?.counts();
        give(made, counts.0)?;
        give(failed, counts.1)
    };
    answer(tell())
}

/// The n-th call (1: the next) of a function fails with a code, or it and all after it where `onwards` is not 0. A failed
/// call changes nothing and is not seen by the emulator. A sticky code takes the devices with it.
#[unsafe(no_mangle)]
extern "C" fn concertina_libcuda_fail(name: *const c_char, nth: u64, onwards: u32, code: u32) -> u32 {
    let add = || {
        // SAFETY: the caller gives a text.
        let symbol = unsafe { symbol(name) }?;
        let code = Code::new(code).filter(|&code| code != Code::SUCCESS).ok_or(Code::INVALID_VALUE)?;
        let repeat = if onwards == 0 { Repeat::Once } else { Repeat::Onwards };
        failure::add(Failure { symbol, countdown: nth.max(1), repeat, code });
        Ok(())
    };
    answer(add())
}

/// As `concertina_libcuda_fail`, once, with a number that need not be a code: as a driver does that is newer than its
/// caller's bindings. The number changes nothing but the answer.
#[unsafe(no_mangle)]
extern "C" fn concertina_libcuda_fail_with_number(name: *const c_char, nth: u64, number: u32) -> u32 {
    let add = || {
        // SAFETY: the caller gives a text.
        let symbol = unsafe { symbol(name) }?;
        let code = Code::unlisted(number);
        failure::add(Failure { symbol, countdown: nth.max(1), repeat: Repeat::Once, code });
        Ok(())
    };
    answer(add())
}

/// Each call that changes reservations, frames, mappings or mallocs fails with so many millionths of probability, drawn by
/// seed. The code is out of memory, not ready, not supported or invalid value.
#[unsafe(no_mangle)]
extern "C" fn concertina_libcuda_fail_by_chance(parts_per_million: u32, seed: u64, code: u32) -> u32 {
    let add = || {
        let kind = Code::new(code).and_then(Code::as_kind).ok_or(Code::INVALID_VALUE)?;
        for device in &installed()?.devices {
            let fault = Fault::random(CallFilter::Memory, parts_per_million, seed, kind);
            device.memory.emulator.fail(fault);
        }
        Ok(())
    };
    answer(add())
}

/// No call is to fail any more. Lost devices stay lost.
#[unsafe(no_mangle)]
extern "C" fn concertina_libcuda_clear_failures() {
    failure::clear();
    for device in installed().iter().flat_map(|machine| &machine.devices) {
        device.memory.emulator.clear_faults();
    }
}

/// The devices are lost: every call fails with this code until the next reset.
#[unsafe(no_mangle)]
extern "C" fn concertina_libcuda_lose(code: u32) -> u32 {
    let lose = || {
        let code = Code::new(code).filter(|code| code.is_sticky()).ok_or(Code::INVALID_VALUE)?;
        machine::lose(code);
        Ok(())
    };
    answer(lose())
}

/// The program queued so many further pieces of work. Where work is done at the call, events complete by that.
#[unsafe(no_mangle)]
extern "C" fn concertina_libcuda_advance(operations: u64) {
    for device in installed().iter().flat_map(|machine| &machine.devices) {
        device.memory.emulator.advance(operations);
    }
}

/// Where work is done at the call: all events recorded so far complete.
#[unsafe(no_mangle)]
extern "C" fn concertina_libcuda_complete_all() {
    for device in installed().iter().flat_map(|machine| &machine.devices) {
        device.memory.emulator.complete_all();
    }
}

/// Modules know a kernel by this name from now on. Function and context are given back (`discard`) when another takes the
/// name or at a reset; if this fails, they are not.
#[unsafe(no_mangle)]
extern "C" fn concertina_libcuda_register_kernel(kernel: Option<&RawKernel>) -> u32 {
    let register = || {
        let raw = kernel.ok_or(Code::INVALID_VALUE)?;
        // SAFETY: the caller gives a text.
        let name = unsafe { text(raw.name) }?;
        // SAFETY: the caller gives an array of that length.
        let sizes = unsafe { array(raw.parameter_sizes, raw.parameter_count) }?.into();
        // SAFETY: the caller promises what is asked for.
        let kernel = unsafe { Kernel::new(name, sizes, raw) };
        kernel.register();
        Ok(())
    };
    answer(register())
}
