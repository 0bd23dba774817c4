//! A frame: one physical allocation of the driver, as an owned value.
//!
//! Main type: [`Frame`]. Neighbours: the `FrameStore` creates and releases frames; a `Segment` holds them through its
//! pages; `fence` says what their last uses mean.

use core::fmt;

use crate::device::Device;
use crate::driver::Driver;
use crate::error::{DriverError, Returned};
use crate::fence::Uses;
use crate::sync::Arc;
use crate::units::FrameId;

/// One physical allocation. Whoever holds the value owns the memory: it is in one page of one segment, in the frame
/// store, or in the hands of a thief on its way. Dropping it releases the handle.
pub struct Frame<D: Driver> {
    // `None` once released.
    inner: Option<Inner<D>>,
    id: FrameId,
    bytes: u64,
    pins: u32,
    uses: Uses,
}

struct Inner<D: Driver> {
    device: Arc<Device<D>>,
    handle: D::Handle,
}

impl<D: Driver> fmt::Debug for Frame<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("id", &self.id)
            .field("pins", &self.pins)
            .field("uses", &self.uses)
            .finish()
    }
}

impl<D: Driver> Frame<D> {
    /// Creates a frame of one granularity. Its content is whatever the driver hands out.
    pub(crate) fn new(device: &Arc<Device<D>>, id: FrameId) -> Result<Self, DriverError> {
        let bytes = device.granularity();
        let handle = device.create(bytes)?;
        let inner = Some(Inner { device: Arc::clone(device), handle });
        Ok(Self { inner, id, bytes, pins: 0, uses: Uses::new() })
    }

    /// Which frame of its store it is.
    pub fn id(&self) -> FrameId {
        self.id
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The driver's handle, for mapping.
    pub(crate) fn handle(&self) -> Option<&D::Handle> {
        self.inner.as_ref().map(|inner| &inner.handle)
    }

    /// How often it is pinned. A pinned frame may not be taken from its page, nor released.
    pub fn pins(&self) -> u32 {
        self.pins
    }

    /// Pins the frame where it is.
    pub fn pin(&mut self) {
        self.pins += 1;
    }

    /// Takes one pin back.
    ///
    /// # Panics
    /// If it is not pinned, in builds with overflow checks.
    pub fn unpin(&mut self) {
        self.pins -= 1;
    }

    /// The last uses that nothing has ordered yet. Empty for a new frame.
    pub fn uses(&self) -> &Uses {
        &self.uses
    }

    /// Replaces the last uses: what the frame's page knew when it gave the frame up.
    pub fn set_uses(&mut self, uses: Uses) {
        self.uses = uses;
    }

    /// Gives the handle back to the driver. The memory is free once the last mapping has gone, too.
    ///
    /// # Errors
    /// The frame comes back, whole, when the driver refuses.
    pub(crate) fn release(mut self) -> Result<(), Returned<Self>> {
        let Some(Inner { device, handle }) = self.inner.take() else { return Ok(()) };
        match device.release(handle) {
            Ok(()) => Ok(()),
            Err(Returned { owner: handle, error }) => {
                self.inner = Some(Inner { device, handle });
                Err(Returned { owner: self, error })
            }
        }
    }
}

impl<D: Driver> Drop for Frame<D> {
    fn drop(&mut self) {
        if let Some(Inner { device, handle }) = self.inner.take()
            && let Err(returned) = device.release(handle)
        {
            device.owe_handle(returned.owner, self.bytes);
        }
    }
}
