//! Reads the options' syntax: `key:value,key:[a:b,c:d]`.
//!
//! Neighbours: `conf` says what the options mean; `rounding` takes the table of divisions.
//!
//! As in PyTorch 2.11 white space counts nowhere, a comma may end the string, the last of two equal options holds, and
//! `large_segment_size_mb` is read before all others, since they are checked against it.

use super::conf::{ConfError, PytorchConf};
use super::rounding::{Divisions, MIB};

const LARGE_SEGMENT: &str = "large_segment_size_mb";
/// `kMinLargeAlloc` in MiB: large segments must be larger.
const LARGE_SEGMENT_ABOVE_MB: u64 = 10;
/// `pinned_max_register_threads`.
const MAX_REGISTER_THREADS: u64 = 128;

/// Reads a whole string.
pub(crate) fn parse(text: &str) -> Result<PytorchConf, ConfError> {
    let tokens = tokens(text);
    let mut conf = PytorchConf::default();
    let mut first = Parser { tokens: &tokens, at: 0 };
    while let Some(key) = first.next() {
        if key == LARGE_SEGMENT {
            let megabytes = first.megabytes(key, LARGE_SEGMENT_ABOVE_MB + 1)?;
            conf.large_segment_bytes = megabytes * MIB;
        }
    }
    conf.max_non_split_rounding_bytes = conf.large_segment_bytes;

    let mut parser = Parser { tokens: &tokens, at: 0 };
    while let Some(key) = parser.next() {
        parser.option(key, &mut conf)?;
        match parser.next() {
            None | Some(",") => {}
            Some(found) => return Err(unexpected(key, "`,`", found)),
        }
    }
    Ok(conf)
}

/// Words and the four separators; white space is dropped, also inside words.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut word = String::new();
    for letter in text.chars().filter(|letter| !letter.is_whitespace()) {
        if matches!(letter, ',' | ':' | '[' | ']') {
            if !word.is_empty() {
                tokens.push(std::mem::take(&mut word));
            }
            tokens.push(letter.to_string());
        } else {
            word.push(letter);
        }
    }
    if !word.is_empty() {
        tokens.push(word);
    }
    tokens
}

fn unexpected(key: &str, expected: &'static str, found: &str) -> ConfError {
    ConfError::Unexpected { key: key.to_owned(), expected, found: found.to_owned() }
}

struct Parser<'a> {
    tokens: &'a [String],
    at: usize,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let token = self.tokens.get(self.at)?;
        self.at += 1;
        Some(token)
    }

    fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.at).map(String::as_str)
    }

    fn option(&mut self, key: &str, conf: &mut PytorchConf) -> Result<(), ConfError> {
        let large_segment_mb = conf.large_segment_bytes / MIB;
        match key {
            LARGE_SEGMENT => {
                self.value(key)?;
            }
            "max_split_size_mb" => conf.max_split_bytes = self.megabytes(key, large_segment_mb)? * MIB,
            "max_non_split_rounding_mb" => {
                conf.max_non_split_rounding_bytes = self.megabytes(key, large_segment_mb)? * MIB;
            }
            "expandable_segments" => conf.expandable_segments = self.boolean(key)?,
            "roundup_power2_divisions" => conf.divisions = self.divisions(key)?,
            "garbage_collection_threshold" => {
                conf.garbage_collection_threshold =
                    self.part(key, "(0.0, 1.0)", |value| value > 0.0 && value < 1.0)?;
            }
            "per_process_memory_fraction" => {
                conf.memory_fraction = self.part(key, "[0.0, 1.0]", |value| (0.0..=1.0).contains(&value))?;
            }
            "backend" => match self.value(key)? {
                "native" => {}
                "cudaMallocAsync" => return Err(ConfError::OtherBackend),
                other => return Err(ConfError::UnknownBackend(other.to_owned())),
            },
            // Of no effect on the memory of the device: locks, graph capture, and the pinned memory of the host.
            "release_lock_on_cudamalloc"
            | "release_lock_on_hipmalloc"
            | "graph_capture_record_stream_reuse"
            | "pinned_use_cuda_host_register"
            | "pinned_use_hip_host_register"
            | "pinned_use_background_threads" => {
                self.boolean(key)?;
            }
            "pinned_num_register_threads" => {
                let value = self.power_of_two(key)?;
                if value > MAX_REGISTER_THREADS {
                    let maximum = MAX_REGISTER_THREADS;
                    return Err(ConfError::TooLarge { key: key.to_owned(), maximum, value });
                }
            }
            "pinned_reserve_segment_size_mb" => {
                self.megabytes(key, 1)?;
            }
            _ => return Err(ConfError::UnknownKey(key.to_owned())),
        }
        Ok(())
    }

    /// The one token after the colon.
    fn value(&mut self, key: &str) -> Result<&'a str, ConfError> {
        self.separator(key, ":", "`:`")?;
        self.word(key)
    }

    fn separator(&mut self, key: &str, wanted: &str, expected: &'static str) -> Result<(), ConfError> {
        match self.next() {
            Some(found) if found == wanted => Ok(()),
            Some(found) => Err(unexpected(key, expected, found)),
            None => Err(ConfError::Ended { key: key.to_owned(), expected }),
        }
    }

    fn word(&mut self, key: &str) -> Result<&'a str, ConfError> {
        let expected = "a value";
        self.next().ok_or_else(|| ConfError::Ended { key: key.to_owned(), expected })
    }

    fn boolean(&mut self, key: &str) -> Result<bool, ConfError> {
        match self.value(key)? {
            "True" => Ok(true),
            "False" => Ok(false),
            found => Err(ConfError::NotBoolean { key: key.to_owned(), found: found.to_owned() }),
        }
    }

    /// A number of MiB, cut off where its bytes leave 64 bits.
    fn megabytes(&mut self, key: &str, minimum: u64) -> Result<u64, ConfError> {
        let value = number(key, self.value(key)?)?;
        if value < minimum {
            return Err(ConfError::TooSmall { key: key.to_owned(), minimum, value });
        }
        Ok(value.min(u64::MAX / MIB))
    }

    fn part(
        &mut self,
        key: &str,
        interval: &'static str,
        holds: impl Fn(f64) -> bool,
    ) -> Result<f64, ConfError> {
        let found = self.value(key)?;
        let not_number = |_| ConfError::NotNumber { key: key.to_owned(), found: found.to_owned() };
        let value: f64 = found.parse().map_err(not_number)?;
        if holds(value) {
            Ok(value)
        } else {
            Err(ConfError::OutOfInterval { key: key.to_owned(), interval, value })
        }
    }

    fn power_of_two(&mut self, key: &str) -> Result<u64, ConfError> {
        power_of_two(key, number(key, self.value(key)?)?)
    }

    /// One number for all sizes, or a list of `MiB:number`, the last of them perhaps `>:number`.
    fn divisions(&mut self, key: &str) -> Result<Divisions, ConfError> {
        let first = self.value(key)?;
        if first != "[" {
            return Ok(Divisions::all(power_of_two(key, number(key, first)?)?));
        }
        let mut divisions = Divisions::default();
        let mut last = None;
        loop {
            let boundary = self.word(key)?;
            if boundary == "]" {
                return Ok(divisions);
            }
            self.separator(key, ":", "`:`")?;
            let value = number(key, self.word(key)?)?;
            let value = if value == 0 { 0 } else { power_of_two(key, value)? };
            if boundary == ">" {
                divisions.set_above(last, value);
            } else {
                let interval = Divisions::interval_of_mb(power_of_two(key, number(key, boundary)?)?);
                if last.is_none() {
                    divisions.set_below(interval, value);
                }
                divisions.set(interval, value);
                last = Some(interval);
            }
            if self.peek() != Some("]") {
                self.separator(key, ",", "`,` or `]`")?;
            }
        }
    }
}

fn number(key: &str, word: &str) -> Result<u64, ConfError> {
    word.parse().map_err(|_| ConfError::NotNumber { key: key.to_owned(), found: word.to_owned() })
}

fn power_of_two(key: &str, value: u64) -> Result<u64, ConfError> {
    if value.is_power_of_two() {
        Ok(value)
    } else {
        Err(ConfError::NotPowerOfTwo { key: key.to_owned(), value })
    }
}
