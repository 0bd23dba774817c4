//! What the race detector reports.
//!
//! Main types: [`Race`], [`TracedAccess`]. Neighbours: `detector` finds them; `Emulator::races` lists them.

use core::fmt;

use concertina_vmm::Address;

use crate::backing::BackingId;
use crate::work::AccessKind;

/// An access of a kernel, as reports name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedAccess {
    /// The kernel's name, or what stands for one: `allocation`.
    pub kernel: String,
    /// The stream's number, from 0 in the order in which streams were made.
    pub stream: u32,
    /// Which of the stream's kernels and allocations it is, counted from 1.
    pub number: u64,
    /// Whether it reads or writes.
    pub kind: AccessKind,
    /// The name of the block, if one is known there.
    pub block: Option<String>,
    /// The first of the addresses that the kernel names.
    pub address: Address,
    /// How many bytes it names.
    pub bytes: u64,
}

impl fmt::Display for TracedAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, stream, number, kind, address, bytes, .. } = self;
        write!(f, "`{kernel}` (number {number} on stream {stream}), which {kind} ")?;
        match &self.block {
            Some(block) => write!(f, "{block}, {bytes} bytes at {address}"),
            None => write!(f, "{bytes} bytes at {address}"),
        }
    }
}

/// A program that can go wrong, whether or not it did this time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Race {
    /// Two accesses to the same bytes of memory, at least one a write, and nothing orders them.
    Unordered {
        /// The one that was queued first.
        first: TracedAccess,
        /// The one that does not come after it.
        second: TracedAccess,
        /// The memory.
        memory: BackingId,
        /// The first byte that both touch, from the memory's start.
        offset_bytes: u64,
        /// That byte by the addresses of the first access.
        first_address: Address,
        /// That byte by the addresses of the second.
        second_address: Address,
        /// How many bytes both touch, in all frames together.
        bytes: u64,
    },
    /// An access to addresses with nothing behind them.
    NotMapped {
        /// The access.
        access: TracedAccess,
        /// The first such address.
        address: Address,
    },
    /// An access to mapped addresses that the device was given no access to.
    NoAccess {
        /// The access.
        access: TracedAccess,
        /// The first such address.
        address: Address,
    },
    /// An unmap of a page that the access may still use, as far as the host knows.
    Unmapped {
        /// The access.
        access: TracedAccess,
        /// Where the range that was unmapped begins.
        address: Address,
        /// Its length in bytes.
        bytes: u64,
    },
    /// An access to a block after it was freed.
    FreedBlock {
        /// The access.
        access: TracedAccess,
        /// The stream in whose order it was freed; none if that is too long ago.
        freed_on: Option<u32>,
    },
    /// An access to more than the block that it means.
    OutsideBlock {
        /// The access.
        access: TracedAccess,
        /// Where the block begins.
        address: Address,
        /// Its length in bytes.
        bytes: u64,
    },
}

impl Race {
    /// The access at which it was found: the later one of two.
    pub const fn access(&self) -> &TracedAccess {
        match self {
            Self::Unordered { second: access, .. }
            | Self::NotMapped { access, .. }
            | Self::NoAccess { access, .. }
            | Self::Unmapped { access, .. }
            | Self::FreedBlock { access, .. }
            | Self::OutsideBlock { access, .. } => access,
        }
    }
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unordered {
                first,
                second,
                memory,
                offset_bytes,
                first_address,
                second_address,
                bytes,
                ..
            } => write!(
                f,
                "race: nothing orders {second} after {first}; both touch {memory:?} from byte {offset_bytes} on, the \
                 one at {second_address}, the other at {first_address} ({bytes} bytes in all)"
            ),
            Self::NotMapped { access, address } => {
                write!(f, "access to nothing: {access}, finds nothing mapped at {address}")
            }
            Self::NoAccess { access, address } => {
                write!(f, "no access: {access}, finds a mapping at {address} that was given no access")
            }
            Self::Unmapped { access, address, bytes } => write!(
                f,
                "unmap under work: {bytes} bytes at {address} were unmapped, and the host has not seen {access}, done"
            ),
            Self::FreedBlock { access, freed_on: Some(stream) } => {
                write!(
                    f,
                    "use after free: {access}, after the block was freed in the order of stream {stream}"
                )
            }
            Self::FreedBlock { access, freed_on: None } => {
                write!(f, "use after free: {access}, long after the block was freed")
            }
            Self::OutsideBlock { access, address, bytes } => {
                write!(f, "outside of its block: {access}, but the block has {bytes} bytes at {address}")
            }
        }
    }
}
