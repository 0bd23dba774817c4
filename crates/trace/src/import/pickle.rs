//! Pickles of plain data: numbers, texts, lists, tuples and dicts. No opcode that could run code is known.
//!
//! Main types: [`Pickle`], [`PickleMistake`]. Neighbours: `snapshot` reads the one thing that is pickled here. Below,
//! `decoder` carries out the opcodes, `opcode` has their names, `value` is what comes out.
//!
//! The format is that of Python's `pickletools` (protocols 2 to 5). What a pickle shares stays shared: lists and dicts
//! lie in an arena and are referred to by number, so that a reference of two bytes costs one value, whatever it refers
//! to, and a cycle is nothing special. Nothing recurses. Memory is bounded by the number of opcodes: each makes one value
//! and one list or dict at most.

mod decoder;
mod mistake;
mod opcode;
#[cfg(test)]
mod tests;
mod value;
#[cfg(test)]
pub(super) mod writer;

use self::decoder::Decoder;
pub use self::mistake::PickleMistake;
pub(super) use self::opcode::Op;
use self::value::Text;
pub(super) use self::value::Value;
use super::error::Misplaced;

/// Most values that are decoded, lists and dicts included: 16 bytes each, up to 80 with what surrounds them. An event of a
/// snapshot with stacks takes about 40.
const MOST_VALUES: usize = 1 << 27;
/// Longest text that is handed out, in bytes.
const MOST_TEXT_BYTES: usize = 1_000;

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
        Decoder::new(bytes, most_values).decode()
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
