//! Physical memory: frames under a capacity.
//!
//! Main types: [`Physical`], [`Frame`], [`Purpose`]. Neighbours: `device` creates and releases, `address_space` maps,
//! `malloc_area` takes granules.

use crate::slab::{Key, Slab};

/// What a physical allocation was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Create,
    Malloc,
}

/// A physical allocation: of a create, or behind mallocs.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) purpose: Purpose,
    pub(crate) bytes: u64,
    /// Handles not released: one for each create and retain (for memory behind mallocs: one until it is freed).
    pub(crate) handles: u32,
    /// Mappings of it, anywhere.
    pub(crate) mappings: u32,
}

#[derive(Debug)]
pub(crate) struct Physical {
    capacity_bytes: u64,
    used_bytes: u64,
    /// Those made by a create.
    created: u64,
    pub(crate) frames: Slab<Frame>,
}

impl Physical {
    pub(crate) const fn new(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, used_bytes: 0, created: 0, frames: Slab::new() }
    }

    pub(crate) const fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    pub(crate) const fn created(&self) -> u64 {
        self.created
    }

    pub(crate) const fn free_bytes(&self) -> u64 {
        self.capacity_bytes - self.used_bytes
    }

    /// A frame with a handle, or none if the device is full.
    pub(crate) fn take(&mut self, bytes: u64, purpose: Purpose) -> Option<Key> {
        if bytes > self.free_bytes() {
            return None;
        }
        self.used_bytes += bytes;
        self.created += u64::from(purpose == Purpose::Create);
        Some(self.frames.insert(Frame { purpose, bytes, handles: 1, mappings: 0 }))
    }

    /// Gives up one handle; the memory stays while a mapping is left.
    pub(crate) fn give_up_handle(&mut self, slot: u32) {
        self.frames.at_mut(slot).handles -= 1;
        self.free_if_unused(slot);
    }

    pub(crate) fn drop_mapping(&mut self, slot: u32) {
        self.frames.at_mut(slot).mappings -= 1;
        self.free_if_unused(slot);
    }

    fn free_if_unused(&mut self, slot: u32) {
        let frame = self.frames.at(slot);
        if frame.handles == 0 && frame.mappings == 0 {
            let frame = self.frames.remove(slot);
            self.used_bytes -= frame.bytes;
            self.created -= u64::from(frame.purpose == Purpose::Create);
        }
    }
}
