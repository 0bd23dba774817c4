//! How does the cost of a pair grow with the pages that are mapped?
//!
//! Neighbours: `live` has blocks instead of pages; `cargo xtask speed mapped` runs the same by turns, with ratios.
//! Every second run of ten pages is idle; the pairs are of 1 to 20 MiB, in the heap that has these pages.

use concertina_bench::churn::{Churn, Sizes};
use concertina_bench::contender::ByHandle;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

fn mapped(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("mapped");
    group.sample_size(50);
    for pages in [1_000, 10_000, 100_000] {
        let mut churn = Churn::new(ByHandle::with_mapped(pages), 50, Sizes::LARGE);
        group.bench_function(BenchmarkId::new("hot", pages), |bencher| {
            bencher.iter(|| churn.pairs_of(Sizes::LARGE.most, 1));
        });
        group.bench_function(BenchmarkId::new("hit", pages), |bencher| bencher.iter(|| churn.hits(1)));
        group.bench_function(BenchmarkId::new("churn", pages), |bencher| bencher.iter(|| churn.pairs(1)));
    }
    group.finish();
}

criterion_group!(benches, mapped);
criterion_main!(benches);
