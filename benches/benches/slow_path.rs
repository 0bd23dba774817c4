//! What does the slow path cost, and how does that grow with pages, blocks and streams that it has nothing to do with?
//!
//! Neighbours: `hit_path` and `churn` time what makes no driver call. The driver here does nothing, so that the times are
//! the allocator's own. `grow` to `retire` do as much as their size says, or a fixed number of pages beside so many others;
//! each `miss_beside` is one request that needs one page more, whatever else there is.

use std::time::{Duration, Instant};

use concertina::{Allocation, Allocator, Config, CrossStream, Layout, Policy, Stream};
use concertina_bench::null_driver::NullDriver;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const PAGE: u64 = 2 << 20;
/// Misses by which a time is divided.
const MISSES: u32 = 10;
const BY_PAGES: &[u64] = &[1_000, 10_000, 100_000];
const BY_BLOCKS: &[u64] = &[1_000, 10_000, 100_000, 1_000_000];
const BY_STREAMS: &[u64] = &[10, 100, 1_000];

/// What is timed, the sizes of what is there, what one element of the time is, and the case: it sets up, and returns how
/// long the rest took.
struct Case {
    name: &'static str,
    sizes: &'static [u64],
    elements: fn(u64) -> u64,
    run: fn(u64) -> Duration,
}

const fn case(
    name: &'static str,
    sizes: &'static [u64],
    elements: fn(u64) -> u64,
    run: fn(u64) -> Duration,
) -> Case {
    Case { name, sizes, elements, run }
}

const CASES: &[Case] = &[
    case("grow by 1 GiB, by pages mapped", BY_PAGES, |_| 512, grow),
    case("steal 1000 pages, by pages idle elsewhere", BY_PAGES, |_| 1_000, steal),
    case("trim, by frames", BY_PAGES, |size| size, trim),
    case("trim by one frame, by frames", BY_PAGES, |_| 1, trim_by_one),
    case("unmap stale pages, by pages", BY_PAGES, |size| size, unmap_stale),
    case("retire, by pages", BY_PAGES, |size| size, retire),
    case("stats, by pages", BY_PAGES, |size| size, stats),
    case("out of memory, by pages", BY_PAGES, |size| size, out_of_memory),
    case("miss beside pages mapped", BY_PAGES, |_| 1, beside_pages),
    case("miss beside blocks live", BY_BLOCKS, |_| 1, beside_blocks),
    case("miss beside blocks pending", BY_PAGES, |_| 1, beside_pending),
    case("miss beside frames of a stream retired at work", BY_PAGES, |_| 1, beside_retired),
    case("miss beside streams with a full page", BY_STREAMS, |_| 1, beside_streams),
    case("miss beside holes that lie wrong", BY_PAGES, |_| 1, beside_misfits),
];

struct Bench {
    device: NullDriver,
    allocator: Allocator<NullDriver>,
    stream: Stream<NullDriver>,
    other: Stream<NullDriver>,
}

impl Bench {
    fn new(frames: u64) -> Self {
        Self::with(frames, CrossStream::DeviceWait)
    }

    fn with(frames: u64, rule: CrossStream) -> Self {
        let device = NullDriver::new(frames, None);
        let config = Config::builder().policy(Policy::Lean).cross_stream(rule).build();
        let allocator = Allocator::new(device.clone(), config).expect("an allocator");
        let (stream, other) = (allocator.register_stream(0), allocator.register_stream(1));
        Self { device, allocator, stream, other }
    }

    fn block(&self, bytes: u64) -> Allocation<NullDriver> {
        self.allocator.allocate(Layout::new(bytes), &self.stream).expect("the device is large enough")
    }

    fn blocks(&self, count: u64, bytes: u64) -> Vec<Allocation<NullDriver>> {
        (0..count).map(|_| self.block(bytes)).collect()
    }

    fn on_other(&self, count: u64, bytes: u64) -> Vec<Allocation<NullDriver>> {
        let block = |_| self.allocator.allocate(Layout::new(bytes), &self.other);
        (0..count).map(|at| block(at).expect("the device is large enough")).collect()
    }

    /// Requests that each need one page more; all are live until the end.
    fn misses(&self) -> Duration {
        let calls = self.device.calls();
        let (took, live) = timed(|| self.blocks(MISSES.into(), PAGE));
        assert!(self.device.calls() - calls >= MISSES.into(), "each makes driver calls");
        drop(live);
        took / MISSES
    }
}

fn timed<T>(run: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = run();
    (start.elapsed(), result)
}

fn grow(pages: u64) -> Duration {
    let bench = Bench::new(pages + 512);
    let _live = bench.blocks(pages, PAGE);
    timed(|| bench.block(1 << 30)).0
}

fn steal(pages: u64) -> Duration {
    let bench = Bench::new(pages);
    drop(bench.on_other(pages, PAGE));
    timed(|| bench.block(1_000 * PAGE)).0
}

fn trim(frames: u64) -> Duration {
    let bench = Bench::new(frames);
    drop(bench.blocks(frames, PAGE));
    let (took, trimmed) = timed(|| bench.allocator.trim());
    assert_eq!(trimmed.released_bytes, frames * PAGE);
    took
}

fn trim_by_one(frames: u64) -> Duration {
    let bench = Bench::new(frames);
    drop(bench.blocks(frames, PAGE));
    let (took, trimmed) = timed(|| bench.allocator.trim_to((frames - 1) * PAGE));
    assert_eq!(trimmed.released_bytes, PAGE);
    took
}

fn unmap_stale(pages: u64) -> Duration {
    let bench = Bench::new(pages);
    drop(bench.on_other(pages, PAGE));
    let _holder = bench.block(pages * PAGE);
    let (took, gone) = timed(|| bench.allocator.unmap_stale_to(0));
    assert_eq!(gone, pages);
    took
}

fn retire(pages: u64) -> Duration {
    let bench = Bench::new(pages);
    drop(bench.on_other(pages, PAGE));
    timed(|| drop(bench.other)).0
}

fn stats(pages: u64) -> Duration {
    let bench = Bench::new(pages);
    let _live = bench.blocks(pages, PAGE);
    timed(|| bench.allocator.stats()).0
}

fn out_of_memory(pages: u64) -> Duration {
    let bench = Bench::new(pages);
    let _live = bench.blocks(pages, PAGE);
    let (took, refused) = timed(|| bench.allocator.allocate(Layout::new(PAGE), &bench.stream));
    assert!(refused.is_err());
    took
}

fn beside_pages(pages: u64) -> Duration {
    let bench = Bench::new(pages + 100);
    let _live = bench.blocks(pages, PAGE);
    bench.misses()
}

fn beside_blocks(blocks: u64) -> Duration {
    let bench = Bench::new(blocks / 512 + 100);
    let _live = bench.blocks(blocks, PAGE / 512);
    bench.misses()
}

fn beside_pending(blocks: u64) -> Duration {
    let bench = Bench::with(blocks + 100, CrossStream::Completed);
    bench.device.hold_up();
    for block in bench.blocks(blocks, PAGE) {
        block.record_stream(&bench.other).expect("it is live");
    }
    bench.misses()
}

fn beside_retired(frames: u64) -> Duration {
    let Bench { device, allocator, stream, other } = Bench::with(frames + 100, CrossStream::Completed);
    let bench = Bench { other: allocator.register_stream(2), device, allocator, stream };
    bench.device.hold_up();
    drop((0..frames).map(|_| bench.allocator.allocate(Layout::new(PAGE), &other)).collect::<Vec<_>>());
    drop(other);
    bench.misses()
}

fn beside_streams(streams: u64) -> Duration {
    let bench = Bench::new(streams + 100);
    let streams: Vec<_> =
        (0..streams).map(|number| bench.allocator.register_stream(2 + number as u32)).collect();
    let _live: Vec<_> =
        streams.iter().map(|stream| bench.allocator.allocate(Layout::new(PAGE), stream)).collect();
    bench.misses()
}

fn beside_misfits(holes: u64) -> Duration {
    let bench = Bench::new(holes / 64 + 100);
    let mut live = bench.blocks(2 * holes, PAGE / 256);
    // None of them is at a multiple of twice its size.
    let mut at = 0;
    live.retain(|_| {
        at += 1;
        at % 2 == 1
    });
    let layout = Layout::new(PAGE / 256).aligned_to(PAGE / 128);
    let misses = |bench: &Bench| {
        (0..MISSES).map(|_| bench.allocator.allocate(layout, &bench.stream)).collect::<Vec<_>>()
    };
    let took = timed(|| misses(&bench)).0 / MISSES;
    // The last one first: the index of holes is an array.
    live.reverse();
    took
}

fn slow_path(criterion: &mut Criterion) {
    for case in CASES {
        let mut group = criterion.benchmark_group(format!("slow_path/{}", case.name));
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(100))
            .measurement_time(Duration::from_secs(1));
        for &size in case.sizes {
            group.throughput(Throughput::Elements((case.elements)(size)));
            group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
                bencher.iter_custom(|times| (0..times).map(|_| (case.run)(size)).sum());
            });
        }
        group.finish();
    }
}

criterion_group!(benches, slow_path);
criterion_main!(benches);
