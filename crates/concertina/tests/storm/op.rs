//! What a thread of a program may do, and how that is drawn.
//!
//! Main types: [`Op`], [`Size`]. Neighbours: `actor` does it.

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
    Allocate { size: Size, alignment: Size, stream: usize },
    /// Queues kernels that read the block on all streams that use it, and frees it.
    Free { nth: usize },
    /// The same without a handle: by the block's name.
    FreeRaw { nth: usize },
    /// Frees all blocks of the thread.
    FreeAll,
    /// Leaves the block to whichever thread comes.
    Pass { nth: usize },
    /// Frees a block that some thread has left.
    FreePassed,
    /// A kernel on another stream reads the block, after what was queued on its own, and the allocator is told.
    ReadElsewhere { nth: usize, stream: usize },
    /// A kernel writes the block on its own stream, after all that read it.
    Rewrite { nth: usize },
    /// The program makes a stream wait for another on the device; perhaps it says so.
    Wait { waiter: usize, on: usize, told: bool },
    /// Records one of the thread's events.
    Record { event: usize, stream: usize },
    /// A stream waits for one of the thread's events, whenever that was recorded.
    Await { event: usize, stream: usize },
    /// The host looks whether one of the thread's events is done.
    Query { event: usize },
    /// The program's host waits for a stream; perhaps it says so.
    Synchronize { stream: usize, told: bool },
    /// The program's host waits for the device; perhaps it says so.
    SynchronizeDevice { told: bool },
    /// Two kernels, each of which waits until the other has begun, and an allocation on the second's stream between them.
    /// Only where the allocator is not to make these streams, or the host, wait for one another.
    Collective { first: usize, second: usize, size: Size },
    Trim,
    TrimTo { pages: u64 },
    TrimWait,
    UnmapStaleTo { mappings: u64 },
    /// The program queues so much other work.
    Advance { operations: u64 },
    /// The device catches up with a stream.
    Complete { stream: usize },
    CompleteAll,
    /// The program drops a stream and makes another in its place.
    Replace { stream: usize, rule: Option<CrossStream> },
    /// Reserves a growable.
    Reserve { max: Size, stream: usize },
    /// Grows it by so many bytes, and queues a kernel that writes them.
    Grow { nth: usize, by: Size },
    /// Shrinks it to so many thousandths, after kernels on all streams that use it.
    Shrink { nth: usize, thousandths: u64 },
    /// Another stream uses it as well, from now on.
    Share { nth: usize, stream: usize },
    /// Drops it, after kernels on all streams that use it.
    Discard { nth: usize },
    /// Driver calls are to fail from now on.
    Fail { fault: Fault },
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

impl Op {
    pub(crate) fn draw(setup: &Setup, dice: &mut Dice) -> Self {
        let device = setup.device;
        let stream = dice.index(STREAMS);
        let other = dice.index(STREAMS);
        let nth = dice.index(1 << 16);
        let event = dice.index(EVENTS);
        match dice.below(1000) {
            0..280 => Self::Allocate { size: size(device, dice), alignment: alignment(dice), stream },
            280..470 => Self::Free { nth },
            470..500 => Self::FreeRaw { nth },
            500..510 => Self::FreeAll,
            510..540 => Self::Pass { nth },
            540..575 => Self::FreePassed,
            575..655 => Self::ReadElsewhere { nth, stream },
            655..675 => Self::Rewrite { nth },
            675..695 => Self::Wait { waiter: stream, on: other, told: dice.once_in(2) },
            695..705 => Self::Record { event, stream },
            705..715 => Self::Await { event, stream },
            715..720 => Self::Query { event },
            720..728 => Self::Synchronize { stream, told: dice.once_in(2) },
            728..732 => Self::SynchronizeDevice { told: dice.once_in(2) },
            732..740 => Self::Collective { first: stream, second: other, size: size(device, dice) },
            740..748 => Self::Trim,
            748..754 => Self::TrimTo { pages: dice.below(device) },
            754..757 => Self::TrimWait,
            757..765 => Self::UnmapStaleTo { mappings: dice.below(2 * device) },
            765..785 => Self::Advance { operations: dice.one_of(&[1, 5, 50, 500]) },
            785..805 => Self::Complete { stream },
            805..808 => Self::CompleteAll,
            808..826 => Self::Replace { stream, rule: setup.own_rules.then(|| rule(dice)).flatten() },
            826..836 => {
                let pages = dice.between(0, 2 * device);
                Self::Reserve { max: Size { pages, bytes: dice.between(1, 100_000) }, stream }
            }
            836..890 => {
                let by = match dice.below(3) {
                    0 => Size { pages: 0, bytes: dice.between(1, 3000) },
                    1 => Size { pages: dice.between(0, device / 4), bytes: dice.between(1, 100_000) },
                    _ => Size { pages: dice.between(1, device / 2), bytes: 0 },
                };
                Self::Grow { nth, by }
            }
            890..930 => {
                let thousandths = if dice.once_in(4) { 0 } else { dice.below(1000) };
                Self::Shrink { nth, thousandths }
            }
            930..945 => Self::Share { nth, stream },
            945..952 => Self::Discard { nth },
            952..964 => Self::Fail { fault: fault(dice) },
            964.. => Self::Heal,
        }
    }
}

/// A stream's own rule, or none.
fn rule(dice: &mut Dice) -> Option<CrossStream> {
    use CrossStream::{Completed, DeviceWait, Never};
    dice.one_of(&[None, Some(DeviceWait), Some(Completed), Some(Completed), Some(Never)])
}
