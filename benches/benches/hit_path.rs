//! What does an allocation and its free cost the host when no driver call is needed, by size?
//!
//! Neighbours: `replay` times whole traces. Each pair finds a place whose pages are all held: that no driver call was made
//! is checked at the end of each measurement.

use std::hint::black_box;

use concertina::{Allocator, Config, Layout};
use concertina_emulator::{Emulator, EmulatorConfig};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

/// Sizes in bytes: within a page, about a page, many pages.
const SIZES: &[(&str, u64)] = &[
    ("512B", 512),
    ("64KiB", 64 << 10),
    ("1MiB", 1 << 20),
    ("2MiB", 2 << 20),
    ("20MiB", 20 << 20),
    ("200MiB", 200 << 20),
];

/// Blocks that stay live beside the pair, so that the heap is not empty.
const NEIGHBOURS: usize = 1_000;

fn pairs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("hit_path");
    for &(name, bytes) in SIZES {
        let device = Emulator::new(EmulatorConfig::default()).expect("a device");
        let allocator = Allocator::new(device.clone(), Config::default()).expect("an allocator");
        let stream = allocator.register_stream(device.stream());
        let layout = Layout::new(bytes);
        let neighbours: Vec<_> = (0..NEIGHBOURS)
            .map(|_| allocator.allocate(Layout::new(64 << 10), &stream).expect("the device is large enough"))
            .collect();
        // The first pair grows the heap; what it leaves is held.
        drop(allocator.allocate(layout, &stream));
        let calls = device.counts().memory_calls();

        group.bench_function(BenchmarkId::new("handle", name), |bencher| {
            bencher.iter(|| drop(black_box(allocator.allocate(layout, &stream))));
        });
        group.bench_function(BenchmarkId::new("raw", name), |bencher| {
            bencher.iter(|| {
                let block = allocator.allocate_raw(layout, &stream).expect("held");
                allocator.free_raw(black_box(block)).expect("live");
            });
        });
        assert_eq!(device.counts().memory_calls(), calls, "{name}: a pair made a driver call");
        drop(neighbours);
    }
    group.finish();
}

criterion_group!(benches, pairs);
criterion_main!(benches);
