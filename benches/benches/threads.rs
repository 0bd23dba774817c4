//! What does a pair of an allocation and its free cost on several threads, by what they share?
//!
//! Neighbours: `cross_free` has blocks that another thread frees; `src/threads.rs` has the threads,
//! `examples/thread_scaling.rs` prints ratios that a loaded machine blurs less.

use concertina_bench::threads::{Crew, Sharing};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// Pairs of each thread in one measurement.
const PAIRS: u64 = 20_000;

fn side_by_side(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("threads");
    group.sample_size(30);
    for threads in [1, 2, 4] {
        for sharing in [Sharing::Nothing, Sharing::Allocator, Sharing::Stream] {
            let crew = Crew::new(threads, sharing);
            group.throughput(Throughput::Elements(threads as u64 * PAIRS));
            group.bench_function(BenchmarkId::new(sharing.name(), threads), |bencher| {
                bencher.iter_custom(|runs| (0..runs).map(|_| crew.run(PAIRS)).sum());
            });
        }
    }
    group.finish();
}

criterion_group!(benches, side_by_side);
criterion_main!(benches);
