//! Carries out the opcodes of a pickle.
//!
//! Main types: [`Decoder`]. Neighbours: `pickle` is what it makes, `opcode` has the names, `mistake` what can be wrong.

use super::Pickle;
use super::mistake::PickleMistake;
use super::opcode::{Op, name_of, runs_code};
use super::value::{Text, Value};
use crate::import::error::{Misplaced, Place};

/// The newest protocol there is.
pub(super) const NEWEST_PROTOCOL: u8 = 5;
/// Most keys of one dict. They are searched one by one; the dicts of snapshots have about twenty.
pub(super) const MOST_KEYS: usize = 256;

/// A pickle that is being decoded.
pub(super) struct Decoder<'b> {
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
    pub(super) fn new(bytes: &'b [u8], most_values: usize) -> Self {
        Self {
            pickle: Pickle { bytes, root: Value::None, lists: Vec::new(), dicts: Vec::new() },
            at: 0,
            op: Op::Stop,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            values: 0,
            most_values,
        }
    }

    /// Carries out all opcodes.
    pub(super) fn decode(mut self) -> Result<Pickle<'b>, Misplaced> {
        loop {
            let start = self.at;
            match self.step() {
                Ok(None) => {}
                Ok(Some(root)) => return Ok(Pickle { root, ..self.pickle }),
                Err(mistake) => return Err(Place::Byte(start).is_wrong(mistake)),
            }
        }
    }

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
