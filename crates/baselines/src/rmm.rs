//! RMM's pool and RMM's arena, as models.
//!
//! Main types: [`RmmPool`](pool::RmmPool), [`RmmArena`](arena::RmmArena), [`RmmBlock`]. Neighbours: `conf` has their
//! options. The pool has `free_list` and `stream_events`; the arena has `global_arena`, `superblocks` and `hole_tree`.
//!
//! What is modelled: `pool_memory_resource` and `arena_memory_resource` of RMM 25.4, the RAPIDS Memory Manager, over
//! `cuda_memory_resource`, which is `cudaMalloc` and `cudaFree`, on one device
//! (<https://github.com/rapidsai/rmm/tree/v25.04.00/cpp/include/rmm/mr/device>). Each file names the header that it
//! follows. What is left out: per-thread default streams and the arenas of threads, locks, logs, other upstream resources,
//! and adaptors.
//!
//! Neither has a `record_stream` or an `empty_cache`: a program that uses a block on another stream must itself see to it
//! that its free comes after that use. The models ignore both. So on a trace in which blocks are recorded on other streams
//! they reuse memory that others must hold back, which flatters them, and kernels on such a trace may race.
//!
//! Both are models in bytes, calls and addresses, not in time: RMM walks through lists where the models look things up. On
//! the bundled traces they hand out the addresses that RMM's headers hand out: the tests have the figures.

pub mod arena;
pub mod conf;
pub mod error;
mod free_list;
mod global_arena;
mod hole_tree;
pub mod pool;
mod stream_events;
mod superblocks;

use concertina_vmm::Address;

use error::RmmError;

/// All sizes are rounded up to this many bytes. (RMM: `CUDA_ALLOCATION_ALIGNMENT`.)
const STEP_BYTES: u64 = 256;

/// A block that the program has. To be freed: dropping it does not.
#[derive(Debug)]
#[must_use = "the block stays live until it is given to `free`"]
pub struct RmmBlock {
    address: Address,
    /// Rounded.
    bytes: u64,
    stream: u32,
}

impl RmmBlock {
    /// Where it begins.
    pub const fn address(&self) -> Address {
        self.address
    }
}

/// The part of `free_bytes` that a fraction (0 to 1) stands for, in whole steps. (RMM:
/// `percent_of_free_device_memory`.)
fn part_of(free_bytes: u64, fraction: f64) -> u64 {
    let bytes = (free_bytes as f64 * fraction) as u64;
    bytes - bytes % STEP_BYTES
}

/// What of a request does not depend on the allocator.
fn check_request(bytes: u64, stream: u32, streams: usize) -> Result<(), RmmError> {
    if bytes == 0 {
        return Err(RmmError::ZeroBytes);
    }
    if stream as usize >= streams {
        return Err(RmmError::UnknownStream { stream, streams });
    }
    Ok(())
}
