//! What a thread of a program may do, and how that is drawn.
//!
//! Main types: [`Op`], [`Size`], [`Likings`]. Neighbours: `actor` does it.

use concertina::{CrossStream, DriverErrorKind};
use concertina_emulator::{CallFilter, Fault};
use concertina_vmm::Call;

use crate::dice::Dice;
use crate::setup::Setup;

/// Streams that a program has at any time, for all its threads.
pub(crate) const STREAMS: usize = 5;
/// Events that each thread has.
pub(crate) const EVENTS: usize = 2;

/// A number of bytes: so many pages and so many bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) pages: u64,
    pub(crate) bytes: u64,
}

impl Size {
    /// In bytes.
    pub(crate) fn of(self, page_bytes: u64) -> u64 {
        self.pages * page_bytes + self.bytes
    }
}

/// One step. `nth` counts the thread's blocks, or its growables, oldest first, modulo their number: so a program stays one
/// whatever steps are left out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// Allocates, and queues a kernel that writes the block.
    Allocate {
        size: Size,
        alignment: Size,
        stream: usize,
    },
    /// Queues kernels that read the block on all streams that use it, and frees it.
    Free {
        nth: usize,
    },
    /// The same without a handle: by the block's name.
    FreeRaw {
        nth: usize,
    },
    /// Frees all blocks of the thread.
    FreeAll,
    /// Leaves the block to whichever thread comes.
    Pass {
        nth: usize,
    },
    /// Frees a block that some thread has left.
    FreePassed,
    /// A kernel on another stream reads the block, after what was queued on its own, and the allocator is told.
    ReadElsewhere {
        nth: usize,
        stream: usize,
    },
    /// A kernel writes the block on its own stream, after all that read it.
    Rewrite {
        nth: usize,
    },
    /// The program makes a stream wait for another on the device; perhaps it says so.
    Wait {
        waiter: usize,
        on: usize,
        told: bool,
    },
    /// Records one of the thread's events.
    Record {
        event: usize,
        stream: usize,
    },
    /// A stream waits for one of the thread's events, whenever that was recorded.
    Await {
        event: usize,
        stream: usize,
    },
    /// The host looks whether one of the thread's events is done.
    Query {
        event: usize,
    },
    /// The program's host waits for a stream; perhaps it says so.
    Synchronize {
        stream: usize,
        told: bool,
    },
    /// The program's host waits for the device; perhaps it says so.
    SynchronizeDevice {
        told: bool,
    },
    /// Two kernels, each of which waits until the other has begun, and an allocation on the second's stream between them.
    /// Only where the allocator is not to make these streams, or the host, wait for one another.
    Collective {
        first: usize,
        second: usize,
        size: Size,
    },
    Trim,
    TrimTo {
        pages: u64,
    },
    TrimWait,
    UnmapStaleTo {
        mappings: u64,
    },
    /// The program queues so much other work.
    Advance {
        operations: u64,
    },
    /// The device catches up with a stream.
    Complete {
        stream: usize,
    },
    CompleteAll,
    /// The program drops a stream and makes another in its place.
    Replace {
        stream: usize,
        rule: Option<CrossStream>,
    },
    /// Reserves a growable.
    Reserve {
        max: Size,
        stream: usize,
    },
    /// Grows it by so many bytes, and queues a kernel that writes them.
    Grow {
        nth: usize,
        by: Size,
    },
    /// Shrinks it to so many thousandths, after kernels on all streams that use it.
    Shrink {
        nth: usize,
        thousandths: u64,
    },
    /// Another stream uses it as well, from now on.
    Share {
        nth: usize,
        stream: usize,
    },
    /// Drops it, after kernels on all streams that use it.
    Discard {
        nth: usize,
    },
    /// Driver calls are to fail from now on.
    Fail {
        fault: Fault,
    },
    /// And no more.
    Heal,
}

/// What failures are drawn from: all calls of an allocator.
pub(crate) const CALLS: [Call; 15] = [
    Call::Reserve,
    Call::Unreserve,
    Call::Create,
    Call::Release,
    Call::Map,
    Call::Unmap,
    Call::SetAccess,
    Call::MemoryInfo,
    Call::EventCreate,
    Call::EventRecord,
    Call::EventQuery,
    Call::EventSynchronize,
    Call::StreamWait,
    Call::Malloc,
    Call::Free,
];

fn fault(dice: &mut Dice) -> Fault {
    use DriverErrorKind::{Invalid, NotReady, NotSupported, OutOfMemory};
    let kind = dice.one_of(&[OutOfMemory, NotReady, NotSupported, Invalid]);
    let calls = match dice.below(8) {
        0 => CallFilter::Every,
        1 => CallFilter::Memory,
        _ => CallFilter::Kind(dice.one_of(&CALLS)),
    };
    match dice.below(3) {
        0 => Fault::once(calls, dice.between(1, 8), kind),
        1 => Fault::from_nth(calls, dice.between(1, 4), kind),
        _ => Fault::random(calls, dice.between(20_000, 500_000) as u32, dice.below(u64::MAX), kind),
    }
}

fn size(device: u64, dice: &mut Dice) -> Size {
    match dice.below(12) {
        0..3 => Size { pages: 0, bytes: dice.between(1, 2 << 10) },
        3..6 => Size { pages: 0, bytes: 512 * dice.between(1, 2 << 10) },
        6..8 => Size { pages: dice.between(1, device / 2), bytes: 0 },
        8..11 => Size { pages: dice.between(0, device / 4), bytes: 512 * dice.between(1, 2 << 10) },
        _ => Size { pages: dice.between(1, device + 1), bytes: dice.between(1, 1 << 10) },
    }
}

fn alignment(dice: &mut Dice) -> Size {
    match dice.below(8) {
        0 => Size { pages: 0, bytes: dice.one_of(&[1, 256, 4096, 64 << 10]) },
        1 => Size { pages: dice.one_of(&[1, 2, 4]), bytes: 0 },
        _ => Size { pages: 0, bytes: 512 },
    }
}

type Draw = fn(&Setup, &mut Dice) -> Op;

fn stream(dice: &mut Dice) -> usize {
    dice.index(STREAMS)
}

fn event(dice: &mut Dice) -> usize {
    dice.index(EVENTS)
}

fn nth(dice: &mut Dice) -> usize {
    dice.index(1 << 16)
}

/// Each kind of step with its weight.
const KINDS: &[(u64, Draw)] = &[
    (280, |setup, dice| Op::Allocate {
        size: size(setup.device, dice),
        alignment: alignment(dice),
        stream: stream(dice),
    }),
    (190, |_, dice| Op::Free { nth: nth(dice) }),
    (30, |_, dice| Op::FreeRaw { nth: nth(dice) }),
    (10, |_, _| Op::FreeAll),
    (30, |_, dice| Op::Pass { nth: nth(dice) }),
    (35, |_, _| Op::FreePassed),
    (80, |_, dice| Op::ReadElsewhere { nth: nth(dice), stream: stream(dice) }),
    (20, |_, dice| Op::Rewrite { nth: nth(dice) }),
    (20, |_, dice| Op::Wait { waiter: stream(dice), on: stream(dice), told: dice.once_in(2) }),
    (10, |_, dice| Op::Record { event: event(dice), stream: stream(dice) }),
    (10, |_, dice| Op::Await { event: event(dice), stream: stream(dice) }),
    (5, |_, dice| Op::Query { event: event(dice) }),
    (8, |_, dice| Op::Synchronize { stream: stream(dice), told: dice.once_in(2) }),
    (4, |_, dice| Op::SynchronizeDevice { told: dice.once_in(2) }),
    (10, |setup, dice| Op::Collective {
        first: stream(dice),
        second: stream(dice),
        size: size(setup.device, dice),
    }),
    (8, |_, _| Op::Trim),
    (6, |setup, dice| Op::TrimTo { pages: dice.below(setup.device) }),
    (3, |_, _| Op::TrimWait),
    (8, |setup, dice| Op::UnmapStaleTo { mappings: dice.below(2 * setup.device) }),
    (20, |_, dice| Op::Advance { operations: dice.one_of(&[1, 5, 50, 500]) }),
    (20, |_, dice| Op::Complete { stream: stream(dice) }),
    (3, |_, _| Op::CompleteAll),
    (18, |setup, dice| Op::Replace {
        stream: stream(dice),
        rule: setup.own_rules.then(|| rule(dice)).flatten(),
    }),
    (15, |setup, dice| Op::Reserve {
        max: Size { pages: dice.between(0, 2 * setup.device), bytes: dice.between(1, 100_000) },
        stream: stream(dice),
    }),
    (60, |setup, dice| Op::Grow { nth: nth(dice), by: growth(setup.device, dice) }),
    (40, |_, dice| Op::Shrink {
        nth: nth(dice),
        thousandths: if dice.once_in(4) { 0 } else { dice.below(1000) },
    }),
    (15, |_, dice| Op::Share { nth: nth(dice), stream: stream(dice) }),
    (7, |_, dice| Op::Discard { nth: nth(dice) }),
    (12, |_, dice| Op::Fail { fault: fault(dice) }),
    (36, |_, _| Op::Heal),
];

fn growth(device: u64, dice: &mut Dice) -> Size {
    match dice.below(3) {
        0 => Size { pages: 0, bytes: dice.between(1, 3000) },
        1 => Size { pages: dice.between(0, device / 4), bytes: dice.between(1, 100_000) },
        _ => Size { pages: dice.between(1, device / 2), bytes: 0 },
    }
}

/// How often a program takes each kind of step. Every program has its own likings: some kinds it does not know, and some
/// are most of it. What only shows where another kind is absent is found so (Groce and others, "Swarm Testing", 2012).
pub(crate) struct Likings(Vec<u64>);

impl Likings {
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let weight = |&(weight, _): &(u64, Draw)| weight * dice.one_of(&[0, 1, 1, 1, 1, 4]);
        let mut weights: Vec<u64> = KINDS.iter().map(weight).collect();
        // All programs allocate, free and come to their senses.
        for kind in [0, 1, KINDS.len() - 1] {
            weights[kind] = weights[kind].max(KINDS[kind].0);
        }
        Self(weights)
    }

    pub(crate) fn step(&self, setup: &Setup, dice: &mut Dice) -> Op {
        let mut at = dice.below(self.0.iter().sum());
        for (weight, (_, draw)) in self.0.iter().zip(KINDS) {
            if at < *weight {
                return draw(setup, dice);
            }
            at -= weight;
        }
        Op::Heal
    }
}

/// A stream's own rule, or none.
fn rule(dice: &mut Dice) -> Option<CrossStream> {
    use CrossStream::{Completed, DeviceWait, Never};
    dice.one_of(&[None, Some(DeviceWait), Some(Completed), Some(Completed), Some(Never)])
}
