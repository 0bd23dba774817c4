//! Runs of addresses with a frame of 2 MiB under each step, and the driver calls that make and end them.
//!
//! Main type: [`Ranges`]. Neighbours: `grow` and `stitch` open ranges, `give_back` closes them.
//!
//! Source: GMLake, `include/cuda_vmm_allocator.h`: `PhyBlock`, `VirDevPtr`, `VirBlock`, `VmmSegment`. A range is
//! reserved, then each frame mapped and given access by calls of its own; it is unmapped with one call. When a
//! reservation or a map fails, the source tries seven times more but does not forget that it failed, so that nothing
//! comes of it: here it is tried once. What the driver would not take back is tried again here.

use concertina_vmm::{Accessor, Address, Driver, DriverError, FrameProperties};

/// `granularitySize`, `kGranularity`: the size of all frames.
pub(crate) const FRAME_BYTES: u64 = 2 << 20;

/// A range that the driver has not taken back.
#[derive(Clone, Copy, Debug)]
struct Owed {
    address: u64,
    bytes: u64,
    /// Of these, mapped from the start on.
    mapped_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Ranges<D: Driver> {
    owed: Vec<Owed>,
    /// Frames that the driver has not taken back: the next ones.
    spare: Vec<D::Handle>,
    /// Bytes of ranges that are open.
    pub(crate) open_bytes: u64,
}

impl<D: Driver> Ranges<D> {
    pub(crate) const fn new() -> Self {
        Self { owed: Vec::new(), spare: Vec::new(), open_bytes: 0 }
    }

    /// So many frames. After a failure there are none.
    pub(crate) fn create(&mut self, driver: &D, count: u64) -> Result<Vec<D::Handle>, DriverError> {
        let mut frames = Vec::new();
        while (frames.len() as u64) < count {
            let frame = match self.spare.pop() {
                Some(frame) => Ok(frame),
                None => driver.create(FRAME_BYTES, &FrameProperties::default()),
            };
            match frame {
                Ok(frame) => frames.push(frame),
                Err(error) => {
                    self.release(driver, frames);
                    return Err(error);
                }
            }
        }
        Ok(frames)
    }

    pub(crate) fn release(&mut self, driver: &D, frames: impl IntoIterator<Item = D::Handle>) {
        for frame in frames {
            if let Err(returned) = driver.release(frame) {
                self.spare.push(returned.owner);
            }
        }
    }

    /// New addresses, with these frames under them. After a failure there are none.
    pub(crate) fn open<'a>(
        &mut self,
        driver: &D,
        bytes: u64,
        frames: impl IntoIterator<Item = &'a D::Handle>,
    ) -> Result<u64, DriverError>
    where
        D::Handle: 'a,
    {
        let address = driver.reserve(bytes, 0)?.get();
        let accessors = [Accessor::Device(FrameProperties::default().device)];
        let mut mapped_bytes = 0;
        for frame in frames {
            let at = Address::new(address + mapped_bytes);
            let accessible = driver.map(at, FRAME_BYTES, frame).and_then(|()| {
                mapped_bytes += FRAME_BYTES;
                driver.set_access(at, FRAME_BYTES, &accessors)
            });
            if let Err(error) = accessible {
                self.end(driver, Owed { address, bytes, mapped_bytes });
                return Err(error);
            }
        }
        self.open_bytes += bytes;
        Ok(address)
    }

    /// Unmaps a range that nothing uses any more and gives its addresses back.
    pub(crate) fn close(&mut self, driver: &D, address: u64, bytes: u64) {
        self.open_bytes -= bytes;
        self.end(driver, Owed { address, bytes, mapped_bytes: bytes });
    }

    fn end(&mut self, driver: &D, mut range: Owed) {
        if range.mapped_bytes > 0 && driver.unmap(Address::new(range.address), range.mapped_bytes).is_ok() {
            range.mapped_bytes = 0;
        }
        let gone =
            range.mapped_bytes == 0 && driver.unreserve(Address::new(range.address), range.bytes).is_ok();
        if !gone {
            self.owed.push(range);
        }
    }

    /// Tries once more to give back what the driver would not take. Makes no call when there is nothing.
    pub(crate) fn retry(&mut self, driver: &D) {
        for range in std::mem::take(&mut self.owed) {
            self.end(driver, range);
        }
        let spare = std::mem::take(&mut self.spare);
        self.release(driver, spare);
    }
}
