//! Looks at every block that an allocator hands out, through the device's page tables and not through the
//! allocator's eyes.
//!
//! Main types: `Checker`, [`Violation`], [`ViolationKind`], [`BlockPlace`]. Neighbours: `replay` calls it at each
//! allocation and free; `intervals` keeps what the live blocks occupy.

use std::fmt;

use concertina_emulator::{Backing, BackingId, Piece};
use concertina_vmm::Address;

use crate::device::ReplayDevice;
use crate::intervals::Intervals;
use crate::loaded::{LoadedTrace, Step};

/// A block, by what the trace says of it and where the allocator put it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    /// The line that allocates it, counted from 1.
    pub line: u64,
    /// Where it begins.
    pub address: Address,
    /// Its size in bytes, as asked.
    pub bytes: u64,
    /// The stream that it was allocated on, by the number that steps use.
    pub stream: u32,
}

impl fmt::Display for BlockPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the block of line {} ({} bytes at {} on stream {})",
            self.line, self.bytes, self.address, self.stream
        )
    }
}

/// A block that can't be right, and the event at which that was seen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {block} {kind}")]
pub struct Violation {
    /// The event, counted from 0; one more than the last for what was found at the end.
    pub event: usize,
    /// Its line, counted from 1.
    pub line: u64,
    /// The block that was looked at.
    pub block: BlockPlace,
    /// What is wrong with it.
    pub kind: ViolationKind,
}

/// What can be wrong with a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViolationKind {
    /// It does not begin at a multiple of so many bytes.
    Misaligned {
        /// The alignment that was asked for, in bytes.
        alignment_bytes: u64,
    },
    /// It runs past the last address.
    OutsideAddresses,
    /// A page of it is not mapped.
    NotMapped {
        /// The first address with nothing behind it.
        address: Address,
    },
    /// A page of it is mapped, but the device has no access.
    NoAccess {
        /// The first address without access.
        address: Address,
    },
    /// Another live block has some of its addresses.
    SharesAddresses {
        /// The other block.
        other: BlockPlace,
        /// The first address that both have.
        address: Address,
    },
    /// Another live block has some of its memory, under other addresses.
    SharesMemory {
        /// The other block.
        other: BlockPlace,
        /// The memory.
        memory: BackingId,
        /// The first byte that both have, from the memory's start.
        offset_bytes: u64,
    },
    /// Other memory is behind it than when it was allocated, or the access has changed.
    BackingChanged {
        /// The first address that differs.
        address: Address,
        /// What was behind it.
        before: Option<Backing>,
        /// What is behind it now.
        now: Option<Backing>,
    },
}

impl fmt::Display for ViolationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misaligned { alignment_bytes } => write!(f, "is not aligned to {alignment_bytes} bytes"),
            Self::OutsideAddresses => f.write_str("runs past the last address"),
            Self::NotMapped { address } => write!(f, "has nothing mapped at {address}"),
            Self::NoAccess { address } => write!(f, "has no access at {address}"),
            Self::SharesAddresses { other, address } => {
                write!(f, "shares addresses from {address} on with {other}")
            }
            Self::SharesMemory { other, memory, offset_bytes } => {
                write!(f, "shares {memory:?} from byte {offset_bytes} on with {other}")
            }
            Self::BackingChanged { address, before, now } => {
                write!(f, "changed its backing at {address} while it was live: from {before:?} to {now:?}")
            }
        }
    }
}

/// A live block and what was behind it when it was allocated.
#[derive(Debug)]
struct LiveBlock {
    place: BlockPlace,
    pieces: Vec<Piece>,
}

/// What the live blocks occupy, and what is wrong with the next one.
///
/// A block that was found wrong may be left half taken over: the replay ends with the first violation.
#[derive(Debug)]
pub(crate) struct Checker<'a> {
    device: &'a dyn ReplayDevice,
    alignment_bytes: u64,
    /// By slot.
    live: Vec<Option<LiveBlock>>,
    addresses: Intervals,
    /// By [`BackingId::index`]: which memory, and which of its bytes are occupied.
    memories: Vec<Option<(BackingId, Intervals)>>,
    /// Vectors to be used again.
    spare: Vec<Vec<Piece>>,
    now: Vec<Piece>,
}

impl<'a> Checker<'a> {
    /// A checker of blocks on this device that must begin at multiples of `alignment_bytes`, with room for `slots`
    /// live ones.
    pub(crate) fn new(device: &'a dyn ReplayDevice, slots: usize, alignment_bytes: u64) -> Self {
        Self {
            device,
            alignment_bytes,
            live: std::iter::repeat_with(|| None).take(slots).collect(),
            addresses: Intervals::default(),
            memories: Vec::new(),
            spare: Vec::new(),
            now: Vec::new(),
        }
    }

    /// Looks at a block that was just allocated at `address` for this event of the trace.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn check_allocate(
        &mut self,
        trace: &LoadedTrace,
        event: usize,
        slot: u32,
        address: Address,
    ) -> Result<(), Box<Violation>> {
        let Some(&Step::Allocate { stream, bytes, .. }) = trace.steps().get(event) else { return Ok(()) };
        let line = trace.line_of(event);
        let place = BlockPlace { line, address, bytes, stream };
        let mut pieces = self.spare.pop().unwrap_or_default();
        self.check_place(place, slot, &mut pieces)
            .map_err(|kind| Box::new(Violation { event, line, block: place, kind }))?;
        self.live[slot as usize] = Some(LiveBlock { place, pieces });
        Ok(())
    }

    fn check_place(
        &mut self,
        place: BlockPlace,
        slot: u32,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), ViolationKind> {
        let start = place.address.get();
        if !start.is_multiple_of(self.alignment_bytes) {
            return Err(ViolationKind::Misaligned { alignment_bytes: self.alignment_bytes });
        }
        let end = start.checked_add(place.bytes).ok_or(ViolationKind::OutsideAddresses)?;
        if let Err(clash) = self.addresses.insert(start, end, slot) {
            let address = Address::new(clash.at);
            return Err(ViolationKind::SharesAddresses { other: place_of(&self.live, clash.owner), address });
        }
        self.device.resolve_range_into(place.address, place.bytes, pieces);
        for piece in pieces.iter() {
            let Some(backing) = piece.backing else {
                return Err(ViolationKind::NotMapped { address: piece.address });
            };
            if !backing.accessible {
                return Err(ViolationKind::NoAccess { address: piece.address });
            }
            self.occupy(backing, piece.bytes, slot, place)?;
        }
        Ok(())
    }

    fn occupy(
        &mut self,
        backing: Backing,
        bytes: u64,
        slot: u32,
        place: BlockPlace,
    ) -> Result<(), ViolationKind> {
        let index = backing.memory.index();
        if self.memories.len() <= index {
            self.memories.resize_with(index + 1, || None);
        }
        let entry = &mut self.memories[index];
        // Memory that has gone leaves its number to the next. A block that was still in it is found at its free.
        let occupied = match entry {
            Some((memory, occupied)) if *memory == backing.memory => occupied,
            _ => &mut entry.insert((backing.memory, Intervals::default())).1,
        };
        let end = backing.offset_bytes + bytes;
        occupied.insert(backing.offset_bytes, end, slot).map_err(|clash| ViolationKind::SharesMemory {
            // Two pages of one block may have the same memory.
            other: if clash.owner == slot { place } else { place_of(&self.live, clash.owner) },
            memory: backing.memory,
            offset_bytes: clash.at,
        })
    }

    /// Looks at a block that is about to be freed by this event, and forgets it.
    ///
    /// # Errors
    /// [`ViolationKind::BackingChanged`].
    pub(crate) fn check_free(
        &mut self,
        trace: &LoadedTrace,
        event: usize,
        slot: u32,
    ) -> Result<(), Box<Violation>> {
        let Some(block) = self.live[slot as usize].take() else { return Ok(()) };
        self.check_unchanged(&block, event, trace.line_of(event))?;
        self.addresses.remove(block.place.address.get());
        for piece in &block.pieces {
            let Some(backing) = piece.backing else { continue };
            if let Some(Some((memory, occupied))) = self.memories.get_mut(backing.memory.index())
                && *memory == backing.memory
            {
                occupied.remove(backing.offset_bytes);
            }
        }
        let LiveBlock { mut pieces, .. } = block;
        pieces.clear();
        self.spare.push(pieces);
        Ok(())
    }

    /// Looks at every block that is live, as at the end of the trace.
    ///
    /// # Errors
    /// [`ViolationKind::BackingChanged`] of the first that changed.
    pub(crate) fn check_live(&mut self, trace: &LoadedTrace) -> Result<(), Box<Violation>> {
        let live = std::mem::take(&mut self.live);
        let event = trace.steps().len();
        let checked = live
            .iter()
            .flatten()
            .try_for_each(|block| self.check_unchanged(block, event, trace.line_of(event)));
        self.live = live;
        checked
    }

    fn check_unchanged(&mut self, block: &LiveBlock, event: usize, line: u64) -> Result<(), Box<Violation>> {
        self.device.resolve_range_into(block.place.address, block.place.bytes, &mut self.now);
        if self.now == block.pieces {
            return Ok(());
        }
        // The same memory may come in other pieces.
        first_change(&block.pieces, &self.now)
            .map_or(Ok(()), |kind| Err(Box::new(Violation { event, line, block: block.place, kind })))
    }
}

fn place_of(live: &[Option<LiveBlock>], slot: u32) -> BlockPlace {
    // Only blocks that were taken over own intervals.
    live[slot as usize].as_ref().expect("an interval's owner is live").place
}

/// The first address at which two lists of pieces of one range tell of different memory.
fn first_change(before: &[Piece], now: &[Piece]) -> Option<ViolationKind> {
    let mut starts: Vec<Address> = before.iter().chain(now).map(|piece| piece.address).collect();
    starts.sort_unstable();
    starts.into_iter().find_map(|address| {
        let (before, now) = (backing_at(before, address), backing_at(now, address));
        (before != now).then_some(ViolationKind::BackingChanged { address, before, now })
    })
}

fn backing_at(pieces: &[Piece], address: Address) -> Option<Backing> {
    let piece = &pieces[pieces.partition_point(|piece| piece.address <= address).checked_sub(1)?];
    let mut backing = piece.backing?;
    backing.offset_bytes += address.get() - piece.address.get();
    Some(backing)
}

#[cfg(test)]
mod tests;
