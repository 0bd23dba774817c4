//! What must hold of the books at any time, for tests.
//!
//! Neighbours: `tests` asks after every step.

use concertina_vmm::Driver;

use super::Gmlake;
use super::pblocks::PState;
use super::ranges::FRAME_BYTES;
use super::sblocks::Piece;

/// Everything that does not hold.
pub(crate) fn audit<D: Driver>(allocator: &Gmlake<D>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut free = 0;
    let mut covered = 0;
    let mut before = None;
    for (address, block) in allocator.pblocks.iter() {
        covered += block.bytes;
        let busy = block.state != PState::Free;
        let piece = Piece { segment: block.segment, address, bytes: block.bytes };
        if allocator.segments.frames(piece).iter().any(|frame| frame.busy != busy) {
            wrong.push(format!("pBlock at {address:#x} is {:?}, its frames are not", block.state));
        }
        if !busy {
            free += 1;
            if !allocator.pblocks.index().contains(&(block.stream, block.bytes, address)) {
                wrong.push(format!("free pBlock at {address:#x} is not found"));
            }
            if before == Some((address, block.segment)) {
                wrong.push(format!("{address:#x} is not joined to what is free before it"));
            }
        }
        before = (!busy).then_some((address + block.bytes, block.segment));
    }
    if free != allocator.pblocks.index().len() || covered != allocator.segments.bytes() {
        wrong.push(format!("{free} free pBlocks, {covered} bytes in all"));
    }
    let (mut idle, mut fragmented) = (0, 0);
    for (id, block) in allocator.sblocks.iter() {
        let frames = block.pieces.iter().flat_map(|&piece| allocator.segments.frames(piece));
        let busy = frames.clone().filter(|frame| frame.busy).count() as u64;
        let count = frames.clone().count() as u64;
        if busy != block.busy_frames || count * FRAME_BYTES != block.bytes {
            wrong.push(format!("{id:?}: {busy} of {count} frames are busy, not {}", block.busy_frames));
        }
        if frames.clone().any(|frame| frame.stitched.iter().filter(|&&other| other == id).count() != 1) {
            wrong.push(format!("{id:?}: a frame does not know it"));
        }
        let used = (block.used_bytes / FRAME_BYTES) as usize;
        if frames.take(used).any(|frame| !frame.busy) {
            wrong.push(format!("{id:?}: it is used, a frame of it is not"));
        }
        if block.used_bytes == 0 {
            *(if busy > 0 { &mut fragmented } else { &mut idle }) += 1;
        }
    }
    if allocator.sblocks.sizes() != (idle, fragmented) {
        wrong.push(format!("{:?} sBlocks, not {:?}", allocator.sblocks.sizes(), (idle, fragmented)));
    }
    wrong
}
