//! The options of the model of TensorFlow's BFC allocator.
//!
//! Main type: [`BfcConf`]. Neighbours: `bfc` obeys it; `options` reads the words.

use std::fmt;
use std::str::FromStr;

use crate::options::{OptionsError, pairs, value};

/// What the allocator does where its options leave it a choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BfcConf {
    /// `allow_growth`: mallocs as they are needed, and not all at once.
    pub allow_growth: bool,
    /// `memory_fraction`: the part of the free memory that may be held, over 0 and at most 1.
    pub memory_fraction: f64,
    /// `garbage_collection`: free mallocs go back to the driver when memory is short.
    pub garbage_collection: bool,
    /// `internal_fragmentation_fraction`: the part of the limit from which on a block is split though it is less than
    /// twice as large as the request; 0: 128 MiB.
    pub internal_fragmentation_fraction: f64,
}

impl Default for BfcConf {
    fn default() -> Self {
        Self::growing()
    }
}

impl BfcConf {
    /// No option given.
    pub const fn growing() -> Self {
        Self {
            allow_growth: true,
            memory_fraction: 1.0,
            garbage_collection: true,
            internal_fragmentation_fraction: 0.0,
        }
    }
}

const TRUE_OR_FALSE: &str = "`true` or `false`";

impl FromStr for BfcConf {
    type Err = OptionsError;

    /// Reads options between commas, such as `allow_growth:false,memory_fraction:0.75`; of several the last one counts.
    fn from_str(list: &str) -> Result<Self, OptionsError> {
        let mut conf = Self::growing();
        for pair in pairs(list) {
            let pair = pair?;
            match pair.0 {
                "allow_growth" => conf.allow_growth = value(pair, TRUE_OR_FALSE, |_| true)?,
                "memory_fraction" => {
                    conf.memory_fraction =
                        value(pair, "over 0 and at most 1", |part: &f64| *part > 0.0 && *part <= 1.0)?;
                }
                "garbage_collection" => conf.garbage_collection = value(pair, TRUE_OR_FALSE, |_| true)?,
                "internal_fragmentation_fraction" => {
                    conf.internal_fragmentation_fraction =
                        value(pair, "from 0 to 1", |part: &f64| (0.0..=1.0).contains(part))?;
                }
                other => {
                    let known =
                        "allow_growth, memory_fraction, garbage_collection, internal_fragmentation_fraction";
                    return Err(OptionsError::Unknown { option: other.to_owned(), known });
                }
            }
        }
        Ok(conf)
    }
}

impl fmt::Display for BfcConf {
    /// The options that differ from the default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default();
        let mut options: Vec<String> = Vec::new();
        if self.allow_growth != default.allow_growth {
            options.push(format!("allow_growth:{}", self.allow_growth));
        }
        if self.memory_fraction < 1.0 {
            options.push(format!("memory_fraction:{}", self.memory_fraction));
        }
        if self.garbage_collection != default.garbage_collection {
            options.push(format!("garbage_collection:{}", self.garbage_collection));
        }
        if self.internal_fragmentation_fraction > 0.0 {
            options.push(format!("internal_fragmentation_fraction:{}", self.internal_fragmentation_fraction));
        }
        f.write_str(&options.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::BfcConf;

    #[test]
    fn options_read_back_as_they_are_written() {
        for words in [
            "",
            "allow_growth:false",
            "allow_growth:false,memory_fraction:0.75",
            "garbage_collection:false,internal_fragmentation_fraction:0.1",
        ] {
            let conf: BfcConf = words.parse().expect(words);
            assert_eq!(conf.to_string(), words);
        }
    }

    #[test]
    fn what_is_wrong_is_quoted() {
        let said = |words: &str| words.parse::<BfcConf>().expect_err(words).to_string();
        assert_eq!(said("allow_growth:yes"), "`allow_growth` is `true` or `false`, not `yes`");
        assert_eq!(said("memory_fraction:0"), "`memory_fraction` is over 0 and at most 1, not `0`");
        assert_eq!(said("memory_fraction:1.1"), "`memory_fraction` is over 0 and at most 1, not `1.1`");
        let known = "allow_growth, memory_fraction, garbage_collection, internal_fragmentation_fraction";
        assert_eq!(said("growth:true"), format!("no option `growth`; there are: {known}"));
    }
}
