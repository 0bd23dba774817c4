//! What the devices say about themselves.
//!
//! Main types: none. Neighbours: `exports::context` asks.
//!
//! The numbers are those of an H100 as NVIDIA publishes them, as far as programs commonly ask for them.

use core::ffi::c_int;

use crate::code::{Code, Outcome};
use crate::control::DeviceConfig;

/// 9.0, an H100's.
pub(crate) const COMPUTE_CAPABILITY: (c_int, c_int) = (9, 0);
/// The numerically lowest priority of streams, which is the greatest.
pub(crate) const GREATEST_PRIORITY: c_int = -5;
/// Threads that a processor has at once.
pub(crate) const THREADS_PER_PROCESSOR: c_int = 2_048;
/// Shared memory of a processor.
pub(crate) const SHARED_BYTES_PER_PROCESSOR: c_int = 228 << 10;
/// Attributes from here on are not known to any driver yet.
const END: c_int = 200;

/// A `CUdevice_attribute` of any device of the machine. Those that are not listed are 0: absent.
pub(crate) fn of(attribute: c_int, config: &DeviceConfig) -> Outcome<c_int> {
    let yes = c_int::from;
    Ok(match attribute {
        // Threads per block; block and grid, each in three directions.
        1..=3 => 1024,
        4 => 64,
        5 => c_int::MAX,
        6 | 7 => 65_535,
        // Shared and constant memory, warp, pitch, registers.
        8 => 48 << 10,
        9 => 64 << 10,
        10 => 32,
        11 => c_int::MAX,
        12 => 65_536,
        // Clock in kHz; alignment of textures; overlap of copies; processors.
        13 => 1_980_000,
        14 => 512,
        15 => 1,
        16 => 132,
        // Host memory can be mapped; kernels may overlap.
        19 | 31 => 1,
        // Ids on the bus.
        33 => 1,
        // Memory clock in kHz, bus in bits, second-level cache in bytes, threads per processor.
        36 => 2_619_000,
        37 => 5_120,
        38 => 50 << 20,
        39 => THREADS_PER_PROCESSOR,
        // Copy engines; one address space with the host.
        40 => 3,
        41 => 1,
        75 => COMPUTE_CAPABILITY.0,
        76 => COMPUTE_CAPABILITY.1,
        // Stream priorities; shared memory and registers per processor.
        78 => 1,
        81 => SHARED_BYTES_PER_PROCESSOR,
        82 => 65_536,
        // Shared memory per block on request.
        97 => 227 << 10,
        102 => yes(config.virtual_memory),
        115 => yes(config.memory_pools),
        1.. if attribute < END => 0,
        _ => return Err(Code::INVALID_VALUE),
    })
}

/// The same for each device of this ordinal.
pub(crate) fn uuid(device: c_int) -> [u8; 16] {
    let mut uuid = *b"concertina-emu\0\0";
    uuid[15] = device as u8;
    uuid
}
