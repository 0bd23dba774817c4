//! The way of a request: what is tried, one after the other.
//!
//! Neighbours: `rounding` says what is asked for, `pool` searches, `grow` and `give_back` are the later steps.
//!
//! Source: PyTorch 2.11, `CUDACachingAllocator.cpp`: `malloc`, `get_free_block`, `should_split`, `alloc_found_block`.

use concertina_vmm::{Address, Driver, DriverError};

use super::block::{BlockId, BlockState};
use super::error::PytorchError;
use super::rounding::{self, PoolKind, SMALL_BYTES, STEP_BYTES};
use super::{Pytorch, PytorchBlock};

/// Requests of this many bytes fail at once: 1 EiB.
const ABSURD_BYTES: u64 = 1 << 60;

/// What is asked for. Sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) stream: u32,
    pub(crate) kind: PoolKind,
    /// Of the block.
    pub(crate) bytes: u64,
    /// Of the segment that a `cudaMalloc` is to get.
    pub(crate) segment_bytes: u64,
}

impl<D: Driver> Pytorch<D> {
    /// A block of `bytes` on a stream.
    ///
    /// # Errors
    /// [`PytorchError`]; above all out of memory.
    pub fn allocate(&mut self, bytes: u64, stream: u32) -> Result<PytorchBlock, PytorchError> {
        self.check_stream(stream)?;
        if bytes == 0 {
            return Err(PytorchError::ZeroBytes);
        }
        if bytes >= ABSURD_BYTES {
            return Err(self.out_of_memory(bytes, bytes));
        }
        self.process_events()?;
        let block_bytes = rounding::block_bytes(bytes, &self.conf);
        let request = Request {
            stream,
            kind: PoolKind::of(block_bytes),
            bytes: block_bytes,
            segment_bytes: rounding::segment_bytes(block_bytes, &self.conf),
        };
        let found = match self.search(&request) {
            Some(found) => found,
            None => self.obtain(&request)?.ok_or_else(|| {
                self.stats.ooms += 1;
                self.out_of_memory(bytes, request.segment_bytes)
            })?,
        };
        Ok(self.hand_out(found, &request, bytes))
    }

    /// The best fit, taken out of its pool.
    fn search(&mut self, request: &Request) -> Option<BlockId> {
        let ages = self.collects_garbage();
        let (pool, blocks) = match request.kind {
            PoolKind::Small => (&mut self.small, &self.blocks),
            PoolKind::Large => (&mut self.large, &self.blocks),
        };
        if ages {
            pool.count_search();
        }
        let found = pool.best_fit(blocks, &self.conf, request.stream, request.bytes)?;
        self.remove(found);
        Some(found)
    }

    /// More memory, in one way or another; the block is in no pool.
    fn obtain(&mut self, request: &Request) -> Result<Option<BlockId>, DriverError> {
        if self.collects_garbage() {
            self.collect_garbage()?;
        }
        if let Some(found) = self.grow(request)? {
            return Ok(Some(found));
        }
        if self.release_oversize(request)?
            && let Some(found) = self.grow(request)?
        {
            return Ok(Some(found));
        }
        self.release_cached()?;
        self.stats.alloc_retries += 1;
        self.grow(request)
    }

    /// Cuts the block to size and counts it.
    fn hand_out(&mut self, id: BlockId, request: &Request, requested_bytes: u64) -> PytorchBlock {
        let rest_bytes = self.blocks.at(id).bytes - request.bytes;
        let split = if request.kind == PoolKind::Small || self.conf.expandable_segments {
            rest_bytes >= STEP_BYTES
        } else {
            request.bytes < self.conf.max_split_bytes && rest_bytes > SMALL_BYTES
        };
        if split {
            let rest = self.blocks.split_off_rest(id, request.bytes);
            self.insert(rest);
        }
        let block = self.blocks.at_mut(id);
        block.state = BlockState::Live;
        block.requested_bytes = requested_bytes;
        self.stats.allocated.add(block.bytes);
        self.stats.active.add(block.bytes);
        self.stats.requested.add(requested_bytes);
        PytorchBlock { id, address: Address::new(block.address) }
    }

    fn out_of_memory(&self, requested_bytes: u64, segment_bytes: u64) -> PytorchError {
        PytorchError::OutOfMemory {
            requested_bytes,
            segment_bytes,
            reserved_bytes: self.stats.reserved.current,
            allocated_bytes: self.stats.allocated.current,
            limit_bytes: self.limit_bytes,
        }
    }
}
