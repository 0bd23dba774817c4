//! The opcodes of pickles: those that are carried out, and the names of all.
//!
//! Main types: [`Op`]. Neighbours: `pickle` carries them out.
//!
//! Names and bytes are those of `opcodes` in Python's `pickletools`.

macro_rules! opcodes {
    ($($(#[$doc:meta])* $variant:ident = $byte:literal $name:literal,)*) => {
        /// An opcode that memory snapshots are made of.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(in crate::import) enum Op {
            $($(#[$doc])* $variant,)*
        }

        impl Op {
            /// The opcode with this byte, if it is one of them.
            pub(in crate::import) const fn of(byte: u8) -> Option<Self> {
                match byte { $($byte => Some(Self::$variant),)* _ => None }
            }

            /// Its name.
            pub(in crate::import) const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

opcodes! {
    /// The protocol's number follows.
    Proto = 0x80 "PROTO",
    /// The length of the next part follows.
    Frame = 0x95 "FRAME",
    /// The end.
    Stop = b'.' "STOP",
    /// What follows belongs together.
    Mark = b'(' "MARK",
    /// `None`.
    None = b'N' "NONE",
    /// `True`.
    NewTrue = 0x88 "NEWTRUE",
    /// `False`.
    NewFalse = 0x89 "NEWFALSE",
    /// A number of four bytes, signed.
    BinInt = b'J' "BININT",
    /// A number of one byte.
    BinInt1 = b'K' "BININT1",
    /// A number of two bytes.
    BinInt2 = b'M' "BININT2",
    /// A number of up to 255 bytes, signed.
    Long1 = 0x8a "LONG1",
    /// A float of eight bytes, the highest first.
    BinFloat = b'G' "BINFLOAT",
    /// Text, its length in one byte.
    ShortBinUnicode = 0x8c "SHORT_BINUNICODE",
    /// Text, its length in four bytes.
    BinUnicode = b'X' "BINUNICODE",
    /// Text, its length in eight bytes.
    BinUnicode8 = 0x8d "BINUNICODE8",
    /// An empty list.
    EmptyList = b']' "EMPTY_LIST",
    /// Adds a value to a list.
    Append = b'a' "APPEND",
    /// Adds what came since the mark to a list.
    Appends = b'e' "APPENDS",
    /// A list of what came since the mark.
    List = b'l' "LIST",
    /// An empty tuple.
    EmptyTuple = b')' "EMPTY_TUPLE",
    /// A tuple of what came since the mark.
    Tuple = b't' "TUPLE",
    /// A tuple of one.
    Tuple1 = 0x85 "TUPLE1",
    /// A tuple of two.
    Tuple2 = 0x86 "TUPLE2",
    /// A tuple of three.
    Tuple3 = 0x87 "TUPLE3",
    /// An empty dict.
    EmptyDict = b'}' "EMPTY_DICT",
    /// A dict of what came since the mark.
    Dict = b'd' "DICT",
    /// Adds a key and a value to a dict.
    SetItem = b's' "SETITEM",
    /// Adds what came since the mark to a dict.
    SetItems = b'u' "SETITEMS",
    /// Remembers the last value under the next number.
    Memoize = 0x94 "MEMOIZE",
    /// Remembers the last value under a number of one byte.
    BinPut = b'q' "BINPUT",
    /// Remembers the last value under a number of four bytes.
    LongBinPut = b'r' "LONG_BINPUT",
    /// The value remembered under a number of one byte.
    BinGet = b'h' "BINGET",
    /// The value remembered under a number of four bytes.
    LongBinGet = b'j' "LONG_BINGET",
}

/// Opcodes that name a class or a function, call one, or ask the program for an object.
const RUN_CODE: [(u8, &str); 14] = [
    (b'c', "GLOBAL"),
    (0x93, "STACK_GLOBAL"),
    (b'R', "REDUCE"),
    (b'b', "BUILD"),
    (b'i', "INST"),
    (b'o', "OBJ"),
    (0x81, "NEWOBJ"),
    (0x92, "NEWOBJ_EX"),
    (0x82, "EXT1"),
    (0x83, "EXT2"),
    (0x84, "EXT4"),
    (b'P', "PERSID"),
    (b'Q', "BINPERSID"),
    (0x97, "NEXT_BUFFER"),
];

/// Opcodes of plain data that snapshots are not made of.
const OTHERS: [(u8, &str); 21] = [
    (b'I', "INT"),
    (b'L', "LONG"),
    (0x8b, "LONG4"),
    (b'S', "STRING"),
    (b'T', "BINSTRING"),
    (b'U', "SHORT_BINSTRING"),
    (b'B', "BINBYTES"),
    (b'C', "SHORT_BINBYTES"),
    (0x8e, "BINBYTES8"),
    (0x96, "BYTEARRAY8"),
    (0x98, "READONLY_BUFFER"),
    (b'V', "UNICODE"),
    (b'F', "FLOAT"),
    (0x8f, "EMPTY_SET"),
    (0x90, "ADDITEMS"),
    (0x91, "FROZENSET"),
    (b'0', "POP"),
    (b'2', "DUP"),
    (b'1', "POP_MARK"),
    (b'g', "GET"),
    (b'p', "PUT"),
];

/// Whether a pickle that holds it runs code of its choice when Python reads it.
pub(in crate::import) fn runs_code(byte: u8) -> bool {
    RUN_CODE.iter().any(|(code, _)| *code == byte)
}

/// The name of an opcode that is not carried out.
pub(in crate::import) fn name_of(byte: u8) -> &'static str {
    let mut named = RUN_CODE.iter().chain(&OTHERS);
    named.find(|(code, _)| *code == byte).map_or("an unknown opcode", |(_, name)| name)
}
