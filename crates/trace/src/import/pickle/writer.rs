//! A small pickler for tests, and the entries of snapshots made with it.
//!
//! Main types: [`Data`]. Neighbours: the tests of `pickle`, `snapshot` and `import`.

use std::rc::Rc;

/// What can be pickled.
#[derive(Clone, Debug)]
pub(in crate::import) enum Data {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Data>),
    Tuple(Vec<Data>),
    Dict(Vec<(&'static str, Data)>),
    /// Written once, and then referred to.
    Shared(Rc<Data>),
}

impl From<i128> for Data {
    fn from(number: i128) -> Self {
        Self::Int(number)
    }
}

impl From<&str> for Data {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl Data {
    /// The dict with `value` under `key` as well, or instead.
    pub(in crate::import) fn with(mut self, key: &'static str, value: impl Into<Self>) -> Self {
        self.remove(key);
        if let Self::Dict(pairs) = &mut self {
            pairs.push((key, value.into()));
        }
        self
    }

    /// The dict without `key`.
    pub(in crate::import) fn without(mut self, key: &'static str) -> Self {
        self.remove(key);
        self
    }

    fn remove(&mut self, key: &str) {
        if let Self::Dict(pairs) = self {
            pairs.retain(|(name, _)| *name != key);
        }
    }

    /// The same, referred to by all its clones.
    pub(in crate::import) fn shared(self) -> Self {
        Self::Shared(Rc::new(self))
    }

    /// The pickle, as protocol 4.
    pub(in crate::import) fn pickle(&self) -> Vec<u8> {
        let mut writer = Writer { bytes: vec![0x80, 4], memo: Vec::new() };
        writer.write(self);
        writer.bytes.push(b'.');
        writer.bytes
    }
}

struct Writer {
    bytes: Vec<u8>,
    memo: Vec<Rc<Data>>,
}

impl Writer {
    fn write(&mut self, data: &Data) {
        match data {
            Data::None => self.bytes.push(b'N'),
            Data::Bool(value) => self.bytes.push(if *value { 0x88 } else { 0x89 }),
            Data::Int(number) => self.int(*number),
            Data::Float(number) => {
                self.bytes.push(b'G');
                self.bytes.extend(number.to_be_bytes());
            }
            Data::Text(text) => match u8::try_from(text.len()) {
                Ok(length) => {
                    self.bytes.extend([0x8c, length]);
                    self.bytes.extend(text.as_bytes());
                }
                Err(_) => {
                    self.bytes.push(b'X');
                    self.bytes.extend((text.len() as u32).to_le_bytes());
                    self.bytes.extend(text.as_bytes());
                }
            },
            Data::List(values) => {
                self.bytes.extend(b"](");
                values.iter().for_each(|value| self.write(value));
                self.bytes.push(b'e');
            }
            Data::Tuple(values) => {
                self.bytes.push(b'(');
                values.iter().for_each(|value| self.write(value));
                self.bytes.push(b't');
            }
            Data::Dict(pairs) => {
                self.bytes.extend(b"}(");
                for (key, value) in pairs {
                    self.write(&Data::Text((*key).to_owned()));
                    self.write(value);
                }
                self.bytes.push(b'u');
            }
            Data::Shared(data) => match self.memo.iter().position(|known| Rc::ptr_eq(known, data)) {
                Some(index) => {
                    self.bytes.push(b'j');
                    self.bytes.extend((index as u32).to_le_bytes());
                }
                None => {
                    self.write(data);
                    self.bytes.push(0x94);
                    self.memo.push(data.clone());
                }
            },
        }
    }

    fn int(&mut self, number: i128) {
        if let Ok(byte) = u8::try_from(number) {
            self.bytes.extend([b'K', byte]);
        } else if let Ok(two) = u16::try_from(number) {
            self.bytes.push(b'M');
            self.bytes.extend(two.to_le_bytes());
        } else if let Ok(four) = i32::try_from(number) {
            self.bytes.push(b'J');
            self.bytes.extend(four.to_le_bytes());
        } else {
            self.bytes.extend([0x8a, 16]);
            self.bytes.extend(number.to_le_bytes());
        }
    }
}

/// An event of a history, at address and size.
pub(in crate::import) fn event(action: &str, address: u64, bytes: u64) -> Data {
    Data::Dict(vec![
        ("action", action.into()),
        ("addr", i128::from(address).into()),
        ("size", i128::from(bytes).into()),
        ("stream", 0.into()),
    ])
}

/// A block of a segment, of `size` of which `asked` was asked for.
pub(in crate::import) fn block(address: u64, size: u64, asked: u64, state: &str) -> Data {
    Data::Dict(vec![
        ("address", i128::from(address).into()),
        ("size", i128::from(size).into()),
        ("requested_size", i128::from(asked).into()),
        ("state", state.into()),
    ])
}

/// A segment of the default stream and pool on device 0.
pub(in crate::import) fn segment(address: u64, size: u64, blocks: Vec<Data>) -> Data {
    Data::Dict(vec![
        ("device", 0.into()),
        ("address", i128::from(address).into()),
        ("total_size", i128::from(size).into()),
        ("stream", 0.into()),
        ("segment_pool_id", Data::Tuple(vec![0.into(), 0.into()])),
        ("blocks", Data::List(blocks)),
    ])
}

/// A snapshot with the histories of some devices.
pub(in crate::import) fn snapshot(segments: Vec<Data>, traces: Vec<Vec<Data>>) -> Data {
    let traces = traces.into_iter().map(Data::List).collect();
    Data::Dict(vec![("segments", Data::List(segments)), ("device_traces", Data::List(traces))])
}
