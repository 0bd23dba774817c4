//! The options of the model of the driver's pool.
//!
//! Main types: [`DriverPoolConf`], [`Remap`]. Neighbours: `driver_pool` and its files obey it; `options` reads the words.

use std::fmt;
use std::str::FromStr;

use crate::options::{OptionsError, mebibytes, pairs, value};

/// When the memory of free frames is mapped elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remap {
    /// Before more memory is created, as NVIDIA says.
    Always,
    /// Only when the driver has no more.
    Pressure,
    /// Not at all.
    Never,
}

/// What the pool does where its attributes, or the model, leave it a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverPoolConf {
    /// `follow_events`: `cudaMemPoolReuseFollowEventDependencies`.
    pub follow_events: bool,
    /// `opportunistic`: `cudaMemPoolReuseAllowOpportunistic`.
    pub opportunistic: bool,
    /// `internal_dependencies`: `cudaMemPoolReuseAllowInternalDependencies`.
    pub internal_dependencies: bool,
    /// `release_threshold_mb`: `cudaMemPoolAttrReleaseThreshold`, in bytes; `u64::MAX` for `max`.
    pub release_threshold_bytes: u64,
    /// `retry`: a request that fails makes the host wait, trims the pool and tries once more.
    pub retry: bool,
    /// `remap`: when free frames move. A guess.
    pub remap: Remap,
    /// `frame_mb`: the unit in which the pool grows, remaps and gives back, in bytes. A guess.
    pub frame_bytes: u64,
}

impl Default for DriverPoolConf {
    fn default() -> Self {
        Self::plain()
    }
}

impl DriverPoolConf {
    /// No option given: the attributes of a new pool.
    pub const fn plain() -> Self {
        Self {
            follow_events: true,
            opportunistic: true,
            internal_dependencies: true,
            release_threshold_bytes: 0,
            retry: true,
            remap: Remap::Always,
            frame_bytes: 32 << 20,
        }
    }
}

const KNOWN: &str =
    "follow_events, opportunistic, internal_dependencies, release_threshold_mb, retry, remap, frame_mb";

fn switch(pair: (&str, &str)) -> Result<bool, OptionsError> {
    value(pair, "`true` or `false`", |_| true)
}

impl FromStr for DriverPoolConf {
    type Err = OptionsError;

    /// Reads options between commas, such as `release_threshold_mb:max,opportunistic:false`; of several the last one counts.
    fn from_str(list: &str) -> Result<Self, OptionsError> {
        let mut conf = Self::plain();
        for pair in pairs(list) {
            let pair = pair?;
            match pair.0 {
                "follow_events" => conf.follow_events = switch(pair)?,
                "opportunistic" => conf.opportunistic = switch(pair)?,
                "internal_dependencies" => conf.internal_dependencies = switch(pair)?,
                "retry" => conf.retry = switch(pair)?,
                "release_threshold_mb" if pair.1 == "max" => conf.release_threshold_bytes = u64::MAX,
                "release_threshold_mb" => {
                    conf.release_threshold_bytes = mebibytes(pair, "whole MiB or `max`", 0)?;
                }
                "frame_mb" => conf.frame_bytes = mebibytes(pair, "1 MiB or more", 1)?,
                "remap" => {
                    conf.remap = match pair.1 {
                        "always" => Remap::Always,
                        "pressure" => Remap::Pressure,
                        "never" => Remap::Never,
                        other => {
                            let (option, value) = (pair.0.to_owned(), other.to_owned());
                            let expected = "`always`, `pressure` or `never`";
                            return Err(OptionsError::BadValue { option, value, expected });
                        }
                    };
                }
                other => return Err(OptionsError::Unknown { option: other.to_owned(), known: KNOWN }),
            }
        }
        Ok(conf)
    }
}

impl fmt::Display for DriverPoolConf {
    /// The options that differ from the default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default();
        let mut options: Vec<String> = Vec::new();
        for (name, on) in [
            ("follow_events", self.follow_events),
            ("opportunistic", self.opportunistic),
            ("internal_dependencies", self.internal_dependencies),
        ] {
            if !on {
                options.push(format!("{name}:false"));
            }
        }
        match self.release_threshold_bytes {
            0 => {}
            u64::MAX => options.push("release_threshold_mb:max".to_owned()),
            bytes => options.push(format!("release_threshold_mb:{}", bytes >> 20)),
        }
        if !self.retry {
            options.push("retry:false".to_owned());
        }
        match self.remap {
            Remap::Always => {}
            Remap::Pressure => options.push("remap:pressure".to_owned()),
            Remap::Never => options.push("remap:never".to_owned()),
        }
        if self.frame_bytes != default.frame_bytes {
            options.push(format!("frame_mb:{}", self.frame_bytes >> 20));
        }
        f.write_str(&options.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::DriverPoolConf;

    #[test]
    fn options_read_back_as_they_are_written() {
        for words in [
            "",
            "follow_events:false,opportunistic:false,internal_dependencies:false",
            "release_threshold_mb:max",
            "release_threshold_mb:1024,retry:false,remap:pressure,frame_mb:2",
            "remap:never",
        ] {
            let conf: DriverPoolConf = words.parse().expect(words);
            assert_eq!(conf.to_string(), words);
        }
    }

    #[test]
    fn what_is_wrong_is_quoted() {
        let said = |words: &str| words.parse::<DriverPoolConf>().expect_err(words).to_string();
        assert_eq!(said("retry:1"), "`retry` is `true` or `false`, not `1`");
        assert_eq!(said("remap:now"), "`remap` is `always`, `pressure` or `never`, not `now`");
        assert_eq!(said("release_threshold_mb:-1"), "`release_threshold_mb` is whole MiB or `max`, not `-1`");
        assert_eq!(said("frame_mb:0"), "`frame_mb` is 1 MiB or more, not `0`");
        assert!(said("threshold:1").starts_with("no option `threshold`; there are: follow_events, "));
    }
}
