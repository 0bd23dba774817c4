//! Captured graphs: what the allocator leaves alone while a stream captures, and what it keeps for the launches.
//!
//! Main types: [`Bench`], [`Graph`]. Neighbours: `captures/refusals.rs` has what a capture forbids and what fails,
//! `captures/ends.rs` launches and the ends of pools, `captures/random.rs` random programs.
//!
//! The emulator captures nothing: a program says so by `set_capture_status`, keeps what it would have queued, and queues
//! it at the launch. An event that is recorded meanwhile counts as captured, and asking for it breaks a rule.

mod ends;
mod random;
mod refusals;

use concertina::{
    Address, Allocation, Allocator, CaptureScope, Config, ConfigBuilder, CrossStream, GraphPool, Growth,
    HostWait, Layout, Policy, Stream,
};
use concertina_emulator::{Access, EmulatedStream, Emulator, EmulatorConfig, EventCompletion, Work};
use concertina_vmm::{Call, CaptureStatus};

use crate::program::{GIB, MIB};

pub(crate) const PAGE: u64 = 2 * MIB;

type Block = Allocation<Emulator>;
type Pool = GraphPool<Emulator>;
type Scope = CaptureScope<Emulator>;

/// What a capture has taken: runs of bytes that kernels write, in this order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    writes: Vec<(Address, u64)>,
}

impl Graph {
    fn write(&mut self, block: &Block) {
        self.writes.push((block.address(), block.bytes()));
    }
}

/// A device of some pages, with streams whose work is done when a test says so.
pub(crate) struct Bench {
    device: Emulator,
    allocator: Allocator<Emulator>,
    streams: Vec<(Stream<Emulator>, EmulatedStream)>,
}

impl Bench {
    fn new(pages: u64) -> Self {
        Self::with(pages, Self::config().build())
    }

    /// Nothing is created while a frame is free, and the host waits for nothing.
    fn config() -> ConfigBuilder {
        Config::builder().policy(Policy::Lean).host_wait(HostWait::Never).reservation_bytes(64 * PAGE)
    }

    fn with(pages: u64, config: Config) -> Self {
        Self::completing(pages, EventCompletion::ByHand, config)
    }

    fn completing(pages: u64, completion: EventCompletion, config: Config) -> Self {
        let device =
            EmulatorConfig::default().with_capacity(pages * PAGE).unwrap().with_event_completion(completion);
        Self::on(device, config)
    }

    fn on(device: EmulatorConfig, config: Config) -> Self {
        let device = Emulator::new(device).unwrap();
        let allocator = Allocator::new(device.clone(), config).unwrap();
        let streams = (0..3)
            .map(|_| device.stream())
            .map(|own| (allocator.register_stream(own.clone()), own))
            .collect();
        Self { device, allocator, streams }
    }

    fn stream(&self, number: usize) -> &Stream<Emulator> {
        &self.streams[number].0
    }

    fn set_status(&self, stream: usize, status: CaptureStatus) {
        self.device.set_capture_status(&self.streams[stream].1, status);
    }

    fn begin(&self, stream: usize, pool: &Pool) -> Scope {
        let scope = self.stream(stream).capture(pool).unwrap();
        self.set_status(stream, CaptureStatus::Active);
        scope
    }

    fn end(&self, stream: usize, scope: Scope) {
        self.set_status(stream, CaptureStatus::None);
        scope.end().unwrap();
    }

    fn allocate(&self, pages: u64, stream: usize) -> Block {
        self.try_allocate(pages, stream).unwrap_or_else(|error| panic!("{error}"))
    }

    fn try_allocate(&self, pages: u64, stream: usize) -> Result<Block, concertina::Error> {
        self.allocator.allocate(Layout::new(pages * PAGE), self.stream(stream))
    }

    /// Work that runs: a kernel that writes the block.
    fn write(&self, block: &Block, stream: usize) {
        let write = Access::write(block.address(), block.bytes());
        self.device.queue(&self.streams[stream].1, Work::new("eager write").touching(write));
    }

    /// The same, and then the free.
    fn write_and_free(&self, block: Block, stream: usize) {
        self.write(&block, stream);
        drop(block);
    }

    fn launch(&self, graph: &Graph, pool: &Pool, stream: usize) {
        let launched = pool.launch(self.stream(stream), || {
            for &(address, bytes) in &graph.writes {
                let write = Access::write(address, bytes);
                self.device.queue(&self.streams[stream].1, Work::new("graph").touching(write));
            }
        });
        launched.unwrap();
    }

    /// All calls to the driver so far.
    fn calls(&self) -> Vec<(Call, u64)> {
        let counts = self.device.counts();
        Call::ALL.iter().map(|call| (*call, counts.of(*call) + counts.failed(*call))).collect()
    }

    fn count(&self, call: Call) -> u64 {
        self.device.counts().of(call)
    }

    #[track_caller]
    fn check(&self) {
        assert_eq!(self.allocator.audit(), Vec::<String>::new());
        assert_eq!(self.device.broken_rules(), Vec::new());
        assert_eq!(self.device.races(), Vec::new());
    }

    #[track_caller]
    fn ends_empty(self) {
        self.check();
        drop(self.streams);
        self.allocator.close().unwrap();
        assert!(self.device.is_empty(), "left: {}", self.device.leaks());
        assert_eq!(self.device.broken_rules(), Vec::new());
        assert_eq!(self.device.races(), Vec::new());
    }
}

#[test]
fn with_memory_held_a_capture_makes_no_call() {
    let bench = Bench::new(32);
    let pool = bench.allocator.graph_pool_with(Growth::Held);
    pool.reserve(10 * PAGE, bench.stream(0)).unwrap();
    assert_eq!((pool.held_bytes(), bench.allocator.stats().pinned_bytes), (10 * PAGE, 10 * PAGE));
    let scope = bench.begin(0, &pool);
    let calls = bench.calls();
    let kept = bench.allocate(4, 0);
    let first = bench.allocate(6, 0);
    let at = first.address();
    drop(first);
    // In the order of the stream, and so of the graph. Small blocks have the pool's pages, too.
    let small = bench.allocator.allocate(Layout::new(100), bench.stream(0)).unwrap();
    assert_eq!(small.address(), at);
    drop(small);
    assert_eq!(bench.allocate(6, 0).address(), at);
    assert_eq!(bench.calls(), calls);
    bench.end(0, scope);
    // Outside, memory is not the pool's.
    assert_ne!(bench.allocate(6, 0).address(), at);
    bench.check();
    drop((kept, pool));
    bench.ends_empty();
}

#[test]
fn growth_in_a_capture_maps_and_waits_for_nothing() {
    let bench = Bench::with(8, Bench::config().host_wait(HostWait::LastResort).build());
    // Four pages that work on another stream, and two that work on this one, may still use.
    let (other, own) = (bench.allocate(4, 1), bench.allocate(2, 0));
    bench.write_and_free(other, 1);
    bench.write_and_free(own, 0);
    let pool = bench.allocator.graph_pool();
    let scope = bench.begin(0, &pool);
    let before = bench.device.counts();
    let block = bench.allocate(2, 0);
    let after = bench.device.counts();
    let made = |call: Call| after.of(call) - before.of(call);
    assert_eq!((made(Call::Create), made(Call::Map), made(Call::SetAccess)), (2, 2, 1), "new ones");
    assert_eq!((made(Call::StreamWait), made(Call::EventSynchronize), made(Call::Unmap)), (0, 0, 0));
    // The rest of the device is in use, and may not be waited for, though the host may wait otherwise.
    assert!(bench.try_allocate(1, 0).unwrap_err().is_out_of_memory());
    assert_eq!(bench.device.counts().host_waits, 0);
    // Seen done, the others' frames serve.
    bench.device.complete_all();
    let created = bench.count(Call::Create);
    let more = bench.allocate(6, 0);
    assert_eq!((bench.count(Call::Create), bench.count(Call::StreamWait)), (created, 0));
    assert_eq!(bench.allocator.stats().pinned_bytes, 8 * PAGE);
    bench.check();
    bench.end(0, scope);
    drop((block, more, pool));
    bench.ends_empty();
}

#[test]
fn nobody_takes_a_pool_s_free_pages() {
    let bench = Bench::new(8);
    let pool = bench.allocator.graph_pool();
    pool.reserve(5 * PAGE, bench.stream(0)).unwrap();
    bench.device.complete_all();
    // Of its own stream, and of another one.
    for stream in [0, 1] {
        let refused = bench.try_allocate(4, stream).unwrap_err();
        assert!(refused.is_out_of_memory(), "{refused}");
        let text = refused.to_string();
        assert!(text.contains("pinned 10.00 MiB, largest request that would succeed 6.00 MiB"), "{text}");
        drop(bench.allocate(3, stream));
    }
    let trimmed = bench.allocator.trim_wait().unwrap();
    assert_eq!((trimmed.released_bytes, trimmed.waiting_bytes), (3 * PAGE, 0));
    bench.allocator.unmap_stale_to(0);
    assert_eq!(bench.allocator.stats().mapped_bytes, 5 * PAGE);
    // A trim in the middle of a capture leaves it alone as well.
    let scope = bench.begin(0, &pool);
    drop(bench.allocate(5, 0));
    bench.allocator.trim();
    bench.allocator.trim_wait().unwrap();
    assert_eq!(bench.allocator.stats().mapped_bytes, 5 * PAGE);
    bench.end(0, scope);
    bench.check();
    drop(pool);
    assert_eq!(bench.allocator.trim_wait().unwrap().released_bytes, 5 * PAGE);
    bench.ends_empty();
}

#[test]
fn a_capturing_stream_s_frames_serve_others_if_an_event_from_before_shows_them_done() {
    for (done_before, taken) in [(false, false), (true, true)] {
        let bench = Bench::new(8);
        bench.write_and_free(bench.allocate(8, 0), 0);
        let pool = bench.allocator.graph_pool();
        let scope = bench.begin(0, &pool);
        let waits = bench.count(Call::StreamWait);
        if done_before {
            bench.device.complete_all();
        }
        let other = bench.try_allocate(8, 1);
        assert_eq!(other.is_ok(), taken, "{other:?}");
        assert_eq!(bench.count(Call::StreamWait), waits);
        bench.check();
        bench.end(0, scope);
        // It is an ordinary stream again.
        drop(other);
        drop(bench.allocate(8, 2));
        assert_eq!(bench.count(Call::StreamWait), waits + 1);
        drop(pool);
        bench.ends_empty();
    }
}

/// What is freed of the stream's own memory during the capture can't be seen done before its end.
#[test]
fn what_is_freed_in_a_capture_waits_for_its_end() {
    let bench = Bench::new(8);
    let eager = bench.allocate(8, 0);
    let pool = bench.allocator.graph_pool();
    let scope = bench.begin(0, &pool);
    drop(eager);
    bench.device.complete_all();
    assert!(bench.try_allocate(8, 1).unwrap_err().is_out_of_memory());
    assert_eq!(bench.allocator.trim_wait().unwrap().released_bytes, 0);
    bench.check();
    bench.end(0, scope);
    drop(bench.allocate(8, 1));
    drop(pool);
    bench.ends_empty();
}

#[test]
fn a_block_recorded_in_a_capture_is_pending_until_its_end() {
    let bench = Bench::new(16);
    let pool = bench.allocator.graph_pool();
    pool.reserve(4 * PAGE, bench.stream(0)).unwrap();
    let (scope, fork) = (bench.begin(0, &pool), bench.begin(1, &pool));
    let block = bench.allocate(4, 0);
    let at = block.address();
    block.record_stream(bench.stream(1)).unwrap();
    drop(block);
    bench.device.complete_all();
    assert_eq!(bench.allocator.stats().pending_bytes, 4 * PAGE);
    // Asked for again and again, on both sides.
    assert_ne!(bench.allocate(4, 0).address(), at);
    drop(bench.allocate(2, 2));
    bench.allocator.trim();
    assert_eq!(bench.allocator.stats().pending_bytes, 4 * PAGE);
    bench.check();
    bench.end(1, fork);
    bench.end(0, scope);
    // Now an event is recorded.
    bench.allocator.trim();
    bench.device.complete_all();
    let scope = bench.begin(0, &pool);
    // Two places of four pages: both are had now.
    let blocks = [bench.allocate(4, 0), bench.allocate(4, 0)];
    assert!(blocks.iter().any(|block| block.address() == at));
    assert_eq!(bench.allocator.stats().pending_bytes, 0);
    bench.end(0, scope);
    drop((blocks, pool));
    bench.ends_empty();
}

#[test]
fn never_keeps_frames_from_a_capture_on_another_stream() {
    let rule = Bench::config().cross_stream(CrossStream::Never).build();
    let bench = Bench::with(8, rule);
    bench.write_and_free(bench.allocate(8, 1), 1);
    bench.device.complete_all();
    let pool = bench.allocator.graph_pool();
    let scope = bench.begin(0, &pool);
    assert!(bench.try_allocate(1, 0).unwrap_err().is_out_of_memory());
    bench.end(0, scope);
    drop(pool);
    bench.ends_empty();
}

/// Order on the stream is none for the graph, which may be launched elsewhere.
#[test]
fn a_capture_takes_of_its_own_stream_what_is_done_whatever_the_rule() {
    for rule in [CrossStream::Never, CrossStream::Completed, CrossStream::DeviceWait] {
        let bench = Bench::with(8, Bench::config().cross_stream(rule).build());
        bench.write_and_free(bench.allocate(8, 0), 0);
        let pool = bench.allocator.graph_pool();
        let scope = bench.begin(0, &pool);
        assert!(bench.try_allocate(1, 0).unwrap_err().is_out_of_memory(), "{rule:?}");
        bench.device.complete_all();
        drop(bench.allocate(8, 0));
        bench.end(0, scope);
        drop(pool);
        bench.ends_empty();
    }
}

/// The same rules, where memory comes from mallocs, which go only whole.
#[test]
fn without_virtual_memory_a_pool_keeps_its_segments() {
    let device = EmulatorConfig { virtual_memory: false, ..EmulatorConfig::default() };
    let device = device.with_capacity(60 * MIB).unwrap().with_event_completion(EventCompletion::ByHand);
    let bench = Bench::on(device, Bench::config().build());
    let pool = bench.allocator.graph_pool_with(Growth::Held);
    pool.reserve(20 * MIB, bench.stream(0)).unwrap();
    let scope = bench.begin(0, &pool);
    let calls = bench.calls();
    let mut graph = Graph::default();
    graph.write(&bench.allocate(10, 0));
    assert!(matches!(bench.try_allocate(11, 0), Err(concertina::Error::Capture(_))));
    assert_eq!(bench.calls(), calls);
    bench.end(0, scope);
    bench.launch(&graph, &pool, 1);
    // 40 MiB are left for others, whatever is free in the pool.
    assert!(bench.try_allocate(21, 2).unwrap_err().is_out_of_memory());
    bench.allocator.trim();
    assert_eq!(bench.allocator.stats().pinned_bytes, 20 * MIB);
    bench.check();
    drop(pool);
    // Behind the launch, by a wait on the device.
    let waits = bench.count(Call::StreamWait);
    let blocks: Vec<_> = (0..3).map(|_| bench.allocate(10, 2)).collect();
    blocks.into_iter().for_each(|block| bench.write_and_free(block, 2));
    assert!(bench.count(Call::StreamWait) > waits);
    bench.ends_empty();
}

/// Other threads steal and trim all the time, while this one captures and launches.
#[test]
fn threads_go_on_while_a_stream_captures() {
    let device = EmulatorConfig::default().with_capacity(GIB / 4).unwrap();
    let device = Emulator::new(device.with_event_completion(EventCompletion::AfterOperations(20))).unwrap();
    let allocator = Allocator::new(device.clone(), Config::builder().policy(Policy::Lean).build()).unwrap();
    let own = device.stream();
    let stream = allocator.register_stream(own.clone());
    let others: Vec<_> = (1..4_u64)
        .map(|number| {
            let (allocator, device) = (allocator.clone(), device.clone());
            std::thread::spawn(move || {
                let own = device.stream();
                let stream = allocator.register_stream(own.clone());
                for round in 0..300 {
                    let layout = Layout::new((1 + (round * number) % 40) * PAGE);
                    let Ok(block) = allocator.allocate(layout, &stream) else { continue };
                    let write = Access::write(block.address(), layout.bytes());
                    device.queue(&own, Work::new("eager").touching(write));
                    if round % 50 == 0 {
                        allocator.trim();
                    }
                }
            })
        })
        .collect();
    for round in 0..100 {
        let pool = allocator.graph_pool();
        let mut graph = Graph::default();
        let scope = stream.capture(&pool).unwrap();
        device.set_capture_status(&own, CaptureStatus::Active);
        for pages in 1..4 {
            if let Ok(block) = allocator.allocate(Layout::new(pages * PAGE), &stream) {
                graph.write(&block);
            }
        }
        device.set_capture_status(&own, CaptureStatus::None);
        scope.end().unwrap();
        for _ in 0..round % 3 {
            let launched = pool.launch(&stream, || {
                for &(address, bytes) in &graph.writes {
                    let write = Access::write(address, bytes);
                    device.queue(&own, Work::new("graph").touching(write));
                }
            });
            launched.unwrap();
        }
    }
    others.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(allocator.audit(), Vec::<String>::new());
    drop(stream);
    allocator.close().unwrap();
    assert!(device.is_empty(), "left: {}", device.leaks());
    assert_eq!(device.broken_rules(), Vec::new());
    assert_eq!(device.races(), Vec::new());
}
