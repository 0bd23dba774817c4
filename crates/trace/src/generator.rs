//! Traces made by rule and seed, for the question at hand and for readers who want to follow one by hand.
//!
//! Main types: [`Generator`], [`PublicCase`], [`GeneratorOptions`], [`GeneratorError`]. Neighbours: each kind has its file below;
//! `writer` stores what they make, `loaded` replays it.

mod builder;
mod case;
mod draw;
mod examples;
mod holes;
mod nlp;
mod random;

use std::fmt;
use std::str::FromStr;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::reader::Trace;
pub use case::PublicCase;

/// A kind of made trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Generator {
    /// 100, 200 and 300 MiB; the middle one is freed; then 250 MiB.
    Middle,
    /// 4 GiB and eight of 512 MiB; the 4 GiB are freed; 3.5 GiB; every other 512 MiB is freed; then 2 GiB.
    BigThenAlternate,
    /// Holes of 50, 30 and 20 MiB between live blocks; then 80 MiB.
    ThreeHoles,
    /// Training steps of an encoder-like model, each with its own batch and sequence length.
    NlpDynamic,
    /// Hundreds of holes of at most 30 MiB between live blocks, then 512 MiB; then the pattern again.
    SmallHoles,
    /// Log-uniform sizes, exponential lifetimes.
    Random,
    /// What went wrong for users of another allocator.
    Case(PublicCase),
}

/// What can be chosen of a made trace. The same choice gives the same trace, on every machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GeneratorOptions {
    /// Seed of the random numbers. The three examples and the public cases use none.
    pub seed: u64,
    /// Length in [`Generator::length_unit`]; none for [`Generator::default_length`].
    pub length: Option<u64>,
}

/// Why a trace can't be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeneratorError {
    /// No generator has this name.
    #[error("unknown generator {found:?}: expected one of {}", Names)]
    UnknownName {
        /// The name.
        found: String,
    },
    /// A length for a trace that has only one.
    #[error("{generator} has a fixed length: a length of {length} can't be chosen")]
    FixedLength {
        /// The generator.
        generator: Generator,
        /// What was asked.
        length: u64,
    },
    /// A length of 0, or one that would not fit into memory.
    #[error("{length} {unit} for {generator}: expected 1 to {most}")]
    LengthOutOfRange {
        /// The generator.
        generator: Generator,
        /// What was asked.
        length: u64,
        /// What the length counts.
        unit: &'static str,
        /// The most that can be asked.
        most: u64,
    },
}

/// All names, for an error.
struct Names;

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, generator) in Generator::ALL.iter().enumerate() {
            write!(f, "{}{generator}", if at == 0 { "" } else { ", " })?;
        }
        for (at, case) in PublicCase::ALL.iter().enumerate() {
            write!(f, "{}{case}", if at == 0 { ", or a public case: " } else { ", " })?;
        }
        Ok(())
    }
}

impl Generator {
    /// Every kind but the public cases, of which [`PublicCase::ALL`] has the list.
    pub const ALL: [Self; 6] = [
        Self::Middle,
        Self::BigThenAlternate,
        Self::ThreeHoles,
        Self::NlpDynamic,
        Self::SmallHoles,
        Self::Random,
    ];

    /// The name on a command line, and in the header of the trace.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Middle => "middle",
            Self::BigThenAlternate => "big-then-alternate",
            Self::ThreeHoles => "three-holes",
            Self::NlpDynamic => "nlp-dynamic",
            Self::SmallHoles => "small-holes",
            Self::Random => "random",
            Self::Case(case) => case.name(),
        }
    }

    /// What happens in the trace, in one line.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Middle => "100, 200 and 300 MiB; free the middle one; 250 MiB",
            Self::BigThenAlternate => {
                "4 GiB and eight of 512 MiB; free the 4 GiB; 3.5 GiB; free every other 512 MiB; 2 GiB"
            }
            Self::ThreeHoles => "holes of 50, 30 and 20 MiB between live blocks; then 80 MiB",
            Self::NlpDynamic => "training of an 8-layer encoder, each step with its own batch and length",
            Self::SmallHoles => "hundreds of holes of at most 30 MiB, then 512 MiB; then the pattern again",
            Self::Random => "log-uniform sizes, exponential lifetimes, one block of fifty long-lived",
            Self::Case(case) => case.description(),
        }
    }

    /// What the length of the trace counts; none where it is fixed.
    pub const fn length_unit(self) -> Option<&'static str> {
        match self {
            Self::Middle | Self::BigThenAlternate | Self::ThreeHoles | Self::Case(_) => None,
            Self::NlpDynamic => Some("steps"),
            Self::SmallHoles => Some("holes"),
            Self::Random => Some("events"),
        }
    }

    /// The length if none is chosen; 0 where it is fixed.
    pub const fn default_length(self) -> u64 {
        match self {
            Self::Middle | Self::BigThenAlternate | Self::ThreeHoles | Self::Case(_) => 0,
            Self::NlpDynamic => 1_500,
            Self::SmallHoles => 320,
            Self::Random => 200_000,
        }
    }

    /// The longest: about a hundred million events, some gigabytes in memory.
    const fn longest(self) -> u64 {
        match self {
            Self::Middle | Self::BigThenAlternate | Self::ThreeHoles | Self::Case(_) => 0,
            Self::NlpDynamic => 500_000,
            Self::SmallHoles => 10_000_000,
            Self::Random => 100_000_000,
        }
    }

    /// Makes the trace, whole in memory, with a header that says how.
    ///
    /// # Errors
    /// [`GeneratorError::FixedLength`] and [`GeneratorError::LengthOutOfRange`].
    pub fn generate(self, options: &GeneratorOptions) -> Result<Trace, GeneratorError> {
        let length = self.length(options)?;
        let seed = options.seed;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        Ok(match self {
            Self::Middle => examples::middle(seed),
            Self::BigThenAlternate => examples::big_then_alternate(seed),
            Self::ThreeHoles => examples::three_holes(seed),
            Self::NlpDynamic => nlp::nlp_dynamic(&mut rng, seed, length),
            Self::SmallHoles => holes::small_holes(&mut rng, seed, length),
            Self::Random => random::random(&mut rng, seed, length),
            Self::Case(case) => case.generate(),
        })
    }

    fn length(self, options: &GeneratorOptions) -> Result<u64, GeneratorError> {
        match (self.length_unit(), options.length) {
            (None, Some(length)) => Err(GeneratorError::FixedLength { generator: self, length }),
            (Some(unit), Some(length)) if length == 0 || length > self.longest() => {
                let most = self.longest();
                Err(GeneratorError::LengthOutOfRange { generator: self, length, unit, most })
            }
            (_, length) => Ok(length.unwrap_or(self.default_length())),
        }
    }
}

impl fmt::Display for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Generator {
    type Err = GeneratorError;

    fn from_str(name: &str) -> Result<Self, GeneratorError> {
        Self::ALL
            .into_iter()
            .chain(PublicCase::ALL.iter().copied().map(Self::Case))
            .find(|generator| generator.name() == name)
            .ok_or_else(|| GeneratorError::UnknownName { found: name.to_owned() })
    }
}

#[cfg(test)]
mod tests;
