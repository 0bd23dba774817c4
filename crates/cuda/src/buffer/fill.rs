//! Values that a buffer can be filled with by one call.
//!
//! Main types: [`FillValue`], [`Pattern`]. Neighbours: `content` fills, `transfer` makes the call.

/// The bits of an element that the driver's fills can repeat: they take 1, 2 or 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// `cuMemsetD8Async`.
    Byte(u8),
    /// `cuMemsetD16Async`.
    Pair(u16),
    /// `cuMemsetD32Async`.
    Quad(u32),
}

impl Pattern {
    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::Byte(_) => 1,
            Self::Pair(_) => 2,
            Self::Quad(_) => 4,
        }
    }
}

mod sealed {
    pub trait Sealed {
        fn pattern(self) -> super::Pattern;
    }
}

/// Elements that the driver can repeat: numbers of 1, 2 and 4 bytes. Others are filled by a kernel.
pub trait FillValue: sealed::Sealed + Copy {}

pub(super) fn pattern_of(value: impl FillValue) -> Pattern {
    sealed::Sealed::pattern(value)
}

macro_rules! values {
    ($($type:ty: $value:ident => $pattern:expr;)*) => {
        $(
            impl sealed::Sealed for $type {
                fn pattern(self) -> Pattern {
                    let $value = self;
                    $pattern
                }
            }

            impl FillValue for $type {}
        )*
    };
}

values! {
    u8: value => Pattern::Byte(value);
    i8: value => Pattern::Byte(value.cast_unsigned());
    u16: value => Pattern::Pair(value);
    i16: value => Pattern::Pair(value.cast_unsigned());
    u32: value => Pattern::Quad(value);
    i32: value => Pattern::Quad(value.cast_unsigned());
    f32: value => Pattern::Quad(value.to_bits());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_the_bits_of_the_value() {
        assert_eq!(pattern_of(-1_i8), Pattern::Byte(0xff));
        assert_eq!(pattern_of(-2_i16), Pattern::Pair(0xfffe));
        assert_eq!(pattern_of(-3_i32), Pattern::Quad(0xffff_fffd));
        assert_eq!(pattern_of(1.0_f32), Pattern::Quad(0x3f80_0000));
        assert_eq!(pattern_of(0x1234_u16), Pattern::Pair(0x1234));
    }
}
