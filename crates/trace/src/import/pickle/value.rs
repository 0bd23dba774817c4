//! One value of a decoded pickle.
//!
//! Main types: [`Value`], [`Text`]. Neighbours: `pickle` makes them and owns what the numbers in them refer to.

/// A text: its place in the bytes of the pickle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::import) struct Text {
    /// The first byte.
    pub(in crate::import) at: u32,
    /// Its length in bytes.
    pub(in crate::import) bytes: u32,
}

/// A value, or the number of the list or dict that it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::import) enum Value {
    /// Nothing.
    None,
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// One that is above `i64::MAX`.
    Large(u64),
    /// One that 64 bits don't hold.
    Huge,
    /// A float.
    Float(f64),
    /// A text.
    Text(Text),
    /// A list.
    List(u32),
    /// A tuple.
    Tuple(u32),
    /// A dict.
    Dict(u32),
}

impl Value {
    /// The number that LONG1 writes: two's complement, the lowest byte first.
    pub(in crate::import) fn of_long(bytes: &[u8]) -> Self {
        let fill = if bytes.last().is_some_and(|last| last & 0x80 != 0) { 0xff } else { 0 };
        // Picklers write as few bytes as possible; what is too much repeats the sign.
        let mut wide = [fill; 16];
        let Some(low) = bytes.get(..bytes.len().min(16)) else { return Self::Huge };
        wide[..low.len()].copy_from_slice(low);
        if bytes[low.len()..].iter().any(|byte| *byte != fill) {
            return Self::Huge;
        }
        let number = i128::from_le_bytes(wide);
        if let Ok(number) = i64::try_from(number) {
            Self::Int(number)
        } else if let Ok(number) = u64::try_from(number) {
            Self::Large(number)
        } else {
            Self::Huge
        }
    }

    /// What it is called in an error.
    pub(in crate::import) const fn kind(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Bool(_) => "a truth value",
            Self::Int(_) | Self::Large(_) => "a number",
            Self::Huge => "a number of more than 64 bits",
            Self::Float(_) => "a float",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Tuple(_) => "a tuple",
            Self::Dict(_) => "a dict",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Value;

    #[test]
    fn long_numbers_are_read_as_python_writes_them() {
        for (bytes, value) in [
            (&[][..], Value::Int(0)),
            (&[0xff], Value::Int(-1)),
            (&[0xff, 0x00], Value::Int(255)),
            (&[0x00, 0x80], Value::Int(-32_768)),
            (&[0xff; 12], Value::Int(-1)),
            (&[0, 0, 0, 0, 0, 0, 0, 0x80], Value::Int(i64::MIN)),
            (&[0, 0, 0, 0, 0, 0, 0, 0x80, 0], Value::Large(1 << 63)),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0], Value::Large(u64::MAX)),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 1], Value::Huge),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0x80], Value::Huge),
            (&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], Value::Huge),
        ] {
            assert_eq!(Value::of_long(bytes), value, "{bytes:02x?}");
        }
    }

    #[test]
    fn a_value_takes_sixteen_bytes() {
        assert_eq!(size_of::<Value>(), 16);
    }
}
