//! One part of a grid, for one of several jobs.
//!
//! Main types: [`Shard`]. Neighbours: `run` runs the points that are in one.

use std::fmt;
use std::str::FromStr;

/// Part `number` of `of`, counted from 1. Points are dealt out in turn, so that no shard has all of one large trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    number: usize,
    of: usize,
}

/// A word that is no part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no shard; write 3/8 for the third of eight, counted from 1")]
pub(crate) struct ShardError(String);

impl Shard {
    /// The whole grid.
    pub(crate) const WHOLE: Self = Self { number: 1, of: 1 };

    /// Whether the point at this place of the grid, from 0, is in it.
    pub(crate) const fn has(self, place: usize) -> bool {
        place % self.of == self.number - 1
    }
}

impl FromStr for Shard {
    type Err = ShardError;

    fn from_str(word: &str) -> Result<Self, ShardError> {
        let parts =
            word.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match parts {
            Some((number, of)) if (1..=of).contains(&number) => Ok(Self { number, of }),
            _ => Err(ShardError(word.to_owned())),
        }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::Shard;

    #[test]
    fn shards_are_apart_and_make_the_whole() {
        for of in 1..9_usize {
            let shards: Vec<Shard> =
                (1..=of).map(|number| format!("{number}/{of}").parse().expect("a shard")).collect();
            for place in 0..40 {
                assert_eq!(shards.iter().filter(|shard| shard.has(place)).count(), 1, "{place} of {of}");
            }
            let sizes = shards.iter().map(|shard| (0..40).filter(|&place| shard.has(place)).count());
            assert!(sizes.clone().max().expect("one") - sizes.min().expect("one") <= 1, "{of} shards");
        }
        assert!((0..5).all(|place| Shard::WHOLE.has(place)));
    }

    #[test]
    fn what_is_no_shard_is_quoted() {
        for word in ["0/0", "0/3", "4/3", "1", "a/b", "1/2/3", "-1/2", "", "99999999999999999999/2"] {
            let said = word.parse::<Shard>().expect_err(word).to_string();
            assert!(said.starts_with(&format!("`{word}` is no shard")), "{said}");
        }
    }
}
