//! What does memory of unknown length cost: grown in place, or by a larger block, a copy and a free?
//!
//! Neighbours: `hit_path` times ordinary blocks. Copies take no time here, since the emulated device has no bytes: they
//! are counted. So are driver calls and mapped bytes, on a fresh allocator each, and printed before the timing; what is
//! timed is the host, once the allocator is warm.

use std::hint::black_box;

use concertina::{Allocation, Allocator, Config, Growable, Layout, Stream};
use concertina_emulator::{Emulator, EmulatorConfig};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// How a length is reached, in bytes: so much, step by step.
const LENGTHS: &[(&str, u64, u64)] =
    &[("32MiB by 4KiB", 32 << 20, 4 << 10), ("1GiB by 2MiB", 1 << 30, 2 << 20)];

/// A way to grow.
#[derive(Clone, Copy)]
enum Way {
    /// A growable, made and dropped each time.
    InPlace,
    /// One growable, cleared each time.
    Cleared,
    /// A block of exactly the new length each time.
    Exact,
    /// A block of twice the old length when it is full.
    Doubling,
}

const WAYS: &[(&str, Way)] = &[
    ("in_place", Way::InPlace),
    ("cleared", Way::Cleared),
    ("exact", Way::Exact),
    ("doubling", Way::Doubling),
];

/// Memory that was grown, and the bytes that were copied for it.
struct Grown {
    copied_bytes: u64,
    _block: Option<Allocation<Emulator>>,
    growable: Option<Growable<Emulator>>,
}

fn grow(
    allocator: &Allocator<Emulator>,
    stream: &Stream<Emulator>,
    way: Way,
    bytes: u64,
    step: u64,
    before: Option<Grown>,
) -> Grown {
    let lengths = (1..=bytes / step).map(|steps| steps * step);
    let (mut block, mut copied_bytes): (Option<Allocation<Emulator>>, u64) = (None, 0);
    // All but one of the ways begin with nothing.
    let kept = before.and_then(|before| before.growable).filter(|_| matches!(way, Way::Cleared));
    if let Way::InPlace | Way::Cleared = way {
        // Addresses for eight times as much as it turns out to need.
        let mut growable =
            kept.unwrap_or_else(|| allocator.reserve_growable(8 * bytes, stream).expect("addresses"));
        growable.shrink_to(0);
        for length in lengths {
            growable.grow_to(length).expect("the device is large enough");
        }
        return Grown { copied_bytes, _block: block, growable: Some(growable) };
    }
    for length in lengths {
        let before = block.as_ref().map_or(0, Allocation::bytes);
        if length > before {
            let next = if let Way::Exact = way { length } else { length.max(2 * before) };
            let larger = allocator.allocate(Layout::new(next), stream).expect("the device is large enough");
            // All that there was until then; and the old block is freed here.
            copied_bytes += length - step;
            block = Some(larger);
        }
    }
    Grown { copied_bytes, _block: block, growable: None }
}

fn growth(criterion: &mut Criterion) {
    println!(
        "{:16} {:9} {:>15} {:>15} {:>13} {:>13}",
        "length", "way", "bytes copied", "mapped peak", "driver calls", "calls, warm"
    );
    for &(length, bytes, step) in LENGTHS {
        let mut group = criterion.benchmark_group(format!("growth/{length}"));
        group.throughput(Throughput::Elements(bytes / step)).sample_size(20);
        for &(name, way) in WAYS {
            let device = Emulator::new(EmulatorConfig::default()).expect("a device");
            let allocator = Allocator::new(device.clone(), Config::default()).expect("an allocator");
            let stream = allocator.register_stream(device.stream());
            let mut grown = None;
            let mut again = || {
                let new = grow(&allocator, &stream, way, bytes, step, grown.take());
                grown.insert(new).copied_bytes
            };
            let copied = again();
            let (cold, peak) = (device.counts().memory_calls(), allocator.stats().mapped_peak_bytes);
            again();
            let before = device.counts().memory_calls();
            again();
            let warm = device.counts().memory_calls() - before;
            println!("{length:16} {name:9} {copied:>15} {peak:>15} {cold:>13} {warm:>13}");
            group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
                bencher.iter(|| black_box(again()));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, growth);
criterion_main!(benches);
