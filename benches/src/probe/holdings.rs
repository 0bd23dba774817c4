//! What a part of the measurement has taken from the driver, so that all of it goes back, also after a failure.
//!
//! Main types: [`Holdings`]. Neighbours: every part that maps something takes what it needs through it.

use std::collections::BTreeMap;

use concertina_cuda::{Cuda, Handle, Stream};
use concertina_vmm::{Accessor, Address, Driver as _, DriverError, FrameProperties};

/// Reservations, frames, mappings, mallocs and blocks of the pool. Its calls are the driver's, with a note of what changed.
#[derive(Debug)]
pub(super) struct Holdings<'a> {
    cuda: &'a Cuda,
    /// Bytes, by where they begin.
    mappings: BTreeMap<Address, u64>,
    frames: Vec<Option<Handle>>,
    reservations: BTreeMap<Address, u64>,
    mallocs: Vec<Address>,
    pooled: Vec<(Address, Stream)>,
}

/// A frame of these holdings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameNumber(usize);

impl<'a> Holdings<'a> {
    pub(super) fn new(cuda: &'a Cuda) -> Self {
        Self {
            cuda,
            mappings: BTreeMap::new(),
            frames: Vec::new(),
            reservations: BTreeMap::new(),
            mallocs: Vec::new(),
            pooled: Vec::new(),
        }
    }

    pub(super) fn reserve(&mut self, bytes: u64) -> Result<Address, DriverError> {
        self.reserve_aligned(bytes, 0)
    }

    pub(super) fn reserve_aligned(&mut self, bytes: u64, alignment: u64) -> Result<Address, DriverError> {
        let address = self.cuda.reserve(bytes, alignment)?;
        self.reservations.insert(address, bytes);
        Ok(address)
    }

    pub(super) fn unreserve(&mut self, address: Address, bytes: u64) -> Result<(), DriverError> {
        self.cuda.unreserve(address, bytes)?;
        self.reservations.remove(&address);
        Ok(())
    }

    pub(super) fn create(&mut self, bytes: u64) -> Result<FrameNumber, DriverError> {
        let handle = self.cuda.create(bytes, &FrameProperties { device: self.cuda.ordinal() })?;
        Ok(self.keep(handle))
    }

    /// A handle that was created elsewhere.
    pub(super) fn keep(&mut self, handle: Handle) -> FrameNumber {
        self.frames.push(Some(handle));
        FrameNumber(self.frames.len() - 1)
    }

    pub(super) fn release(&mut self, FrameNumber(frame): FrameNumber) -> Result<(), DriverError> {
        let Some(handle) = self.frames.get_mut(frame).and_then(Option::take) else { return Ok(()) };
        self.cuda.release(handle).map_err(|returned| {
            self.frames[frame] = Some(returned.owner);
            returned.error
        })
    }

    pub(super) fn map(
        &mut self,
        address: Address,
        bytes: u64,
        frame: FrameNumber,
    ) -> Result<(), DriverError> {
        self.map_part(address, bytes, 0, frame)
    }

    pub(super) fn map_part(
        &mut self,
        address: Address,
        bytes: u64,
        offset: u64,
        FrameNumber(frame): FrameNumber,
    ) -> Result<(), DriverError> {
        let Some(Some(handle)) = self.frames.get(frame) else { return Ok(()) };
        self.cuda.raw_calls().map_part(address, bytes, offset, handle)?;
        self.mappings.insert(address, bytes);
        Ok(())
    }

    pub(super) fn unmap(&mut self, address: Address, bytes: u64) -> Result<(), DriverError> {
        self.cuda.unmap(address, bytes)?;
        while let Some((&start, _)) = self.mappings.range(address..address.add(bytes)).next() {
            self.mappings.remove(&start);
        }
        Ok(())
    }

    pub(super) fn set_access(&self, address: Address, bytes: u64) -> Result<(), DriverError> {
        self.cuda.set_access(address, bytes, &[Accessor::Device(self.cuda.ordinal())])
    }

    pub(super) fn malloc(&mut self, bytes: u64) -> Result<Address, DriverError> {
        let address = self.cuda.malloc(bytes)?;
        self.mallocs.push(address);
        Ok(address)
    }

    pub(super) fn free(&mut self, address: Address) -> Result<(), DriverError> {
        self.cuda.free(address)?;
        self.mallocs.retain(|other| *other != address);
        Ok(())
    }

    pub(super) fn pool_malloc(&mut self, bytes: u64, stream: &Stream) -> Result<Address, DriverError> {
        let address = self.cuda.raw_calls().pool_malloc(bytes, stream)?;
        self.pooled.push((address, stream.clone()));
        Ok(address)
    }

    pub(super) fn pool_free(&mut self, address: Address, stream: &Stream) -> Result<(), DriverError> {
        self.cuda.raw_calls().pool_free(address, stream)?;
        self.pooled.retain(|(other, _)| *other != address);
        Ok(())
    }

    /// Gives everything back; what is refused is kept, and the rest goes all the same. No work may use any of it.
    ///
    /// # Errors
    /// The first refusal.
    pub(super) fn give_back(&mut self) -> Result<(), DriverError> {
        let mut first = Ok(());
        let mut note = |done: Result<(), DriverError>| {
            if first.is_ok() {
                first = done;
            }
        };
        for (address, bytes) in self.mappings.clone() {
            note(self.unmap(address, bytes));
        }
        for frame in 0..self.frames.len() {
            note(self.release(FrameNumber(frame)));
        }
        for (address, bytes) in self.reservations.clone() {
            note(self.unreserve(address, bytes));
        }
        for address in self.mallocs.clone() {
            note(self.free(address));
        }
        for (address, stream) in self.pooled.clone() {
            note(self.pool_free(address, &stream));
        }
        first
    }
}

impl Drop for Holdings<'_> {
    fn drop(&mut self) {
        // Once more, in case it was only one call that failed. What is left then stays to the end of the process, and the
        // error that led here is in the report.
        if self.give_back().is_err() {
            let _ = self.give_back();
        }
    }
}
