//! The frames, in the segments that they were created for, and whether somebody uses them.
//!
//! Main types: [`Segments`], [`Frame`]. Neighbours: `pblocks` cuts segments up; `sblocks` has second addresses of
//! frames.
//!
//! Source: GMLake, `include/cuda_vmm_allocator.h`: `PhyBlock`, with its `mapped_blocks`.

use std::collections::BTreeMap;

use super::ranges::FRAME_BYTES;
use super::sblocks::{Piece, SBlockId, SBlocks};

#[derive(Debug)]
pub(crate) struct Frame<H> {
    pub(crate) handle: H,
    pub(crate) busy: bool,
    /// The sBlocks that it is mapped to as well.
    pub(crate) stitched: Vec<SBlockId>,
}

#[derive(Debug)]
pub(crate) struct Segments<H> {
    /// The frames, by where the segment begins.
    segments: BTreeMap<u64, Vec<Frame<H>>>,
    frames: u64,
}

impl<H> Segments<H> {
    pub(crate) const fn new() -> Self {
        Self { segments: BTreeMap::new(), frames: 0 }
    }

    /// Bytes of all frames.
    pub(crate) const fn bytes(&self) -> u64 {
        self.frames * FRAME_BYTES
    }

    pub(crate) fn insert(&mut self, address: u64, handles: Vec<H>) {
        self.frames += handles.len() as u64;
        let frames = handles.into_iter().map(|handle| Frame { handle, busy: false, stitched: Vec::new() });
        self.segments.insert(address, frames.collect());
    }

    pub(crate) fn remove(&mut self, address: u64) -> Vec<Frame<H>> {
        let frames = self.segments.remove(&address).unwrap_or_default();
        self.frames -= frames.len() as u64;
        frames
    }

    /// Where each begins, and its bytes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.segments.iter().map(|(&address, frames)| (address, frames.len() as u64 * FRAME_BYTES))
    }

    /// Bytes of the one that begins here; 0 if there is none.
    pub(crate) fn bytes_at(&self, address: u64) -> u64 {
        self.segments.get(&address).map_or(0, |frames| frames.len() as u64 * FRAME_BYTES)
    }

    pub(crate) fn frames(&self, piece: Piece) -> &[Frame<H>] {
        self.segments.get(&piece.segment).map_or(&[], |frames| &frames[indices(piece)])
    }

    pub(crate) fn frames_mut(&mut self, piece: Piece) -> &mut [Frame<H>] {
        self.segments.get_mut(&piece.segment).map_or(&mut [], |frames| &mut frames[indices(piece)])
    }

    /// Somebody uses these frames from now on, or nobody: every sBlock that they belong to counts it.
    pub(crate) fn set_busy<E>(&mut self, pieces: &[Piece], busy: bool, sblocks: &mut SBlocks<E>) {
        for &piece in pieces {
            for frame in self.frames_mut(piece) {
                debug_assert_ne!(frame.busy, busy, "a frame has one user");
                frame.busy = busy;
                frame.stitched.iter().for_each(|&id| sblocks.count(id, busy));
            }
        }
    }
}

fn indices(piece: Piece) -> std::ops::Range<usize> {
    let first = ((piece.address - piece.segment) / FRAME_BYTES) as usize;
    first..first + (piece.bytes / FRAME_BYTES) as usize
}
