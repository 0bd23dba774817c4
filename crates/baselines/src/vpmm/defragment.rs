//! Pages for a request that no free region serves: created, and moved by mapping them a second time.
//!
//! Neighbours: `vpmm` comes here last; `holes` gives the addresses, `free_regions` the pages.
//!
//! Source: stark-backend, `vm_pool.rs`: `defragment_or_create_new_pages`, `remap_regions`, `rollback_new_pages`,
//! `take_unmapped_region`.

use std::sync::Arc;

use concertina_vmm::{Accessor, Address, Driver, DriverError, FrameProperties};

use super::free_regions::Region;
use super::{Chunk, Unfiled, Vpmm, Zombie};
use crate::pool_error::PoolError;

/// A part of a free region that is to move.
#[derive(Clone, Copy, Debug)]
struct Piece {
    address: u64,
    bytes: u64,
}

impl<D: Driver> Vpmm<D> {
    /// Reserves addresses: all of them are a hole.
    pub(super) fn reserve_chunk(&mut self) -> Result<(), DriverError> {
        let address = self.driver.reserve(self.conf.chunk_bytes, 0)?.get();
        self.chunks.push(Chunk { address, extent_bytes: 0 });
        self.add_hole(address, self.conf.chunk_bytes);
        Ok(())
    }

    fn take_hole(&mut self, bytes: u64) -> Result<u64, DriverError> {
        loop {
            if let Some(address) = self.holes.take(bytes) {
                return Ok(address);
            }
            self.reserve_chunk()?;
        }
    }

    /// `VPMM_PAGES`: once.
    pub(super) fn create_initial_pages(&mut self, stream: u32) -> Result<(), PoolError> {
        let bytes = std::mem::take(&mut self.conf.initial_pages).saturating_mul(self.page_bytes);
        if bytes > self.conf.chunk_bytes {
            return Err(self.out_of_memory(bytes));
        }
        if bytes > 0 {
            self.defragment(bytes, stream)?;
        }
        Ok(())
    }

    /// Puts `bytes` together that are free in the order of the stream: where a region begins that has them.
    ///
    /// As in the source, a hole of all `bytes` is taken even if new pages join a region before them, so that fewer
    /// are moved: the end of the hole is not used again then.
    pub(super) fn defragment(&mut self, bytes: u64, stream: u32) -> Result<u64, PoolError> {
        self.defragmentations += 1;
        let hole = self.take_hole(bytes)?;
        let new_bytes = bytes.saturating_sub(self.free.bytes());
        let (mut found, mut found_bytes) = (None, 0);
        if new_bytes > 0 {
            if let Err(error) = self.create_pages(hole, new_bytes) {
                self.add_hole(hole + new_bytes, bytes - new_bytes);
                return Err(error.into());
            }
            let new = Unfiled { address: hole, bytes: new_bytes, stream, used_on: Vec::new() };
            match self.file(new) {
                Ok((address, bytes)) => (found, found_bytes) = (Some(address), bytes),
                Err(error) => {
                    self.add_hole(hole + new_bytes, bytes - new_bytes);
                    return Err(error.into());
                }
            }
        }
        if found_bytes >= bytes
            && let Some(found) = found
        {
            return Ok(found);
        }
        let (to, missing_bytes) = (hole + new_bytes, bytes - found_bytes);
        let moved = self.harvest(missing_bytes, stream, found).and_then(|pieces| {
            self.map_again(&pieces, to)?;
            Ok(pieces)
        });
        match moved {
            Ok(pieces) => Ok(self.hand_over(&pieces, to, missing_bytes, stream)?),
            Err((mapped_bytes, error)) => {
                // What is mapped there already goes with the zombies.
                self.add_hole(to + mapped_bytes, bytes - new_bytes - mapped_bytes);
                Err(error.into())
            }
        }
    }

    /// New pages under addresses with nothing mapped, with access. After a failure they are a hole again.
    fn create_pages(&mut self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let mut pages = Vec::new();
        let made = self.create_and_map(address, bytes, &mut pages).and_then(|()| self.grant(address, bytes));
        self.note_extent(address + pages.len() as u64 * self.page_bytes);
        if made.is_err() {
            let mapped_bytes = pages.len() as u64 * self.page_bytes;
            for (index, handle) in pages.into_iter().enumerate() {
                let page = address + index as u64 * self.page_bytes;
                self.unmap_unused(page, self.page_bytes);
                self.give_back(handle);
            }
            self.add_hole(address + mapped_bytes, bytes - mapped_bytes);
            return made;
        }
        let addresses = (address..).step_by(self.page_bytes as usize);
        self.pages.extend(addresses.zip(pages));
        Ok(())
    }

    fn create_and_map(
        &mut self,
        address: u64,
        bytes: u64,
        pages: &mut Vec<D::Handle>,
    ) -> Result<(), DriverError> {
        for page in (address..address + bytes).step_by(self.page_bytes as usize) {
            let handle = match self.spare.pop() {
                Some(handle) => handle,
                None => self.driver.create(self.page_bytes, &FrameProperties::default())?,
            };
            if let Err(error) = self.driver.map(Address::new(page), self.page_bytes, &handle) {
                self.give_back(handle);
                return Err(error);
            }
            pages.push(handle);
        }
        Ok(())
    }

    fn give_back(&mut self, handle: D::Handle) {
        if let Err(returned) = self.driver.release(handle) {
            self.spare.push(returned.owner);
        }
    }

    fn grant(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let accessor = Accessor::Device(FrameProperties::default().device);
        self.driver.set_access(Address::new(address), bytes, &[accessor])
    }

    /// Unmaps addresses that no work has used: a hole, or a zombie if the driver refuses.
    fn unmap_unused(&mut self, address: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        match self.driver.unmap(Address::new(address), bytes) {
            Ok(()) => self.add_hole(address, bytes),
            Err(_) => self.zombies.push(Zombie { address, bytes, event: None }),
        }
    }

    /// Which pieces move, with the stream put behind those of others. Nothing changes hands yet.
    fn harvest(
        &mut self,
        mut missing_bytes: u64,
        stream: u32,
        except: Option<u64>,
    ) -> Result<Vec<Piece>, (u64, DriverError)> {
        let mut pieces = Vec::new();
        for address in self.free.oldest_first(stream) {
            if missing_bytes == 0 {
                break;
            }
            let Some(region) = self.free.at(address).filter(|_| except != Some(address)) else { continue };
            if region.stream != stream {
                let done = self.driver.event_query(&region.event).map_err(|error| (0, error))?;
                if !done {
                    let stream = &self.streams[stream as usize];
                    self.driver.stream_wait(stream, &region.event).map_err(|error| (0, error))?;
                    self.device_waits += 1;
                }
            }
            let bytes = missing_bytes.min(region.bytes);
            pieces.push(Piece { address, bytes });
            missing_bytes -= bytes;
        }
        Ok(pieces)
    }

    /// Maps the pages of the pieces at `to` as well, one behind the other. After a failure they are not, or zombies.
    fn map_again(&mut self, pieces: &[Piece], to: u64) -> Result<(), (u64, DriverError)> {
        let mut at = to;
        let mapped = self.map_pieces(pieces, &mut at).and_then(|()| self.grant(to, at - to));
        self.note_extent(at);
        mapped.map_err(|error| {
            self.unmap_unused(to, at - to);
            (at - to, error)
        })
    }

    fn map_pieces(&self, pieces: &[Piece], at: &mut u64) -> Result<(), DriverError> {
        for piece in pieces {
            for (_, handle) in self.pages.range(piece.address..piece.address + piece.bytes) {
                self.driver.map(Address::new(*at), self.page_bytes, handle)?;
                *at += self.page_bytes;
            }
        }
        Ok(())
    }

    /// The pages are held at `to` from now on; where they were are zombies, and what was not taken of a region stays
    /// one.
    fn hand_over(&mut self, pieces: &[Piece], to: u64, bytes: u64, stream: u32) -> Result<u64, DriverError> {
        let mut at = to;
        let mut rests = Vec::new();
        for &Piece { address, bytes } in pieces {
            let Some(Region { bytes: region_bytes, stream, event, .. }) = self.free.remove(address) else {
                continue;
            };
            for page in (address..address + bytes).step_by(self.page_bytes as usize) {
                if let Some(handle) = self.pages.remove(&page) {
                    self.pages.insert(at, handle);
                }
                at += self.page_bytes;
            }
            self.zombies.push(Zombie { address, bytes, event: Some(Arc::clone(&event)) });
            if region_bytes > bytes {
                let (address, bytes) = (address + bytes, region_bytes - bytes);
                rests.push(Unfiled { address, bytes, stream, used_on: Vec::new() });
            }
        }
        let refused = rests.into_iter().filter_map(|rest| self.file(rest).err()).next();
        let (found, _) = self.file(Unfiled { address: to, bytes, stream, used_on: Vec::new() })?;
        refused.map_or(Ok(found), Err)
    }

    /// Something was mapped up to here.
    fn note_extent(&mut self, end: u64) {
        let chunk_bytes = self.conf.chunk_bytes;
        let inside = |chunk: &&mut Chunk| (chunk.address + 1..=chunk.address + chunk_bytes).contains(&end);
        if let Some(chunk) = self.chunks.iter_mut().find(inside) {
            chunk.extent_bytes = chunk.extent_bytes.max(end - chunk.address);
        }
        self.note_addresses();
    }
}
