//! What does a pair cost that frees a random one of many live blocks and allocates one of another size?
//!
//! Neighbours: `src/churn.rs` has the loop; `hit_path` has pairs of one size, `live` more numbers of blocks, `peers`
//! other allocators. Sizes are log-uniform, so that holes are of all sizes and best fit has to choose; a long warm-up
//! comes first, after which a pair seldom makes a driver call.

use concertina_bench::churn::{Churn, Sizes};
use concertina_bench::contender::ByHandle;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

/// Live blocks, and their sizes.
const CASES: [(usize, Sizes); 4] =
    [(1_000, Sizes::ALL), (100_000, Sizes::ALL), (1_000, Sizes::SMALL), (100_000, Sizes::SMALL)];

fn churn(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("churn");
    for (blocks, sizes) in CASES {
        let mut churn = Churn::new(ByHandle::new(), blocks, sizes);
        let name = format!("up to {} MiB", sizes.most >> 20);
        group.bench_function(BenchmarkId::new(name, blocks), |bencher| bencher.iter(|| churn.pairs(1)));
    }
    group.finish();
}

criterion_group!(benches, churn);
criterion_main!(benches);
