//! What does a pair cost with crates that do a like job on the host, and with mimalloc for memory of the host?
//!
//! Neighbours: `examples/speed/peers.rs` has the peers; `cargo xtask speed hot churn` runs the same by turns, with
//! ratios, which is what to compare by. mimalloc is this program's own allocator; it is asked for no more than 1 MiB.

#[path = "../examples/speed/peers.rs"]
mod peers;

use concertina_bench::churn::{Churn, Sizes};
use concertina_bench::contender::{ByAddress, ByHandle, Contender, DriverMalloc, HostHeap};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use mimalloc::MiMalloc;
use peers::{GpuAllocator, OffsetAllocator};

#[global_allocator]
static HOST: MiMalloc = MiMalloc;

/// Sizes in bytes.
const SIZES: [(&str, u64); 4] = [("512B", 512), ("64KiB", 64 << 10), ("1MiB", 1 << 20), ("20MiB", 20 << 20)];

/// Live blocks of a churn.
const BLOCKS: usize = 1_000;

fn hot_pairs(criterion: &mut Criterion) {
    fn pair<C: Contender>(
        group: &mut BenchmarkGroup<'_, WallTime>,
        mut contender: C,
        size: &str,
        bytes: u64,
    ) {
        // The heap is not empty, and the pair is warm.
        let neighbour = contender.allocate(64 << 10);
        contender.pairs(bytes, 1);
        let id = BenchmarkId::new(contender.name(), size);
        group.bench_function(id, |bencher| bencher.iter(|| contender.pairs(bytes, 1)));
        contender.free(neighbour);
    }
    let mut group = criterion.benchmark_group("peers/hot");
    group.sample_size(50);
    for (name, bytes) in SIZES {
        pair(&mut group, ByHandle::new(), name, bytes);
        pair(&mut group, ByAddress::default(), name, bytes);
        pair(&mut group, OffsetAllocator::default(), name, bytes);
        pair(&mut group, GpuAllocator::default(), name, bytes);
        pair(&mut group, DriverMalloc::default(), name, bytes);
        if bytes <= 1 << 20 {
            pair(&mut group, HostHeap::named("mimalloc"), name, bytes);
        }
    }
    group.finish();
}

fn churns(criterion: &mut Criterion) {
    fn churn<C: Contender>(group: &mut BenchmarkGroup<'_, WallTime>, contender: C) {
        let mut churn = Churn::new(contender, BLOCKS, Sizes::SMALL);
        let id = BenchmarkId::new(churn.contender().name(), BLOCKS);
        group.bench_function(id, |bencher| bencher.iter(|| churn.pairs(1)));
    }
    let mut group = criterion.benchmark_group("peers/churn up to 1 MiB");
    group.sample_size(50);
    churn(&mut group, ByHandle::new());
    churn(&mut group, OffsetAllocator::default());
    churn(&mut group, GpuAllocator::default());
    churn(&mut group, DriverMalloc::default());
    churn(&mut group, HostHeap::named("mimalloc"));
    group.finish();
}

criterion_group!(benches, hot_pairs, churns);
criterion_main!(benches);
