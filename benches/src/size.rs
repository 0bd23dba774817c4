//! Sizes as people write them: `80GiB`, `500MB`, `1.02x`, plain bytes.
//!
//! Main types: [`Capacity`], [`Granularity`], [`SizeError`]. Neighbours: `case` resolves them; the command line parses
//! them.

use std::fmt;
use std::str::FromStr;

/// Units and their bytes: powers of 1000 and powers of 1024, never mixed up by a bare letter.
const UNITS: &[(&str, u64)] = &[
    ("", 1),
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// The smallest granularity that makes sense, in bytes: a page of the host.
const LEAST_GRANULARITY: u64 = 4 << 10;

/// Why a text is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// There is no number in front.
    #[error("`{0}` does not begin with a number; write 80GiB, 500MB or plain bytes")]
    NoNumber(String),
    /// The unit is none that is known.
    #[error("`{unit}` in `{value}` is no unit; write B, KB, MB, GB, TB, KiB, MiB, GiB or TiB")]
    UnknownUnit {
        /// The whole text.
        value: String,
        /// What stands behind the number.
        unit: String,
    },
    /// The size is 0, or less than one byte.
    #[error("`{0}` is a size of 0; write at least one byte")]
    Zero(String),
    /// The size needs more than 64 bits.
    #[error("`{0}` is more than 16 EiB; write a smaller size")]
    TooLarge(String),
    /// A granularity must be a power of two of at least 4 KiB.
    #[error("`{0}` is no power of two of at least 4KiB; write 64KiB, 2MiB or 32MiB")]
    NotAGranularity(String),
}

/// Splits `value` into its number and what stands behind it.
fn split_number(value: &str) -> Result<(&str, &str), SizeError> {
    let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    let (number, unit) = value.split_at(end);
    if number.parse::<f64>().is_err() {
        return Err(SizeError::NoNumber(value.to_owned()));
    }
    Ok((number, unit.trim()))
}

/// Bytes of a text such as `80GiB`; fractions of a byte are dropped.
///
/// # Errors
/// [`SizeError`], which quotes the text.
pub fn parse_bytes(value: &str) -> Result<u64, SizeError> {
    let value = value.trim();
    let (number, unit) = split_number(value)?;
    let known = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let Some(&(_, scale)) = known else {
        return Err(SizeError::UnknownUnit { value: value.to_owned(), unit: unit.to_owned() });
    };
    let too_large = || SizeError::TooLarge(value.to_owned());
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(scale).ok_or_else(too_large)?,
        Err(_) => scaled(number.parse().unwrap_or(f64::INFINITY), scale).ok_or_else(too_large)?,
    };
    if bytes == 0 { Err(SizeError::Zero(value.to_owned())) } else { Ok(bytes) }
}

/// `factor` × `bytes`, rounded down; none beyond 64 bits.
fn scaled(factor: f64, bytes: u64) -> Option<u64> {
    let product = factor * bytes as f64;
    (product < u64::MAX as f64).then_some(product as u64)
}

/// How much memory the device of a run has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Capacity {
    /// So many bytes.
    Bytes(u64),
    /// So many times the live peak of the trace.
    TimesLive(f64),
}

impl Capacity {
    /// The capacity in bytes for a trace whose live bytes reach `live_peak_bytes`, rounded down: the ratio is never
    /// exceeded.
    pub fn resolve(self, live_peak_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::TimesLive(factor) => scaled(factor, live_peak_bytes).unwrap_or(u64::MAX),
        }
    }
}

impl FromStr for Capacity {
    type Err = SizeError;

    fn from_str(value: &str) -> Result<Self, SizeError> {
        let Some(factor) = value.trim().strip_suffix('x') else {
            return parse_bytes(value).map(Self::Bytes);
        };
        let (number, rest) = split_number(factor)?;
        match number.parse::<f64>() {
            Ok(0.0) => Err(SizeError::Zero(value.to_owned())),
            Ok(factor) if rest.is_empty() && factor.is_finite() => Ok(Self::TimesLive(factor)),
            _ => Err(SizeError::UnknownUnit { value: value.to_owned(), unit: format!("{rest}x") }),
        }
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write_bytes(f, *bytes),
            Self::TimesLive(factor) => write!(f, "{factor} × live"),
        }
    }
}

/// The largest unit of 1024 that divides `bytes`, so that nothing is rounded.
fn write_bytes(f: &mut fmt::Formatter<'_>, bytes: u64) -> fmt::Result {
    let units = UNITS.iter().rev().filter(|(name, scale)| *scale == 1 || name.contains('i'));
    let (name, scale) = units.copied().find(|(_, scale)| bytes.is_multiple_of(*scale)).unwrap_or(("B", 1));
    write!(f, "{} {name}", bytes / scale)
}

/// Bytes of the driver's smallest mappable piece: a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granularity(u64);

impl Granularity {
    /// What CUDA devices say today: 2 MiB.
    pub const CUDA: Self = Self(2 << 20);

    /// Its bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Granularity {
    type Err = SizeError;

    fn from_str(value: &str) -> Result<Self, SizeError> {
        let bytes = parse_bytes(value)?;
        if bytes.is_power_of_two() && bytes >= LEAST_GRANULARITY {
            Ok(Self(bytes))
        } else {
            Err(SizeError::NotAGranularity(value.to_owned()))
        }
    }
}

impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_bytes(f, self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Capacity, Granularity, SizeError, parse_bytes};

    #[test]
    fn units_of_1000_and_of_1024() {
        let cases = [
            ("1", 1),
            ("734003200", 734_003_200),
            ("500MB", 500_000_000),
            ("80GiB", 85_899_345_920),
            ("80 GiB", 85_899_345_920),
            ("80gib", 85_899_345_920),
            ("1.5KiB", 1_536),
            ("0.5MB", 500_000),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_capacity_may_be_a_multiple_of_live() {
        assert_eq!("1.02x".parse(), Ok(Capacity::TimesLive(1.02)));
        assert_eq!("80GiB".parse(), Ok(Capacity::Bytes(80 << 30)));
        assert_eq!(Capacity::TimesLive(1.5).resolve(7), 10);
        assert_eq!(Capacity::Bytes(3).resolve(7), 3);
    }

    #[test]
    fn each_bad_text_is_quoted() {
        let unknown =
            |value: &str, unit: &str| SizeError::UnknownUnit { value: value.into(), unit: unit.into() };
        assert_eq!("0".parse::<Capacity>(), Err(SizeError::Zero("0".into())));
        assert_eq!("0.1".parse::<Capacity>(), Err(SizeError::Zero("0.1".into())));
        assert_eq!("0x".parse::<Capacity>(), Err(SizeError::Zero("0x".into())));
        assert_eq!("80GB?".parse::<Capacity>(), Err(unknown("80GB?", "GB?")));
        assert_eq!("80G".parse::<Capacity>(), Err(unknown("80G", "G")));
        assert_eq!("2GBx".parse::<Capacity>(), Err(unknown("2GBx", "GBx")));
        assert_eq!("".parse::<Capacity>(), Err(SizeError::NoNumber("".into())));
        assert_eq!("x".parse::<Capacity>(), Err(SizeError::NoNumber("".into())));
        assert_eq!("-1GiB".parse::<Capacity>(), Err(SizeError::NoNumber("-1GiB".into())));
        assert_eq!("1.2.3GiB".parse::<Capacity>(), Err(SizeError::NoNumber("1.2.3GiB".into())));
        assert_eq!("17000000TiB".parse::<Capacity>(), Err(SizeError::TooLarge("17000000TiB".into())));
        assert_eq!(
            "99999999999999999999".parse::<Capacity>(),
            Err(SizeError::TooLarge("99999999999999999999".into()))
        );
        assert_eq!("3MiB".parse::<Granularity>(), Err(SizeError::NotAGranularity("3MiB".into())));
        assert_eq!("1KiB".parse::<Granularity>(), Err(SizeError::NotAGranularity("1KiB".into())));
        assert_eq!("2MiB".parse(), Ok(Granularity::CUDA));
    }

    #[test]
    fn sizes_are_printed_without_rounding() {
        assert_eq!(Capacity::Bytes(80 << 30).to_string(), "80 GiB");
        assert_eq!(Capacity::Bytes(734_003_200).to_string(), "700 MiB");
        assert_eq!(Capacity::Bytes(1025).to_string(), "1025 B");
        assert_eq!(Capacity::TimesLive(1.02).to_string(), "1.02 × live");
        assert_eq!(Granularity::CUDA.to_string(), "2 MiB");
    }
}
