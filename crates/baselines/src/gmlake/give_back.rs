//! Freed blocks on their way back, sBlocks that are dropped, and cached memory on its way to the driver.
//!
//! Neighbours: `pending` has the blocks that wait; `ranges` makes the calls.
//!
//! Source: GMLake, `CUDACachingAllocator.cpp`: `free`, `update_block`, `free_block`,
//! `insert_free_event_into_alloc_stream`, `process_events`, `garbage_collect_fused_blocks`, `release_cached_blocks`,
//! `release_blocks`, `release_block`.

use concertina_vmm::{Driver, DriverError};

use super::sblocks::{Piece, SBlockId};
use super::{Gmlake, Large, small_error};
use crate::pool_error::PoolError;

impl<D: Driver> Gmlake<D> {
    /// Frees the pending blocks whose events are complete. Makes no call when there are none.
    pub(super) fn process_events(&mut self) -> Result<(), DriverError> {
        let mut done = Vec::new();
        let looked = self.pending.look(&self.driver, &self.handles, &mut done);
        self.free_done(done).and(looked)
    }

    fn free_done(&mut self, done: Vec<Large>) -> Result<(), DriverError> {
        let refused = done.into_iter().filter_map(|large| self.free_large(large).err()).next_back();
        refused.map_or(Ok(()), Err)
    }

    /// Nobody uses a block any more: its frames are free, and with them every block that all of whose frames are.
    ///
    /// # Errors
    /// An event that could not be recorded; the block is freed all the same.
    pub(super) fn free_large(&mut self, large: Large) -> Result<(), DriverError> {
        match large {
            Large::P(address) => {
                let Some(&block) = self.pblocks.at(address) else { return Ok(()) };
                self.free_pieces(&[Piece { segment: block.segment, address, bytes: block.bytes }]);
                self.mark_free(block.stream)
            }
            Large::S(id) => {
                let block = self.sblocks.at(id);
                let number = block.stream as usize;
                let pieces = block.pieces_of(block.used_bytes);
                self.free_pieces(&pieces);
                self.streams[number].freed += 1;
                let freed = self.streams[number].freed;
                let recorded = match self.sblocks.take_event(id) {
                    Some(event) => Ok(event),
                    None => self.driver.event_create(),
                };
                let recorded = recorded.and_then(|event| {
                    self.driver.event_record(&event, &self.handles[number])?;
                    Ok(event)
                });
                let (event, refused) = match recorded {
                    Ok(event) => (Some(event), Ok(())),
                    Err(error) => (None, Err(error)),
                };
                self.sblocks.free(id, event, freed);
                refused
            }
        }
    }

    fn free_pieces(&mut self, pieces: &[Piece]) {
        self.segments.set_busy(pieces, false, &mut self.sblocks);
        for piece in pieces {
            self.pblocks.free_all_in(piece.address, piece.bytes);
        }
    }

    /// Drops sBlocks that nobody has and whose event is complete, on each stream the first freed first, up to the first
    /// that is not complete: those with a frame that somebody has, at the first two attempts only until they are 4 or
    /// 16 times what is wanted; and, but for the first attempt, all others.
    pub(super) fn collect_sblocks(&mut self, attempt: u32, wanted_bytes: u64) {
        let enough_bytes = match attempt {
            0 | 1 if wanted_bytes > 0 => wanted_bytes << (2 * (attempt + 1)),
            _ => u64::MAX,
        };
        let mut dropped_bytes = 0;
        for stream in 0..self.streams.len() as u32 {
            for id in self.sblocks.idle(stream, true) {
                if !self.is_over(id) {
                    break;
                }
                dropped_bytes += self.drop_sblock(id);
                if dropped_bytes >= enough_bytes {
                    break;
                }
            }
        }
        for stream in (0..self.streams.len() as u32).filter(|_| attempt > 0) {
            for id in self.sblocks.idle(stream, false) {
                if !self.is_over(id) {
                    break;
                }
                dropped_bytes += self.drop_sblock(id);
            }
        }
        self.stitched_bytes = self.stitched_bytes.saturating_sub(dropped_bytes);
    }

    /// Whether the last use of an sBlock's addresses is seen done.
    fn is_over(&mut self, id: SBlockId) -> bool {
        let block = self.sblocks.at(id);
        match &block.event {
            Some(event) => self.driver.event_query(event).unwrap_or(false),
            // It could not be recorded when the block was freed.
            None => {
                self.stats.stream_syncs += 1;
                self.pending.synchronize(&self.driver, &self.handles[block.stream as usize]).is_ok()
            }
        }
    }

    /// Unmaps an sBlock that nobody has. Its bytes.
    fn drop_sblock(&mut self, id: SBlockId) -> u64 {
        let block = self.sblocks.remove(id);
        for &piece in &block.pieces {
            for frame in self.segments.frames_mut(piece) {
                frame.stitched.retain(|&other| other != id);
            }
        }
        self.ranges.close(&self.driver, block.address, block.bytes);
        self.stats.dropped += 1;
        block.bytes
    }

    /// Gives back all segments that are one free pBlock, with the sBlocks over them, and what the small pool has.
    pub(super) fn release_cached_blocks(&mut self) -> Result<(), PoolError> {
        let mut done = Vec::new();
        let waited = self.pending.wait(&self.driver, &self.handles, &mut done);
        self.free_done(done).and(waited)?;
        self.ranges.retry(&self.driver);
        let mut idle = vec![false; self.streams.len()];
        for address in self.pblocks.free() {
            let Some(&block) = self.pblocks.at(address) else { continue };
            let segment = Piece { segment: block.segment, address: block.segment, bytes: block.bytes };
            if block.bytes != self.segments.bytes_at(block.segment) {
                continue;
            }
            let mut over: Vec<SBlockId> = Vec::new();
            over.extend(self.segments.frames(segment).iter().flat_map(|frame| &frame.stitched));
            over.sort_unstable();
            over.dedup();
            // The unused end of an sBlock that the program has: the frames would stay mapped, and taken.
            if over.iter().any(|&id| self.sblocks.at(id).used_bytes > 0) {
                continue;
            }
            let number = block.stream as usize;
            if !std::mem::replace(&mut idle[number], true) {
                self.pending.synchronize(&self.driver, &self.handles[number])?;
                self.stats.stream_syncs += 1;
            }
            over.into_iter().for_each(|id| {
                self.drop_sblock(id);
            });
            self.pblocks.remove(address);
            let frames = self.segments.remove(address);
            self.ranges.close(&self.driver, address, block.bytes);
            self.ranges.release(&self.driver, frames.into_iter().map(|frame| frame.handle));
        }
        let (held_bytes, used_bytes) = (self.held_bytes(), self.used_bytes());
        self.small.empty_cache().map_err(|error| small_error(error, held_bytes, used_bytes))
    }
}
