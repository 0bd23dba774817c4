//! The options of PyTorch's allocator, in the syntax of its environment variable `PYTORCH_CUDA_ALLOC_CONF`.
//!
//! Main types: [`PytorchConf`], [`ConfError`]. Neighbours: `conf_parser` reads the syntax, `rounding` has the table of
//! `roundup_power2_divisions`; every other file here obeys what it says.
//!
//! Source: PyTorch 2.11, `c10/core/AllocatorConfig.{h,cpp}` (`AcceleratorAllocatorConfig::parseArgs`) and
//! `c10/cuda/CUDAAllocatorConfig.{h,cpp}` (`CUDAAllocatorConfig::parseArgs`). It is stricter here in two points: the
//! tokenizer of 2.11 looks for `:` and `,` and goes on if they are not there, and its numbers may have a tail (`128MB`
//! is 128). Both are errors here, since whoever writes them means something else.

use std::fmt;
use std::str::FromStr;

use super::conf_parser;
use super::rounding::{Divisions, MIB};

/// What the allocator does where its options leave it a choice. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PytorchConf {
    /// `expandable_segments`: segments of addresses that grow, instead of one `cudaMalloc` after the other.
    pub expandable_segments: bool,
    /// `large_segment_size_mb`: the segment for requests between 1 and 10 MiB, and the frame of expandable segments.
    pub large_segment_bytes: u64,
    /// `max_split_size_mb`: blocks of this size and more are not split; `u64::MAX` without the option.
    pub max_split_bytes: u64,
    /// `max_non_split_rounding_mb`: a block that is not split may exceed its request by less than this.
    pub max_non_split_rounding_bytes: u64,
    /// `roundup_power2_divisions`.
    pub divisions: Divisions,
    /// `garbage_collection_threshold`: the part of the limit above which old blocks go; 0 without the option.
    pub garbage_collection_threshold: f64,
    /// `per_process_memory_fraction`: the part of the device that may be reserved; 1: no limit.
    pub memory_fraction: f64,
}

impl Default for PytorchConf {
    fn default() -> Self {
        Self::native()
    }
}

impl PytorchConf {
    /// No option given.
    pub const fn native() -> Self {
        Self {
            expandable_segments: false,
            large_segment_bytes: 20 * MIB,
            max_split_bytes: u64::MAX,
            max_non_split_rounding_bytes: 20 * MIB,
            divisions: Divisions::all(0),
            garbage_collection_threshold: 0.0,
            memory_fraction: 1.0,
        }
    }

    /// `expandable_segments:True`, and nothing else.
    pub const fn expandable() -> Self {
        Self { expandable_segments: true, ..Self::native() }
    }
}

impl FromStr for PytorchConf {
    type Err = ConfError;

    /// Reads a value of `PYTORCH_CUDA_ALLOC_CONF`. Options that change no memory are checked and have no effect.
    fn from_str(text: &str) -> Result<Self, ConfError> {
        conf_parser::parse(text)
    }
}

impl fmt::Display for PytorchConf {
    /// The options that differ from the default, in PyTorch's syntax; nothing for the default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default();
        let mut options: Vec<String> = Vec::new();
        if self.expandable_segments {
            options.push("expandable_segments:True".to_owned());
        }
        if self.large_segment_bytes != default.large_segment_bytes {
            options.push(format!("large_segment_size_mb:{}", self.large_segment_bytes / MIB));
        }
        if self.max_split_bytes != default.max_split_bytes {
            options.push(format!("max_split_size_mb:{}", self.max_split_bytes / MIB));
        }
        if self.max_non_split_rounding_bytes != self.large_segment_bytes {
            options.push(format!("max_non_split_rounding_mb:{}", self.max_non_split_rounding_bytes / MIB));
        }
        if self.divisions != default.divisions {
            options.push(format!("roundup_power2_divisions:{}", self.divisions));
        }
        if self.garbage_collection_threshold > 0.0 {
            options.push(format!("garbage_collection_threshold:{}", self.garbage_collection_threshold));
        }
        if self.memory_fraction < 1.0 {
            options.push(format!("per_process_memory_fraction:{}", self.memory_fraction));
        }
        f.write_str(&options.join(","))
    }
}

/// Why a string is no value of `PYTORCH_CUDA_ALLOC_CONF`. What PyTorch says to it is in the comments, where it says
/// something.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfError {
    /// "Unrecognized key '...' in CUDA allocator config."
    #[error("no option `{0}`; see PYTORCH_CUDA_ALLOC_CONF in PyTorch's notes on CUDA")]
    UnknownKey(String),
    /// "Index out of bounds in ConfigTokenizer": the string ends where something must follow.
    #[error("option `{key}` ends too early: {expected} must follow")]
    Ended {
        /// The option.
        key: String,
        /// What is missing.
        expected: &'static str,
    },
    /// Something else stands where a separator must be. PyTorch 2.11 passes over it.
    #[error("option `{key}`: `{found}` stands where {expected} must be")]
    Unexpected {
        /// The option.
        key: String,
        /// What must be there.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// "Expected 'True' or 'False' at index ... in ConfigTokenizer but got '...'".
    #[error("option `{key}` is `True` or `False`, not `{found}`")]
    NotBoolean {
        /// The option.
        key: String,
        /// What is there.
        found: String,
    },
    /// A number that can't be read: PyTorch ends with `std::invalid_argument` of `stoull` or `stod`.
    #[error("option `{key}`: `{found}` is no number")]
    NotNumber {
        /// The option.
        key: String,
        /// What is there.
        found: String,
    },
    /// "CachingAllocator option ... too small, must be >= ..." and "large_segment_size_mb must be > 10 MB".
    #[error("option `{key}` is at least {minimum}, not {value}")]
    TooSmall {
        /// The option.
        key: String,
        /// The least it may be.
        minimum: u64,
        /// What it is.
        value: u64,
    },
    /// "garbage_collect_threshold is invalid, set it in (0.0, 1.0)" and
    /// "per_process_memory_fraction is invalid, set it in [0.0, 1.0]".
    #[error("option `{key}` lies in {interval}, not at {value}")]
    OutOfInterval {
        /// The option.
        key: String,
        /// Where it must lie.
        interval: &'static str,
        /// Where it lies.
        value: f64,
    },
    /// "For roundups, the divisions has to be power of 2" ("or 0 to disable roundup" in a list), "the intervals have to
    /// be power of 2", and "Number of register threads has to be power of 2".
    #[error("option `{key}`: {value} is no power of two")]
    NotPowerOfTwo {
        /// The option.
        key: String,
        /// What it is.
        value: u64,
    },
    /// "Number of register threads should be less than or equal to 128".
    #[error("option `{key}` is at most {maximum}, not {value}")]
    TooLarge {
        /// The option.
        key: String,
        /// The most it may be.
        maximum: u64,
        /// What it is.
        value: u64,
    },
    /// "Unknown allocator backend, options are native and cudaMallocAsync".
    #[error("no backend `{0}`; there are: native, cudaMallocAsync")]
    UnknownBackend(String),
    /// `backend:cudaMallocAsync` hands everything to the driver's pool: that is another allocator.
    #[error("backend `cudaMallocAsync` is the driver's own pool, not this allocator")]
    OtherBackend,
}

#[cfg(test)]
mod tests;
