//! The race detector: finds what could go wrong, whenever things happen to complete.
//!
//! Main types: [`Detector`], [`Spot`]. Neighbours: `device` tells it of everything that is queued, waited for and
//! unmapped; `clock` has the order, `history` the accesses of a frame, `blocks` the names, `race` the reports.
//!
//! What comes before what is told by vector clocks. A stream's clock is what its next item comes after: what it queued
//! itself, what it was made to wait for, and all that the host has seen done. A record takes the stream's clock; a wait on
//! the device joins it into another stream's; an event seen done, and a host that waited, join it into the host's. A kernel
//! that sends a signal passes on what came before it, to kernels that are queued after it and await it: what a kernel
//! awaits that is sent by one queued later orders nothing here.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use concertina_vmm::Address;
use smallvec::SmallVec;

use crate::backing::BackingId;
use crate::blocks::{Blocks, Standing};
use crate::clock::{Clock, Stamp};
use crate::history::{History, Touch};
use crate::race::{Race, TracedAccess};
use crate::slab::{Key, Slab};
use crate::work::{Access, BlockId, Work};

/// Most reports that are kept: a program that is wrong is wrong often.
const MOST_RACES: usize = 1000;
/// Accesses that are remembered before anything is looked through for the first time.
const FIRST_SWEEP: usize = 1024;

/// A run of bytes of one frame, as an access reaches it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub(crate) frame: Key,
    pub(crate) frame_bytes: u64,
    /// The mapping's slot; none in a malloc.
    pub(crate) mapping: Option<u32>,
    pub(crate) accessible: bool,
    pub(crate) offset: u64,
}

#[derive(Debug, Default)]
struct StreamOrder {
    clock: Clock,
    /// The host's version that was joined last.
    joined: u64,
}

/// An access that a history or a mapping may name.
#[derive(Clone, Debug)]
struct Told {
    kernel: Cow<'static, str>,
    stamp: Stamp,
    access: Access,
    block: Option<Arc<str>>,
}

impl Told {
    fn trace(&self) -> TracedAccess {
        TracedAccess {
            kernel: self.kernel.clone().into_owned(),
            stream: self.stamp.stream,
            number: self.stamp.number,
            kind: self.access.kind,
            block: self.block.as_deref().map(str::to_owned),
            address: self.access.address,
            bytes: self.access.bytes,
        }
    }
}

/// A conflict that was found, with all the bytes of it.
#[derive(Debug)]
struct Conflict {
    first: Touch,
    second: Touch,
    frame: Key,
    offset: u64,
    bytes: u64,
}

/// The last uses of a mapping that nothing orders among one another.
type Uses = SmallVec<[(Stamp, u32); 1]>;

#[derive(Debug)]
pub(crate) struct Detector {
    host: Clock,
    /// Counts the changes of `host`.
    version: u64,
    streams: Vec<StreamOrder>,
    /// By the event's slot: as recorded last.
    events: Vec<Clock>,
    /// By number: as sent.
    signals: Vec<Option<Clock>>,
    /// By the frame's slot.
    histories: Vec<History>,
    /// By the mapping's slot.
    uses: Vec<Uses>,
    told: Slab<Told>,
    sweep_at: usize,
    blocks: Blocks,
    races: Vec<Race>,
    /// Those of the access at hand.
    conflicts: Vec<Conflict>,
}

impl Detector {
    pub(crate) const fn new() -> Self {
        Self {
            host: Clock::NONE,
            version: 0,
            streams: Vec::new(),
            events: Vec::new(),
            signals: Vec::new(),
            histories: Vec::new(),
            uses: Vec::new(),
            told: Slab::new(),
            sweep_at: FIRST_SWEEP,
            blocks: Blocks::new(),
            races: Vec::new(),
            conflicts: Vec::new(),
        }
    }

    pub(crate) fn races(&self) -> &[Race] {
        &self.races
    }

    fn report(&mut self, race: Race) {
        if self.races.len() < MOST_RACES {
            self.races.push(race);
        }
    }

    // --- order ------------------------------------------------------------------------------------------------------

    /// What the stream's next item comes after.
    fn order(&mut self, stream: u32) -> &mut Clock {
        let index = stream as usize;
        if self.streams.len() <= index {
            self.streams.resize_with(index + 1, StreamOrder::default);
        }
        let order = &mut self.streams[index];
        if order.joined != self.version {
            order.clock.join(&self.host);
            order.joined = self.version;
        }
        &mut order.clock
    }

    pub(crate) fn record(&mut self, event: u32, stream: u32) {
        self.order(stream);
        let index = event as usize;
        if self.events.len() <= index {
            self.events.resize_with(index + 1, Clock::default);
        }
        self.events[index].clone_from(&self.streams[stream as usize].clock);
    }

    /// The stream waits for an event that was recorded.
    pub(crate) fn wait(&mut self, stream: u32, event: u32) {
        self.order(stream);
        self.streams[stream as usize].clock.join(&self.events[event as usize]);
    }

    /// The stream waits for all that another has queued.
    pub(crate) fn wait_for(&mut self, stream: u32, on: u32) {
        let on = self.order(on).clone();
        self.order(stream).join(&on);
    }

    /// The host has seen that an event that was recorded is done.
    pub(crate) fn saw_event(&mut self, event: u32) {
        self.host.join(&self.events[event as usize]);
        self.version += 1;
    }

    /// The host has seen that all is done that the stream has queued.
    pub(crate) fn saw_stream(&mut self, stream: u32) {
        self.order(stream);
        self.host.join(&self.streams[stream as usize].clock);
        self.version += 1;
    }

    /// The host has seen that everything is done.
    pub(crate) fn saw_all(&mut self) {
        self.streams.iter().for_each(|order| self.host.join(&order.clock));
        self.version += 1;
    }

    /// The host sends a signal.
    pub(crate) fn send(&mut self, signal: u32) {
        let host = self.host.clone();
        self.sent(signal, host);
    }

    fn sent(&mut self, signal: u32, clock: Clock) {
        let index = signal as usize;
        if self.signals.len() <= index {
            self.signals.resize(index + 1, None);
        }
        self.signals[index].get_or_insert(clock);
    }

    // --- accesses ---------------------------------------------------------------------------------------------------

    /// A kernel is queued. Its accesses are told next.
    pub(crate) fn begin(&mut self, stream: u32, work: &Work) -> Stamp {
        if self.told.len() >= self.sweep_at {
            self.sweep();
        }
        let clock = self.order(stream);
        if let Some(signal) = &work.sends {
            let clock = clock.clone();
            self.sent(signal.index, clock);
        }
        if let Some(signal) = &work.awaits
            && let Some(Some(sent)) = self.signals.get(signal.index as usize)
        {
            self.streams[stream as usize].clock.join(sent);
        }
        self.streams[stream as usize].clock.advance(stream)
    }

    /// An access of the kernel with this stamp. What it touches is told next.
    pub(crate) fn access(&mut self, work: &Work, stamp: Stamp, access: Access) -> u32 {
        let (block, standing) = self.blocks.of(&access);
        let block = block.map(|block| Arc::clone(&block.name));
        let told = Told { kernel: work.name.clone(), stamp, access, block };
        match standing {
            Standing::Right => {}
            Standing::Freed { on } => {
                self.report(Race::FreedBlock { access: told.trace(), freed_on: on });
            }
            Standing::Outside { start, end } => {
                let (address, bytes) = (Address::new(start), end - start);
                self.report(Race::OutsideBlock { access: told.trace(), address, bytes });
            }
        }
        self.told.insert(told).slot
    }

    /// An access finds nothing at an address.
    pub(crate) fn miss(&mut self, access: u32, address: u64) {
        let access = self.told.at(access).trace();
        self.report(Race::NotMapped { access, address: Address::new(address) });
    }

    /// An access touches `bytes` of a frame, by addresses from `address` on.
    pub(crate) fn touch(&mut self, access: u32, spot: Spot, address: u64, bytes: u64, use_: MappingUse) {
        let Told { stamp, access: Access { kind, .. }, .. } = *self.told.at(access);
        if !spot.accessible {
            let access = self.told.at(access).trace();
            self.report(Race::NoAccess { access, address: Address::new(address) });
            return;
        }
        let clock = &self.streams[stamp.stream as usize].clock;
        if let (Some(mapping), MappingUse::InFlight) = (spot.mapping, use_) {
            let mapping = mapping as usize;
            if self.uses.len() <= mapping {
                self.uses.resize_with(mapping + 1, Uses::new);
            }
            let uses = &mut self.uses[mapping];
            uses.retain(|(other, _)| !clock.covers(*other));
            uses.push((stamp, access));
        }
        let slot = spot.frame.slot as usize;
        while self.histories.len() <= slot {
            self.histories.push(History::new(0, 0));
        }
        let history = &mut self.histories[slot];
        if history.generation != spot.frame.generation || history.bytes() != spot.frame_bytes {
            *history = History::new(spot.frame.generation, spot.frame_bytes);
        }
        let me = Touch { stamp, access, base: address - spot.offset };
        let conflicts = &mut self.conflicts;
        let range = spot.offset..spot.offset + bytes;
        history.touch(range, kind, me, clock, &mut |other: Touch, bytes: Range<u64>| match conflicts
            .iter_mut()
            .find(|conflict| conflict.first.access == other.access)
        {
            Some(conflict) => conflict.bytes += bytes.end - bytes.start,
            None => conflicts.push(Conflict {
                first: other,
                second: me,
                frame: spot.frame,
                offset: bytes.start,
                bytes: bytes.end - bytes.start,
            }),
        });
    }

    /// All that the access touches was told.
    pub(crate) fn end_access(&mut self) {
        for conflict in std::mem::take(&mut self.conflicts) {
            let Conflict { first, second, frame, offset, bytes } = conflict;
            self.report(Race::Unordered {
                first: self.told.at(first.access).trace(),
                second: self.told.at(second.access).trace(),
                memory: BackingId(frame),
                offset_bytes: offset,
                first_address: Address::new(first.base.wrapping_add(offset)),
                second_address: Address::new(second.base.wrapping_add(offset)),
                bytes,
            });
        }
    }

    // --- mappings and blocks ----------------------------------------------------------------------------------------

    /// A mapping was removed, by an unmap of `bytes` from `address` on.
    pub(crate) fn unmap(&mut self, mapping: u32, address: u64, bytes: u64) {
        let Some(uses) = self.uses.get_mut(mapping as usize) else { return };
        let address = Address::new(address);
        for (stamp, access) in std::mem::take(uses) {
            if self.host.covers(stamp) {
                continue;
            }
            let race = Race::Unmapped { access: self.told.at(access).trace(), address, bytes };
            // Each page of the range may tell of the same access.
            if !self.races.iter().rev().take(16).any(|known| *known == race) {
                self.report(race);
            }
        }
    }

    /// A block was given to the program: a write of the new owner, at this point of the stream. Its id and the access.
    pub(crate) fn allocate(
        &mut self,
        name: Arc<str>,
        address: Address,
        bytes: u64,
        stream: u32,
    ) -> (BlockId, u32) {
        let block = BlockId(self.blocks.allocate(name, address.get(), bytes));
        let allocation = Work::new("allocation");
        let stamp = self.begin(stream, &allocation);
        let access = Access::write(address, bytes).of_block(block);
        (block, self.access(&allocation, stamp, access))
    }

    /// The program gave a block back, in the order of the stream.
    pub(crate) fn free(&mut self, block: BlockId, stream: u32) {
        let Standing::Freed { on } = self.blocks.free(block.0, stream) else { return };
        let found = self.blocks.get(block.0);
        let (start, end) = found.map_or((0, 0), |block| (block.start, block.end));
        let name = found.map(|block| Arc::clone(&block.name));
        let stamp = self.order(stream).advance(stream);
        let access = Access::write(Address::new(start), end - start).of_block(block);
        let told = Told { kernel: Cow::Borrowed("free"), stamp, access, block: name };
        self.report(Race::FreedBlock { access: told.trace(), freed_on: on });
    }

    /// Forgets all that the host has seen done: everything that is queued from now on comes after it.
    fn sweep(&mut self) {
        let mut kept = vec![false; self.told.slots()];
        for history in &mut self.histories {
            history.prune(&self.host, |access| kept[access as usize] = true);
        }
        for uses in &mut self.uses {
            uses.retain(|(stamp, _)| !self.host.covers(*stamp));
            uses.iter().for_each(|(_, access)| kept[*access as usize] = true);
        }
        self.told.retain(|slot| kept[slot as usize]);
        self.sweep_at = 2 * self.told.len() + FIRST_SWEEP.max(self.histories.len() + self.uses.len());
    }

    /// How many accesses are remembered.
    pub(crate) fn remembered(&self) -> usize {
        self.told.len()
    }
}

/// Whether an access is work that an unmap can come too early for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MappingUse {
    InFlight,
    /// It stands for something that the device does not do.
    None,
}
