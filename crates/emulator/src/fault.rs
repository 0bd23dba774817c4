//! Calls that fail because the test said so.
//!
//! Main types: [`Fault`], [`CallFilter`]. Neighbours: `device` asks before each call; `Emulator::fail` adds one.

use concertina_vmm::{Call, DriverErrorKind};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Which calls a fault looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFilter {
    /// All of them.
    Every,
    /// Those that change reservations, frames or mappings ([`Call::is_memory_call`]).
    Memory,
    /// Those of one kind.
    Kind(Call),
}

impl CallFilter {
    /// Whether `call` is one of them.
    pub fn takes(self, call: Call) -> bool {
        match self {
            Self::Every => true,
            Self::Memory => call.is_memory_call(),
            Self::Kind(kind) => kind == call,
        }
    }
}

impl From<Call> for CallFilter {
    fn from(call: Call) -> Self {
        Self::Kind(call)
    }
}

/// Calls that are to fail, counted from the moment that the fault is given. Such a call changes nothing and breaks no
/// rule. One that fails with [`DriverErrorKind::Lost`] takes the device with it: every later call fails so too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The n-th of the calls fails, once. 1 is the next one (and so is 0).
    Once {
        /// Which calls count.
        calls: CallFilter,
        /// Which of them fails.
        nth: u64,
        /// How it fails.
        kind: DriverErrorKind,
    },
    /// The n-th of the calls and all after it fail, until the faults are cleared.
    From {
        /// Which calls count.
        calls: CallFilter,
        /// The first that fails.
        nth: u64,
        /// How they fail.
        kind: DriverErrorKind,
    },
    /// Each of the calls fails with this probability, drawn from ChaCha8 with this seed.
    Random {
        /// Which calls draw.
        calls: CallFilter,
        /// The probability, in millionths; 1,000,000 and more: always.
        parts_per_million: u32,
        /// The seed: the same one fails the same calls.
        seed: u64,
        /// How they fail.
        kind: DriverErrorKind,
    },
}

impl Fault {
    /// The n-th of the calls from now on fails, once; 1 is the next.
    pub fn once(calls: impl Into<CallFilter>, nth: u64, kind: DriverErrorKind) -> Self {
        Self::Once { calls: calls.into(), nth, kind }
    }

    /// The n-th of the calls from now on and all after it fail; 1 is the next.
    pub fn from_nth(calls: impl Into<CallFilter>, nth: u64, kind: DriverErrorKind) -> Self {
        Self::From { calls: calls.into(), nth, kind }
    }

    /// Each of the calls fails with a probability of so many millionths.
    pub fn random(
        calls: impl Into<CallFilter>,
        parts_per_million: u32,
        seed: u64,
        kind: DriverErrorKind,
    ) -> Self {
        Self::Random { calls: calls.into(), parts_per_million, seed, kind }
    }
}

#[derive(Debug)]
struct Armed {
    fault: Fault,
    /// Calls seen since it was given.
    seen: u64,
    rng: ChaCha8Rng,
}

impl Armed {
    /// Sees a call that another fault has failed already.
    fn count(&mut self, call: Call) {
        let (Fault::Once { calls, .. } | Fault::From { calls, .. } | Fault::Random { calls, .. }) =
            self.fault;
        self.seen += u64::from(calls.takes(call));
    }

    /// How `call` fails, if it does, and whether the fault is used up by it.
    fn strike(&mut self, call: Call) -> Option<(DriverErrorKind, Spent)> {
        let (Fault::Once { calls, .. } | Fault::From { calls, .. } | Fault::Random { calls, .. }) =
            self.fault;
        if !calls.takes(call) {
            return None;
        }
        self.seen += 1;
        match self.fault {
            Fault::Once { nth, kind, .. } => (self.seen >= nth).then_some((kind, Spent::Yes)),
            Fault::From { nth, kind, .. } => (self.seen >= nth).then_some((kind, Spent::No)),
            Fault::Random { parts_per_million, kind, .. } => {
                (self.rng.random_range(0..1_000_000) < parts_per_million).then_some((kind, Spent::No))
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Spent {
    Yes,
    No,
}

/// The faults that are given and not used up.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    armed: Vec<Armed>,
}

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault) {
        let seed = if let Fault::Random { seed, .. } = fault { seed } else { 0 };
        self.armed.push(Armed { fault, seen: 0, rng: ChaCha8Rng::seed_from_u64(seed) });
    }

    pub(crate) fn clear(&mut self) {
        self.armed.clear();
    }

    /// How `call` is to fail, if it is. All faults count the call; the one given first decides.
    pub(crate) fn strike(&mut self, call: Call) -> Option<DriverErrorKind> {
        if self.armed.is_empty() {
            return None;
        }
        let mut struck = None;
        self.armed.retain_mut(|armed| {
            if struck.is_some() {
                armed.count(call);
                return true;
            }
            let Some((kind, spent)) = armed.strike(call) else { return true };
            struck = Some(kind);
            spent == Spent::No
        });
        struck
    }
}
