//! The models of RMM's pool and arena do on the bundled traces what RMM does, to the byte and to the address.
//!
//! Neighbours: `concertina_baselines::rmm` has the models; their own tests have the rules, one by one.
//!
//! The figures are those of RMM 25.4's own headers (the package `librmm-cu12` on PyPI), which replayed the same traces over
//! a fake CUDA runtime: pages of 2 MiB, events complete at once, each `cudaMalloc` on pages of its own, from the lowest
//! on. Neither knows `record_stream`: on `s7` and `t5`, which have blocks that other streams use, it is not called.
//!
//! RMM's pool looks through the lists of streams in the order of their events' handles, which are addresses on the host's
//! heap. In these figures they ascend in the order of creation, as in the model. It matters on `s7` alone, which has three
//! streams: with the second event below the first, as the heap happened to have it once, the smallest device of the pool is
//! 17,095,983,104 bytes there.

use std::collections::BTreeMap;

use concertina_baselines::{Baseline, RmmArena, RmmArenaConf, RmmBlock, RmmPool, RmmPoolConf};
use concertina_bench::{BaselineTarget, Capacity, Case, DeviceSpec, PolicyName, TraceFile};
use concertina_emulator::{Counts, EmulatedStream, Emulator};
use concertina_trace::target::{ReplayTarget, TargetError};
use concertina_trace::{LoadedTrace, Replay};
use concertina_vmm::{Address, Call};

const PAGE_BYTES: u64 = 2 << 20;

/// What a replay came to: of `cudaMalloc` the bytes and the calls, the calls that order work, and all addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    trace: &'static str,
    held: u64,
    segments: u64,
    /// For the pool, calls of `cudaEventRecord` and `cudaStreamWaitEvent`; for the arena, streams that the host waited for,
    /// and nothing.
    order: [u64; 2],
    /// Sum of (number of the allocation, from 1 on) × (its address, from where the first one is), modulo 2^64.
    addresses: u64,
    out_of_memory_at: Option<usize>,
}

const fn found(
    trace: &'static str,
    held: u64,
    segments: u64,
    order: [u64; 2],
    addresses: u64,
    out_of_memory_at: Option<usize>,
) -> Found {
    Found { trace, held, segments, order, addresses, out_of_memory_at }
}

/// The pool on 80 GiB, with nothing to begin with.
#[rustfmt::skip]
const POOL_AMPLE: [Found; 13] = [
    found("s1_middle", 1_258_291_200, 4, [1, 0], 0xdac0_0000, None),
    found("s2_big_then_alternate", 17_179_869_184, 3, [5, 0], 0x5a_8000_0000, None),
    found("s3_three_holes", 838_860_800, 4, [3, 0], 0x1_43c0_0000, None),
    found("s4_nlp_dynamic", 17_179_869_184, 11, [175_500, 0], 0xac04_a7ec_9315_8400, None),
    found("s5_small_holes", 17_495_097_344, 11, [1_072, 0], 0x19_f22e_c9ad_5b00, None),
    found("s6_random", 19_188_711_424, 9, [99_670, 0], 0x713a_ee7b_a515_7b00, None),
    found("s7_streams", 25_769_803_776, 9, [92_400, 33], 0x5687_6807_e398_5000, None),
    found("t1_gpt2_train", 52_698_284_032, 9, [154_891, 0], 0xb0a0_79ea_53a0_7d00, None),
    found("t2_llama_lora", 67_108_864_000, 9, [504_082, 0], 0xa2ea_7fc0_ae4e_8400, None),
    found("t4_bert_train", 64_009_273_344, 10, [251_828, 0], 0x556f_e1ff_7ea2_6a00, None),
    found("t5_resnet50_multiscale", 39_460_012_032, 21, [150_084, 15], 0xdc57_9ebb_05e5_2000, None),
    found("t7_serve_nopaging", 51_539_607_552, 10, [349_267, 0], 0x2a55_f8f9_f07f_6c00, None),
    found("t8_moe_train", 67_108_864_000, 10, [306_044, 0], 0x95c9_d020_e94a_6f00, None),
];

/// The pool on 80 GiB, all of which it begins with.
#[rustfmt::skip]
const POOL_WHOLE_AMPLE: [Found; 13] = [
    found("s1_middle", 85_899_345_920, 1, [1, 0], 0xdac0_0000, None),
    found("s2_big_then_alternate", 85_899_345_920, 1, [5, 0], 0x5a_8000_0000, None),
    found("s3_three_holes", 85_899_345_920, 1, [3, 0], 0x2_a580_0000, None),
    found("s4_nlp_dynamic", 85_899_345_920, 1, [175_500, 0], 0xacce_adfe_5f26_0300, None),
    found("s5_small_holes", 85_899_345_920, 1, [1_072, 0], 0x1a_03e8_496b_b100, None),
    found("s6_random", 85_899_345_920, 1, [99_670, 0], 0x755d_06d5_dcb6_3000, None),
    found("s7_streams", 85_899_345_920, 1, [92_400, 11], 0x2551_dd58_3b68_2300, None),
    found("t1_gpt2_train", 85_899_345_920, 1, [154_891, 0], 0x20f6_06e7_9a65_e900, None),
    found("t2_llama_lora", 85_899_345_920, 1, [504_082, 0], 0xc6f9_1760_e3d4_9c00, None),
    found("t4_bert_train", 85_899_345_920, 1, [251_828, 0], 0x79a7_16c8_88a2_8100, None),
    found("t5_resnet50_multiscale", 85_899_345_920, 1, [150_084, 10], 0x1091_696e_5c42_eb00, None),
    found("t7_serve_nopaging", 85_899_345_920, 1, [349_267, 0], 0x5242_6c73_f772_7f00, None),
    found("t8_moe_train", 85_899_345_920, 1, [306_044, 0], 0x657a_7cdd_1e3f_6d00, None),
];

/// The arena on 80 GiB, all of which it has.
#[rustfmt::skip]
const ARENA_WHOLE_AMPLE: [Found; 13] = [
    found("s1_middle", 85_899_345_920, 1, [1, 0], 0xdac0_0000, None),
    found("s2_big_then_alternate", 85_899_345_920, 1, [5, 0], 0x5a_8000_0000, None),
    found("s3_three_holes", 85_899_345_920, 1, [3, 0], 0x2_a580_0000, None),
    found("s4_nlp_dynamic", 85_899_345_920, 1, [174_000, 0], 0x7cc5_0bf6_9f0d_e300, None),
    found("s5_small_holes", 85_899_345_920, 1, [1_072, 0], 0x10_40d4_e3e7_0500, None),
    found("s6_random", 85_899_345_920, 1, [41_038, 0], 0x5357_a41e_e45b_b300, None),
    found("s7_streams", 85_899_345_920, 1, [92_400, 0], 0xf7e7_4656_1f0c_8900, None),
    found("t1_gpt2_train", 85_899_345_920, 1, [100_969, 0], 0x79_858a_af10_7e00, None),
    found("t2_llama_lora", 85_899_345_920, 1, [327_432, 0], 0xfe38_64c6_7160_c400, None),
    found("t4_bert_train", 85_899_345_920, 1, [138_162, 0], 0xf77c_2dd1_ee1c_df00, None),
    found("t5_resnet50_multiscale", 85_899_345_920, 1, [60_573, 0], 0xe8b9_d285_e3c1_2100, None),
    found("t7_serve_nopaging", 85_899_345_920, 1, [182_620, 0], 0x275d_c261_38a3_df00, None),
    found("t8_moe_train", 85_899_345_920, 1, [159_292, 0], 0x22b8_5074_cf58_b200, None),
];

/// The arena on 80 GiB, all of which it has, compiled for size classes.
#[rustfmt::skip]
const ARENA_CLASSES: [Found; 3] = [
    found("s6_random", 85_899_345_920, 1, [41_038, 0], 0x55fa_0a9b_d139_5300, None),
    found("s7_streams", 85_899_345_920, 1, [92_400, 0], 0xffe0_5815_6da4_0000, None),
    found("t7_serve_nopaging", 85_899_345_920, 1, [182_620, 0], 0x9a7b_7d3c_4194_0b00, None),
];

/// The pool on 1.02 times the live peak, with nothing to begin with.
#[rustfmt::skip]
const POOL_TIGHT: [Found; 13] = [
    found("s1_middle", 629_145_600, 3, [1, 0], 0x44c0_0000, Some(5)),
    found("s2_big_then_alternate", 8_589_934_592, 2, [5, 0], 0x44_8000_0000, Some(16)),
    found("s3_three_holes", 576_716_800, 4, [3, 0], 0x1_43c0_0000, None),
    found("s4_nlp_dynamic", 15_401_484_288, 13, [175_500, 0], 0x22de_c2b0_0c8b_6f00, None),
    found("s5_small_holes", 13_941_405_696, 12, [340, 0], 0x7_af16_a0da_6400, Some(1_021)),
    found("s6_random", 16_964_863_072, 12, [51_707, 0], 0x535e_e4a3_62b8_6900, Some(103_995)),
    found("s7_streams", 16_420_117_504, 10, [15_433, 63], 0x14cc_2515_94ff_b800, Some(36_983)),
    found("t1_gpt2_train", 39_523_713_024, 9, [6_019, 0], 0x4e8_85ce_37dc_e100, Some(13_559)),
    found("t2_llama_lora", 33_554_432_000, 8, [3_628, 0], 0x24e_e88a_dace_3a00, Some(8_042)),
    found("t4_bert_train", 38_998_569_984, 11, [3_706, 0], 0x29f_a09e_e177_4700, Some(9_278)),
    found("t5_resnet50_multiscale", 35_928_023_040, 24, [150_084, 43], 0xce5_0ba1_3900_1100, None),
    found("t7_serve_nopaging", 34_404_831_232, 13, [151_172, 0], 0xbe23_469b_c37c_1900, Some(303_870)),
    found("t8_moe_train", 48_275_000_496, 16, [20_866, 0], 0x3b97_92fd_64a4_f400, Some(44_748)),
];

/// The pool on 1.02 times the live peak, all of which it begins with.
#[rustfmt::skip]
const POOL_WHOLE_TIGHT: [Found; 13] = [
    found("s1_middle", 694_157_312, 1, [1, 0], 0x44c0_0000, Some(5)),
    found("s2_big_then_alternate", 8_759_803_904, 1, [5, 0], 0x44_8000_0000, Some(16)),
    found("s3_three_holes", 587_202_560, 1, [3, 0], 0x1_bda0_0000, Some(10)),
    found("s4_nlp_dynamic", 15_458_107_392, 1, [175_500, 0], 0xaca0_9ac2_c7ef_1f00, None),
    found("s5_small_holes", 14_134_804_480, 1, [340, 0], 0x7_b2e6_4899_ad00, Some(1_021)),
    found("s6_random", 16_980_639_744, 1, [51_743, 0], 0x5525_4c5a_a9cb_f500, Some(104_058)),
    found("s7_streams", 16_510_877_696, 1, [16_354, 13], 0x13be_08a3_f110_5200, Some(39_184)),
    found("t1_gpt2_train", 41_385_197_568, 1, [8_197, 0], 0xa12_462e_6112_b300, Some(18_208)),
    found("t2_llama_lora", 36_427_530_240, 1, [3_628, 0], 0x262_ebc5_230c_4300, Some(8_042)),
    found("t4_bert_train", 39_443_234_816, 1, [3_706, 0], 0x2b3_9dbc_cd2e_8500, Some(9_278)),
    found("t5_resnet50_multiscale", 35_970_351_104, 1, [150_084, 20], 0xa61d_adce_38be_0700, None),
    found("t7_serve_nopaging", 34_420_555_776, 1, [151_250, 0], 0xd7e3_4496_7736_2400, Some(304_028)),
    found("t8_moe_train", 48_297_410_560, 1, [20_866, 0], 0x3eb4_7b16_48be_1200, Some(44_748)),
];

/// The arena on 1.02 times the live peak, all of which it has.
#[rustfmt::skip]
const ARENA_WHOLE_TIGHT: [Found; 13] = [
    found("s1_middle", 694_157_312, 1, [2, 0], 0x44c0_0000, Some(5)),
    found("s2_big_then_alternate", 8_759_803_904, 1, [6, 0], 0x44_8000_0000, Some(16)),
    found("s3_three_holes", 587_202_560, 1, [4, 0], 0x1_bda0_0000, Some(10)),
    found("s4_nlp_dynamic", 15_458_107_392, 1, [174_000, 0], 0x7cc5_0bf6_9f0d_e300, None),
    found("s5_small_holes", 14_134_804_480, 1, [341, 0], 0x7_b2e6_4899_ad00, Some(1_021)),
    found("s6_random", 16_980_639_744, 1, [21_209, 0], 0x14b8_3002_59d9_8a00, Some(103_895)),
    found("s7_streams", 16_510_877_696, 1, [43_002, 0], 0x6d40_dcc0_628e_1200, Some(102_873)),
    found("t1_gpt2_train", 41_385_197_568, 1, [5_560, 0], 0x737_9614_bd4c_0e00, Some(18_208)),
    found("t2_llama_lora", 36_427_530_240, 1, [2_672, 0], 0x25a_9d5a_1d54_7d00, Some(8_042)),
    found("t4_bert_train", 39_443_234_816, 1, [2_033, 0], 0x194_eaeb_acab_ad00, Some(9_278)),
    found("t5_resnet50_multiscale", 35_970_351_104, 1, [60_573, 0], 0xe8b9_d285_e3c1_2100, None),
    found("t7_serve_nopaging", 34_420_555_776, 1, [80_245, 0], 0x97a5_28b8_c9d2_9700, Some(303_317)),
    found("t8_moe_train", 48_297_410_560, 1, [10_435, 0], 0x2e3d_c06f_d5b2_1800, Some(44_734)),
];

/// The smallest device on which pool and arena complete, with all of it to begin with, in bytes: by halving, from the
/// live peak to 1 TiB, until what is left is a page or a thousandth.
#[rustfmt::skip]
const SMALLEST: [(&str, u64, u64); 13] = [
    ("s1_middle", 891_289_600, 891_289_600),
    ("s2_big_then_alternate", 10_743_709_696, 10_743_709_696),
    ("s3_three_holes", 639_631_360, 639_631_360),
    ("s4_nlp_dynamic", 15_189_671_936, 15_189_671_936),
    ("s5_small_holes", 14_757_658_624, 14_698_938_368),
    ("s6_random", 18_614_321_152, 19_058_917_376),
    ("s7_streams", 17_062_428_672, 16_533_946_368),
    ("t1_gpt2_train", 42_060_480_512, 42_026_926_080),
    ("t2_llama_lora", 40_779_120_640, 43_926_945_792),
    ("t4_bert_train", 40_449_867_776, 40_967_864_320),
    ("t5_resnet50_multiscale", 35_850_813_440, 35_460_743_168),
    ("t7_serve_nopaging", 34_623_979_520, 34_917_580_800),
    ("t8_moe_train", 48_505_028_608, 48_825_892_864),
];

/// What this file asks of either model.
trait Model: Baseline<Stream = EmulatedStream, Block = RmmBlock> {
    fn segments(&self) -> Vec<(Address, u64)>;
    fn order(counts: &Counts) -> [u64; 2];
}

impl Model for RmmPool<Emulator> {
    fn segments(&self) -> Vec<(Address, u64)> {
        Self::segments(self).collect()
    }

    fn order(counts: &Counts) -> [u64; 2] {
        [counts.of(Call::EventRecord), counts.of(Call::StreamWait)]
    }
}

impl Model for RmmArena<Emulator> {
    fn segments(&self) -> Vec<(Address, u64)> {
        Vec::from([self.segment()])
    }

    fn order(counts: &Counts) -> [u64; 2] {
        [counts.of(Call::EventSynchronize), 0]
    }
}

type Target<'a, A> = BaselineTarget<'a, Emulator, A>;

/// Adds up the addresses that a model hands out, as if each segment were on pages of its own, in order.
struct Addresses<'a, A> {
    model: Target<'a, A>,
    /// Where each segment would begin.
    segments: BTreeMap<Address, u64>,
    end: u64,
    first: Option<u64>,
    allocations: u64,
    sum: u64,
}

impl<'a, A: Model> Addresses<'a, A> {
    fn new(device: &'a Emulator, model: A) -> Self {
        let model = BaselineTarget::new(device, model);
        Self { model, segments: BTreeMap::new(), end: 0, first: None, allocations: 0, sum: 0 }
    }

    fn held(&self) -> u64 {
        // RMM asks for multiples of 16 bytes.
        self.model.allocator().segments().iter().map(|(_, bytes)| bytes.next_multiple_of(16)).sum()
    }

    fn find_segments(&mut self) {
        for (start, bytes) in self.model.allocator().segments() {
            self.segments.entry(start).or_insert_with(|| {
                self.end += bytes.next_multiple_of(PAGE_BYTES);
                self.end - bytes.next_multiple_of(PAGE_BYTES)
            });
        }
    }
}

impl<A: Model> ReplayTarget for Addresses<'_, A> {
    type Block = RmmBlock;

    fn allocate(&mut self, bytes: u64, stream: u32) -> Result<RmmBlock, TargetError> {
        let block = self.model.allocate(bytes, stream)?;
        self.find_segments();
        let (start, place) = self.segments.range(..=block.address()).next_back().expect("it has a segment");
        let address = place + block.address().get() - start.get();
        let offset = address.wrapping_sub(*self.first.get_or_insert(address));
        self.allocations += 1;
        self.sum = self.sum.wrapping_add(self.allocations.wrapping_mul(offset));
        Ok(block)
    }

    fn address(&self, block: &RmmBlock) -> Address {
        self.model.address(block)
    }

    fn free(&mut self, block: RmmBlock) -> Result<(), TargetError> {
        self.model.free(block)
    }

    fn record_stream(&mut self, block: &mut RmmBlock, stream: u32) -> Result<(), TargetError> {
        self.model.record_stream(block, stream)
    }

    fn stream_wait(&mut self, stream: u32, on: u32) -> Result<(), TargetError> {
        self.model.stream_wait(stream, on)
    }

    fn synchronize(&mut self, stream: Option<u32>) -> Result<(), TargetError> {
        self.model.synchronize(stream)
    }

    fn release_cached(&mut self) -> Result<(), TargetError> {
        self.model.release_cached()
    }

    fn address_peak_bytes(&self) -> u64 {
        self.model.address_peak_bytes()
    }
}

fn load(name: &str) -> LoadedTrace {
    let file = TraceFile::find(name).expect("bundled");
    LoadedTrace::open(file.path()).expect("a bundled trace is readable")
}

fn device(trace: &LoadedTrace, capacity: Capacity) -> Emulator {
    let spec = DeviceSpec { capacity, ..DeviceSpec::default() };
    Emulator::new(spec.config(trace.live_peak().bytes).expect("a device")).expect("a device")
}

fn pool(options: &str) -> impl Fn(Emulator) -> RmmPool<Emulator> {
    let conf: RmmPoolConf = options.parse().expect("options");
    move |device| RmmPool::new(device, conf).expect("a pool")
}

fn arena(options: &str) -> impl Fn(Emulator) -> RmmArena<Emulator> {
    let conf: RmmArenaConf = options.parse().expect("options");
    move |device| RmmArena::new(device, conf).expect("an arena")
}

fn assert_figures<A: Model>(make: impl Fn(Emulator) -> A, capacity: &str, wanted: &[Found]) {
    for wanted in wanted {
        let trace = load(wanted.trace);
        let device = device(&trace, capacity.parse().expect("a capacity"));
        let mut target = Addresses::new(&device, make(device.clone()));
        let report = Replay::new(&trace, &device).run(&mut target);
        let found = Found {
            trace: wanted.trace,
            held: target.held(),
            segments: report.counts.of(Call::Malloc),
            order: A::order(&report.counts),
            addresses: target.sum,
            out_of_memory_at: report.failure.as_ref().map(|failure| {
                assert!(failure.cause.is_out_of_memory(), "{}: {failure}", wanted.trace);
                failure.event
            }),
        };
        assert_eq!(found, *wanted);
        drop(target);
        assert!(device.is_empty(), "{}: {}", wanted.trace, device.leaks());
        assert!(device.broken_rules().is_empty(), "{}: {:?}", wanted.trace, device.broken_rules());
    }
}

#[test]
fn the_pool_does_what_rmm_does() {
    assert_figures(pool(""), "80GiB", &POOL_AMPLE);
    assert_figures(pool("initial:1"), "80GiB", &POOL_WHOLE_AMPLE);
}

#[test]
fn the_arena_does_what_rmm_does() {
    assert_figures(arena("initial:1"), "80GiB", &ARENA_WHOLE_AMPLE);
    assert_figures(arena("initial:1,size_classes:true"), "80GiB", &ARENA_CLASSES);
}

#[test]
fn the_pool_fails_where_rmm_fails() {
    assert_figures(pool(""), "1.02x", &POOL_TIGHT);
    assert_figures(pool("initial:1"), "1.02x", &POOL_WHOLE_TIGHT);
}

#[test]
fn the_arena_fails_where_rmm_fails() {
    assert_figures(arena("initial:1"), "1.02x", &ARENA_WHOLE_TIGHT);
}

/// Replays on the figure, in bytes, and on the largest device that was too small on the way there.
fn assert_smallest<A: Model>(trace: &LoadedTrace, figure: u64, make: impl Fn(Emulator) -> A) {
    let completes = |pages: u64| {
        let device = device(trace, Capacity::Bytes(pages * PAGE_BYTES));
        let mut target = BaselineTarget::new(&device, make(device.clone()));
        Replay::new(trace, &device).run(&mut target).completed()
    };
    let (mut low, mut high) = (trace.live_peak().bytes.div_ceil(PAGE_BYTES), (1 << 40) / PAGE_BYTES);
    while high - low > (high / 1000).max(1) {
        let middle = low + (high - low) / 2;
        if middle * PAGE_BYTES >= figure {
            high = middle;
        } else {
            low = middle;
        }
    }
    assert_eq!(high * PAGE_BYTES, figure, "the way does not end there");
    assert!(completes(high), "{}: not on {figure} bytes", trace.name());
    assert!(!completes(low), "{}: also on {} bytes", trace.name(), low * PAGE_BYTES);
}

#[test]
fn both_need_the_devices_that_rmm_needs() {
    for (name, of_pool, of_arena) in SMALLEST {
        let trace = load(name);
        assert_smallest(&trace, of_pool, pool("initial:1"));
        assert_smallest(&trace, of_arena, arena("initial:1"));
    }
}

#[test]
fn every_block_is_mapped_and_shares_no_byte() {
    for name in ["s5", "s7", "t5"] {
        let trace = load(name);
        for word in ["rmm-pool", "rmm-pool:initial:0.5,maximum:0.9", "rmm-arena:initial:1,size_classes:true"]
        {
            let spec = DeviceSpec { capacity: "1.2x".parse().expect("a capacity"), ..DeviceSpec::default() };
            let case = Case {
                trace: &trace,
                allocator: word.parse().expect("an allocator"),
                policy: PolicyName::Balanced,
                device: &spec,
            };
            let outcome = case.check().expect("it runs").outcome;
            assert!(!outcome.is_defect(), "{name}, {word}: {:?}", outcome.error);
        }
    }
}
