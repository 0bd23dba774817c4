//! Random programs.
//!
//! Main types: [`Program`], [`Operation`]. Neighbours: `run` does them.

use core::fmt;

use concertina::{Config, CrossStream, Policy, StaleRule};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Streams at a time.
pub(crate) const STREAMS: usize = 4;

/// What a program does. Blocks are named by a number that stands for one of those that live then.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// A block of so many bytes, filled on its stream.
    Allocate {
        bytes: u64,
        stream: usize,
    },
    /// Checked on its stream, and freed.
    Free {
        block: usize,
    },
    /// Checked on its stream.
    Check {
        block: usize,
    },
    /// Filled anew on its stream.
    Fill {
        block: usize,
    },
    /// Used on another stream, which waits for the last write.
    Foreign {
        block: usize,
        stream: usize,
        writes: bool,
        end: End,
    },
    /// One stream waits for another, and the allocator is told.
    Wait {
        stream: usize,
        on: usize,
    },
    /// The host waits for a stream, or for the device.
    Synchronize {
        stream: Option<usize>,
    },
    Trim,
    /// The stream is given up, and a new one takes its place. Its blocks live on.
    Retire {
        stream: usize,
    },
}

/// How a use on another stream ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// The allocator is told of it.
    Recorded,
    /// The block's own stream waits for it.
    Joined,
}

#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) config: Config,
    pub(crate) operations: Vec<Operation>,
    seed: u64,
}

impl Program {
    /// The program that this seed stands for.
    pub(crate) fn random(seed: u64, operations: usize) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let policy = [Policy::Lean, Policy::Balanced][random.random_range(0..2)];
        let crossing =
            [CrossStream::DeviceWait, CrossStream::DeviceWait, CrossStream::Completed, CrossStream::Never];
        let crossing = crossing[random.random_range(0..4)];
        let stale = [StaleRule::Keep, StaleRule::Keep, StaleRule::Eager][random.random_range(0..3)];
        let config = Config::builder().policy(policy).cross_stream(crossing).stale(stale).build();
        let operations = (0..operations).map(|_| operation(&mut random)).collect();
        Self { config, operations, seed }
    }
}

fn operation(random: &mut ChaCha8Rng) -> Operation {
    let (block, stream) = (random.random_range(0..usize::MAX), random.random_range(0..STREAMS));
    match random.random_range(0..100) {
        0..36 => Operation::Allocate { bytes: size(random), stream },
        36..66 => Operation::Free { block },
        66..74 => Operation::Check { block },
        74..81 => Operation::Fill { block },
        81..93 => {
            let end = if random.random() { End::Recorded } else { End::Joined };
            Operation::Foreign { block, stream, writes: random.random(), end }
        }
        93..96 => Operation::Wait { stream, on: random.random_range(0..STREAMS) },
        96..97 => Operation::Synchronize { stream: random.random::<bool>().then_some(stream) },
        97..99 => Operation::Trim,
        _ => Operation::Retire { stream },
    }
}

/// Of every order of magnitude, so that bins, shared pages and runs of pages come together.
fn size(random: &mut ChaCha8Rng) -> u64 {
    let largest: u64 = [1 << 10, 4 << 10, 32 << 10, 128 << 10, 512 << 10, 3 << 20][random.random_range(0..6)];
    random.random_range(1..=largest)
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, {:?}", self.seed, self.config)?;
        self.operations.iter().enumerate().try_for_each(|(at, operation)| writeln!(f, "{at}: {operation:?}"))
    }
}
