//! What a program queues on a stream: kernels, with the bytes that they touch.
//!
//! Main types: [`Work`], [`Access`], [`AccessKind`], [`Signal`], [`Queued`], [`BlockId`]. Neighbours: `timeline` says when
//! work is done, `detector` whether what it touches is in order; `Emulator::queue` takes it.

use core::fmt;
use std::borrow::Cow;

use concertina_vmm::Address;
use smallvec::SmallVec;

use crate::slab::Key;

/// Whether bytes are only looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// They are read.
    Read,
    /// They are written, and may be read.
    Write,
}

impl fmt::Display for AccessKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "reads",
            Self::Write => "writes",
        })
    }
}

/// A block that the program was given, as told by `Emulator::block_allocated`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub(crate) Key);

impl fmt::Debug for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}.{}", self.0.slot, self.0.generation)
    }
}

/// A run of addresses that a kernel reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Whether it only reads.
    pub kind: AccessKind,
    /// Where it begins.
    pub address: Address,
    /// Its length in bytes.
    pub bytes: u64,
    /// The block that the kernel means. Without one, it is whichever has these addresses when the kernel is queued.
    pub block: Option<BlockId>,
}

impl Access {
    /// Reads `bytes` from `address` on.
    pub const fn read(address: Address, bytes: u64) -> Self {
        Self { kind: AccessKind::Read, address, bytes, block: None }
    }

    /// Writes `bytes` from `address` on.
    pub const fn write(address: Address, bytes: u64) -> Self {
        Self { kind: AccessKind::Write, address, bytes, block: None }
    }

    /// The same bytes, as those of this block: found out if the block is freed and its addresses serve another.
    #[must_use]
    pub const fn of_block(mut self, block: BlockId) -> Self {
        self.block = Some(block);
        self
    }
}

/// Something that kernels can wait for, and that is sent once: by the first kernel that is queued to send it, when that
/// begins, or by the host. It orders memory for kernels that await it and are queued after that kernel, or after the host
/// sent it. If the host sends what a kernel was to send, that order is not to be relied on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Signal {
    pub(crate) instance: u64,
    pub(crate) index: u32,
}

impl Signal {
    /// Its number, from 0 in the order in which signals were made: as reports name it.
    pub const fn number(&self) -> u32 {
        self.index
    }
}

/// A kernel.
#[derive(Clone, Debug)]
pub struct Work {
    pub(crate) name: Cow<'static, str>,
    pub(crate) accesses: SmallVec<[Access; 2]>,
    pub(crate) ns: u64,
    pub(crate) awaits: Option<Signal>,
    pub(crate) sends: Option<Signal>,
}

impl Work {
    /// A kernel that touches nothing and takes no time.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.into(), accesses: SmallVec::new(), ns: 0, awaits: None, sends: None }
    }

    /// The same, which also touches these bytes.
    #[must_use]
    pub fn touching(mut self, access: Access) -> Self {
        self.accesses.push(access);
        self
    }

    /// The same, which also reads `bytes` from `address` on.
    #[must_use]
    pub fn reading(self, address: Address, bytes: u64) -> Self {
        self.touching(Access::read(address, bytes))
    }

    /// The same, which also writes `bytes` from `address` on.
    #[must_use]
    pub fn writing(self, address: Address, bytes: u64) -> Self {
        self.touching(Access::write(address, bytes))
    }

    /// The same, which takes so many nanoseconds. They count by `EventCompletion::ByClock` only.
    #[must_use]
    pub const fn lasting(mut self, ns: u64) -> Self {
        self.ns = ns;
        self
    }

    /// The same, which begins and then blocks until the signal is sent, before it touches anything.
    #[must_use]
    pub fn awaiting(mut self, signal: &Signal) -> Self {
        self.awaits = Some(signal.clone());
        self
    }

    /// The same, which sends the signal when it begins: before it blocks itself, and before it touches anything.
    #[must_use]
    pub fn sending(mut self, signal: &Signal) -> Self {
        self.sends = Some(signal.clone());
        self
    }
}

/// A kernel that was queued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    pub(crate) instance: u64,
    pub(crate) at: Position,
}

/// An item of a stream, and so everything queued there up to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) stream: u32,
    /// Counted from 1; 0 is before everything.
    pub(crate) number: u64,
}
