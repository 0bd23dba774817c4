//! Runs a program on the allocator, with a model beside it, and checks everything after each step.
//!
//! Main types: [`World`], [`Live`], [`Outcome`]. Neighbours: `program` has the steps. The emulator is told of
//! all blocks and kernels: its race detector looks on.
//!
//! The model is a list of live blocks. Which frames hold live bytes is read from the page table of the emulator.

use std::collections::{BTreeSet, HashMap};

use concertina::{
    Address, Allocation, Allocator, CrossStream, Error, Layout, OutOfMemory, Stream, StreamId, Trimmed,
};
use concertina_emulator::{
    Access, BackingId, BlockId, EmulatedStream, Emulator, EventCompletion, Piece, Work,
};
use concertina_vmm::{Call, DriverErrorKind};

use crate::growables::LiveGrowable;
use crate::program::{Op, Program, STREAMS, Setup, Size};

/// How long a kernel takes by the clock: some driver calls.
pub(crate) const KERNEL_NS: u64 = 200_000;

/// A live block, with the streams that it is recorded for.
pub(crate) struct Live {
    pub(crate) allocation: Allocation<Emulator>,
    pub(crate) layout: Layout,
    stream: EmulatedStream,
    recorded: Vec<(StreamId, EmulatedStream)>,
    // What was behind it when it was allocated: its bytes.
    backing: Vec<Piece>,
    block: BlockId,
}

impl Live {
    /// A kernel that reads the block.
    fn read(&self, name: &'static str) -> Work {
        let read = Access::read(self.allocation.address(), self.layout.bytes());
        Work::new(name).touching(read.of_block(self.block)).lasting(KERNEL_NS)
    }
}

pub(crate) struct UserStream {
    pub(crate) registered: Stream<Emulator>,
    pub(crate) own: EmulatedStream,
}

/// What became of a step.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done,
    Allocated(Address),
    /// There was nothing to do it to.
    Skipped,
    OutOfMemory(Box<OutOfMemory>),
    Failed(Error),
}

impl Outcome {
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::OutOfMemory(_) | Self::Failed(_))
    }
}

pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) device: Emulator,
    pub(crate) allocator: Allocator<Emulator>,
    pub(crate) streams: Vec<UserStream>,
    pub(crate) live: Vec<Live>,
    pub(crate) growables: Vec<LiveGrowable>,
    blocks: u64,
    // By frame: the stream that the allocator knew as its last user, in numbers of the registration.
    pub(crate) last_user: HashMap<BackingId, StreamId>,
}

impl World {
    pub(crate) fn new(setup: &Setup) -> Self {
        let device = Emulator::new(setup.emulator()).unwrap();
        let allocator = Allocator::new(device.clone(), setup.config()).unwrap();
        let mut world = Self {
            setup: setup.clone(),
            device,
            allocator,
            streams: Vec::new(),
            live: Vec::new(),
            growables: Vec::new(),
            blocks: 0,
            last_user: HashMap::new(),
        };
        for _ in 0..STREAMS {
            let stream = world.new_stream();
            world.streams.push(stream);
        }
        world
    }

    fn new_stream(&self) -> UserStream {
        let own = self.device.stream();
        UserStream { registered: self.allocator.register_stream(own.clone()), own }
    }

    pub(crate) fn emulator(&self) -> &Emulator {
        &self.device
    }

    /// Memory calls of the driver so far.
    pub(crate) fn memory_calls(&self) -> u64 {
        self.emulator().counts().memory_calls()
    }

    pub(crate) fn count(&self, call: Call) -> u64 {
        self.emulator().counts().of(call)
    }

    // --- steps ------------------------------------------------------------------------------------------------------

    pub(crate) fn layout(&self, size: Size, alignment: Size) -> Layout {
        let page = self.setup.page_bytes;
        Layout::new(size.of(page)).aligned_to(alignment.of(page))
    }

    pub(crate) fn allocate(&mut self, layout: Layout, stream: usize) -> Outcome {
        let UserStream { registered, own } = &self.streams[stream];
        match self.allocator.allocate(layout, registered) {
            Ok(allocation) => {
                let address = allocation.address();
                assert!(address.is_aligned_to(layout.alignment()), "{address} is not aligned for {layout:?}");
                let stream = own.clone();
                let (block, backing) = self.write(&stream, allocation.stream(), address, layout.bytes());
                self.live.push(Live { allocation, layout, stream, recorded: Vec::new(), backing, block });
                Outcome::Allocated(address)
            }
            Err(Error::OutOfMemory(report)) => Outcome::OutOfMemory(report),
            Err(error) => Outcome::Failed(error),
        }
    }

    /// These bytes are a new block, and a kernel that writes them is queued. Returns the block and what is behind it.
    pub(crate) fn write(
        &mut self,
        stream: &EmulatedStream,
        id: StreamId,
        address: Address,
        bytes: u64,
    ) -> (BlockId, Vec<Piece>) {
        let name = format!("block {}", self.blocks);
        self.blocks += 1;
        let block = self.device.block_allocated(name, address, bytes, stream);
        let write = Access::write(address, bytes).of_block(block);
        self.device.queue(stream, Work::new("write").touching(write).lasting(KERNEL_NS));
        let backing = self.emulator().resolve_range(address, bytes);
        for piece in &backing {
            let memory = piece.backing.expect("a block is mapped").memory;
            let before = self.last_user.insert(memory, id);
            let registered = |id: StreamId| self.streams.iter().any(|s| s.registered.id() == id);
            let strayed = before.filter(|before| *before != id && registered(*before));
            assert!(
                self.setup.cross_stream != CrossStream::Never || strayed.is_none(),
                "{memory:?} went from {strayed:?} to {id:?}"
            );
        }
        (block, backing)
    }

    /// Allocates so many bytes, which must go well.
    pub(crate) fn must_allocate(&mut self, bytes: u64, stream: usize) -> Address {
        match self.allocate(Layout::new(bytes), stream) {
            Outcome::Allocated(address) => address,
            refused => panic!("{bytes} bytes on stream {stream}: {refused:?}"),
        }
    }

    /// Frees the live block at this place of the list.
    pub(crate) fn free(&mut self, index: usize) {
        let live = self.live.remove(index);
        let mut on = vec![&live.stream];
        // A program that has dropped a stream queues nothing there any more.
        let registered = |id: StreamId| self.streams.iter().any(|stream| stream.registered.id() == id);
        on.extend(live.recorded.iter().filter(|(id, _)| registered(*id)).map(|(_, stream)| stream));
        for stream in on {
            self.device.queue(stream, live.read("last read"));
        }
        self.device.block_freed(live.block, &live.stream);
    }

    /// Frees the live block that begins here.
    pub(crate) fn free_at(&mut self, address: Address) {
        let index = self.live.iter().position(|live| live.allocation.address() == address);
        self.free(index.expect("a live block begins there"));
    }

    pub(crate) fn record_stream(&mut self, index: usize, stream: usize) -> Outcome {
        let UserStream { registered, own } = &self.streams[stream];
        let live = &mut self.live[index];
        // What the block holds was written on its own stream: the program puts the reader behind that.
        self.device.queue_wait(own, &live.stream);
        self.device.queue(own, live.read("read elsewhere"));
        live.recorded.push((registered.id(), own.clone()));
        match live.allocation.record_stream(registered) {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::Failed(error),
        }
    }

    pub(crate) fn synchronize(&self, stream: usize) {
        self.device.synchronize_stream(&self.streams[stream].own).unwrap();
        self.streams[stream].registered.note_synchronized();
    }

    pub(crate) fn replace_stream(&mut self, stream: usize) {
        self.streams[stream] = self.new_stream();
    }

    /// The device catches up, and the host does not know.
    pub(crate) fn complete_all(&self) {
        self.emulator().complete_all();
    }

    pub(crate) fn step(&mut self, op: &Op) -> Outcome {
        let nth = |nth: usize, live: &[Live]| nth.checked_rem(live.len());
        match *op {
            Op::Allocate { size, alignment, stream } => {
                let layout = self.layout(size, alignment);
                return self.allocate(layout, stream);
            }
            Op::Free { nth: at } => match nth(at, &self.live) {
                Some(index) => self.free(index),
                None => return Outcome::Skipped,
            },
            Op::RecordStream { nth: at, stream } => match nth(at, &self.live) {
                Some(index) => return self.record_stream(index, stream),
                None => return Outcome::Skipped,
            },
            Op::Wait { waiter, on } => {
                let (waiter, on) = (&self.streams[waiter], &self.streams[on]);
                self.device.queue_wait(&waiter.own, &on.own);
                waiter.registered.note_wait(&on.registered);
            }
            Op::Synchronize { stream } => self.synchronize(stream),
            Op::SynchronizeDevice => {
                self.device.synchronize_device().unwrap();
                self.allocator.note_device_synchronized();
            }
            Op::Trim => return self.trim_to(None),
            Op::TrimTo { pages } => return self.trim_to(Some(pages * self.setup.page_bytes)),
            Op::Advance { operations } => self.emulator().advance(operations),
            Op::Complete { stream } => self.device.complete_stream(&self.streams[stream].own),
            Op::Replace { stream } => self.replace_stream(stream),
        }
        Outcome::Done
    }

    /// Trims, and checks what the trim says of itself.
    fn trim_to(&self, bytes: Option<u64>) -> Outcome {
        let before = self.emulator().counts();
        let trimmed = bytes.map_or_else(|| self.allocator.trim(), |bytes| self.allocator.trim_to(bytes));
        let after = self.emulator().counts();
        assert_eq!(
            trimmed.released_bytes,
            before.mapped_bytes - after.mapped_bytes,
            "a trim says what the driver got back"
        );
        let frees = after.of(Call::Free) - before.of(Call::Free);
        assert_eq!(after.host_waits, before.host_waits + frees, "a trim does not wait but in frees");
        if !self.setup.virtual_memory {
            self.check_trim_of_mallocs(bytes, &trimmed);
            return trimmed.failed.map_or(Outcome::Done, |error| Outcome::Failed(error.into()));
        }
        // Frames whose release failed earlier go whatever the target is.
        let refused = after.failed(Call::Release) > 0;
        if let Some(bytes) = bytes.filter(|_| trimmed.released_bytes > 0 && !refused) {
            let left = after.mapped_bytes + self.setup.page_bytes;
            assert!(left > bytes, "a trim to {bytes} went on to {}", after.mapped_bytes);
        }
        if trimmed.failed.is_none() {
            let target = bytes.unwrap_or(0).next_multiple_of(self.setup.page_bytes);
            let excess = after.mapped_bytes.saturating_sub(target);
            let free = self.allocator.stats().free_bytes;
            assert_eq!(trimmed.waiting_bytes, free.min(excess), "what could not go yet");
        }
        trimmed.failed.map_or(Outcome::Done, |error| Outcome::Failed(error.into()))
    }

    /// What could not go yet: segments in which nothing lives, as far as they are over the target.
    fn check_trim_of_mallocs(&self, bytes: Option<u64>, trimmed: &Trimmed) {
        let (stats, counts) = (self.allocator.stats(), self.emulator().counts());
        let excess = counts.mapped_bytes.saturating_sub(bytes.unwrap_or(0));
        if counts.failed(Call::Free) > 0 || self.device.is_lost() {
            return;
        }
        let empty = counts.mapped_bytes - self.busy_malloc_bytes();
        assert!(trimmed.waiting_bytes <= empty.min(excess));
        if stats.pending_bytes == 0 {
            assert_eq!(trimmed.waiting_bytes, empty.min(excess), "what could not go yet");
        }
        let seen = [Call::EventCreate, Call::EventRecord, Call::EventQuery];
        let seen = seen.iter().all(|call| counts.failed(*call) == 0);
        if seen && self.setup.completion == EventCompletion::AtOnce && stats.pending_bytes == 0 {
            assert_eq!(empty.min(excess), 0, "what is done goes");
        }
    }

    // --- the model --------------------------------------------------------------------------------------------------

    /// Frames with live bytes in them, by the page table.
    pub(crate) fn busy_frames(&self) -> BTreeSet<BackingId> {
        let blocks = self.live.iter().map(|live| (live.allocation.address(), live.layout.bytes()));
        let ranges = blocks.chain(self.growables.iter().map(LiveGrowable::range));
        let pieces = ranges.flat_map(|(address, bytes)| self.emulator().resolve_range(address, bytes));
        pieces.filter_map(|piece| piece.backing).map(|backing| backing.memory).collect()
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        let blocks: u64 = self.live.iter().map(|live| live.layout.bytes()).sum();
        blocks + self.growables.iter().map(|growable| growable.range().1).sum::<u64>()
    }

    /// Bytes of malloc segments with live bytes in them, by the device's table.
    pub(crate) fn busy_malloc_bytes(&self) -> u64 {
        self.busy_frames().into_iter().map(|memory| self.device.bytes_of(memory)).sum()
    }

    /// Bytes that a malloc for the request takes at least: whole pages, with room for its alignment.
    pub(crate) fn malloc_bytes_for(&self, layout: Layout) -> u64 {
        let needed = layout.bytes().next_multiple_of(512) + layout.alignment().max(512) - 512;
        needed.next_multiple_of(self.setup.page_bytes)
    }

    /// Whether a malloc for the request would have room, once all segments in which nothing lives have gone.
    pub(crate) fn malloc_fits(&self, layout: Layout) -> bool {
        let most = self.setup.most_frames() * self.setup.page_bytes;
        self.busy_malloc_bytes() + self.malloc_bytes_for(layout) <= most
    }

    /// Bytes of pages with live bytes in them.
    fn busy_bytes(&self) -> u64 {
        let page = self.setup.page_bytes;
        if self.setup.virtual_memory {
            return self.busy_frames().len() as u64 * page;
        }
        let ranges = self.live.iter().map(|live| (live.allocation.address(), live.layout.bytes()));
        let pieces = ranges.flat_map(|(address, bytes)| self.emulator().resolve_range(address, bytes));
        let mut pages = BTreeSet::new();
        for (backing, bytes) in pieces.filter_map(|piece| Some((piece.backing?, piece.bytes))) {
            let (first, last) = (backing.offset_bytes / page, (backing.offset_bytes + bytes - 1) / page);
            pages.extend((first..=last).map(|number| (backing.memory, number)));
        }
        pages.len() as u64 * page
    }

    /// Frames that could be had if nothing stood in the way: of the device or the limit, less those with live bytes.
    pub(crate) fn free_frames(&self) -> u64 {
        self.setup.most_frames() - self.busy_frames().len() as u64
    }

    /// Frames that a request of so many bytes needs at most.
    pub(crate) fn frames_for(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.setup.page_bytes)
    }

    // --- checks -----------------------------------------------------------------------------------------------------

    /// Everything that must hold between two steps, whatever happened before.
    pub(crate) fn check(&self) {
        let emulator = self.emulator();
        assert_eq!(self.allocator.audit(), Vec::<String>::new());
        assert_eq!(emulator.broken_rules(), Vec::new());
        assert_eq!(emulator.races(), Vec::new());
        assert_eq!(emulator.recount(), emulator.leaks());

        let (stats, counts) = (self.allocator.stats(), emulator.counts());
        assert_eq!(stats.live_bytes, self.live_bytes());
        let grown = self.growables.iter().filter(|growable| growable.range().1 > 0).count();
        assert_eq!(stats.live_blocks, (self.live.len() + grown) as u64);
        assert_eq!(stats.mapped_bytes, counts.mapped_bytes);
        assert_eq!(stats.mapped_peak_bytes, counts.mapped_peak_bytes);
        assert!(stats.mapped_bytes <= self.setup.most_frames() * self.setup.page_bytes);
        assert_eq!(stats.created_frames, counts.of(Call::Create));
        assert_eq!(stats.fences.records, counts.of(Call::EventRecord));
        assert_eq!(stats.fences.waits, counts.of(Call::StreamWait));
        assert_eq!((stats.mallocs, stats.frees), (counts.of(Call::Malloc), counts.of(Call::Free)));
        let waits = stats.fences.host_waits + stats.frees;
        // By the clock, what is not done when the allocator looks may be when it waits.
        let done_meanwhile = self.setup.completion == EventCompletion::ByClock && waits > counts.host_waits;
        assert!(done_meanwhile || waits == counts.host_waits, "{waits}, {}", counts.host_waits);
        if self.setup.cross_stream != CrossStream::DeviceWait {
            assert_eq!(stats.fences.waits, 0, "nothing is put into a stream");
        }
        self.check_blocks();
        let busy = self.busy_bytes();
        assert!(
            stats.free_bytes + busy <= stats.mapped_bytes,
            "{} free and {busy} in use of {} mapped",
            stats.free_bytes,
            stats.mapped_bytes
        );
    }

    /// No two live blocks overlap, in addresses or in frames; all are mapped with access.
    fn check_blocks(&self) {
        let mut addresses: Vec<(u64, u64)> = Vec::new();
        let mut frames: Vec<(BackingId, u64, u64)> = Vec::new();
        let blocks = self
            .live
            .iter()
            .map(|live| (live.allocation.address(), live.layout.bytes(), live.backing.clone()));
        let grown = self.growables.iter().map(LiveGrowable::backing);
        for (address, bytes, backing) in blocks.chain(grown) {
            addresses.push((address.get(), address.get() + bytes));
            let pieces = self.emulator().resolve_range(address, bytes);
            assert_eq!(pieces, backing, "the bytes at {address} have changed");
            for piece in pieces {
                let backing = piece.backing.unwrap_or_else(|| panic!("{piece:?} of {address}"));
                assert!(backing.accessible, "{piece:?} of {address}");
                frames.push((backing.memory, backing.offset_bytes, backing.offset_bytes + piece.bytes));
            }
        }
        addresses.sort_unstable();
        assert!(addresses.windows(2).all(|pair| pair[0].1 <= pair[1].0), "blocks overlap: {addresses:?}");
        frames.sort_unstable();
        let apart = |pair: &[(BackingId, u64, u64)]| pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1;
        assert!(frames.windows(2).all(apart), "blocks share bytes of a frame: {frames:?}");
    }

    // --- the end ----------------------------------------------------------------------------------------------------

    /// Drops everything, and returns the device to look at what is left.
    pub(crate) fn end(self) -> Emulator {
        let Self { device, allocator, streams, live, growables, .. } = self;
        drop((live, growables));
        drop(streams);
        drop(allocator);
        device
    }

    /// Drops everything; all must have been given back, without a fault.
    pub(crate) fn end_empty(self) {
        let device = self.end();
        assert!(device.is_empty(), "left: {}", device.leaks());
        assert_eq!(device.broken_rules(), Vec::new());
        assert_eq!(device.races(), Vec::new());
    }
}

/// Runs a program and checks after each step; `also` looks at each outcome.
pub(crate) fn run(program: &Program, mut also: impl FnMut(&mut World, &Op, &Outcome)) -> World {
    let mut world = World::new(&program.setup);
    for (number, op) in program.ops.iter().enumerate() {
        let outcome = world.step(op);
        if let Outcome::Failed(error) = &outcome {
            panic!("step {number}, {op:?}: {error}");
        }
        also(&mut world, op, &outcome);
        world.check();
    }
    world
}

/// Whether an error is this kind of failure of the driver.
pub(crate) fn is_driver_error(outcome: &Outcome, kind: DriverErrorKind) -> bool {
    matches!(outcome, Outcome::Failed(Error::Driver(error)) if error.kind == kind)
}
