//! What does a block cost that another thread frees, by when it does?
//!
//! Neighbours: `src/handover.rs` has the threads; `cargo xtask speed handover` tells allocations and frees apart. The
//! time is that of the allocations and the frees of a batch together, each taken on its own thread: the channel is not
//! in it.

use std::time::Duration;

use concertina_bench::contender::ByHandle;
use concertina_bench::handover::{BATCH, FreedBy};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn cross_free(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("cross_free");
    group.sample_size(30).throughput(Throughput::Elements(BATCH as u64));
    for by in FreedBy::ALL {
        let mut contender = ByHandle::new();
        by.run(&mut contender, 10);
        group.bench_function(BenchmarkId::from_parameter(by.name()), |bencher| {
            bencher.iter_custom(|batches| {
                let handed = by.run(&mut contender, batches as usize);
                let ns: f64 = handed.allocation_ns.iter().chain(&handed.free_ns).sum();
                Duration::from_nanos((ns * BATCH as f64) as u64)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, cross_free);
criterion_main!(benches);
