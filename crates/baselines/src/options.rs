//! Options of the baselines, as words: `option:value` between commas.
//!
//! Main types: [`OptionsError`]. Neighbours: each baseline with options has a `FromStr` that goes through [`pairs`];
//! PyTorch's own syntax, which is like it but not the same, is in `pytorch::conf_parser`.

use std::str::FromStr;

/// Options that a baseline does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// No option of this name.
    #[error("no option `{option}`; there are: {known}")]
    Unknown {
        /// The word before the colon.
        option: String,
        /// What there is, between commas.
        known: &'static str,
    },
    /// An option without a colon and a value.
    #[error("option `{option}` has no value: write `{option}:VALUE`")]
    NoValue {
        /// The word.
        option: String,
    },
    /// A value that the option does not take.
    #[error("`{option}` is {expected}, not `{value}`")]
    BadValue {
        /// The option.
        option: String,
        /// What it was given.
        value: String,
        /// What it takes.
        expected: &'static str,
    },
}

/// The options in a list, in order. Empty places between commas are passed over.
///
/// # Errors
/// [`OptionsError::NoValue`], in the place of the option.
pub(crate) fn pairs(list: &str) -> impl Iterator<Item = Result<(&str, &str), OptionsError>> {
    let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
    words.map(|word| {
        let pair = word.split_once(':').map(|(option, value)| (option.trim(), value.trim()));
        pair.ok_or_else(|| OptionsError::NoValue { option: word.to_owned() })
    })
}

/// A value, if it can be read and `accept` takes it; `expected` says what would be.
///
/// # Errors
/// [`OptionsError::BadValue`].
pub(crate) fn value<T: FromStr>(
    (option, value): (&str, &str),
    expected: &'static str,
    accept: impl FnOnce(&T) -> bool,
) -> Result<T, OptionsError> {
    let bad = || OptionsError::BadValue { option: option.to_owned(), value: value.to_owned(), expected };
    value.parse().ok().filter(accept).ok_or_else(bad)
}

/// Whole MiB, as bytes, of at least `least` and less than an exabyte.
///
/// # Errors
/// [`OptionsError::BadValue`].
pub(crate) fn mebibytes(pair: (&str, &str), expected: &'static str, least: u64) -> Result<u64, OptionsError> {
    const MOST: u64 = 1 << 40;
    value(pair, expected, |mebibytes: &u64| (least..MOST).contains(mebibytes))
        .map(|mebibytes| mebibytes << 20)
}

#[cfg(test)]
mod tests {
    use super::{OptionsError, mebibytes, pairs, value};

    #[test]
    fn a_list_is_read_in_order_and_what_is_wrong_is_quoted() {
        let read: Vec<_> = pairs("a:1, b : 2,,c:x:y,").collect();
        assert_eq!(read, [Ok(("a", "1")), Ok(("b", "2")), Ok(("c", "x:y"))]);
        assert_eq!(pairs("").count(), 0);
        let said = pairs("a:1,b").nth(1).expect("two").expect_err("no value").to_string();
        assert_eq!(said, "option `b` has no value: write `b:VALUE`");
    }

    #[test]
    fn values_outside_of_what_is_taken_are_refused() {
        assert_eq!(value(("f", "0.5"), "a fraction", |f: &f64| *f <= 1.0), Ok(0.5));
        let bad = |value: &str| OptionsError::BadValue {
            option: "f".to_owned(),
            value: value.to_owned(),
            expected: "a fraction",
        };
        for wrong in ["1.5", "x", "", "NaN"] {
            assert_eq!(value(("f", wrong), "a fraction", |f: &f64| *f <= 1.0), Err(bad(wrong)));
        }
        assert_eq!(mebibytes(("m", "3"), "MiB", 1), Ok(3 << 20));
        for wrong in ["0", "-1", "1099511627776", "18446744073709551615", "99999999999999999999"] {
            assert!(mebibytes(("m", wrong), "MiB", 1).is_err(), "{wrong}");
        }
    }
}
