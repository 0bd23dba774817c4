//! A dict of a snapshot, and what stands under its keys, with errors that say where.
//!
//! Main types: [`Object`]. Neighbours: all others here read their entries with it.

use super::SnapshotMistake;
use crate::import::error::{Misplaced, Place};
use crate::import::pickle::Pickle;
use crate::import::pickle::Value;

/// One entry of a snapshot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object<'p> {
    pickle: &'p Pickle<'p>,
    dict: Value,
    place: Place,
}

impl<'p> Object<'p> {
    /// The entry `value`, which must be a dict.
    pub(super) fn new(pickle: &'p Pickle<'p>, value: Value, place: Place) -> Result<Self, Misplaced> {
        match value {
            Value::Dict(_) => Ok(Self { pickle, dict: value, place }),
            other => {
                let mistake =
                    SnapshotMistake::WrongKind { key: "the entry", expected: "a dict", found: other.kind() };
                Err(place.is_wrong(mistake))
            }
        }
    }

    /// Where it stands.
    pub(super) const fn place(&self) -> Place {
        self.place
    }

    /// What stands under a key; `None` is nothing.
    pub(super) fn get(&self, key: &str) -> Option<Value> {
        self.pickle.get(self.dict, key).filter(|value| *value != Value::None)
    }

    fn missing(&self, key: &'static str) -> Misplaced {
        self.place.is_wrong(SnapshotMistake::Missing { key })
    }

    fn wrong_kind(&self, key: &'static str, expected: &'static str, found: Value) -> Misplaced {
        self.place.is_wrong(SnapshotMistake::WrongKind { key, expected, found: found.kind() })
    }

    /// A number from 0 to `most`.
    fn number_of(&self, key: &'static str, value: Value, most: u64) -> Result<u64, Misplaced> {
        let out_of_range = |found| Err(self.place.is_wrong(SnapshotMistake::OutOfRange { key, found, most }));
        match value {
            Value::Int(number) => match u64::try_from(number) {
                Ok(number) if number <= most => Ok(number),
                _ => out_of_range(number),
            },
            Value::Large(number) if number <= most => Ok(number),
            Value::Large(_) => out_of_range(i64::MAX),
            other => Err(self.wrong_kind(key, "a number of 64 bits", other)),
        }
    }

    /// A number that must be there.
    pub(super) fn number(&self, key: &'static str) -> Result<u64, Misplaced> {
        let value = self.get(key).ok_or_else(|| self.missing(key))?;
        self.number_of(key, value, u64::MAX)
    }

    /// A number that may be missing.
    pub(super) fn number_if_any(&self, key: &'static str) -> Result<Option<u64>, Misplaced> {
        self.get(key).map(|value| self.number_of(key, value, u64::MAX)).transpose()
    }

    /// The number of a device; the first one where none is named.
    pub(super) fn device(&self) -> Result<u32, Misplaced> {
        match self.get("device") {
            // It fits.
            Some(value) => self.number_of("device", value, u32::MAX.into()).map(|number| number as u32),
            None => Ok(0),
        }
    }

    /// A handle: any number of 64 bits; 0 where there is none.
    pub(super) fn handle(&self, key: &'static str) -> Result<u64, Misplaced> {
        match self.get(key) {
            None => Ok(0),
            Some(Value::Int(number)) => Ok(number.cast_unsigned()),
            Some(Value::Large(number)) => Ok(number),
            Some(other) => Err(self.wrong_kind(key, "a number of 64 bits", other)),
        }
    }

    /// A text that must be there.
    pub(super) fn text(&self, key: &'static str) -> Result<&'p str, Misplaced> {
        self.text_if_any(key)?.ok_or_else(|| self.missing(key))
    }

    /// A text that may be missing.
    pub(super) fn text_if_any(&self, key: &'static str) -> Result<Option<&'p str>, Misplaced> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(self.pickle.text(text))),
            Some(other) => Err(self.wrong_kind(key, "a text", other)),
        }
    }

    /// A list; an empty one where there is none.
    pub(super) fn list_or_empty(&self, key: &'static str) -> Result<&'p [Value], Misplaced> {
        match self.get(key) {
            None => Ok(&[]),
            Some(value) => self.pickle.list(value).ok_or_else(|| self.wrong_kind(key, "a list", value)),
        }
    }

    /// Whether the memory pool under a key is another one than the default.
    pub(super) fn is_private(&self, key: &'static str) -> bool {
        let pool = self.get(key).and_then(|pool| self.pickle.list(pool)).unwrap_or_default();
        pool.iter().any(|number| *number != Value::Int(0))
    }
}
