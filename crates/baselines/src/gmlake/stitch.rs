//! Fragments put together: frames of free pBlocks, mapped a second time in a row.
//!
//! Neighbours: `request` and `grow` ask for it; `ranges` makes the calls.
//!
//! Source: GMLake, `CUDACachingAllocator.cpp`: `get_fused_fragmented_blocks`.

use concertina_vmm::{Driver, DriverError};

use super::sblocks::{Piece, SBlock};
use super::{Gmlake, Large};

/// How often stitching or a new segment is tried, with sBlocks dropped in between.
pub(super) const TRIES: u32 = 3;

impl<D: Driver> Gmlake<D> {
    /// A new sBlock of `bytes`, which the program has. None if the request is too small for it, if there are not two
    /// free pBlocks or all of them together too small, or if the driver has no room for the mappings.
    pub(super) fn stitch(&mut self, stream: u32, bytes: u64) -> Result<Option<Large>, DriverError> {
        if bytes < self.conf.frag_limit_bytes || self.pblocks.largest_first(stream).nth(1).is_none() {
            return Ok(None);
        }
        let mut pieces = Vec::new();
        let mut missing_bytes = bytes;
        for (block_bytes, address) in self.pblocks.largest_first(stream) {
            let Some(block) = self.pblocks.at(address).filter(|_| missing_bytes > 0) else { break };
            // Of the last one only what is needed; the rest stays free.
            let piece_bytes = block_bytes.min(missing_bytes);
            pieces.push(Piece { segment: block.segment, address, bytes: piece_bytes });
            missing_bytes -= piece_bytes;
        }
        if missing_bytes > 0 {
            return Ok(None);
        }
        for attempt in 0..TRIES {
            let frames = pieces.iter().flat_map(|&piece| self.segments.frames(piece));
            match self.ranges.open(&self.driver, bytes, frames.map(|frame| &frame.handle)) {
                Ok(address) => return Ok(Some(self.add_sblock(stream, address, bytes, pieces))),
                Err(error) if error.is_out_of_memory() => self.collect_sblocks(attempt, bytes),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn add_sblock(&mut self, stream: u32, address: u64, bytes: u64, pieces: Vec<Piece>) -> Large {
        let id = self.sblocks.insert(SBlock {
            stream,
            address,
            bytes,
            pieces: pieces.clone(),
            used_bytes: bytes,
            busy_frames: 0,
            event: None,
            freed: 0,
        });
        for &piece in &pieces {
            self.segments.frames_mut(piece).iter_mut().for_each(|frame| frame.stitched.push(id));
        }
        self.lend(&pieces);
        self.stats.stitched += 1;
        self.stitched_bytes += bytes;
        if self.stitched_bytes > self.conf.auto_gc_bytes {
            self.collect_sblocks(2, 0);
        }
        Large::S(id)
    }
}
