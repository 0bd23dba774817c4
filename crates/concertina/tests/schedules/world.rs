//! A small device, an allocator on it, and everything that must hold while threads use them.
//!
//! Main types: [`World`], [`Settings`], [`Home`], [`Block`], [`Dice`]. Neighbours: `tests/schedules.rs` has the programs; the emulator
//! looks for races.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use concertina::{
    Allocation, Allocator, Config, CrossStream, Error, Layout, Policy, SegmentKind, StaleRule, Stream,
};
use concertina_emulator::{
    Access, BackingId, BlockId, EmulatedStream, Emulator, EmulatorConfig, EventCompletion, Piece, Work,
};

pub(crate) const PAGE: u64 = 2 << 20;

/// Numbers by xorshift (Marsaglia, "Xorshift RNGs", 2003): the same seed gives the same program.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        // Neighbouring seeds begin alike, and 0 stays 0.
        Self((seed ^ 0x9e37_79b9_7f4a_7c15).max(1).wrapping_mul(0xbf58_476d_1ce4_e5b9))
    }

    /// A number from 0 to `most`, exclusive.
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % most
    }

    /// Dice for another thread.
    pub(crate) fn split(&mut self) -> Self {
        Self::new(self.below(u64::MAX))
    }
}

/// A registered stream, as the allocator and as the driver know it.
#[derive(Clone)]
pub(crate) struct Home {
    pub(crate) stream: Stream<Emulator>,
    raw: EmulatedStream,
}

/// What device and allocator are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Frames of the device.
    pub(crate) frames: u64,
    pub(crate) limit_frames: Option<u64>,
    /// Most mappings that the device holds at once.
    pub(crate) max_mappings: Option<u64>,
    pub(crate) completion: EventCompletion,
    pub(crate) cross_stream: CrossStream,
    pub(crate) policy: Policy,
    pub(crate) stale: StaleRule,
    pub(crate) segments: SegmentKind,
}

impl Settings {
    /// A device of so many frames; what else there is to choose falls by the dice.
    pub(crate) fn by_dice(frames: u64, dice: &mut Dice) -> Self {
        Self {
            frames,
            limit_frames: None,
            max_mappings: None,
            completion: match dice.below(3) {
                0 => EventCompletion::AtOnce,
                1 => EventCompletion::AfterOperations(1 + dice.below(8)),
                _ => EventCompletion::ByHand,
            },
            cross_stream: match dice.below(6) {
                0 => CrossStream::Never,
                1 => CrossStream::Completed,
                _ => CrossStream::DeviceWait,
            },
            policy: if dice.below(2) == 0 { Policy::Lean } else { Policy::Balanced },
            stale: if dice.below(4) == 0 { StaleRule::Eager } else { StaleRule::Keep },
            segments: SegmentKind::Reserved,
        }
    }

    fn limit_bytes(&self) -> Option<u64> {
        self.limit_frames.map(|frames| frames * PAGE)
    }

    /// All the bytes there are to be had.
    fn most_bytes(&self) -> u64 {
        self.limit_frames.map_or(self.frames, |limit| limit.min(self.frames)) * PAGE
    }
}

pub(crate) struct World {
    driver: Emulator,
    pub(crate) allocator: Allocator<Emulator>,
    settings: Settings,
    /// Bytes of memory under live blocks.
    live: Mutex<HashMap<BackingId, Vec<Range<u64>>>>,
    /// Blocks given out so far.
    blocks: AtomicU64,
    /// Why the last request was refused that was.
    refused: Mutex<String>,
}

/// A block in use, checked as long as it lives.
pub(crate) struct Block {
    world: Arc<World>,
    id: BlockId,
    stream: EmulatedStream,
    pieces: Vec<Piece>,
    allocation: Allocation<Emulator>,
}

impl World {
    pub(crate) fn new(settings: Settings) -> Arc<Self> {
        let Settings { frames, completion, cross_stream, policy, stale, segments, .. } = settings;
        let config = Config::builder().cross_stream(cross_stream).policy(policy);
        // Every free that can be is deferred, though blocks are few.
        let mut config = config.stale(stale).segments(segments).deferred_from_blocks(0);
        if let Some(bytes) = settings.limit_bytes() {
            config = config.limit_bytes(bytes);
        }
        let plain = EmulatorConfig { max_mappings: settings.max_mappings, ..EmulatorConfig::default() };
        let device = plain.with_granularity(PAGE).with_event_completion(completion);
        let driver = Emulator::new(device.with_capacity(frames * PAGE).unwrap()).unwrap();
        let allocator = Allocator::new(driver.clone(), config.build()).unwrap();
        let (live, blocks, refused) = (Mutex::default(), AtomicU64::new(0), Mutex::default());
        Arc::new(Self { driver, allocator, settings, live, blocks, refused })
    }

    pub(crate) fn home(&self) -> Home {
        let raw = self.driver.stream();
        Home { stream: self.allocator.register_stream(raw.clone()), raw }
    }

    fn live(&self) -> MutexGuard<'_, HashMap<BackingId, Vec<Range<u64>>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates a block and works on it; `None` when there is no memory.
    ///
    /// Frames that another thread has in its hands at this moment, or moves from a heap that was not looked at yet to one
    /// that was, are not seen. So a request may fail here that would succeed a moment later, and which do can't be told
    /// while others run. What is promised is told by [`World::finish`]: nothing is lost by it.
    pub(crate) fn allocate(self: &Arc<Self>, home: &Home, bytes: u64) -> Option<Block> {
        let allocation = match self.allocator.allocate(Layout::new(bytes), &home.stream) {
            Ok(allocation) => allocation,
            Err(Error::OutOfMemory(report)) => {
                *self.refused.lock().unwrap() = report.to_string();
                return None;
            }
            Err(error) => panic!("no call was told to fail: {error}"),
        };
        let pieces = self.driver.resolve_range(allocation.address(), bytes);
        let mut live = self.live();
        for piece in &pieces {
            let backing = piece.backing.filter(|backing| backing.accessible);
            let backing = backing.unwrap_or_else(|| panic!("{allocation:?} has nothing behind {piece:?}"));
            let bytes = backing.offset_bytes..backing.offset_bytes + piece.bytes;
            let others = live.entry(backing.memory).or_default();
            let shared = others.iter().find(|other| other.start < bytes.end && bytes.start < other.end);
            assert!(shared.is_none(), "{allocation:?} shares {:?} {bytes:?} with {shared:?}", backing.memory);
            others.push(bytes);
        }
        drop(live);
        let name = format!("block {}", self.blocks.fetch_add(1, Ordering::Relaxed));
        let id = self.driver.block_allocated(name, allocation.address(), bytes, &home.raw);
        let write = Access::write(allocation.address(), bytes).of_block(id);
        self.driver.queue(&home.raw, Work::new("write").touching(write));
        self.driver.advance(1);
        self.check_limit();
        Some(Block { world: Arc::clone(self), id, stream: home.raw.clone(), pieces, allocation })
    }

    /// Works on the block on another stream, behind what was queued on its own, and says so.
    pub(crate) fn work_elsewhere(&self, block: &Block, home: &Home, other: &Home) {
        self.driver.queue_wait(&other.raw, &home.raw);
        let read = Access::read(block.allocation.address(), block.allocation.bytes());
        self.driver.queue(&other.raw, Work::new("read elsewhere").touching(read.of_block(block.id)));
        block.allocation.record_stream(&other.stream).unwrap();
    }

    /// Waits for the device, then works on a block again on a stream that was recorded for it before: nothing needs to be
    /// said of that, since a recorded stream counts up to the free.
    pub(crate) fn work_again_elsewhere(&self, block: &Block, home: &Home, other: &Home) {
        self.synchronize();
        self.driver.queue_wait(&other.raw, &home.raw);
        let read = Access::read(block.allocation.address(), block.allocation.bytes());
        self.driver.queue(&other.raw, Work::new("read again").touching(read.of_block(block.id)));
    }

    /// Reservations that the device knows.
    pub(crate) fn reservations(&self) -> u64 {
        self.driver.leaks().reservations
    }

    pub(crate) fn check_limit(&self) {
        let Some(limit) = self.settings.limit_bytes() else { return };
        let (stats, driver) = (self.allocator.stats(), self.driver.counts().mapped_bytes);
        assert!(stats.mapped_bytes <= limit && driver <= limit, "{limit}: {stats:?}, {driver}");
    }

    /// The end, when no other thread runs and no block is left: everything that must hold then.
    pub(crate) fn finish(self: Arc<Self>, homes: Vec<Home>) {
        let world = &self;
        assert_eq!(world.allocator.audit(), Vec::<String>::new());
        let stats = world.allocator.stats();
        assert_eq!((stats.live_bytes, stats.live_blocks), (0, 0), "{stats:?}");
        let most = world.settings.most_bytes();
        assert!(stats.mapped_peak_bytes <= most, "{stats:?}");
        assert!(world.driver.counts().mapped_peak_bytes <= most);
        assert_eq!(world.driver.races(), []);
        if world.settings.cross_stream != CrossStream::DeviceWait {
            assert_eq!(stats.fences.waits, 0, "nothing is put into a stream");
        }

        // All memory there is can be had as one block, by each stream in turn; what others used is waited for on the
        // device, or by the host where the device may not wait.
        // (Not where mappings are short: those that others left count until they are seen to be unused.)
        let bounded =
            world.settings.cross_stream == CrossStream::Never || world.settings.max_mappings.is_some();
        for home in homes.iter().filter(|_| !bounded) {
            if world.settings.cross_stream == CrossStream::Completed {
                world.synchronize();
            }
            let block = world.allocate(home, most);
            assert!(block.is_some(), "{:?}: {}", world.settings, world.refused.lock().unwrap());
        }

        // All of it goes back to the driver: frames at a trim, addresses with their streams.
        world.synchronize();
        let trimmed = world.allocator.trim();
        assert_eq!((trimmed.waiting_bytes, trimmed.failed), (0, None));
        let held = world.driver.leaks();
        assert_eq!((held.mapped_bytes, held.handles), (0, 0), "{held}");
        assert_eq!(world.allocator.audit(), Vec::<String>::new());
        drop(homes);
        world.synchronize();
        world.allocator.trim();
        let held = world.driver.leaks();
        assert_eq!((held.reservations, held.mappings), (0, 0), "{held}");

        let Ok(Self { driver, allocator, .. }) = Arc::try_unwrap(self) else { panic!("a block is left") };
        allocator.close().unwrap();
        assert!(driver.is_empty(), "{}", driver.leaks());
        assert_eq!(driver.recount(), driver.leaks());
        assert_eq!(driver.broken_rules(), []);
        assert_eq!(driver.races(), []);
    }

    /// The program makes the host wait for the whole device, and says so.
    fn synchronize(&self) {
        self.driver.synchronize_device().unwrap();
        self.allocator.note_device_synchronized();
    }
}

#[cfg(not(shuttle))]
impl Block {
    /// Bytes as asked.
    pub(crate) fn bytes(&self) -> u64 {
        self.allocation.bytes()
    }
}

impl Drop for Block {
    /// What was behind the block at first is behind it still. Then it is freed, in the order of its stream.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let (address, bytes) = (self.allocation.address(), self.allocation.bytes());
        assert_eq!(self.world.driver.resolve_range(address, bytes), self.pieces);
        let mut live = self.world.live();
        for (backing, bytes) in self.pieces.iter().filter_map(|piece| Some((piece.backing?, piece.bytes))) {
            let bytes = backing.offset_bytes..backing.offset_bytes + bytes;
            live.entry(backing.memory).or_default().retain(|known| *known != bytes);
        }
        self.world.driver.block_freed(self.id, &self.stream);
    }
}
