//! A run of addresses that one stream's blocks of one kind grow into, frame by frame.
//!
//! Main type: [`ExpandableSegment`]. Neighbours: `grow` maps, `give_back` unmaps; the `Frame` and `Mapping` of
//! `concertina-vmm` are of one granularity, which these frames are not, so the driver is called directly.
//!
//! Source: PyTorch 2.11, `CUDACachingAllocator.cpp`, struct `ExpandableSegment` (`map`, `unmap`, `mapAndSetAccess`,
//! `unmapHandles`). One thing is different: when a call fails half-way, PyTorch throws and leaves handles that nothing
//! maps; here each slot says what it has, what can be taken back is, and the next call goes on from there.

use concertina_vmm::{Accessor, Address, Driver, DriverError, FrameProperties};

/// One frame's place.
#[derive(Debug)]
struct Slot<H> {
    handle: Option<H>,
    mapped: bool,
}

/// What a run of slots is after an attempt to empty it.
#[derive(Debug)]
pub(crate) struct Unmapped {
    /// Where the unmapped part begins, in bytes from the start of the segment.
    pub(crate) offset: u64,
    /// Its bytes.
    pub(crate) bytes: u64,
    /// What the driver refused on the way.
    pub(crate) failure: Option<DriverError>,
}

#[derive(Debug)]
pub(crate) struct ExpandableSegment<D: Driver> {
    /// The stream whose blocks lie here, by its number.
    pub(crate) stream: u32,
    address: u64,
    bytes: u64,
    frame_bytes: u64,
    /// Up to the last one that ever had a frame.
    slots: Vec<Slot<D::Handle>>,
}

/// Addresses of a segment on a device of so many bytes: 9/8 of it, in whole frames.
pub(crate) fn reserved_bytes(device_bytes: u64, frame_bytes: u64) -> u64 {
    device_bytes.saturating_add(device_bytes / 8).next_multiple_of(frame_bytes)
}

impl<D: Driver> ExpandableSegment<D> {
    pub(crate) fn new(driver: &D, stream: u32, bytes: u64, frame_bytes: u64) -> Result<Self, DriverError> {
        let address = driver.reserve(bytes, 0)?.get();
        Ok(Self { stream, address, bytes, frame_bytes, slots: Vec::new() })
    }

    pub(crate) const fn address(&self) -> u64 {
        self.address
    }

    /// Bytes from the start to the end of the last frame that was ever here.
    pub(crate) fn extent_bytes(&self) -> u64 {
        self.slots.len() as u64 * self.frame_bytes
    }

    /// Puts frames under `bytes` from `offset`, a multiple of the frame's size, on, rounded up to whole frames: one
    /// create and one map each, one access for all. Returns the bytes mapped; 0 if a create ran out of memory.
    ///
    /// # Errors
    /// Anything else that a call says. Then nothing is mapped here that was not before.
    pub(crate) fn map(&mut self, driver: &D, offset: u64, bytes: u64) -> Result<u64, DriverError> {
        let first = (offset / self.frame_bytes) as usize;
        let end = (offset + bytes).div_ceil(self.frame_bytes) as usize;
        if self.slots.len() < end {
            self.slots.resize_with(end, || Slot { handle: None, mapped: false });
        }
        match self.back(driver, first, end) {
            Ok(()) => Ok((end - first) as u64 * self.frame_bytes),
            Err((step, error)) => {
                self.take_back(driver, first, end);
                if step == Step::Create && error.is_out_of_memory() { Ok(0) } else { Err(error) }
            }
        }
    }

    fn back(&mut self, driver: &D, first: usize, end: usize) -> Result<(), (Step, DriverError)> {
        let properties = FrameProperties::default();
        for slot in &mut self.slots[first..end] {
            if slot.handle.is_none() {
                let created = driver.create(self.frame_bytes, &properties);
                slot.handle = Some(created.map_err(|error| (Step::Create, error))?);
            }
        }
        for index in first..end {
            let at = self.at(index);
            let slot = &mut self.slots[index];
            if let Some(handle) = slot.handle.as_ref().filter(|_| !slot.mapped) {
                driver.map(at, self.frame_bytes, handle).map_err(|error| (Step::Map, error))?;
                slot.mapped = true;
            }
        }
        let bytes = (end - first) as u64 * self.frame_bytes;
        let accessors = [Accessor::Device(properties.device)];
        driver.set_access(self.at(first), bytes, &accessors).map_err(|error| (Step::Map, error))
    }

    /// Empties slots that no block has, as far as the driver lets it.
    fn take_back(&mut self, driver: &D, first: usize, end: usize) {
        for index in first..end {
            // What fails stays in its slot, for the next time that something is mapped there.
            let _ = self.unmap_one(driver, index);
            let _ = self.release_one(driver, index);
        }
    }

    /// Takes the whole frames in `bytes` from `offset` on away: one unmap and one release each. The caller has seen the
    /// segment's stream idle.
    pub(crate) fn unmap(&mut self, driver: &D, offset: u64, bytes: u64) -> Unmapped {
        let (first, end) = self.whole_frames(offset, bytes);
        let mut unmapped = Unmapped { offset: first as u64 * self.frame_bytes, bytes: 0, failure: None };
        for index in first..end {
            if let Err(error) = self.unmap_one(driver, index) {
                unmapped.failure = Some(error);
                break;
            }
            unmapped.bytes += self.frame_bytes;
            if let Err(error) = self.release_one(driver, index) {
                unmapped.failure.get_or_insert(error);
            }
        }
        unmapped
    }

    /// Numbers of the frames that lie wholly in a range, from the first to before the end.
    pub(crate) fn whole_frames(&self, offset: u64, bytes: u64) -> (usize, usize) {
        let first = offset.div_ceil(self.frame_bytes) as usize;
        (first, first.max(((offset + bytes) / self.frame_bytes) as usize))
    }

    fn unmap_one(&mut self, driver: &D, index: usize) -> Result<(), DriverError> {
        let at = self.at(index);
        let slot = &mut self.slots[index];
        if slot.mapped {
            driver.unmap(at, self.frame_bytes)?;
            slot.mapped = false;
        }
        Ok(())
    }

    fn release_one(&mut self, driver: &D, index: usize) -> Result<(), DriverError> {
        let slot = &mut self.slots[index];
        if slot.mapped {
            return Ok(());
        }
        let Some(handle) = slot.handle.take() else { return Ok(()) };
        driver.release(handle).map_err(|returned| {
            slot.handle = Some(returned.owner);
            returned.error
        })
    }

    fn at(&self, index: usize) -> Address {
        Address::new(self.address + index as u64 * self.frame_bytes)
    }

    /// Gives back what is left, as far as the driver lets it, and then the addresses. Nothing uses them any more.
    ///
    /// # Errors
    /// The first refusal; what was refused is still here.
    pub(crate) fn close(&mut self, driver: &D) -> Result<(), DriverError> {
        let mut refused = None;
        for index in 0..self.slots.len() {
            let emptied = self.unmap_one(driver, index).and_then(|()| self.release_one(driver, index));
            if let Err(error) = emptied {
                refused.get_or_insert(error);
            }
        }
        match refused {
            Some(error) => Err(error),
            None => driver.unreserve(Address::new(self.address), self.bytes),
        }
    }
}

/// The call that failed in [`ExpandableSegment::back`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    Map,
}
