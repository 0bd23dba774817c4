//! How much is measured.
//!
//! Main types: [`ProbePlan`]. Neighbours: `session` carries it through the parts.

use std::time::Duration;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// What a measurement goes through. Sizes are rounded up to whole pages of the device; what it has no memory for is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbePlan {
    /// Calls behind each figure, if the time allows; at least 1.
    pub repeat: usize,
    /// Sizes of frames, in bytes.
    pub frame_bytes: Vec<u64>,
    /// Sizes of mallocs and of blocks of the pool, in bytes.
    pub malloc_bytes: Vec<u64>,
    /// Numbers of mappings under one call.
    pub batches: Vec<u64>,
    /// Most bytes of the memory whose speed is measured; on a device with less than twice that free, half of what is.
    pub area_bytes: u64,
    /// Blocks, of 256 threads each, that read at random.
    pub gather_blocks: u32,
    /// Reads of each thread.
    pub gather_reads: u32,
    /// Mappings after which no more are tried; 0: none are.
    pub most_mappings: u64,
    /// How long a kernel runs that a call may wait for.
    pub kernel: Duration,
    /// The time for everything.
    pub budget: Duration,
}

impl ProbePlan {
    /// All there is to measure on a GPU, in less than four minutes.
    pub fn full() -> Self {
        let frame_bytes = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024].map(|mib| mib * MIB).to_vec();
        Self {
            repeat: 64,
            malloc_bytes: [4 << 10, 256 << 10].into_iter().chain(frame_bytes.iter().copied()).collect(),
            frame_bytes,
            batches: vec![1, 2, 4, 8, 16, 64, 256, 512],
            area_bytes: 32 * GIB,
            gather_blocks: 2_048,
            gather_reads: 256,
            most_mappings: 600_000,
            kernel: Duration::from_millis(300),
            budget: Duration::from_secs(220),
        }
    }

    /// The most telling of it, on a GPU, in a minute.
    pub fn short() -> Self {
        Self {
            repeat: 16,
            frame_bytes: [2, 16, 128, 1024].map(|mib| mib * MIB).to_vec(),
            malloc_bytes: vec![4 << 10, 2 * MIB, 128 * MIB, GIB],
            batches: vec![1, 8, 64],
            area_bytes: 4 * GIB,
            most_mappings: 0,
            budget: Duration::from_secs(60),
            ..Self::full()
        }
    }

    /// Every line of it, in a second or two, where figures mean nothing: over the emulated libcuda.
    pub fn emulated() -> Self {
        Self {
            repeat: 3,
            frame_bytes: [2, 32, 1024].map(|mib| mib * MIB).to_vec(),
            malloc_bytes: vec![4 << 10, 2 * MIB, GIB],
            batches: vec![1, 4, 16, 64],
            area_bytes: 16 * MIB,
            gather_blocks: 2,
            gather_reads: 8,
            most_mappings: 1_000,
            kernel: Duration::from_millis(200),
            budget: Duration::from_secs(60),
        }
    }
}
