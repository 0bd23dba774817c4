//! One experiment of a grid.
//!
//! Main types: [`Point`], [`Timing`]. Neighbours: `plan` makes them, `run` runs them, `results` writes them down.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// When events complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timing {
    /// After so many further operations.
    EventLag(u64),
    /// With kernels of this seed, by the virtual clock.
    Work(u64),
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EventLag(lag) => write!(f, "lag {lag}"),
            Self::Work(seed) => write!(f, "work {seed}"),
        }
    }
}

/// What is varied, in the words of the description: these are the keys of rows and columns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Point {
    /// The trace's name.
    pub(crate) trace: String,
    /// The allocator with its options.
    pub(crate) allocator: String,
    /// Its policy, or `-`.
    pub(crate) policy: String,
    /// Memory of the device: a size, times the live peak, or `min`.
    pub(crate) capacity: String,
    /// The smallest mappable size.
    pub(crate) granularity: String,
    /// When events complete.
    pub(crate) timing: String,
    /// The cost table.
    pub(crate) cost_table: String,
    /// Most mappings at once, or `-`.
    pub(crate) max_mappings: String,
}

impl Point {
    /// Its keys, in the order of the grid.
    pub(crate) const KEYS: [&str; 8] =
        ["trace", "allocator", "policy", "capacity", "granularity", "timing", "cost_table", "max_mappings"];

    /// Its values, in the same order.
    pub(crate) fn values(&self) -> [&str; 8] {
        [
            &self.trace,
            &self.allocator,
            &self.policy,
            &self.capacity,
            &self.granularity,
            &self.timing,
            &self.cost_table,
            &self.max_mappings,
        ]
    }

    /// The value of a key, if it has it.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        let place = Self::KEYS.iter().position(|known| *known == key)?;
        Some(self.values()[place])
    }

    /// A name that no other point has, and no point of another sweep unless it is the same experiment: on the same bytes
    /// of a trace and of a cost table, by the same version of this tool.
    pub(crate) fn id(&self, trace_content: &[u8], cost_table_content: &str) -> String {
        let mut hash = Sha256::new();
        let mut add = |part: &[u8]| {
            // With its length, so that no two lists of parts have one sum.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        };
        add(env!("CARGO_PKG_VERSION").as_bytes());
        self.values().iter().for_each(|value| add(value.as_bytes()));
        add(trace_content);
        add(cost_table_content.as_bytes());
        let sum = hash.finalize();
        sum.iter().take(10).map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.values().into_iter().filter(|value| *value != "-");
        f.write_str(&shown.collect::<Vec<_>>().join(", "))
    }
}
