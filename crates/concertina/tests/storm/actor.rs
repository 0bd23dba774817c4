//! A thread of a program: its blocks, and the steps that it takes.
//!
//! Main types: [`Actor`], [`Live`]. Neighbours: `growing` has the steps with growables, `site` what threads share.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use concertina::{Allocation, CrossStream, HostWait, Layout, StreamId};
use concertina_emulator::{Access, BlockId, EmulatedEvent, EmulatedStream, Piece, Work};
use concertina_vmm::Driver;

use crate::growing::LiveGrowable;
use crate::mutation::{MutantDriver, Mutation};
use crate::op::{EVENTS, Op, Size};
use crate::site::{Site, Together, UserStream};

/// A live block, and the other streams that use it.
pub(crate) struct Live {
    allocation: Allocation<MutantDriver>,
    stream: EmulatedStream,
    readers: Vec<(StreamId, EmulatedStream)>,
    pieces: Vec<Piece>,
    block: BlockId,
}

impl Live {
    fn read(&self, name: &'static str) -> Work {
        let read = Access::read(self.allocation.address(), self.allocation.bytes());
        Work::new(name).touching(read.of_block(self.block))
    }
}

/// What the program says of the block that it frees.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FreeBy {
    Handle,
    Name,
}

pub(crate) struct Actor {
    pub(crate) site: Arc<Site>,
    live: Vec<Live>,
    pub(crate) growables: Vec<LiveGrowable>,
    events: Vec<EmulatedEvent>,
}

impl Actor {
    pub(crate) fn new(site: &Arc<Site>) -> Self {
        let event = || site.emulator.event_create().expect("no call fails yet");
        Self {
            site: Arc::clone(site),
            live: Vec::new(),
            growables: Vec::new(),
            events: (0..EVENTS).map(|_| event()).collect(),
        }
    }

    fn nth(&mut self, nth: usize) -> Option<&mut Live> {
        let index = nth.checked_rem(self.live.len())?;
        self.live.get_mut(index)
    }

    fn take(&mut self, nth: usize) -> Option<Live> {
        let index = nth.checked_rem(self.live.len())?;
        Some(self.live.remove(index))
    }

    pub(crate) fn step(&mut self, op: &Op) {
        let site = Arc::clone(&self.site);
        let page = site.setup.page_bytes;
        match *op {
            Op::Allocate { size, alignment, stream } => {
                let layout = Layout::new(size.of(page)).aligned_to(alignment.of(page));
                self.allocate(layout, &site.streams.read()[stream]);
            }
            Op::Free { nth } => self.take(nth).into_iter().for_each(|live| site.free(live, FreeBy::Handle)),
            Op::FreeRaw { nth } => self.take(nth).into_iter().for_each(|live| site.free(live, FreeBy::Name)),
            Op::FreeAll => self.live.drain(..).for_each(|live| site.free(live, FreeBy::Handle)),
            Op::Pass { nth } => {
                let passed = self.take(nth);
                site.passed.lock().extend(passed);
            }
            Op::FreePassed => {
                let passed = site.passed.lock().pop();
                passed.into_iter().for_each(|live| site.free(live, FreeBy::Handle));
            }
            Op::ReadElsewhere { nth, stream } => {
                if let Some(live) = self.nth(nth) {
                    site.read_elsewhere(live, &site.streams.read()[stream]);
                }
            }
            Op::Rewrite { nth } => {
                if let Some(live) = self.nth(nth) {
                    live.readers
                        .iter()
                        .for_each(|(_, reader)| site.emulator.queue_wait(&live.stream, reader));
                    let write = Access::write(live.allocation.address(), live.allocation.bytes());
                    site.queue(&live.stream, Work::new("rewrite").touching(write.of_block(live.block)));
                }
            }
            Op::Record { event, stream } => {
                let recorded =
                    site.emulator.event_record(&self.events[event], &site.streams.read()[stream].own);
                site.own_records.fetch_add(recorded.is_ok().into(), Ordering::Relaxed);
            }
            Op::Await { event, stream } => {
                let waits = site.emulator.stream_wait(&site.streams.read()[stream].own, &self.events[event]);
                site.own_waits.fetch_add(waits.is_ok().into(), Ordering::Relaxed);
            }
            Op::Query { event } => drop(site.emulator.event_query(&self.events[event])),
            Op::Collective { first, second, size } => {
                let streams = site.streams.read();
                self.collective(&streams[first], &streams[second], size);
            }
            Op::Fail { fault } => {
                site.let_calls_fail();
                site.emulator.fail(fault);
            }
            Op::Heal => site.heal(),
            Op::Wait { .. }
            | Op::Synchronize { .. }
            | Op::SynchronizeDevice { .. }
            | Op::Trim
            | Op::TrimTo { .. }
            | Op::TrimWait
            | Op::UnmapStaleTo { .. }
            | Op::Advance { .. }
            | Op::Complete { .. }
            | Op::CompleteAll
            | Op::Replace { .. } => site.step(op),
            Op::Reserve { .. }
            | Op::Grow { .. }
            | Op::Shrink { .. }
            | Op::Share { .. }
            | Op::Discard { .. } => {
                self.growable_step(op);
            }
        }
    }

    fn allocate(&mut self, layout: Layout, user: &UserStream) {
        let untold = self.site.nobody_tells([&user.own]);
        let allocated = self.site.allocator.allocate(layout, &user.registered);
        drop(untold);
        match allocated {
            Ok(allocation) => {
                let address = allocation.address();
                assert!(address.is_aligned_to(layout.alignment()), "{address} is not aligned for {layout:?}");
                let (block, pieces) = self.site.hand_out(&user.own, address, layout.bytes());
                let (stream, readers) = (user.own.clone(), Vec::new());
                self.live.push(Live { allocation, stream, readers, pieces, block });
            }
            Err(error) => self.site.refused(&error),
        }
    }

    /// Rank 1 needs memory before it can begin, and rank 0 waits for it.
    fn collective(&mut self, first: &UserStream, second: &UserStream, size: Size) {
        let site = Arc::clone(&self.site);
        // Others would wait for what only this thread ends; `cudaFree` waits for the whole device, whatever the rules.
        let alone = site.together == Together::InTurn && site.setup.virtual_memory;
        let may_wait = first.rule.min(second.rule) == CrossStream::DeviceWait || first.own == second.own;
        if !alone || may_wait || site.setup.host_wait != HostWait::Never {
            return;
        }
        let arrived = [site.emulator.signal(), site.emulator.signal()];
        let rank = |rank: usize| Work::new("rank").sending(&arrived[rank]).awaiting(&arrived[1 - rank]);
        site.queue(&first.own, rank(0));
        self.allocate(Layout::new(size.of(site.setup.page_bytes)), second);
        site.queue(&second.own, rank(1));
        site.count("collectives");
    }

    /// All memory there is, in one block.
    pub(crate) fn must_allocate(&mut self, bytes: u64) {
        let site = Arc::clone(&self.site);
        let allocation = site.allocator.allocate(Layout::new(bytes), &site.streams.read()[0].registered);
        let allocation =
            allocation.unwrap_or_else(|error| panic!("all is free, and does not serve: {error}"));
        drop(allocation);
    }

    /// Frees all that the thread has, and what was left to others.
    pub(crate) fn let_go_of_all(&mut self) {
        let site = Arc::clone(&self.site);
        let passed = std::mem::take(&mut *site.passed.lock());
        self.live.drain(..).chain(passed).for_each(|live| site.free(live, FreeBy::Handle));
        while !self.growables.is_empty() {
            self.growable_step(&Op::Discard { nth: 0 });
        }
    }
}

impl Site {
    fn free(&self, live: Live, by: FreeBy) {
        let streams = self.streams.read();
        let readers = live.readers.iter().map(|(_, reader)| reader);
        let _untold = self.nobody_tells(readers.chain([&live.stream]));
        // A program that has dropped a stream queues nothing there any more, but for its own blocks.
        let registered = |id: StreamId| streams.iter().any(|user| user.registered.id() == id);
        for (_, reader) in live.readers.iter().filter(|(id, _)| registered(*id)) {
            // What was written last was written on the block's own stream.
            self.emulator.queue_wait(reader, &live.stream);
            self.queue(reader, live.read("last read elsewhere"));
        }
        self.queue(&live.stream, live.read("last read"));
        self.take_back(live.allocation.address(), live.allocation.bytes(), &live.pieces);
        self.emulator.block_freed(live.block, &live.stream);
        match by {
            FreeBy::Handle => drop(live.allocation),
            FreeBy::Name => {
                self.allocator.free_raw(live.allocation.into_raw()).expect("the block is live");
            }
        }
    }

    fn read_elsewhere(&self, live: &mut Live, user: &UserStream) {
        let _untold = self.nobody_tells([&user.own]);
        // What the block holds was written on its own stream: the program puts the reader behind that.
        self.emulator.queue_wait(&user.own, &live.stream);
        self.queue(&user.own, live.read("read elsewhere"));
        live.readers.push((user.registered.id(), user.own.clone()));
        if self.mutation != Mutation::ForgetUses {
            live.allocation.record_stream(&user.registered).expect("a stream of this allocator");
        }
    }

    /// The steps that need nothing of a thread's own.
    fn step(&self, op: &Op) {
        match *op {
            Op::Wait { waiter, on, told } => {
                let streams = self.streams.read();
                let (waiter, on) = (&streams[waiter], &streams[on]);
                let _told = told.then(|| self.telling_of(&on.own, &waiter.own));
                self.emulator.queue_wait(&waiter.own, &on.own);
                if told {
                    waiter.registered.note_wait(&on.registered);
                }
            }
            Op::Synchronize { stream, told } => {
                let streams = self.streams.read();
                let _told = told.then(|| self.telling_of(&streams[stream].own, &streams[stream].own));
                self.emulator.synchronize_stream(&streams[stream].own).expect("nothing hangs");
                if told {
                    streams[stream].registered.note_synchronized();
                }
            }
            Op::SynchronizeDevice { told } => {
                let _told = told.then(|| self.telling_of_all());
                self.emulator.synchronize_device().expect("nothing hangs");
                if told {
                    self.allocator.note_device_synchronized();
                }
            }
            Op::Trim => self.trimmed(self.allocator.trim().failed.map(Into::into)),
            Op::TrimTo { pages } => {
                let trimmed = self.allocator.trim_to(pages * self.setup.page_bytes);
                self.trimmed(trimmed.failed.map(Into::into));
            }
            Op::TrimWait => self.trimmed(match self.allocator.trim_wait() {
                Ok(trimmed) => trimmed.failed.map(Into::into),
                Err(error) => Some(error),
            }),
            Op::UnmapStaleTo { mappings } => {
                if self.allocator.unmap_stale_to(mappings) > 0 {
                    self.count("stale pages unmapped in a quiet moment");
                }
            }
            Op::Advance { operations } => self.emulator.advance(operations),
            Op::Complete { stream } => self.emulator.complete_stream(&self.streams.read()[stream].own),
            Op::CompleteAll => self.emulator.complete_all(),
            Op::Replace { stream, rule } => {
                let new = self.new_stream(rule);
                let old = std::mem::replace(&mut self.streams.write()[stream], new);
                drop(old);
                self.count("streams retired");
            }
            _ => unreachable!("a step of the thread's own: {op:?}"),
        }
    }

    fn trimmed(&self, failed: Option<concertina::Error>) {
        failed.iter().for_each(|error| self.refused(error));
    }
}
