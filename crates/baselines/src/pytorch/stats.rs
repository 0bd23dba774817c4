//! What the allocator counts, under PyTorch's names.
//!
//! Main types: [`PytorchStats`], [`Level`]. Neighbours: everything that allocates or gives back tells it.

/// A number of bytes, and its peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Now, in bytes.
    pub current: u64,
    /// Most at once, in bytes.
    pub peak: u64,
}

impl Level {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.current += bytes;
        self.peak = self.peak.max(self.current);
    }

    pub(crate) fn sub(&mut self, bytes: u64) {
        self.current -= bytes;
    }
}

/// Figures of `torch.cuda.memory_stats`, all pools together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PytorchStats {
    /// `reserved_bytes`: what the driver gave.
    pub reserved: Level,
    /// `allocated_bytes`: blocks that the program has, rounding and what was not split off included.
    pub allocated: Level,
    /// `active_bytes`: the same with those whose events are outstanding.
    pub active: Level,
    /// `requested_bytes`: of active blocks, as asked.
    pub requested: Level,
    /// Addresses used for placement: from the start of each expandable segment to its last frame ever, and mallocs.
    pub addresses: Level,
    /// `num_alloc_retries`: requests that freed the whole cache and asked again.
    pub alloc_retries: u64,
    /// `num_ooms`: requests that failed for want of memory.
    pub ooms: u64,
    /// `num_sync_all_streams`: times that all outstanding events were waited for.
    pub sync_all_streams: u64,
    /// `num_device_alloc`: mallocs, or runs of frames mapped.
    pub device_allocs: u64,
    /// `num_device_free`: frees, or runs of frames unmapped.
    pub device_frees: u64,
    /// Waits for a whole stream before frames of it were unmapped (`cudaStreamSynchronize`).
    pub stream_syncs: u64,
}
