//! The options of GMLake, under the names of its environment variables and in their units.
//!
//! Main type: [`GmlakeConf`]. Neighbours: `gmlake` and its files obey it; `options` reads the words.
//!
//! Source: GMLake, `CUDACachingAllocator.cpp`, the calls of `getenv`. `vmmDefragment:0`, which turns all of it off, is
//! the baseline `pytorch`.

use std::fmt;
use std::str::FromStr;

use crate::options::{OptionsError, pairs, value};

/// When fragments are stitched together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DefragLevel {
    /// 0: before memory is created.
    Eager,
    /// 1: when the driver has no more.
    OutOfMemory,
    /// 2: when it has no more after the cache was given back.
    Released,
}

/// What GMLake lets its users choose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GmlakeConf {
    /// `fragLimit`: the smallest request, in bytes, that fragments are stitched for.
    pub frag_limit_bytes: u64,
    /// `reuseLimit`: a stitched block of up to so many times the request serves it.
    pub reuse_limit: f64,
    /// `defragLevel`: 0, 1 or 2.
    pub defrag_level: DefragLevel,
    /// `autoGC`: over so many bytes of addresses stitched, blocks that nobody has are dropped. Given in GiB.
    pub auto_gc_bytes: u64,
    /// `reAlloc`: only what is missing is created, and stitched to what is free (1), or all that was asked for (0).
    pub re_alloc: bool,
}

impl Default for GmlakeConf {
    fn default() -> Self {
        Self::plain()
    }
}

/// Limits in bytes of an exbibyte and more are mistakes.
const MOST_BYTES: u64 = 1 << 60;

impl GmlakeConf {
    /// No option given.
    pub const fn plain() -> Self {
        Self {
            frag_limit_bytes: 512 << 20,
            reuse_limit: 10.0,
            defrag_level: DefragLevel::Eager,
            auto_gc_bytes: 1000 << 30,
            re_alloc: false,
        }
    }
}

const KNOWN: &str = "fragLimit, reuseLimit, defragLevel, autoGC, reAlloc";

impl FromStr for GmlakeConf {
    type Err = OptionsError;

    /// Reads options between commas, such as `fragLimit:67108864,defragLevel:1`; of several the last one counts.
    fn from_str(list: &str) -> Result<Self, OptionsError> {
        let mut conf = Self::plain();
        for pair in pairs(list) {
            let pair = pair?;
            match pair.0 {
                "fragLimit" => {
                    conf.frag_limit_bytes = value(pair, "bytes", |&bytes: &u64| bytes < MOST_BYTES)?;
                }
                "reuseLimit" => {
                    let factor = |factor: &f64| factor.is_finite() && *factor >= 0.0;
                    conf.reuse_limit = value(pair, "a factor from 0 on", factor)?;
                }
                "defragLevel" => {
                    conf.defrag_level = match value(pair, "0, 1 or 2", |level: &u8| *level <= 2)? {
                        0 => DefragLevel::Eager,
                        1 => DefragLevel::OutOfMemory,
                        _ => DefragLevel::Released,
                    };
                }
                "autoGC" => {
                    let gib = value(pair, "whole GiB", |&gib: &u64| gib < MOST_BYTES >> 30)?;
                    conf.auto_gc_bytes = gib << 30;
                }
                "reAlloc" => conf.re_alloc = value(pair, "0 or 1", |on: &u8| *on <= 1)? == 1,
                other => return Err(OptionsError::Unknown { option: other.to_owned(), known: KNOWN }),
            }
        }
        Ok(conf)
    }
}

impl fmt::Display for GmlakeConf {
    /// The options that differ from the default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = Self::plain();
        let mut options: Vec<String> = Vec::new();
        if self.frag_limit_bytes != plain.frag_limit_bytes {
            options.push(format!("fragLimit:{}", self.frag_limit_bytes));
        }
        if self.reuse_limit != plain.reuse_limit {
            options.push(format!("reuseLimit:{}", self.reuse_limit));
        }
        if self.defrag_level != plain.defrag_level {
            options.push(format!("defragLevel:{}", self.defrag_level as u8));
        }
        if self.auto_gc_bytes != plain.auto_gc_bytes {
            options.push(format!("autoGC:{}", self.auto_gc_bytes >> 30));
        }
        if self.re_alloc {
            options.push("reAlloc:1".to_owned());
        }
        f.write_str(&options.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::{DefragLevel, GmlakeConf};

    #[test]
    fn options_read_back_as_they_are_written() {
        for list in ["", "fragLimit:2097152", "reuseLimit:1.5,defragLevel:1,autoGC:0,reAlloc:1"] {
            let conf: GmlakeConf = list.parse().expect("options");
            assert_eq!(conf.to_string(), list);
        }
        let conf: GmlakeConf = "fragLimit:536870912,autoGC:1,defragLevel:2".parse().expect("options");
        assert_eq!(conf.frag_limit_bytes, 512 << 20);
        assert_eq!((conf.auto_gc_bytes, conf.defrag_level), (1 << 30, DefragLevel::Released));
    }

    #[test]
    fn what_is_wrong_is_quoted() {
        let said = |list: &str| list.parse::<GmlakeConf>().expect_err("it is wrong").to_string();
        assert_eq!(said("fraglimit:1"), format!("no option `fraglimit`; there are: {}", super::KNOWN));
        assert_eq!(said("fragLimit:512MB"), "`fragLimit` is bytes, not `512MB`");
        assert_eq!(said("reuseLimit:inf"), "`reuseLimit` is a factor from 0 on, not `inf`");
        assert_eq!(said("defragLevel:3"), "`defragLevel` is 0, 1 or 2, not `3`");
        assert_eq!(said("autoGC:1.5"), "`autoGC` is whole GiB, not `1.5`");
        assert_eq!(said("reAlloc:2"), "`reAlloc` is 0 or 1, not `2`");
    }
}
