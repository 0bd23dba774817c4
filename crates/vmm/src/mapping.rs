//! A mapping: one frame bound to a run of pages, as an owned value.
//!
//! Main types: [`Mapping`], [`Access`]. Neighbours: a `Reservation` makes mappings, a `Segment` owns them, held and
//! stale alike.

use core::fmt;

use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Call, DriverError, DriverErrorKind, Returned};
use crate::fence::Use;
use crate::frame::Frame;
use crate::sync::Arc;
use crate::units::{Address, FrameId};

/// Whether devices may read and write through a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Mapped only: made, and the call that grants access has not succeeded yet.
    None,
    /// Granted.
    Granted,
}

/// One frame bound to a run of pages. The only thing that can be unmapped, and only whole.
///
/// It does not own the frame: a frame may have several mappings. Dropping it unmaps it, so its owner must know that no
/// work uses the addresses any more.
pub struct Mapping<D: Driver> {
    // `None` once unmapped.
    device: Option<Arc<Device<D>>>,
    address: Address,
    bytes: u64,
    frame: FrameId,
    access: Access,
    last_use: Option<Use>,
}

impl<D: Driver> fmt::Debug for Mapping<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("address", &self.address)
            .field("frame", &self.frame)
            .field("access", &self.access)
            .field("last_use", &self.last_use)
            .finish()
    }
}

impl<D: Driver> Mapping<D> {
    pub(crate) fn new(
        device: &Arc<Device<D>>,
        address: Address,
        frame: &Frame<D>,
    ) -> Result<Self, DriverError> {
        let Some(handle) = frame.handle() else {
            return Err(DriverError::new(DriverErrorKind::Invalid, Call::Map, "the frame was released"));
        };
        device.map(address, frame.bytes(), handle)?;
        Ok(Self {
            device: Some(Arc::clone(device)),
            address,
            bytes: frame.bytes(),
            frame: frame.id(),
            access: Access::None,
            last_use: None,
        })
    }

    /// Where it begins.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Bytes mapped.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The frame behind it.
    pub fn frame(&self) -> FrameId {
        self.frame
    }

    /// Whether access was granted.
    pub fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn set_access(&mut self, access: Access) {
        self.access = access;
    }

    /// The last use through these addresses; `None` if there was none. Only when it is seen done may the mapping go.
    pub fn last_use(&self) -> Option<Use> {
        self.last_use
    }

    pub(crate) fn set_last_use(&mut self, last_use: Option<Use>) {
        self.last_use = last_use;
    }

    /// Unmaps it.
    ///
    /// # Errors
    /// The mapping comes back when the driver refuses.
    pub fn unmap(mut self) -> Result<(), Returned<Self>> {
        let Some(device) = self.device.take() else { return Ok(()) };
        match device.unmap(self.address, self.bytes, 1) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.device = Some(device);
                Err(Returned { owner: self, error })
            }
        }
    }

    /// Says that the driver has unmapped it already, as a part of a longer run.
    pub(crate) fn forget_unmapped(mut self) {
        self.device = None;
    }
}

impl<D: Driver> Drop for Mapping<D> {
    fn drop(&mut self) {
        if let Some(device) = self.device.take()
            && device.unmap(self.address, self.bytes, 1).is_err()
        {
            device.owe_mapping(self.address, self.bytes);
        }
    }
}
