//! What does a pair cost while another thread takes the allocator's statistics, and what does taking them cost?
//!
//! Neighbours: `churn` has the pair with nobody beside; `cargo xtask speed snapshot` runs all by turns. Counters are a
//! part of the path and can't be switched off.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use concertina_bench::churn::{Churn, Sizes};
use concertina_bench::contender::ByHandle;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

/// Live blocks of a churn.
const BLOCKS: usize = 1_000;

fn beside(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("snapshot");
    let other = Churn::new(ByHandle::new(), BLOCKS, Sizes::ALL);
    let mut churn = Churn::new(ByHandle::new(), BLOCKS, Sizes::ALL);
    let at_work = churn.contender().allocator().clone();
    let looked_at = [
        ("nobody looks", None),
        ("looks elsewhere", Some(other.contender().allocator())),
        ("looks at it", Some(&at_work)),
    ];
    for (name, allocator) in looked_at {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if let Some(allocator) = allocator {
                let done = &done;
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        black_box(allocator.stats());
                    }
                });
            }
            group.bench_function(BenchmarkId::new("churn", name), |bencher| bencher.iter(|| churn.pairs(1)));
            done.store(true, Ordering::Relaxed);
        });
    }
    for blocks in [1_000, 100_000] {
        let churn = Churn::new(ByHandle::new(), blocks, Sizes::SMALL);
        group.bench_function(BenchmarkId::new("stats", blocks), |bencher| {
            bencher.iter(|| black_box(churn.contender().allocator().stats()));
        });
    }
    group.finish();
}

criterion_group!(benches, beside);
criterion_main!(benches);
