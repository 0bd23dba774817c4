//! Decodes pickles of plain data: numbers, texts, lists, tuples and dicts. No opcode that could run code is known.
//!
//! Main types: [`Pickle`], [`PickleMistake`]. Neighbours: `value` is what comes out, `opcode` has the names,
//! `snapshot` reads the one thing that is pickled here.
//!
//! The format is that of Python's `pickletools` (protocols 2 to 5). What a pickle shares stays shared: lists and dicts
//! lie in an arena and are referred to by number, so that a reference of two bytes costs one value, whatever it refers
//! to, and a cycle is nothing special. Nothing recurses. Memory is bounded by the number of opcodes: each makes one value
//! and one list or dict at most.

use super::error::{Misplaced, Place};
use super::opcode::{Op, name_of, runs_code};
use super::value::{Text, Value};

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) mod writer;

/// The newest protocol there is.
const NEWEST_PROTOCOL: u8 = 5;
/// Most values that are decoded, in lists and dicts and on the stack: 16 bytes each, 64 with what surrounds them.
const MOST_VALUES: usize = 1 << 28;
/// Most keys of one dict. They are searched one by one; the dicts of snapshots have about twenty.
const MOST_KEYS: usize = 256;
/// Longest text that is handed out, in bytes.
pub(super) const MOST_TEXT_BYTES: usize = 1_000;

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

/// A decoded pickle: the value, and the arena that its lists and dicts lie in.
#[derive(Debug)]
pub(super) struct Pickle<'b> {
    bytes: &'b [u8],
    root: Value,
    lists: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
}

impl<'b> Pickle<'b> {
    /// Decodes the whole of `bytes`, which must be below 4 GiB.
    pub(super) fn decode(bytes: &'b [u8]) -> Result<Self, Misplaced> {
        Self::decode_at_most(bytes, MOST_VALUES)
    }

    fn decode_at_most(bytes: &'b [u8], most_values: usize) -> Result<Self, Misplaced> {
        let mut decoder = Decoder {
            pickle: Self { bytes, root: Value::None, lists: Vec::new(), dicts: Vec::new() },
            at: 0,
            op: Op::Stop,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            values: 0,
            most_values,
        };
        loop {
            let start = decoder.at;
            match decoder.step() {
                Ok(None) => {}
                Ok(Some(root)) => return Ok(Self { root, ..decoder.pickle }),
                Err(mistake) => return Err(Place::Byte(start).is_wrong(mistake)),
            }
        }
    }

    /// The pickled value.
    pub(super) const fn root(&self) -> Value {
        self.root
    }

    /// The first [`MOST_TEXT_BYTES`] of a text: a text can be as long as the file, and be referred to again and again.
    pub(super) fn text(&self, text: Text) -> &'b str {
        let bytes = self.text_bytes(text);
        let bytes = &bytes[..bytes.len().min(MOST_TEXT_BYTES)];
        // The decoder checked that it is UTF-8. A character may have been cut in two.
        let whole = std::str::from_utf8(bytes).map_or_else(|error| error.valid_up_to(), str::len);
        std::str::from_utf8(&bytes[..whole]).unwrap_or_default()
    }

    /// The decoder checked that they are there.
    fn text_bytes(&self, text: Text) -> &'b [u8] {
        let at = text.at as usize;
        &self.bytes[at..at + text.bytes as usize]
    }

    /// The values of a list or a tuple; none if it is neither.
    pub(super) fn list(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::List(number) | Value::Tuple(number) => Some(&self.lists[number as usize]),
            _ => None,
        }
    }

    /// The value of a key of a dict: that which was set last.
    pub(super) fn get(&self, dict: Value, key: &str) -> Option<Value> {
        let Value::Dict(number) = dict else { return None };
        let pairs = self.dicts[number as usize].iter().rev();
        let is_key =
            |name: Value| matches!(name, Value::Text(text) if self.text_bytes(text) == key.as_bytes());
        pairs.copied().find(|(name, _)| is_key(*name)).map(|(_, value)| value)
    }

    /// Values in all lists and dicts together.
    pub(super) fn len(&self) -> usize {
        let listed: usize = self.lists.iter().map(Vec::len).sum();
        listed + self.dicts.iter().map(|pairs| 2 * pairs.len()).sum::<usize>()
    }
}

struct Decoder<'b> {
    pickle: Pickle<'b>,
    /// The next byte.
    at: usize,
    /// The opcode that is carried out.
    op: Op,
    stack: Vec<Value>,
    /// Lengths that the stack had at each open MARK.
    marks: Vec<usize>,
    memo: Vec<Value>,
    /// Values and containers made so far.
    values: usize,
    most_values: usize,
}

impl<'b> Decoder<'b> {
    /// Carries out one opcode. The pickled value at STOP.
    fn step(&mut self) -> Result<Option<Value>, PickleMistake> {
        let Some(&byte) = self.pickle.bytes.get(self.at) else { return Err(PickleMistake::NoStop) };
        let Some(op) = Op::of(byte) else {
            let opcode = name_of(byte);
            return Err(if runs_code(byte) {
                PickleMistake::RunsCode { opcode }
            } else {
                PickleMistake::UnknownOpcode { opcode, byte }
            });
        };
        self.at += 1;
        self.op = op;
        match op {
            Op::Proto => match self.array::<1>()?[0] {
                0..=NEWEST_PROTOCOL => {}
                found => return Err(PickleMistake::UnknownProtocol { found }),
            },
            Op::Frame => {
                let bytes = u64::from_le_bytes(self.array()?);
                let left = self.left();
                if bytes > left as u64 {
                    return Err(PickleMistake::LongFrame { bytes, left });
                }
            }
            Op::Stop => return self.stop().map(Some),
            Op::Mark => {
                self.count(1)?;
                self.marks.push(self.stack.len());
            }
            Op::None => self.push(Value::None)?,
            Op::NewTrue => self.push(Value::Bool(true))?,
            Op::NewFalse => self.push(Value::Bool(false))?,
            Op::BinInt => {
                let number = i32::from_le_bytes(self.array()?);
                self.push(Value::Int(number.into()))?;
            }
            Op::BinInt1 => {
                let [number] = self.array()?;
                self.push(Value::Int(number.into()))?;
            }
            Op::BinInt2 => {
                let number = u16::from_le_bytes(self.array()?);
                self.push(Value::Int(number.into()))?;
            }
            Op::Long1 => {
                let [length] = self.array()?;
                let number = Value::of_long(self.take(length.into())?);
                self.push(number)?;
            }
            Op::BinFloat => {
                let number = f64::from_be_bytes(self.array()?);
                self.push(Value::Float(number))?;
            }
            Op::ShortBinUnicode => {
                let [length] = self.array()?;
                self.push_text(length.into())?;
            }
            Op::BinUnicode => {
                let length = u32::from_le_bytes(self.array()?);
                self.push_text(length.into())?;
            }
            Op::BinUnicode8 => {
                let length = u64::from_le_bytes(self.array()?);
                self.push_text(length)?;
            }
            Op::EmptyList => self.push_list(Vec::new(), Value::List)?,
            Op::EmptyTuple => self.push_list(Vec::new(), Value::Tuple)?,
            Op::EmptyDict => self.push_dict(Vec::new())?,
            Op::List => {
                let values = self.since_mark()?;
                self.push_list(values, Value::List)?;
            }
            Op::Tuple => {
                let values = self.since_mark()?;
                self.push_list(values, Value::Tuple)?;
            }
            Op::Tuple1 => self.push_tuple(1, "a value")?,
            Op::Tuple2 => self.push_tuple(2, "two values")?,
            Op::Tuple3 => self.push_tuple(3, "three values")?,
            Op::Dict => {
                let pairs = self.since_mark()?;
                self.push_dict(Vec::new())?;
                self.set(&pairs)?;
            }
            Op::Append => {
                let value = self.last(1, "a list and a value")?;
                self.append(&value)?;
            }
            Op::Appends => {
                let values = self.since_mark()?;
                self.append(&values)?;
            }
            Op::SetItem => {
                let pair = self.last(2, "a dict, a key and a value")?;
                self.set(&pair)?;
            }
            Op::SetItems => {
                let pairs = self.since_mark()?;
                self.set(&pairs)?;
            }
            Op::Memoize => self.remember(self.memo.len())?,
            Op::BinPut => {
                let [index] = self.array()?;
                self.remember(index.into())?;
            }
            Op::LongBinPut => {
                let index = u32::from_le_bytes(self.array()?);
                self.remember(index as usize)?;
            }
            Op::BinGet => {
                let [index] = self.array()?;
                self.recall(index.into())?;
            }
            Op::LongBinGet => {
                let index = u32::from_le_bytes(self.array()?);
                self.recall(index as usize)?;
            }
        }
        Ok(None)
    }

    fn left(&self) -> usize {
        self.pickle.bytes.len() - self.at
    }

    /// The next `length` bytes.
    fn take(&mut self, length: u64) -> Result<&'b [u8], PickleMistake> {
        let left = self.left();
        match usize::try_from(length).ok().filter(|length| *length <= left) {
            Some(length) => {
                let taken = &self.pickle.bytes[self.at..self.at + length];
                self.at += length;
                Ok(taken)
            }
            None => Err(PickleMistake::CutOff { opcode: self.op.name(), needed: length, left }),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleMistake> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    fn count(&mut self, values: usize) -> Result<(), PickleMistake> {
        self.values += values;
        if self.values > self.most_values {
            return Err(PickleMistake::TooManyValues { most: self.most_values });
        }
        Ok(())
    }

    fn push(&mut self, value: Value) -> Result<(), PickleMistake> {
        self.count(1)?;
        self.stack.push(value);
        Ok(())
    }

    fn push_text(&mut self, length: u64) -> Result<(), PickleMistake> {
        let at = self.at;
        let bytes = self.take(length)?;
        if std::str::from_utf8(bytes).is_err() {
            return Err(PickleMistake::NotUtf8 { opcode: self.op.name() });
        }
        // Both fit: the file is below 4 GiB.
        self.push(Value::Text(Text { at: at as u32, bytes: bytes.len() as u32 }))
    }

    fn push_list(&mut self, values: Vec<Value>, kind: fn(u32) -> Value) -> Result<(), PickleMistake> {
        // Below `MOST_VALUES`, which fits.
        let number = self.pickle.lists.len() as u32;
        self.pickle.lists.push(values);
        self.count(1)?;
        self.push(kind(number))
    }

    fn push_tuple(&mut self, length: usize, needed: &'static str) -> Result<(), PickleMistake> {
        let values = self.last(length, needed)?;
        self.push_list(values, Value::Tuple)
    }

    fn push_dict(&mut self, pairs: Vec<(Value, Value)>) -> Result<(), PickleMistake> {
        let number = self.pickle.dicts.len() as u32;
        self.pickle.dicts.push(pairs);
        self.count(1)?;
        self.push(Value::Dict(number))
    }

    /// Where the part of the stack begins that opcodes may take from: what lies below a MARK waits for it to be used.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn nothing_before(&self, needed: &'static str) -> PickleMistake {
        PickleMistake::NothingBefore { opcode: self.op.name(), needed }
    }

    /// Takes the last `count` values off the stack.
    fn last(&mut self, count: usize, needed: &'static str) -> Result<Vec<Value>, PickleMistake> {
        match self.stack.len().checked_sub(count).filter(|start| *start >= self.floor()) {
            Some(start) => Ok(self.stack.split_off(start)),
            None => Err(self.nothing_before(needed)),
        }
    }

    /// Takes off the stack what came after the last MARK, and the MARK.
    fn since_mark(&mut self) -> Result<Vec<Value>, PickleMistake> {
        match self.marks.pop() {
            Some(start) => Ok(self.stack.split_off(start)),
            None => Err(self.nothing_before("a MARK")),
        }
    }

    fn top(&self, needed: &'static str) -> Result<Value, PickleMistake> {
        match self.stack.last() {
            Some(&value) if self.stack.len() > self.floor() => Ok(value),
            _ => Err(self.nothing_before(needed)),
        }
    }

    fn append(&mut self, values: &[Value]) -> Result<(), PickleMistake> {
        match self.top("a list")? {
            Value::List(number) => self.pickle.lists[number as usize].extend_from_slice(values),
            other => {
                return Err(PickleMistake::WrongTarget { opcode: self.op.name(), found: other.kind() });
            }
        }
        Ok(())
    }

    fn set(&mut self, values: &[Value]) -> Result<(), PickleMistake> {
        let opcode = self.op.name();
        let number = match self.top("a dict")? {
            Value::Dict(number) => number,
            other => return Err(PickleMistake::WrongTarget { opcode, found: other.kind() }),
        };
        let pairs = &mut self.pickle.dicts[number as usize];
        let (new, rest) = values.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(PickleMistake::OddPairs { opcode, values: values.len() });
        }
        let keys = pairs.len() + new.len();
        if keys > MOST_KEYS {
            return Err(PickleMistake::TooManyKeys { keys, most: MOST_KEYS });
        }
        pairs.extend(new.iter().map(|[key, value]| (*key, *value)));
        Ok(())
    }

    /// Picklers give the entries numbers in their order, so there are no gaps.
    fn remember(&mut self, index: usize) -> Result<(), PickleMistake> {
        let value = self.top("a value")?;
        let entries = self.memo.len();
        if index > entries {
            return Err(PickleMistake::NoEntry { opcode: self.op.name(), index, entries });
        }
        if index == entries {
            self.count(1)?;
            self.memo.push(value);
        } else {
            self.memo[index] = value;
        }
        Ok(())
    }

    fn recall(&mut self, index: usize) -> Result<(), PickleMistake> {
        match self.memo.get(index) {
            Some(&value) => self.push(value),
            None => {
                let entries = self.memo.len();
                Err(PickleMistake::NoEntry { opcode: self.op.name(), index, entries })
            }
        }
    }

    fn stop(&mut self) -> Result<Value, PickleMistake> {
        let root = match self.stack[..] {
            [root] if self.marks.is_empty() => root,
            _ => return Err(self.nothing_before("exactly one value, and no open MARK,")),
        };
        match self.left() {
            0 => Ok(root),
            left => Err(PickleMistake::Trailing { left }),
        }
    }
}
