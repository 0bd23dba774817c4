//! A reservation: an owned range of addresses with nothing behind it.
//!
//! Main type: [`Reservation`]. Neighbours: a `Segment` is a reservation and the mappings in it.

use core::fmt;

use crate::device::Device;
use crate::driver::Driver;
use crate::error::{DriverError, Returned};
use crate::mapping::Mapping;
use crate::sync::Arc;
use crate::units::{Address, FrameId};
use crate::{Call, DriverErrorKind, Frame};

/// An owned range of device addresses. Dropping it gives the range back; nothing may be mapped in it then.
pub struct Reservation<D: Driver> {
    // `None` once given back.
    device: Option<Arc<Device<D>>>,
    address: Address,
    bytes: u64,
}

impl<D: Driver> fmt::Debug for Reservation<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({}, {} bytes)", self.address, self.bytes)
    }
}

impl<D: Driver> Reservation<D> {
    /// Takes `bytes` of addresses, a multiple of the granularity, aligned to `alignment` bytes.
    ///
    /// # Errors
    /// Out of memory when the address space has no such range; whatever else the driver says.
    pub fn new(device: &Arc<Device<D>>, bytes: u64, alignment: u64) -> Result<Self, DriverError> {
        let address = device.reserve(bytes, alignment)?;
        Ok(Self { device: Some(Arc::clone(device)), address, bytes })
    }

    /// The first address.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Bytes of addresses.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps the whole of `frame` at `offset_bytes` from the start. No access yet: a `Segment` grants it for many
    /// mappings at once.
    ///
    /// # Errors
    /// Out of memory over the driver's mapping budget; invalid where something is mapped already.
    pub fn map(&self, offset_bytes: u64, frame: &Frame<D>) -> Result<Mapping<D>, DriverError> {
        let Some(device) = &self.device else {
            return Err(DriverError::new(
                DriverErrorKind::Invalid,
                Call::Map,
                "the reservation was given back",
            ));
        };
        Mapping::new(device, self.address.add(offset_bytes), frame)
    }

    /// Gives the range back.
    ///
    /// # Errors
    /// The reservation comes back when the driver refuses, for instance because something is mapped in it.
    pub fn unreserve(mut self) -> Result<(), Returned<Self>> {
        let Some(device) = self.device.take() else { return Ok(()) };
        match device.unreserve(self.address, self.bytes) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.device = Some(device);
                Err(Returned { owner: self, error })
            }
        }
    }
}

impl<D: Driver> Drop for Reservation<D> {
    fn drop(&mut self) {
        if let Some(device) = self.device.take()
            && device.unreserve(self.address, self.bytes).is_err()
        {
            device.owe_reservation(self.address, self.bytes);
        }
    }
}

/// The place of a page: which segment, and its number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The segment.
    pub segment: crate::SegmentId,
    /// The page's number in the segment.
    pub page: u32,
}

/// What a page of a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// Nothing is mapped there.
    Unmapped,
    /// The frame is held through this page: usable with no driver call.
    Held(FrameId),
    /// Still mapped to this frame, which is held elsewhere now.
    Stale(FrameId),
}
