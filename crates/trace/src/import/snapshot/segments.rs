//! The segments of a snapshot: what was live when it was taken.
//!
//! Main types: [`Segments`], [`Listed`]. Neighbours: `snapshot` compares them with what the events left; `history` takes
//! the mapped bytes from them.

use std::collections::HashSet;

use super::SnapshotMistake;
use super::object::Object;
use crate::import::draft::RawStream;
use crate::import::error::{Misplaced, Place};
use crate::import::pickle::Pickle;
use crate::import::pickle::Value;
use crate::import::record::Described;
use crate::mistake::excerpt;

/// Whose a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockState {
    /// The program's.
    Allocated,
    /// Freed by the program, and still used on other streams.
    PendingFree,
}

/// A block that is not free, and where it is listed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listed {
    pub(super) block: Described,
    pub(super) state: BlockState,
    pub(super) place: Place,
}

/// What is in the segments of one device.
#[derive(Debug, Default)]
pub(super) struct Segments {
    /// Segments.
    pub(super) count: usize,
    /// Their sizes together, in bytes.
    pub(super) mapped_bytes: u128,
    /// Blocks that are not free, in the order of the list.
    pub(super) blocks: Vec<Listed>,
    /// Segments of private pools.
    pub(super) private: usize,
    /// Blocks in them that are not free.
    pub(super) private_blocks: usize,
    /// Sizes of these blocks together, in bytes.
    pub(super) private_bytes: u128,
    /// Blocks whose size is that of their place, since what was asked is not recorded.
    pub(super) guessed_sizes: usize,
}

impl Segments {
    /// Reads the segments of `device`.
    pub(super) fn of(pickle: &Pickle<'_>, segments: &[Value], device: u32) -> Result<Self, Misplaced> {
        let mut all = Self::default();
        let mut addresses = HashSet::new();
        let mut listed = 0;
        for (number, &segment) in segments.iter().enumerate() {
            let segment = Object::new(pickle, segment, Place::Segment(number))?;
            if segment.device()? != device {
                continue;
            }
            all.count += 1;
            all.mapped_bytes += u128::from(segment.number("total_size")?);
            let is_private = segment.is_private("segment_pool_id");
            all.private += usize::from(is_private);

            let blocks = segment.list_or_empty("blocks")?;
            listed += blocks.len();
            if listed > pickle.len() {
                return Err(segment.place().is_wrong(SnapshotMistake::SharedBlocks { most: pickle.len() }));
            }
            let stream = RawStream::Handle(segment.handle("stream")?);
            let mut next_address = segment.number("address")?;
            for (at, &block) in blocks.iter().enumerate() {
                let block = Object::new(pickle, block, Place::Block(number, at))?;
                let size = block.number("size")?;
                // The oldest layout has no addresses; blocks lie next to one another and fill the segment.
                let address = block.number_if_any("address")?.unwrap_or(next_address);
                next_address = address
                    .checked_add(size)
                    .ok_or_else(|| block.place().is_wrong(SnapshotMistake::BeyondAddresses))?;
                let Some(state) = state_of(&block)? else { continue };
                if !addresses.insert(address) {
                    return Err(block.place().is_wrong(SnapshotMistake::RepeatedBlock { address }));
                }
                let bytes = all.asked_bytes(pickle, &block, size)?;
                if is_private {
                    all.private_blocks += 1;
                    all.private_bytes += u128::from(bytes);
                }
                let described = Described { address, bytes, stream };
                all.blocks.push(Listed { block: described, state, place: block.place() });
            }
        }
        Ok(all)
    }

    /// What the program asked for: from the block, in older layouts from its latest history; else the size of its place.
    fn asked_bytes(&mut self, pickle: &Pickle<'_>, block: &Object<'_>, size: u64) -> Result<u64, Misplaced> {
        let believed = |asked: &u64| (1..=size).contains(asked);
        if let Some(asked) = block.number_if_any("requested_size")?.filter(believed) {
            return Ok(asked);
        }
        if let Some(&latest) = block.list_or_empty("history")?.first()
            && let Some(asked) = Object::new(pickle, latest, block.place())?.number_if_any("real_size")?
            && believed(&asked)
        {
            return Ok(asked);
        }
        self.guessed_sizes += 1;
        Ok(size.max(1))
    }
}

/// None if the block is free.
fn state_of(block: &Object<'_>) -> Result<Option<BlockState>, Misplaced> {
    match block.text("state")? {
        "active_allocated" => Ok(Some(BlockState::Allocated)),
        "active_pending_free" | "active_awaiting_free" => Ok(Some(BlockState::PendingFree)),
        "inactive" => Ok(None),
        found => {
            let found = excerpt(found.as_bytes());
            Err(block.place().is_wrong(SnapshotMistake::UnknownState { found }))
        }
    }
}
