//! New segments: frames of the driver, each mapped and made accessible by itself.
//!
//! Neighbours: `request` asks; `ranges` makes the calls.
//!
//! Source: GMLake, `CUDACachingAllocator.cpp`: `realloc_block`, `get_allocation_size`.

use concertina_vmm::{Driver, DriverError};

use super::pblocks::{PBlock, PState};
use super::ranges::FRAME_BYTES;
use super::sblocks::Piece;
use super::stitch::TRIES;
use super::{Gmlake, Large};

/// `kLargeBuffer`: a segment for smaller requests.
const SHARED_SEGMENT_BYTES: u64 = 20 << 20;
/// `kMinLargeAlloc`: requests from here on get a segment of their own size.
const OWN_SEGMENT_BYTES: u64 = 10 << 20;

/// `get_allocation_size` for whole frames: 2 MiB are over `kSmallSize`.
const fn segment_bytes(bytes: u64) -> u64 {
    if bytes < OWN_SEGMENT_BYTES { SHARED_SEGMENT_BYTES } else { bytes }
}

impl<D: Driver> Gmlake<D> {
    /// A block of `bytes`, which the program has: the start of a new segment, or an sBlock over what is free and a new
    /// segment. None if the driver is out of memory.
    pub(super) fn grow(&mut self, stream: u32, bytes: u64) -> Result<Option<Large>, DriverError> {
        let mut missing_bytes = bytes;
        if self.conf.re_alloc && bytes >= self.conf.frag_limit_bytes {
            let free_bytes: u64 = self.pblocks.largest_first(stream).map(|(bytes, _)| bytes).sum();
            if free_bytes >= bytes {
                return Ok(None);
            }
            missing_bytes -= free_bytes;
        }
        let new_bytes = segment_bytes(missing_bytes);
        let Some(address) = self.add_segment(stream, new_bytes)? else { return Ok(None) };
        let block = PBlock { segment: address, stream, bytes: new_bytes, state: PState::Free };
        self.pblocks.insert(address, block);
        if new_bytes < bytes {
            return self.stitch(stream, bytes);
        }
        self.pblocks.cut(address, bytes, PState::Live);
        self.segments.set_busy(&[Piece { segment: address, address, bytes }], true, &mut self.sblocks);
        Ok(Some(Large::P(address)))
    }

    /// When memory is short although the driver has some, the mappings may be what is short: sBlocks are dropped then.
    fn add_segment(&mut self, stream: u32, bytes: u64) -> Result<Option<u64>, DriverError> {
        self.ranges.retry(&self.driver);
        for attempt in 0..TRIES {
            match self.open_segment(bytes) {
                Ok(address) => return Ok(Some(address)),
                Err(error) if !error.is_out_of_memory() => return Err(error),
                Err(_) => {}
            }
            let free_bytes = self.driver.memory_info()?.free_bytes;
            if free_bytes <= bytes || self.sblocks.idle_bytes(stream) < bytes {
                break;
            }
            self.collect_sblocks(attempt, bytes);
        }
        Ok(None)
    }

    fn open_segment(&mut self, bytes: u64) -> Result<u64, DriverError> {
        let handles = self.ranges.create(&self.driver, bytes / FRAME_BYTES)?;
        match self.ranges.open(&self.driver, bytes, &handles) {
            Ok(address) => {
                self.segments.insert(address, handles);
                Ok(address)
            }
            Err(error) => {
                self.ranges.release(&self.driver, handles);
                Err(error)
            }
        }
    }
}
