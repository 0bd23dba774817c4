//! Freed blocks on their way back to the pool, and cached ones on their way back to the driver.
//!
//! Neighbours: `request` comes here when memory is short; `event_queues` has the blocks that wait.
//!
//! Source: PyTorch 2.11, `CUDACachingAllocator.cpp`: `free_block`, `process_events`, `synchronize_and_free_events`,
//! `garbage_collect_cached_blocks`, `release_available_cached_blocks`, `release_cached_blocks`, `release_blocks`,
//! `release_block`, `unmap_block`, `release_expandable_segment`.

use concertina_vmm::{Address, Driver, DriverError};

use super::Pytorch;
use super::block::{BlockId, BlockState};
use super::request::Request;
use super::rounding::PoolKind;

impl<D: Driver> Pytorch<D> {
    /// Puts a block that nobody uses any more into its pool, joined to what is free beside it.
    pub(crate) fn free_block(&mut self, id: BlockId) {
        let block = self.blocks.at_mut(id);
        block.state = BlockState::Free;
        self.stats.active.sub(block.bytes);
        self.stats.requested.sub(block.requested_bytes);
        self.join(id);
        self.insert(id);
    }

    /// Frees the pending blocks whose events are complete. Makes no call when there are none.
    pub(crate) fn process_events(&mut self) -> Result<(), DriverError> {
        if self.events.is_empty() && self.unrecorded.is_empty() {
            return Ok(());
        }
        self.record_again()?;
        for stream in self.events.streams() {
            while let Some(id) = self.events.pop_complete(&self.driver, stream)? {
                self.event_done(id);
            }
        }
        Ok(())
    }

    /// The same, waiting for each event.
    pub(crate) fn synchronize_events(&mut self) -> Result<(), DriverError> {
        self.record_again()?;
        for stream in self.events.streams() {
            while let Some(id) = self.events.pop_waiting(&self.driver, stream)? {
                self.event_done(id);
            }
        }
        Ok(())
    }

    fn record_again(&mut self) -> Result<(), DriverError> {
        while let Some(id) = self.unrecorded.pop() {
            self.record_events(id)?;
        }
        Ok(())
    }

    fn event_done(&mut self, id: BlockId) {
        let block = self.blocks.at_mut(id);
        block.outstanding_events -= 1;
        if block.outstanding_events == 0 && block.used_on.is_empty() {
            self.free_block(id);
        }
    }

    /// Whether blocks age: garbage is collected only where there is a limit, too.
    pub(crate) fn collects_garbage(&self) -> bool {
        self.limit_bytes.is_some() && self.conf.garbage_collection_threshold > 0.0
    }

    /// Above the threshold, gives large blocks back that have lain for long: all that are at least as old as the
    /// average of those left, again and again until enough has gone.
    pub(crate) fn collect_garbage(&mut self) -> Result<(), DriverError> {
        let limit_bytes = self.limit_bytes.unwrap_or(u64::MAX);
        let threshold_bytes = (self.conf.garbage_collection_threshold * limit_bytes as f64) as u64;
        let reserved_bytes = self.stats.reserved.current;
        if reserved_bytes <= threshold_bytes {
            return Ok(());
        }
        let wanted_bytes = reserved_bytes - threshold_bytes;
        let mut freed_bytes = 0;
        let mut left: Vec<BlockId> =
            self.large.free().into_iter().filter(|&id| !self.blocks.at(id).is_split()).collect();
        while freed_bytes < wanted_bytes && !left.is_empty() {
            let total_age: u64 = left.iter().map(|&id| self.large.age(&self.blocks, id)).sum();
            let average = total_age as f64 / left.len() as f64;
            let before = left.len();
            for id in std::mem::take(&mut left) {
                let expandable = self.blocks.at(id).expandable.is_some();
                if expandable || (self.large.age(&self.blocks, id) as f64) < average {
                    left.push(id);
                } else {
                    freed_bytes += self.blocks.at(id).bytes;
                    self.release_block(id)?;
                }
            }
            if left.len() == before {
                break;
            }
        }
        Ok(())
    }

    /// With a limit on splitting, gives back the one cached block that is large enough, or else the largest ones until
    /// they are enough together. False if that is not reached: what has gone is gone.
    pub(crate) fn release_oversize(&mut self, request: &Request) -> Result<bool, DriverError> {
        // Blocks of expandable segments are passed over, and there are no others then.
        if self.conf.max_split_bytes == u64::MAX || self.conf.expandable_segments {
            return Ok(false);
        }
        let wanted_bytes = request.bytes.max(self.conf.max_split_bytes);
        let stream = request.stream;
        if let Some(id) = self.pool(request.kind).at_least(stream, wanted_bytes) {
            self.release_block(id)?;
            return Ok(true);
        }
        let mut freed_bytes = 0;
        while freed_bytes < wanted_bytes {
            let largest = self.pool(request.kind).largest(stream);
            let oversize = |id: &BlockId| self.blocks.at(*id).bytes >= self.conf.max_split_bytes;
            let Some(id) = largest.filter(oversize) else { return Ok(false) };
            freed_bytes += self.blocks.at(id).bytes;
            self.release_block(id)?;
        }
        Ok(true)
    }

    /// Gives everything back that can go: whole segments, and whole frames inside free blocks of expandable ones.
    pub(crate) fn release_cached(&mut self) -> Result<(), DriverError> {
        self.stats.sync_all_streams += 1;
        self.synchronize_events()?;
        for kind in [PoolKind::Large, PoolKind::Small] {
            for id in self.pool(kind).free() {
                let block = self.blocks.at(id);
                if block.expandable.is_some() {
                    self.unmap_block(id)?;
                } else if !block.is_split() {
                    self.release_block(id)?;
                }
            }
        }
        Ok(())
    }

    /// Frees a whole `cudaMalloc`.
    fn release_block(&mut self, id: BlockId) -> Result<(), DriverError> {
        self.driver.free(Address::new(self.blocks.at(id).address))?;
        self.remove(id);
        let bytes = self.blocks.remove(id).bytes;
        self.stats.reserved.sub(bytes);
        self.stats.addresses.sub(bytes);
        self.stats.device_frees += 1;
        Ok(())
    }

    /// Unmaps the whole frames inside a free block, once its stream is idle; what is left on both sides stays free. A
    /// segment that has nothing mapped any more goes.
    fn unmap_block(&mut self, id: BlockId) -> Result<(), DriverError> {
        let block = self.blocks.at(id);
        let (address, bytes) = (block.address, block.bytes);
        let Some(place) = block.expandable else { return Ok(()) };
        let Some(segment) = &mut self.segments[place as usize] else { return Ok(()) };
        let offset = address - segment.address();
        let (first, end) = segment.whole_frames(offset, bytes);
        if first == end {
            return Ok(());
        }
        self.events.synchronize(&self.driver, &self.streams[segment.stream as usize])?;
        self.stats.stream_syncs += 1;
        let unmapped = segment.unmap(&self.driver, offset, bytes);
        if unmapped.bytes > 0 {
            self.remove(id);
            let before_bytes = unmapped.offset - offset;
            let middle = if before_bytes == 0 {
                id
            } else {
                let rest = self.blocks.split_off_rest(id, before_bytes);
                self.insert(id);
                rest
            };
            if self.blocks.at(middle).bytes > unmapped.bytes {
                let after = self.blocks.split_off_rest(middle, unmapped.bytes);
                self.insert(after);
            }
            self.blocks.at_mut(middle).state = BlockState::Unmapped;
            self.join(middle);
            self.insert(middle);
            self.stats.reserved.sub(unmapped.bytes);
            self.stats.device_frees += 1;
            if !self.blocks.at(middle).is_split() && unmapped.failure.is_none() {
                self.release_segment(middle, place)?;
            }
        }
        unmapped.failure.map_or(Ok(()), Err)
    }

    /// Gives a segment's addresses back; its one block is unmapped.
    fn release_segment(&mut self, id: BlockId, place: u32) -> Result<(), DriverError> {
        let slot = &mut self.segments[place as usize];
        if let Some(segment) = slot {
            segment.close(&self.driver)?;
            self.stats.addresses.sub(segment.extent_bytes());
        }
        *slot = None;
        self.remove(id);
        self.blocks.remove(id);
        Ok(())
    }
}
