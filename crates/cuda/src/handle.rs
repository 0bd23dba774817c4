//! Physical memory as the driver hands it out.
//!
//! Main type: [`Handle`]. Neighbours: `driver` creates, maps and releases it.

use cudarc::driver::sys;

/// One physical allocation: a `CUmemGenericAllocationHandle`.
///
/// It can't be cloned, and only [`Driver::release`](concertina_vmm::Driver::release), which takes it, gives it back. One
/// that is dropped instead is leaked until the process ends: a drop could not hand it back when the driver refuses.
#[derive(Debug)]
#[must_use = "memory that is not released is leaked"]
pub struct Handle {
    raw: sys::CUmemGenericAllocationHandle,
    bytes: u64,
}

impl Handle {
    pub(crate) fn new(raw: sys::CUmemGenericAllocationHandle, bytes: u64) -> Self {
        Self { raw, bytes }
    }

    /// The driver's number for it. Releasing it by hand, or keeping it for longer than this value lives, breaks the
    /// owner's promise.
    pub fn raw(&self) -> sys::CUmemGenericAllocationHandle {
        self.raw
    }

    /// Bytes of it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
