//! What does a pair cost that frees a random one of many live blocks and allocates one of another size, by how many live?
//!
//! Neighbours: `hit_path` has pairs of one size. Sizes are log-uniform, so that holes are of all sizes and best fit has to
//! choose; a long warm-up comes first, after which a pair seldom makes a driver call. The largest size falls with the
//! number of blocks, so that all fit on one device.

use concertina::{Allocation, Allocator, Config, Layout, Stream};
use concertina_emulator::{Emulator, EmulatorConfig};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Live blocks, and the largest of them in bytes; the smallest has 512.
const CASES: [(usize, u64); 3] = [(1_000, 64 << 20), (1_000, 1 << 20), (100_000, 1 << 20)];

/// Sizes that were drawn before the clock starts; a power of two.
const SIZES: usize = 1 << 16;

struct Churn {
    allocator: Allocator<Emulator>,
    stream: Stream<Emulator>,
    live: Vec<Allocation<Emulator>>,
    // Which block goes, and what comes for it.
    program: Vec<(usize, Layout)>,
    at: usize,
}

impl Churn {
    fn new(blocks: usize, largest: u64) -> Self {
        let device = Emulator::new(EmulatorConfig::default()).expect("a device");
        let allocator = Allocator::new(device.clone(), Config::default()).expect("an allocator");
        let stream = allocator.register_stream(device.stream());
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let top = (largest as f64).ln();
        let program: Vec<(usize, Layout)> = (0..SIZES)
            .map(|_| {
                let bytes = random.random_range(512f64.ln()..=top).exp() as u64;
                (random.random_range(0..blocks), Layout::new(bytes.max(1)))
            })
            .collect();
        let live = (0..blocks)
            .map(|at| allocator.allocate(program[at % SIZES].1, &stream).expect("the device is large enough"))
            .collect();
        let mut churn = Self { allocator, stream, live, program, at: 0 };
        (0..4 * SIZES.max(blocks)).for_each(|_| churn.pair());
        churn
    }

    fn pair(&mut self) {
        let (slot, layout) = self.program[self.at % SIZES];
        // Every round through the program frees others.
        let slot = (slot + self.at / SIZES) % self.live.len();
        self.at += 1;
        let last = self.live.len() - 1;
        drop(self.live.swap_remove(slot));
        self.live.push(self.allocator.allocate(layout, &self.stream).expect("the device is large enough"));
        self.live.swap(slot, last);
    }
}

fn churn(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("churn");
    for (blocks, largest) in CASES {
        let mut churn = Churn::new(blocks, largest);
        let name = format!("up to {} MiB", largest >> 20);
        group.bench_function(BenchmarkId::new(name, blocks), |bencher| bencher.iter(|| churn.pair()));
    }
    group.finish();
}

criterion_group!(benches, churn);
criterion_main!(benches);
