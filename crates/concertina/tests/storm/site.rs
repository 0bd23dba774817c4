//! The device and the allocator of one program, what its threads share, and everything that must hold.
//!
//! Main types: [`Site`], [`UserStream`], [`Together`]. Neighbours: `actor` is a thread on it, `ledger` the memory's owners.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use concertina::{Address, Allocator, CrossStream, Error, Stream};
use concertina_emulator::{Access, BlockId, EmulatedStream, Emulator, Piece, Work};
use concertina_vmm::Call;
use concertina_vmm::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::actor::{Actor, Live};
use crate::coverage::Coverage;
use crate::ledger::Ledger;
use crate::mutation::{MutantDriver, Mutation};
use crate::op::STREAMS;
use crate::setup::Setup;

/// How long a kernel takes by the clock: some driver calls.
const KERNEL_NS: u64 = 50_000;

/// A registered stream, as the allocator and as the driver know it.
pub(crate) struct UserStream {
    pub(crate) registered: Stream<MutantDriver>,
    pub(crate) own: EmulatedStream,
    pub(crate) rule: CrossStream,
}

/// Which of the locks is the stream's.
fn lock_of(stream: &EmulatedStream) -> usize {
    stream.number() as usize % STREAMS
}

/// The locks of somebody who waits for a stream and tells so.
pub(crate) struct Telling<'a> {
    _shared: Option<RwLockReadGuard<'a, ()>>,
    _alone: RwLockWriteGuard<'a, ()>,
}

/// How the threads of a program run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Together {
    /// A step at a time, in the order of the program: the same again every time.
    InTurn,
    /// On threads of the system.
    AtOnce,
}

pub(crate) struct Site {
    pub(crate) setup: Setup,
    pub(crate) emulator: Emulator,
    pub(crate) allocator: Allocator<MutantDriver>,
    pub(crate) mutation: Mutation,
    pub(crate) together: Together,
    /// Those that a program has now. Whoever queues work keeps them from being dropped meanwhile.
    pub(crate) streams: RwLock<Vec<UserStream>>,
    /// The program's own locks, one for some streams: shared by those who ask or free something on a stream, and held alone by
    /// those who wait for it and tell so, since what is told must be true until it is told. Taken after `streams`, in
    /// their order.
    telling: [RwLock<()>; STREAMS],
    pub(crate) passed: Mutex<Vec<Live>>,
    pub(crate) coverage: Mutex<Coverage>,
    ledger: Mutex<Ledger>,
    blocks: AtomicU64,
    /// Whether driver calls may fail now.
    may_fail: AtomicBool,
    /// Records and waits of the program's own events.
    pub(crate) own_records: AtomicU64,
    pub(crate) own_waits: AtomicU64,
}

impl Site {
    pub(crate) fn new(setup: &Setup, mutation: Mutation, together: Together) -> Arc<Self> {
        let emulator = Emulator::new(setup.emulator()).expect("a device can be so");
        let driver = MutantDriver { emulator: emulator.clone(), mutation };
        let allocator = Allocator::new(driver, setup.config()).expect("an allocator can be so");
        let site = Self {
            setup: setup.clone(),
            emulator,
            allocator,
            mutation,
            together,
            streams: RwLock::default(),
            telling: Default::default(),
            passed: Mutex::default(),
            coverage: Mutex::default(),
            ledger: Mutex::default(),
            blocks: AtomicU64::new(0),
            may_fail: AtomicBool::new(false),
            own_records: AtomicU64::new(0),
            own_waits: AtomicU64::new(0),
        };
        let streams = (0..STREAMS).map(|_| site.new_stream(None)).collect();
        *site.streams.write() = streams;
        Arc::new(site)
    }

    pub(crate) fn new_stream(&self, rule: Option<CrossStream>) -> UserStream {
        let own = self.emulator.stream();
        let registered = match rule {
            Some(rule) => self.allocator.register_stream_with(own.clone(), rule),
            None => self.allocator.register_stream(own.clone()),
        };
        UserStream { registered, own, rule: rule.unwrap_or(self.setup.cross_stream) }
    }

    /// Whether anything is checked: an allocator that forgot a rule is only watched.
    fn is_strict(&self) -> bool {
        self.mutation == Mutation::None
    }

    pub(crate) fn count(&self, what: &'static str) {
        self.coverage.lock().add(what, 1);
    }

    /// Nobody tells of these streams for as long as this is held.
    pub(crate) fn nobody_tells<'a>(
        &self,
        streams: impl IntoIterator<Item = &'a EmulatedStream>,
    ) -> Vec<RwLockReadGuard<'_, ()>> {
        let mut locks: Vec<usize> = streams.into_iter().map(lock_of).collect();
        locks.sort_unstable();
        locks.dedup();
        locks.into_iter().map(|lock| self.telling[lock].read()).collect()
    }

    /// Nobody else asks or frees anything on the stream for as long as this is held, and nobody tells of `waiter`.
    pub(crate) fn telling_of(&self, stream: &EmulatedStream, waiter: &EmulatedStream) -> Telling<'_> {
        let (stream, waiter) = (lock_of(stream), lock_of(waiter));
        let shared = |first: bool| {
            (stream != waiter && (waiter < stream) == first).then(|| self.telling[waiter].read())
        };
        let before = shared(true);
        let alone = self.telling[stream].write();
        Telling { _shared: before.or_else(|| shared(false)), _alone: alone }
    }

    /// The same for all streams.
    pub(crate) fn telling_of_all(&self) -> Vec<RwLockWriteGuard<'_, ()>> {
        self.telling.iter().map(RwLock::write).collect()
    }

    // --- work -------------------------------------------------------------------------------------------------------

    pub(crate) fn queue(&self, stream: &EmulatedStream, work: Work) {
        self.emulator.queue(stream, work.lasting(KERNEL_NS));
        self.emulator.advance(1);
    }

    /// These bytes are a new block, and a kernel that writes them is queued. Returns the block and what is behind it.
    pub(crate) fn hand_out(
        &self,
        stream: &EmulatedStream,
        address: Address,
        bytes: u64,
    ) -> (BlockId, Vec<Piece>) {
        let pieces = self.emulator.resolve_range(address, bytes);
        if self.is_strict() {
            self.ledger.lock().hand_out(&pieces);
        }
        let number = self.blocks.fetch_add(1, Ordering::Relaxed);
        let name = format!("block {number} of stream {}", stream.number());
        let block = self.emulator.block_allocated(name, address, bytes, stream);
        self.queue(stream, Work::new("write").touching(Access::write(address, bytes).of_block(block)));
        (block, pieces)
    }

    /// The bytes are about to be freed: they are what they were when they were handed out.
    pub(crate) fn take_back(&self, address: Address, bytes: u64, pieces: &[Piece]) {
        if self.is_strict() {
            let now = self.emulator.resolve_range(address, bytes);
            assert_eq!(now, pieces, "the bytes at {address} have changed");
            self.ledger.lock().take_back(pieces);
        }
    }

    /// The same without an end of them: what is behind the rest, which stays.
    pub(crate) fn cut(&self, address: Address, bytes: u64, left: u64, pieces: &[Piece]) -> Vec<Piece> {
        self.take_back(address, bytes, pieces);
        let rest = self.emulator.resolve_range(address, left);
        if self.is_strict() {
            self.ledger.lock().hand_out(&rest);
        }
        rest
    }

    // --- failures ---------------------------------------------------------------------------------------------------

    pub(crate) fn let_calls_fail(&self) {
        self.may_fail.store(true, Ordering::Relaxed);
    }

    /// No call is told to fail any more.
    pub(crate) fn heal(&self) {
        self.emulator.clear_faults();
        // Threads that run at once don't know what others have been through.
        if self.together == Together::InTurn {
            self.may_fail.store(false, Ordering::Relaxed);
        }
    }

    /// What a request may be refused for.
    pub(crate) fn refused(&self, error: &Error) {
        if error.is_out_of_memory() {
            self.count("out of memory");
            return;
        }
        let failed = matches!(error, Error::Driver(_)) && self.may_fail.load(Ordering::Relaxed);
        assert!(failed || !self.is_strict(), "no call was told to fail: {error}");
        self.count("failed requests");
    }

    // --- checks -----------------------------------------------------------------------------------------------------

    /// What the device reports, after each step.
    pub(crate) fn check_reports(&self) {
        if !self.is_strict() {
            return;
        }
        let races: Vec<String> = self.emulator.races().iter().map(ToString::to_string).collect();
        assert_eq!(races, Vec::<String>::new());
        assert_eq!(self.emulator.broken_rules(), Vec::new());
        let hangs: Vec<String> = self.emulator.hangs().iter().map(ToString::to_string).collect();
        assert_eq!(hangs, Vec::<String>::new());
    }

    /// The figures, while no thread runs.
    pub(crate) fn check_figures(&self) {
        if !self.is_strict() {
            return;
        }
        let (stats, counts) = (self.allocator.stats(), self.emulator.counts());
        assert_eq!(stats.live_bytes, self.ledger.lock().live_bytes);
        assert_eq!(stats.mapped_bytes, counts.mapped_bytes);
        assert!(counts.mapped_peak_bytes <= self.setup.most_bytes(), "over the limit");
        assert_eq!(stats.created_frames, counts.of(Call::Create));
        let own = (self.own_records.load(Ordering::Relaxed), self.own_waits.load(Ordering::Relaxed));
        assert_eq!(stats.fences.records + own.0, counts.of(Call::EventRecord));
        assert_eq!(stats.fences.waits + own.1, counts.of(Call::StreamWait));
        // What is not done when the allocator looks may be when it waits: then the device counts no wait.
        assert!(stats.fences.host_waits + stats.frees >= counts.host_waits);
        if self.setup.cross_stream != CrossStream::DeviceWait && !self.setup.own_rules {
            assert_eq!(stats.fences.waits, 0, "nothing is put into a stream");
        }
    }

    /// Everything counted again from the ground, while no thread runs.
    pub(crate) fn audit(&self) {
        if self.is_strict() {
            assert_eq!(self.allocator.audit(), Vec::<String>::new());
            assert_eq!(self.emulator.recount(), self.emulator.leaks());
        }
    }

    fn synchronize(&self) {
        self.emulator.synchronize_device().expect("nothing hangs");
        self.allocator.note_device_synchronized();
    }

    /// The end, when no thread runs any more: what is free serves, all of it can go back, and nothing is left.
    pub(crate) fn finish(self: Arc<Self>, mut actors: Vec<Actor>) -> Coverage {
        self.heal();
        for actor in &mut actors {
            actor.let_go_of_all();
        }
        self.check_reports();
        if !self.is_strict() {
            return Coverage::default();
        }
        if self.setup.serves_all_that_is_free() {
            let waits = self.allocator.stats().fences.host_waits;
            actors[0].must_allocate(self.setup.most_bytes());
            assert_eq!(self.allocator.stats().fences.host_waits, waits, "the host need not wait for it");
        }
        self.synchronize();
        if self.setup.serves_all_that_is_done() {
            actors[0].must_allocate(self.setup.most_bytes());
            self.synchronize();
        }
        drop(actors);

        let trimmed = self.allocator.trim();
        assert_eq!((trimmed.failed, trimmed.waiting_bytes), (None, 0), "all is done, and can go");
        self.check_figures();
        self.audit();
        assert_eq!(self.allocator.stats().mapped_bytes, 0);

        let streams = std::mem::take(&mut *self.streams.write());
        drop(streams);
        let Some(Self { allocator, emulator, coverage, .. }) = Arc::into_inner(self) else {
            panic!("a thread has not ended")
        };
        let mut coverage = coverage.into_inner();
        coverage.add_figures(&allocator.stats(), &emulator.counts());
        allocator.close().expect("the driver takes everything");
        assert!(emulator.is_empty(), "left: {}", emulator.leaks());
        assert_eq!(emulator.recount(), emulator.leaks());
        assert_eq!((emulator.races(), emulator.broken_rules()), (Vec::new(), Vec::new()));
        coverage
    }
}
