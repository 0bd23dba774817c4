//! Memory for a request that no free range serves: frames under addresses of their own, and giving frames back.
//!
//! Neighbours: `reuse` comes here; `frames` makes the calls, `ranges` has the addresses.
//!
//! Modelled, since no driver documents it: a request takes whole frames. Free ones are moved there (NVIDIA's blog, "Using
//! the NVIDIA CUDA Stream-Ordered Memory Allocator, Part 1": the driver remaps unused memory of the pool to a contiguous
//! place, and rather so than by allocating more), those of the smallest free ranges first; the rest is created. A frame
//! is free only as a whole.

use concertina_vmm::{Driver, DriverError, Uses};

use super::conf::Remap;
use super::ranges::{Home, State};
use super::{DriverPool, Segment};

impl<D: Driver> DriverPool<D> {
    /// Makes a free range of at least `bytes`. False if the driver has not enough, and with it free frames that may move.
    ///
    /// # Errors
    /// What the driver says; the frames that were on their way are in hand, for the next request.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<bool, DriverError> {
        let frame_bytes = self.frames.frame_bytes;
        let wanted = bytes.div_ceil(frame_bytes);
        let missing = wanted.saturating_sub(self.frames.in_hand());
        let movable = match self.conf.remap {
            Remap::Never => Vec::new(),
            Remap::Always | Remap::Pressure => self.movable(missing),
        };
        let moved = movable.len() as u64;
        let (least, most) = match self.conf.remap {
            Remap::Always => (missing - moved, missing - moved),
            Remap::Pressure | Remap::Never => (missing - moved, missing),
        };
        let created = self.create(most)?;
        if created < least {
            for _ in 0..created {
                self.frames.release(self.driver.driver())?;
            }
            return Ok(false);
        }
        for address in &movable[..(missing - created) as usize] {
            self.lift(*address)?;
        }
        let address = self.empty_place(wanted * frame_bytes)?;
        let placed_bytes = wanted * frame_bytes;
        self.frames.put(self.driver.driver(), address, wanted)?;
        self.ranges.recast(address, placed_bytes, State::Free(Uses::new()));
        let (&base, segment) = self.segments.range_mut(..=address).next_back().expect("a segment");
        segment.extent_bytes = segment.extent_bytes.max(address + placed_bytes - base);
        Ok(true)
    }

    /// Creates up to `count` frames; how many it were before the driver had no more.
    fn create(&mut self, count: u64) -> Result<u64, DriverError> {
        for created in 0..count {
            match self.frames.create(self.driver.driver()) {
                Ok(()) => {}
                Err(error) if error.is_out_of_memory() => return Ok(created),
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    /// Up to `count` frames that are free as a whole and for everyone: where they are mapped.
    fn movable(&self, count: u64) -> Vec<u64> {
        let mut found = Vec::new();
        for (bytes, address) in self.ranges.of(Home::DONE, self.frames.frame_bytes) {
            let (&base, _) = self.segments.range(..=address).next_back().expect("a segment");
            let (first, frames) = self.frames.inside(base, address, bytes);
            let left = (count - found.len() as u64).min(frames);
            found.extend((0..left).map(|number| first + number * self.frames.frame_bytes));
            if found.len() as u64 == count {
                break;
            }
        }
        found
    }

    /// Takes a free frame in hand; nothing is behind its addresses any more.
    fn lift(&mut self, address: u64) -> Result<(), DriverError> {
        self.frames.lift(self.driver.driver(), address)?;
        self.ranges.recast(address, self.frames.frame_bytes, State::Empty);
        Ok(())
    }

    /// The smallest place with nothing behind it, of a new reservation if there is none.
    fn empty_place(&mut self, bytes: u64) -> Result<u64, DriverError> {
        if let Some((_, address)) = self.ranges.best_fit(Home::EMPTY, bytes) {
            return Ok(address);
        }
        let segment_bytes = self.segment_bytes.max(bytes).next_multiple_of(self.frames.frame_bytes);
        let address = self.driver.driver().reserve(segment_bytes, 0)?.get();
        self.segments.insert(address, Segment { bytes: segment_bytes, extent_bytes: 0 });
        self.ranges.add(address, segment_bytes);
        Ok(address)
    }

    /// `cuMemPoolTrimTo`: gives free frames back until at most `keep_bytes` are held, as far as it may.
    ///
    /// # Errors
    /// What the driver says; what it did not take is still held.
    pub(crate) fn trim_to(&mut self, keep_bytes: u64) -> Result<(), DriverError> {
        let surplus = |pool: &Self| pool.frames.held_bytes().saturating_sub(keep_bytes);
        while surplus(self) > 0 && self.frames.release(self.driver.driver())? {}
        for address in self.movable(surplus(self).div_ceil(self.frames.frame_bytes)) {
            self.lift(address)?;
            self.frames.release(self.driver.driver())?;
        }
        Ok(())
    }
}
