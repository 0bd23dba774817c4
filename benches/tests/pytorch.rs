//! The model of PyTorch's allocator does on the bundled traces what PyTorch does, to the byte and to the address.
//!
//! Neighbours: `concertina_baselines::pytorch` is the model; its own tests have the options, one by one.
//!
//! The figures are those of PyTorch 2.11.0's own allocator, the `libc10_cuda.so` of the wheel on PyPI (CUDA 13), which
//! replayed the same traces over a fake CUDA runtime and driver: pages of 2 MiB, events complete at once, addresses
//! handed out from the lowest on. Native mode is `PYTORCH_CUDA_ALLOC_CONF` unset, the other one
//! `expandable_segments:True`.

use concertina_baselines::{Pytorch, PytorchBlock, PytorchConf};
use concertina_bench::{BaselineTarget, Capacity, DeviceSpec, TraceFile};
use concertina_emulator::Emulator;
use concertina_trace::target::{ReplayTarget, TargetError};
use concertina_trace::{LoadedTrace, Replay, ReplayReport};
use concertina_vmm::{Address, Call};

/// On 80 GiB: `reserved_bytes.all.peak`, `num_device_alloc`, calls of `cuMemMap`, and all addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ample {
    trace: &'static str,
    reserved_peak: u64,
    device_allocs: u64,
    maps: u64,
    /// Sum of (number of the allocation, from 1 on) × (its address, from where the first one is), modulo 2^64.
    addresses: u64,
}

const fn ample(
    trace: &'static str,
    reserved_peak: u64,
    device_allocs: u64,
    maps: u64,
    addresses: u64,
) -> Ample {
    Ample { trace, reserved_peak, device_allocs, maps, addresses }
}

#[rustfmt::skip]
const AMPLE_NATIVE: [Ample; 13] = [
    ample("s1_middle", 891_289_600, 4, 0, 0xdac0_0000),
    ample("s2_big_then_alternate", 10_737_418_240, 10, 0, 0x5a_8000_0000),
    ample("s3_three_holes", 660_602_880, 7, 0, 0x2_ae40_0000),
    ample("s4_nlp_dynamic", 28_668_067_840, 132, 0, 0xb815_0a88_fe00_3600),
    ample("s5_small_holes", 17_408_458_752, 580, 0, 0x17_6b51_78dd_5200),
    ample("s6_random", 18_845_007_872, 135, 0, 0xa363_331f_390d_7200),
    ample("s7_streams", 20_774_387_712, 120, 0, 0x7dda_77c2_2d8e_a600),
    ample("t1_gpt2_train", 42_662_363_136, 354, 0, 0x20c2_29d7_123e_9e00),
    ample("t2_llama_lora", 54_549_020_672, 673, 0, 0x2aae_60fb_d863_4a00),
    ample("t4_bert_train", 52_263_124_992, 424, 0, 0x739b_2f44_bd80_a800),
    ample("t5_resnet50_multiscale", 44_671_434_752, 220, 0, 0xb7fc_ced5_0841_f600),
    ample("t7_serve_nopaging", 35_953_573_888, 713, 0, 0x1aa9_15ba_17e3_a000),
    ample("t8_moe_train", 51_554_287_616, 1_739, 0, 0x389e_3ace_f9e0_5c00),
];

#[rustfmt::skip]
const AMPLE_EXPANDABLE: [Ample; 13] = [
    ample("s1_middle", 901_775_360, 4, 43, 0xdac0_0000),
    ample("s2_big_then_alternate", 10_737_418_240, 10, 512, 0x5a_8000_0000),
    ample("s3_three_holes", 650_117_120, 7, 31, 0x2_a580_0000),
    ample("s4_nlp_dynamic", 15_185_477_632, 106, 725, 0x5a41_b5e9_7365_e800),
    ample("s5_small_holes", 14_763_950_080, 520, 704, 0x1a_27d0_b2f9_fe00),
    ample("s6_random", 18_421_383_168, 149, 909, 0x3bcc_edb3_657b_7a00),
    ample("s7_streams", 17_217_617_920, 121, 821, 0xb55d_5f59_956d_0c00),
    ample("t1_gpt2_train", 42_022_731_776, 341, 2_029, 0x2f91_78f7_c507_d800),
    ample("t2_llama_lora", 39_812_333_568, 680, 2_262, 0x21d9_4d6a_c4ec_5200),
    ample("t4_bert_train", 40_521_170_944, 422, 1_970, 0xac79_48a5_b488_c800),
    ample("t5_resnet50_multiscale", 36_230_397_952, 240, 1_769, 0xdda8_4736_dbd4_6800),
    ample("t7_serve_nopaging", 34_567_356_416, 851, 1_651, 0x35cd_be80_5a2f_fa00),
    ample("t8_moe_train", 48_542_777_344, 1_795, 2_321, 0x8c9c_93b5_b0db_ac00),
];

/// On 1.02 times the live peak: the event that ran out of memory, `reserved_bytes.all.peak`, and `num_device_alloc`,
/// `num_device_free`, `num_alloc_retries`, calls of `cuMemUnmap` and of `cudaStreamSynchronize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tight {
    trace: &'static str,
    out_of_memory_at: Option<usize>,
    reserved_peak: u64,
    counts: [u64; 5],
}

const fn tight(
    trace: &'static str,
    out_of_memory_at: Option<usize>,
    reserved_peak: u64,
    counts: [u64; 5],
) -> Tight {
    Tight { trace, out_of_memory_at, reserved_peak, counts }
}

#[rustfmt::skip]
const TIGHT_NATIVE: [Tight; 13] = [
    tight("s1_middle", None, 681_574_400, [4, 1, 1, 0, 0]),
    tight("s2_big_then_alternate", None, 8_589_934_592, [10, 4, 1, 0, 0]),
    tight("s3_three_holes", None, 576_716_800, [7, 3, 1, 0, 0]),
    tight("s4_nlp_dynamic", Some(41_526), 15_401_484_288, [137, 51, 6, 0, 0]),
    tight("s5_small_holes", Some(662), 14_128_513_024, [559, 0, 1, 0, 0]),
    tight("s6_random", Some(113_445), 16_903_045_120, [131, 16, 5, 0, 0]),
    tight("s7_streams", Some(102_873), 16_510_877_696, [936, 836, 49, 0, 0]),
    tight("t1_gpt2_train", Some(18_208), 40_189_820_928, [352, 0, 1, 0, 0]),
    tight("t2_llama_lora", Some(320_596), 36_131_831_808, [708, 189, 4, 0, 0]),
    tight("t4_bert_train", Some(9_278), 37_220_253_696, [385, 1, 1, 0, 0]),
    tight("t5_resnet50_multiscale", None, 35_934_699_520, [459, 320, 10, 0, 0]),
    tight("t7_serve_nopaging", Some(249_768), 34_416_361_472, [692, 7, 2, 0, 0]),
    tight("t8_moe_train", Some(22_629), 48_274_341_888, [1_734, 7, 1, 0, 0]),
];

#[rustfmt::skip]
const TIGHT_EXPANDABLE: [Tight; 13] = [
    tight("s1_middle", None, 692_060_160, [4, 1, 1, 10, 1]),
    tight("s2_big_then_alternate", None, 8_598_323_200, [10, 4, 1, 124, 4]),
    tight("s3_three_holes", None, 587_202_560, [7, 3, 1, 4, 3]),
    tight("s4_nlp_dynamic", None, 15_185_477_632, [106, 0, 0, 0, 0]),
    tight("s5_small_holes", None, 13_862_174_720, [519, 46, 1, 46, 46]),
    tight("s6_random", Some(180_262), 16_974_348_288, [284, 303, 23, 889, 303]),
    tight("s7_streams", None, 16_504_586_240, [534, 294, 28, 3_309, 294]),
    tight("t1_gpt2_train", None, 40_848_326_656, [342, 5, 1, 112, 5]),
    tight("t2_llama_lora", None, 36_412_850_176, [1_556, 109, 9, 2_792, 109]),
    tight("t4_bert_train", None, 39_109_787_648, [530, 394, 61, 9_443, 394]),
    tight("t5_resnet50_multiscale", None, 35_970_351_104, [837, 54, 7, 8_333, 54]),
    tight("t7_serve_nopaging", Some(304_186), 34_420_555_776, [847, 2, 1, 3, 2]),
    tight("t8_moe_train", Some(66_867), 48_268_050_432, [1_790, 4, 1, 7, 4]),
];

type Model<'a> = BaselineTarget<'a, Emulator, Pytorch<Emulator>>;

fn model(device: &Emulator, conf: PytorchConf) -> Model<'_> {
    BaselineTarget::new(device, Pytorch::new(device.clone(), conf).expect("an allocator"))
}

/// Adds up the addresses that the model hands out.
struct Addresses<'a> {
    model: Model<'a>,
    first: Option<u64>,
    allocations: u64,
    sum: u64,
}

impl ReplayTarget for Addresses<'_> {
    type Block = PytorchBlock;

    fn allocate(&mut self, bytes: u64, stream: u32) -> Result<PytorchBlock, TargetError> {
        let block = self.model.allocate(bytes, stream)?;
        let first = *self.first.get_or_insert(block.address().get());
        self.allocations += 1;
        let offset = block.address().get().wrapping_sub(first);
        self.sum = self.sum.wrapping_add(self.allocations.wrapping_mul(offset));
        Ok(block)
    }

    fn address(&self, block: &PytorchBlock) -> Address {
        self.model.address(block)
    }

    fn free(&mut self, block: PytorchBlock) -> Result<(), TargetError> {
        self.model.free(block)
    }

    fn record_stream(&mut self, block: &mut PytorchBlock, stream: u32) -> Result<(), TargetError> {
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

fn assert_ample(conf: PytorchConf, wanted: &[Ample]) {
    for wanted in wanted {
        let trace = load(wanted.trace);
        let device = device(&trace, Capacity::Bytes(80 << 30));
        let model = model(&device, conf);
        let mut target = Addresses { model, first: None, allocations: 0, sum: 0 };
        let report = Replay::new(&trace, &device).run(&mut target);
        assert!(report.completed(), "{}: {:?}", wanted.trace, report.failure);
        let stats = target.model.allocator().stats();
        assert_eq!(report.mapped_peak_bytes(), stats.reserved.peak, "{}", wanted.trace);
        let found = Ample {
            trace: wanted.trace,
            reserved_peak: stats.reserved.peak,
            device_allocs: stats.device_allocs,
            maps: report.counts.of(Call::Map),
            addresses: target.sum,
        };
        assert_eq!(found, *wanted);
        assert_eq!(report.counts.of(Call::Create), wanted.maps, "{}", wanted.trace);
        assert_events(&report, wanted.trace);
    }
}

/// The binary's calls of `cudaEventCreate`, `cudaEventRecord` and `cudaEventQuery`, in both modes.
fn assert_events(report: &ReplayReport, trace: &str) {
    let wanted = match trace {
        "s7_streams" => (4, 25_200, 25_198),
        "t5_resnet50_multiscale" => (2, 320, 320),
        _ => (0, 0, 0),
    };
    let count = |call: Call| report.counts.of(call);
    let found = (count(Call::EventCreate), count(Call::EventRecord), count(Call::EventQuery));
    assert_eq!(found, wanted, "{trace}");
}

fn assert_tight(conf: PytorchConf, wanted: &[Tight]) {
    for wanted in wanted {
        let trace = load(wanted.trace);
        let device = device(&trace, "1.02x".parse().expect("a capacity"));
        let mut target = model(&device, conf);
        let report = Replay::new(&trace, &device).run(&mut target);
        let stats = target.allocator().stats();
        let found = Tight {
            trace: wanted.trace,
            out_of_memory_at: report.failure.as_ref().map(|failure| {
                assert!(failure.cause.is_out_of_memory(), "{}: {failure}", wanted.trace);
                failure.event
            }),
            reserved_peak: stats.reserved.peak,
            counts: [
                stats.device_allocs,
                stats.device_frees,
                stats.alloc_retries,
                report.counts.of(Call::Unmap),
                stats.stream_syncs,
            ],
        };
        assert_eq!(found, *wanted);
        // Retried once for each time that everything cached was given back.
        assert_eq!(stats.sync_all_streams, stats.alloc_retries, "{}", wanted.trace);
        assert!(device.broken_rules().is_empty(), "{}: {:?}", wanted.trace, device.broken_rules());
    }
}

#[test]
fn native_reserves_what_pytorch_reserves() {
    assert_ample(PytorchConf::native(), &AMPLE_NATIVE);
}

#[test]
fn expandable_reserves_what_pytorch_reserves() {
    assert_ample(PytorchConf::expandable(), &AMPLE_EXPANDABLE);
}

#[test]
fn native_fails_where_pytorch_fails() {
    assert_tight(PytorchConf::native(), &TIGHT_NATIVE);
}

#[test]
fn expandable_fails_where_pytorch_fails() {
    assert_tight(PytorchConf::expandable(), &TIGHT_EXPANDABLE);
}

#[test]
fn every_block_is_mapped_and_shares_no_byte() {
    for name in ["s5", "s7", "t5", "t7"] {
        let trace = load(name);
        for conf in [PytorchConf::native(), PytorchConf::expandable()] {
            let device = device(&trace, "1.1x".parse().expect("a capacity"));
            let mut target = model(&device, conf);
            let report = Replay::new(&trace, &device).checked(512).run(&mut target);
            let violation = report.failure.filter(|failure| !failure.cause.is_out_of_memory());
            assert!(violation.is_none() && report.cleanup_failure.is_none(), "{name}: {violation:?}");
            drop(target);
            assert!(device.is_empty(), "{name}: {}", device.leaks());
        }
    }
}
