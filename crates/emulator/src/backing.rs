//! What physical memory is behind an address.
//!
//! Main types: [`Backing`], [`BackingId`], [`Piece`]. Neighbours: `Emulator::resolve` gives them; the replay's checker
//! uses them to see that no two live blocks overlap in frames.

use core::fmt;

use concertina_vmm::Address;

use crate::slab::Key;

/// One piece of physical memory: a frame, or what is behind mallocs. Two that live at different times are different,
/// even in the same place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackingId(pub(crate) Key);

impl BackingId {
    /// A small number that no other living memory has: for an array. Given again when the memory has gone.
    pub const fn index(self) -> usize {
        self.0.slot as usize
    }

    /// A number above 0 that no other memory of this emulator ever had: of a frame, the same that
    /// `EmulatedHandle::into_raw` gives.
    pub const fn to_raw(self) -> u64 {
        self.0.to_raw()
    }

    /// The memory that had this number, for whoever gets numbers from elsewhere.
    pub const fn from_raw(raw: u64) -> Self {
        Self(Key::from_raw(raw))
    }
}

impl fmt::Debug for BackingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory {}.{}", self.0.slot, self.0.generation)
    }
}

/// What is behind one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backing {
    /// The physical memory.
    pub memory: BackingId,
    /// Bytes from its start.
    pub offset_bytes: u64,
    /// The device may read and write it through this address.
    pub accessible: bool,
}

/// A run of addresses with one answer: a mapping (or the part of it that was asked about), or a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins.
    pub address: Address,
    /// Its length in bytes.
    pub bytes: u64,
    /// What is behind its first byte, and goes on behind the others; nothing if not mapped.
    pub backing: Option<Backing>,
}
