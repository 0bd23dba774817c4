//! Allocators in a comparison of host time: each takes a size and gives something to free.
//!
//! Main types: [`Contender`], [`ByHandle`], [`InScope`], [`ByAddress`], [`DriverMalloc`], [`HostHeap`], [`Nothing`]. Neighbours:
//! `chunks` times what they do, `churn` makes them work; crates that do a like job are contenders in
//! `benches/examples/speed/peers.rs`.

use std::fmt;
use std::hint::black_box;
use std::mem::MaybeUninit;

use concertina::{Address, Allocation, Allocator, Config, Layout, OnStream, ScopedAllocation, Stream};
use concertina_emulator::{Detection, Emulator, EmulatorConfig};
use concertina_vmm::Driver as _;

/// Why a request can't fail.
const ROOM: &str = "the device is large enough";

/// An allocator whose host time is compared. One that runs out of memory panics: there is room for all that is asked.
pub trait Contender {
    /// What it hands out.
    type Block;

    /// Its name in tables.
    fn name(&self) -> &'static str;

    /// A block of so many bytes.
    fn allocate(&mut self, bytes: u64) -> Self::Block;

    /// Takes the block back.
    fn free(&mut self, block: Self::Block);

    /// So many times a block of this size and its free.
    fn pairs(&mut self, bytes: u64, pairs: u64) {
        for _ in 0..pairs {
            let block = self.allocate(black_box(bytes));
            self.free(black_box(block));
        }
    }
}

/// An emulated device of 16 TiB that looks for no races. A million blocks have room on it, and nothing of its pages
/// costs anything before they are mapped.
///
/// # Panics
/// If the device can't be made.
pub fn roomy_device() -> Emulator {
    let config = EmulatorConfig::default().with_detection(Detection::Off);
    let config = config.with_capacity(16 << 40).expect("whole granules");
    Emulator::new(config).expect("a device")
}

/// Concertina through its face: a block is a handle that frees itself.
pub struct ByHandle {
    device: Emulator,
    allocator: Allocator<Emulator>,
    stream: Stream<Emulator>,
    /// Stays live, so that pages stay apart.
    kept: Vec<Allocation<Emulator>>,
}

impl fmt::Debug for ByHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByHandle").field("allocator", &self.allocator).finish_non_exhaustive()
    }
}

impl Default for ByHandle {
    fn default() -> Self {
        Self::new()
    }
}

impl ByHandle {
    /// An allocator with the default settings on a device of its own.
    ///
    /// # Panics
    /// If either can't be made.
    pub fn new() -> Self {
        let device = roomy_device();
        let allocator = Allocator::new(device.clone(), Config::default()).expect("an allocator");
        Self::on(device, allocator)
    }

    fn on(device: Emulator, allocator: Allocator<Emulator>) -> Self {
        let stream = allocator.register_stream(device.stream());
        Self { device, allocator, stream, kept: Vec::new() }
    }

    /// An allocator that has about so many pages mapped, of which every second run of ten is idle: for blocks of over 1
    /// MiB.
    ///
    /// # Panics
    /// If either can't be made.
    pub fn with_mapped(pages: u64) -> Self {
        let mut contender = Self::new();
        let run = 10 * contender.page_bytes();
        let blocks: Vec<_> = (0..pages / 10).map(|_| contender.allocate(run)).collect();
        contender.kept.extend(blocks.into_iter().step_by(2));
        contender
    }

    /// The same allocator with a stream of its own.
    #[must_use]
    pub fn on_another_stream(&self) -> Self {
        Self::on(self.device.clone(), self.allocator.clone())
    }

    /// A pool handle for the stream.
    ///
    /// # Panics
    /// Never: the stream is the allocator's own.
    pub fn on_stream(&self) -> OnStream<Emulator> {
        self.allocator.on(&self.stream).expect("a stream of its own")
    }

    /// The allocator.
    pub const fn allocator(&self) -> &Allocator<Emulator> {
        &self.allocator
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.allocator.granularity_bytes()
    }

    /// Calls about memory that were made on the device.
    pub fn driver_calls(&self) -> u64 {
        self.device.counts().memory_calls()
    }
}

impl Contender for ByHandle {
    type Block = Allocation<Emulator>;

    fn name(&self) -> &'static str {
        "concertina"
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Self::Block {
        self.allocator.allocate(Layout::new(bytes), &self.stream).expect(ROOM)
    }

    #[inline]
    fn free(&mut self, block: Self::Block) {
        drop(block);
    }
}

/// Concertina by a pool handle that is there for as long as the blocks are: a block is a handle that borrows it.
#[derive(Clone, Copy, Debug)]
pub struct InScope<'a>(&'a OnStream<Emulator>);

impl<'a> InScope<'a> {
    /// By this pool handle.
    pub const fn of(on_stream: &'a OnStream<Emulator>) -> Self {
        Self(on_stream)
    }
}

impl<'a> Contender for InScope<'a> {
    type Block = ScopedAllocation<'a, Emulator>;

    fn name(&self) -> &'static str {
        "concertina, scoped"
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Self::Block {
        self.0.allocate_scoped(Layout::new(bytes)).expect(ROOM)
    }

    #[inline]
    fn free(&mut self, block: Self::Block) {
        drop(block);
    }
}

/// Concertina with blocks that are freed by their addresses, as C programs do it.
#[derive(Debug)]
pub struct ByAddress {
    inner: ByHandle,
    by_address: concertina::ByAddress<Emulator>,
}

impl Default for ByAddress {
    fn default() -> Self {
        let inner = ByHandle::new();
        Self { by_address: inner.allocator.by_address(), inner }
    }
}

impl Contender for ByAddress {
    type Block = Address;

    fn name(&self) -> &'static str {
        "concertina, by address"
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Address {
        self.by_address.allocate(Layout::new(bytes), &self.inner.stream).expect(ROOM)
    }

    #[inline]
    fn free(&mut self, block: Address) {
        self.by_address.free(block).expect("live");
    }
}

/// No allocator: every request goes to the emulated driver's malloc. It shows what the emulator takes, not what a
/// driver does.
#[derive(Debug)]
pub struct DriverMalloc(Emulator);

impl Default for DriverMalloc {
    fn default() -> Self {
        Self(roomy_device())
    }
}

impl Contender for DriverMalloc {
    type Block = Address;

    fn name(&self) -> &'static str {
        "direct (emulated)"
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Address {
        self.0.malloc(bytes).expect(ROOM)
    }

    #[inline]
    fn free(&mut self, block: Address) {
        self.0.free(block).expect("live");
    }
}

/// The program's own allocator for memory of the host, by boxes whose bytes nobody touches: a pair of `malloc` and
/// `free`.
#[derive(Debug)]
pub struct HostHeap(&'static str);

impl HostHeap {
    /// Under the name of what the program has as its global allocator.
    pub const fn named(name: &'static str) -> Self {
        Self(name)
    }
}

impl Contender for HostHeap {
    type Block = Box<[MaybeUninit<u8>]>;

    fn name(&self) -> &'static str {
        self.0
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Self::Block {
        Box::new_uninit_slice(bytes as usize)
    }

    #[inline]
    fn free(&mut self, block: Self::Block) {
        drop(block);
    }
}

/// Hands out nothing, to see what a loop takes by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

impl Contender for Nothing {
    type Block = u64;

    fn name(&self) -> &'static str {
        "(the loop itself)"
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> u64 {
        bytes
    }

    #[inline]
    fn free(&mut self, block: u64) {
        black_box(block);
    }
}

#[cfg(test)]
mod tests {
    use super::{ByAddress, ByHandle, Contender as _, DriverMalloc, InScope};

    #[test]
    fn a_warm_pair_makes_no_driver_call_but_for_direct() {
        let mut handle = ByHandle::new();
        let neighbour = handle.allocate(512);
        handle.pairs(20 << 20, 1);
        let calls = handle.driver_calls();
        handle.pairs(20 << 20, 10);
        assert_eq!(handle.driver_calls(), calls);
        assert_eq!(handle.allocator().stats().live_bytes, 512);
        drop(neighbour);

        let mut by_address = ByAddress::default();
        by_address.pairs(20 << 20, 10);
        assert_eq!(by_address.inner.allocator().stats().live_bytes, 0);
        // Ten pages, created and mapped once; one access call.
        let mut fresh = ByHandle::new();
        fresh.pairs(20 << 20, 1);
        assert_eq!(by_address.inner.driver_calls(), fresh.driver_calls());

        let inner = ByHandle::new();
        let on_stream = inner.on_stream();
        InScope::of(&on_stream).pairs(20 << 20, 10);
        assert_eq!((inner.allocator().stats().live_bytes, inner.driver_calls()), (0, fresh.driver_calls()));

        let mut direct = DriverMalloc::default();
        direct.pairs(20 << 20, 10);
        assert_eq!(direct.0.counts().memory_calls(), 20);
    }

    #[test]
    fn half_of_the_mapped_pages_are_idle() {
        let stats = ByHandle::with_mapped(1_000).allocator().stats();
        assert_eq!((stats.mapped_bytes, stats.live_bytes), (1_000 * (2 << 20), 500 * (2 << 20)));
    }

    #[test]
    fn another_stream_shares_the_allocator() {
        let mut first = ByHandle::new();
        let mut second = first.on_another_stream();
        let (a, b) = (first.allocate(1 << 20), second.allocate(2 << 20));
        assert_eq!(first.allocator().stats().live_bytes, 3 << 20);
        assert_ne!(a.stream(), b.stream());
    }
}
