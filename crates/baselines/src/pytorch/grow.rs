//! More memory of the driver: a `cudaMalloc`, or frames mapped behind the blocks of an expandable segment.
//!
//! Neighbours: `request` asks; `expandable_segment` makes the calls; `pool` knows where there is room.
//!
//! Source: PyTorch 2.11, `CUDACachingAllocator.cpp`: `alloc_block`, `try_allocate_expandable_block`,
//! `find_expandable_block`, `map_block`, `try_merge_blocks`.

use concertina_vmm::{Driver, DriverError};

use super::Pytorch;
use super::block::{Block, BlockId, BlockState};
use super::expandable_segment::{self, ExpandableSegment};
use super::request::Request;

impl<D: Driver> Pytorch<D> {
    /// A block of at least the request's bytes, in no pool; none if the limit or the driver is out of memory.
    ///
    /// The limit is held against the segment that a `cudaMalloc` would get, also where frames are mapped instead.
    pub(crate) fn grow(&mut self, request: &Request) -> Result<Option<BlockId>, DriverError> {
        let reserved_bytes = self.stats.reserved.current.saturating_add(request.segment_bytes);
        if self.limit_bytes.is_some_and(|limit| reserved_bytes > limit) {
            return Ok(None);
        }
        if self.conf.expandable_segments { self.grow_segment(request) } else { self.malloc(request) }
    }

    fn malloc(&mut self, request: &Request) -> Result<Option<BlockId>, DriverError> {
        let bytes = request.segment_bytes;
        let address = match self.driver.malloc(bytes) {
            Ok(address) => address.get(),
            Err(error) if error.is_out_of_memory() => return Ok(None),
            Err(error) => return Err(error),
        };
        self.stats.reserved.add(bytes);
        self.stats.addresses.add(bytes);
        self.stats.device_allocs += 1;
        let block = Block::new(request.stream, request.kind, address, bytes, BlockState::Free);
        Ok(Some(self.blocks.insert(block)))
    }

    fn grow_segment(&mut self, request: &Request) -> Result<Option<BlockId>, DriverError> {
        let (stream, kind, bytes) = (request.stream, request.kind, request.bytes);
        let (pool, blocks) = match kind {
            super::PoolKind::Small => (&self.small, &self.blocks),
            super::PoolKind::Large => (&self.large, &self.blocks),
        };
        let mut candidate = match pool.growable(blocks, stream, bytes) {
            Some(candidate) => candidate,
            None => self.add_segment(request)?,
        };
        if self.blocks.at(candidate).state == BlockState::Unmapped
            && !self.map_block(candidate, bytes.min(self.blocks.at(candidate).bytes))?
        {
            return Ok(None);
        }
        // The candidate is free now, and unmapped blocks follow until there is room.
        while self.blocks.at(candidate).bytes < bytes {
            let missing = bytes - self.blocks.at(candidate).bytes;
            let Some(next) = self.blocks.at(candidate).next else { return Ok(None) };
            if !self.map_block(next, missing.min(self.blocks.at(next).bytes))? {
                return Ok(None);
            }
            candidate = next;
        }
        self.remove(candidate);
        Ok(Some(candidate))
    }

    /// A new segment, all of it one unmapped block.
    fn add_segment(&mut self, request: &Request) -> Result<BlockId, DriverError> {
        let frame_bytes = self.frame_bytes(request.kind);
        let bytes = expandable_segment::reserved_bytes(self.device_bytes, frame_bytes);
        let segment = ExpandableSegment::new(&self.driver, request.stream, bytes, frame_bytes)?;
        let address = segment.address();
        let place = match self.segments.iter().position(Option::is_none) {
            Some(vacant) => vacant,
            None => {
                self.segments.push(None);
                self.segments.len() - 1
            }
        };
        self.segments[place] = Some(segment);
        let mut block = Block::new(request.stream, request.kind, address, bytes, BlockState::Unmapped);
        block.expandable = u32::try_from(place).ok();
        let id = self.blocks.insert(block);
        self.insert(id);
        Ok(id)
    }

    /// Maps the first `bytes` of an unmapped block, in whole frames, and joins it to what is free beside it. False if
    /// memory is short.
    fn map_block(&mut self, id: BlockId, bytes: u64) -> Result<bool, DriverError> {
        let block = self.blocks.at(id);
        let (address, whole_bytes) = (block.address, block.bytes);
        let Some(segment) = block.expandable.and_then(|place| self.segments[place as usize].as_mut()) else {
            return Ok(false);
        };
        let extent_bytes = segment.extent_bytes();
        let mapped = segment.map(&self.driver, address - segment.address(), bytes);
        self.stats.addresses.add(segment.extent_bytes() - extent_bytes);
        let mapped_bytes = mapped?;
        if mapped_bytes == 0 {
            return Ok(false);
        }
        self.remove(id);
        if mapped_bytes < whole_bytes {
            let rest = self.blocks.split_off_rest(id, mapped_bytes);
            self.insert(rest);
        }
        self.blocks.at_mut(id).state = BlockState::Free;
        self.join(id);
        self.insert(id);
        self.stats.reserved.add(mapped_bytes);
        self.stats.device_allocs += 1;
        Ok(true)
    }

    /// Joins a free or unmapped block, which is in no pool, to its neighbours of the same state.
    pub(crate) fn join(&mut self, id: BlockId) {
        let block = self.blocks.at(id);
        let (state, neighbours) = (block.state, [block.prev, block.next]);
        for neighbour in neighbours.into_iter().flatten() {
            if self.blocks.at(neighbour).state == state {
                self.remove(neighbour);
                self.blocks.absorb(id, neighbour);
            }
        }
    }
}
