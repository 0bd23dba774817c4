//! The way of a request: what is tried, one after the other.
//!
//! Neighbours: `pblocks` and `sblocks` search, `stitch`, `grow` and `give_back` are the later steps.
//!
//! Source: GMLake, `CUDACachingAllocator.cpp`: `malloc`, `round_size`, `get_free_block`.

use concertina_vmm::{Address, Driver, DriverError};

use super::conf::DefragLevel;
use super::pblocks::PState;
use super::ranges::FRAME_BYTES;
use super::sblocks::Piece;
use super::{Gmlake, GmlakeBlock, Large, Place, small_error};
use crate::pool_error::PoolError;

/// `kSmallSize`: the largest request of the small pool.
const SMALL_BYTES: u64 = 1 << 20;
/// Requests of this many bytes fail at once: 1 EiB.
const ABSURD_BYTES: u64 = 1 << 60;

impl<D: Driver> Gmlake<D> {
    pub(super) fn request(&mut self, requested_bytes: u64, stream: u32) -> Result<GmlakeBlock, PoolError> {
        self.check_stream(stream)?;
        if requested_bytes == 0 {
            return Err(PoolError::ZeroBytes);
        }
        if requested_bytes >= ABSURD_BYTES {
            return Err(self.out_of_memory(requested_bytes));
        }
        self.process_events()?;
        if requested_bytes <= SMALL_BYTES {
            return self.request_small(requested_bytes, stream);
        }
        let bytes = requested_bytes.next_multiple_of(FRAME_BYTES);
        let found = self.find(stream, bytes)?;
        self.note_addresses();
        let Some(large) = found else { return Err(self.out_of_memory(requested_bytes)) };
        let address = match large {
            Large::P(address) => address,
            Large::S(id) => self.sblocks.at(id).address,
        };
        self.used_bytes += bytes;
        let (place, address) = (Place::Large(large), Address::new(address));
        Ok(GmlakeBlock { place, address, bytes, stream, used_on: Vec::new() })
    }

    /// As PyTorch does, but that the whole cache is given back before it gives up, not only that of the small pool.
    fn request_small(&mut self, bytes: u64, stream: u32) -> Result<GmlakeBlock, PoolError> {
        let mut found = self.small.allocate(bytes, stream);
        if found.as_ref().is_err_and(|error| error.is_out_of_memory()) {
            self.stats.alloc_retries += 1;
            self.release_cached_blocks()?;
            found = self.small.allocate(bytes, stream);
        }
        self.note_addresses();
        let block = found.map_err(|error| small_error(error, self.held_bytes(), self.used_bytes()))?;
        let address = block.address();
        Ok(GmlakeBlock { place: Place::Small(block), address, bytes, stream, used_on: Vec::new() })
    }

    fn find(&mut self, stream: u32, bytes: u64) -> Result<Option<Large>, PoolError> {
        if let Some(found) = self.use_again(stream, bytes) {
            return Ok(Some(found));
        }
        if let Some(found) = self.stitch_from(DefragLevel::Eager, stream, bytes)? {
            return Ok(Some(found));
        }
        if let Some(found) = self.grow(stream, bytes)? {
            return Ok(Some(found));
        }
        if let Some(found) = self.stitch_from(DefragLevel::OutOfMemory, stream, bytes)? {
            return Ok(Some(found));
        }
        self.stats.alloc_retries += 1;
        self.release_cached_blocks()?;
        if let Some(found) = self.grow(stream, bytes)? {
            return Ok(Some(found));
        }
        Ok(self.stitch_from(DefragLevel::Released, stream, bytes)?)
    }

    /// Stitches, if the level is reached from which on that is wanted.
    fn stitch_from(
        &mut self,
        level: DefragLevel,
        stream: u32,
        bytes: u64,
    ) -> Result<Option<Large>, DriverError> {
        if level < self.conf.defrag_level {
            return Ok(None);
        }
        self.stitch(stream, bytes)
    }

    /// A free pBlock that fits, or else a free sBlock. Makes no call.
    fn use_again(&mut self, stream: u32, bytes: u64) -> Option<Large> {
        if let Some(address) = self.pblocks.best_fit(stream, bytes) {
            let segment = self.pblocks.at(address)?.segment;
            self.pblocks.cut(address, bytes, PState::Live);
            self.segments.set_busy(&[Piece { segment, address, bytes }], true, &mut self.sblocks);
            return Some(Large::P(address));
        }
        let id = self.sblocks.best_fit(stream, bytes)?;
        let block = self.sblocks.at(id);
        if block.bytes as f64 > bytes as f64 * self.conf.reuse_limit {
            return None;
        }
        let pieces = block.pieces_of(bytes);
        self.sblocks.take(id, bytes);
        self.lend(&pieces);
        self.stats.reused += 1;
        Some(Large::S(id))
    }

    /// An sBlock that the program has uses these frames from now on: the pBlocks there are not free any more.
    pub(super) fn lend(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            self.pblocks.cut(piece.address, piece.bytes, PState::Lent);
        }
        self.segments.set_busy(pieces, true, &mut self.sblocks);
    }
}
