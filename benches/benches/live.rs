//! How does the cost of a pair grow with the blocks that are live?
//!
//! Neighbours: `mapped` has pages instead of blocks; `cargo xtask speed live` runs the same by turns, with ratios.
//! `hot` is 64 KiB again and again, `hit` one of the sizes and its free at once, `churn` exchanges one of the blocks.
//! All are log-uniform up to 1 MiB.

use concertina_bench::churn::{Churn, Sizes};
use concertina_bench::contender::ByHandle;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

fn live(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("live");
    group.sample_size(50);
    for blocks in [1_000, 10_000, 100_000, 1_000_000] {
        let mut churn = Churn::new(ByHandle::new(), blocks, Sizes::SMALL);
        group.bench_function(BenchmarkId::new("hot", blocks), |bencher| {
            bencher.iter(|| churn.pairs_of(64 << 10, 1));
        });
        group.bench_function(BenchmarkId::new("hit", blocks), |bencher| bencher.iter(|| churn.hits(1)));
        group.bench_function(BenchmarkId::new("churn", blocks), |bencher| bencher.iter(|| churn.pairs(1)));
    }
    group.finish();
}

criterion_group!(benches, live);
criterion_main!(benches);
