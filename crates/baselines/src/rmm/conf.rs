//! The options of RMM's allocators.
//!
//! Main types: [`RmmPoolConf`], [`RmmArenaConf`]. Neighbours: `pool` and `arena` go by them; `crate::options` reads words.
//!
//! RMM takes bytes. Here sizes are fractions of the memory that is free when the allocator is made, so that one set of
//! options serves devices of any size, as with RMM's `percent_of_free_device_memory`.

use std::fmt;
use std::str::FromStr;

use crate::options::{OptionsError, pairs, value};

/// Options of the pool: the arguments of RMM's constructor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmmPoolConf {
    /// `initial`: what the pool begins with, as a fraction of the free memory, from 0 to 1. RMM has no default in C++;
    /// here it is 0. RMM's Python package begins with half of what is free.
    pub initial: f64,
    /// `maximum`: what it may have, likewise; none: all that the driver gives. That is RMM's default.
    pub maximum: Option<f64>,
}

impl RmmPoolConf {
    /// Nothing to begin with, and no maximum.
    pub const DEFAULT: Self = Self { initial: 0.0, maximum: None };
}

impl Default for RmmPoolConf {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Options of the arena: an argument of RMM's constructor, and a macro that RMM is compiled with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmmArenaConf {
    /// `initial`: the size of the arena, which does not grow, as a fraction of the free memory, above 0 and to 1. A half
    /// by default, as in RMM.
    pub initial: f64,
    /// `size_classes`: whether sizes are rounded up to one of 116 instead of 256 bytes (`RMM_ARENA_USE_SIZE_CLASSES`). No
    /// by default, as in RMM.
    pub size_classes: bool,
}

impl RmmArenaConf {
    /// Half of the free memory, steps of 256 bytes.
    pub const DEFAULT: Self = Self { initial: 0.5, size_classes: false };
}

impl Default for RmmArenaConf {
    fn default() -> Self {
        Self::DEFAULT
    }
}

const POOL_OPTIONS: &str = "initial, maximum";
const ARENA_OPTIONS: &str = "initial, size_classes";
const FROM_0: &str = "a fraction of the free memory, from 0 to 1";
const ABOVE_0: &str = "a fraction of the free memory, above 0 and to 1";

fn above_0(pair: (&str, &str)) -> Result<f64, OptionsError> {
    value(pair, ABOVE_0, |&fraction: &f64| 0.0 < fraction && fraction <= 1.0)
}

impl FromStr for RmmPoolConf {
    type Err = OptionsError;

    fn from_str(list: &str) -> Result<Self, OptionsError> {
        let mut conf = Self::DEFAULT;
        for pair in pairs(list) {
            match pair? {
                pair @ ("initial", _) => {
                    conf.initial = value(pair, FROM_0, |fraction| (0.0..=1.0).contains(fraction))?;
                }
                pair @ ("maximum", _) => conf.maximum = Some(above_0(pair)?),
                (option, _) => {
                    return Err(OptionsError::Unknown { option: option.to_owned(), known: POOL_OPTIONS });
                }
            }
        }
        Ok(conf)
    }
}

impl FromStr for RmmArenaConf {
    type Err = OptionsError;

    fn from_str(list: &str) -> Result<Self, OptionsError> {
        let mut conf = Self::DEFAULT;
        for pair in pairs(list) {
            match pair? {
                pair @ ("initial", _) => conf.initial = above_0(pair)?,
                pair @ ("size_classes", _) => {
                    conf.size_classes = value(pair, "true or false", |_: &bool| true)?;
                }
                (option, _) => {
                    return Err(OptionsError::Unknown { option: option.to_owned(), known: ARENA_OPTIONS });
                }
            }
        }
        Ok(conf)
    }
}

impl fmt::Display for RmmPoolConf {
    /// The options that are not the default, as they are read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let initial = (self.initial != 0.0).then(|| format!("initial:{}", self.initial));
        let maximum = self.maximum.map(|maximum| format!("maximum:{maximum}"));
        f.write_str(&[initial, maximum].into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

impl fmt::Display for RmmArenaConf {
    /// The options that are not the default, as they are read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let initial = (self.initial != Self::DEFAULT.initial).then(|| format!("initial:{}", self.initial));
        let classes = self.size_classes.then(|| "size_classes:true".to_owned());
        f.write_str(&[initial, classes].into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::{RmmArenaConf, RmmPoolConf};

    #[test]
    fn options_read_back_as_they_are_written() {
        for list in ["", "initial:1", "initial:0.25,maximum:0.9", "maximum:1"] {
            assert_eq!(list.parse::<RmmPoolConf>().expect("options").to_string(), list);
        }
        for list in ["", "initial:1", "initial:0.25,size_classes:true", "size_classes:true"] {
            assert_eq!(list.parse::<RmmArenaConf>().expect("options").to_string(), list);
        }
        assert_eq!("initial:0".parse(), Ok(RmmPoolConf::default()));
        assert_eq!("initial:0.5,size_classes:false".parse(), Ok(RmmArenaConf::default()));
    }

    #[test]
    fn what_is_wrong_is_quoted() {
        let pool = |list: &str| list.parse::<RmmPoolConf>().expect_err("wrong").to_string();
        assert_eq!(pool("initial:1.5"), "`initial` is a fraction of the free memory, from 0 to 1, not `1.5`");
        assert_eq!(
            pool("maximum:0"),
            "`maximum` is a fraction of the free memory, above 0 and to 1, not `0`"
        );
        assert_eq!(pool("initial:NaN"), "`initial` is a fraction of the free memory, from 0 to 1, not `NaN`");
        assert_eq!(pool("size:1"), "no option `size`; there are: initial, maximum");
        let arena = |list: &str| list.parse::<RmmArenaConf>().expect_err("wrong").to_string();
        assert_eq!(
            arena("initial:0"),
            "`initial` is a fraction of the free memory, above 0 and to 1, not `0`"
        );
        assert_eq!(arena("size_classes:1"), "`size_classes` is true or false, not `1`");
        assert_eq!(arena("maximum:1"), "no option `maximum`; there are: initial, size_classes");
    }
}
