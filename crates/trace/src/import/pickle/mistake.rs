//! What can be wrong with a pickle.
//!
//! Main types: [`PickleMistake`]. Neighbours: `decoder` finds them.

use super::decoder::NEWEST_PROTOCOL;

/// What is wrong with a pickle, at the opcode whose place the error has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickleMistake {
    /// The bytes end inside an opcode.
    #[error("{opcode} needs {needed} bytes and {left} are left: the file is cut off or damaged")]
    CutOff {
        /// The opcode's name in `pickletools`.
        opcode: &'static str,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that there are.
        left: usize,
    },
    /// The bytes end before STOP.
    #[error("the pickle ends without STOP: the file is cut off")]
    NoStop,
    /// Something follows STOP.
    #[error("{left} bytes follow the end of the pickle: one snapshot a file, and nothing else")]
    Trailing {
        /// How many bytes.
        left: usize,
    },
    /// An opcode with which a pickle runs code of its choice.
    #[error(
        "{opcode} would run code when unpickled; a memory snapshot is plain data and has none. Don't unpickle this"
    )]
    RunsCode {
        /// The opcode's name.
        opcode: &'static str,
    },
    /// An opcode that no snapshot needs, or that does not exist.
    #[error("{opcode} (0x{byte:02x}) is no opcode that a memory snapshot is made of")]
    UnknownOpcode {
        /// The opcode's name, or `an unknown opcode`.
        opcode: &'static str,
        /// The opcode itself.
        byte: u8,
    },
    /// A protocol that does not exist yet.
    #[error("pickle protocol {found}: 2 to {NEWEST_PROTOCOL} are known")]
    UnknownProtocol {
        /// The protocol.
        found: u8,
    },
    /// A frame that is longer than the file.
    #[error("FRAME of {bytes} bytes, and {left} are left: the file is cut off or damaged")]
    LongFrame {
        /// Its length.
        bytes: u64,
        /// Bytes that there are.
        left: usize,
    },
    /// Text that is no UTF-8.
    #[error("{opcode} with text that is not UTF-8")]
    NotUtf8 {
        /// The opcode's name.
        opcode: &'static str,
    },
    /// An opcode that finds too little before it.
    #[error("{opcode} needs {needed} before it, which is not there")]
    NothingBefore {
        /// The opcode's name.
        opcode: &'static str,
        /// What it needs.
        needed: &'static str,
    },
    /// An opcode that adds to something that nothing can be added to.
    #[error("{opcode} on {found}")]
    WrongTarget {
        /// The opcode's name.
        opcode: &'static str,
        /// What stands there.
        found: &'static str,
    },
    /// Keys without values.
    #[error("{opcode} with {values} values, which are no pairs")]
    OddPairs {
        /// The opcode's name.
        opcode: &'static str,
        /// How many values.
        values: usize,
    },
    /// A reference to something that was not remembered.
    #[error("{opcode} of entry {index}: {entries} entries were made")]
    NoEntry {
        /// The opcode's name.
        opcode: &'static str,
        /// The entry.
        index: usize,
        /// Entries that there are.
        entries: usize,
    },
    /// More values than are decoded.
    #[error("more than {most} values: record fewer events, or without stacks")]
    TooManyValues {
        /// The most that are decoded.
        most: usize,
    },
    /// More keys than a dict of a snapshot has.
    #[error("a dict of {keys} keys: those of memory snapshots have at most {most}")]
    TooManyKeys {
        /// The keys.
        keys: usize,
        /// The most that are taken.
        most: usize,
    },
}
