//! PyTorch's rules and options, each on a program of a few lines.
//!
//! Neighbours: the unit tests of `conf` and `rounding`; the bundled traces are in the tests of `concertina-bench`.
//!
//! Where a comment says "the binary", the figures were read off PyTorch 2.11's own `libc10_cuda.so`, which ran the same program
//! over a fake CUDA of the same size. The others follow from the rules, as worked out beside them.

use std::collections::BTreeMap;

use concertina_baselines::{Pytorch, PytorchConf, PytorchError};
use concertina_emulator::{Emulator, EmulatorConfig, EventCompletion};
use concertina_vmm::{Address, Call};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// An allocator on a device of its own, and the blocks that the program has.
struct Program {
    device: Emulator,
    allocator: Pytorch<Emulator>,
    blocks: BTreeMap<u32, concertina_baselines::PytorchBlock>,
}

impl Program {
    /// Options as PyTorch takes them, and the device's memory in MiB.
    fn new(conf: &str, capacity_mib: u64) -> Self {
        Self::with_events(conf, capacity_mib, EventCompletion::AtOnce)
    }

    fn with_events(conf: &str, capacity_mib: u64, completion: EventCompletion) -> Self {
        let config = EmulatorConfig::default().with_event_completion(completion);
        let device = Emulator::new(config.with_capacity(capacity_mib * MIB).unwrap()).unwrap();
        let conf: PytorchConf = conf.parse().unwrap();
        let mut allocator = Pytorch::new(device.clone(), conf).unwrap();
        for _ in 0..3 {
            allocator.add_stream(device.stream());
        }
        Self { device, allocator, blocks: BTreeMap::new() }
    }

    fn try_allocate(&mut self, id: u32, bytes: u64, stream: u32) -> Result<u64, PytorchError> {
        let block = self.allocator.allocate(bytes, stream)?;
        let address = block.address().get();
        assert!(self.blocks.insert(id, block).is_none(), "{id} is live");
        Ok(address)
    }

    /// A block of so many MiB on stream 0; its address.
    fn a(&mut self, id: u32, mib: u64) -> u64 {
        self.try_allocate(id, mib * MIB, 0).unwrap()
    }

    fn f(&mut self, ids: &[u32]) {
        for id in ids {
            self.allocator.free(self.blocks.remove(id).unwrap()).unwrap();
        }
    }

    /// Reserved now and at most, in MiB; mallocs or maps, and frees or unmaps, of segments; retries.
    fn figures(&self) -> (u64, u64, u64, u64, u64) {
        let stats = self.allocator.stats();
        let mib = |bytes: u64| {
            assert_eq!(bytes % MIB, 0);
            bytes / MIB
        };
        // What the driver has counted must be the same.
        assert_eq!(stats.reserved.current, self.device.counts().mapped_bytes);
        let (now, peak) = (mib(stats.reserved.current), mib(stats.reserved.peak));
        (now, peak, stats.device_allocs, stats.device_frees, stats.alloc_retries)
    }

    fn allocated(&self) -> u64 {
        self.allocator.stats().allocated.current
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        assert_eq!(self.device.broken_rules().len(), 0, "{:?}", self.device.broken_rules());
    }
}

#[test]
fn segments_are_of_2_and_20_mib_and_from_10_mib_on_of_their_own_size() {
    // Bytes asked for, reserved MiB, allocated bytes. The binary.
    for (bytes, reserved, allocated) in [
        (1, 2, 512),
        (513, 2, 1024),
        (MIB, 2, MIB),
        (MIB + 1, 20, MIB + 512),
        (10 * MIB - 512, 20, 10 * MIB - 512),
        (10 * MIB - 1, 10, 10 * MIB),
        (10 * MIB + 1, 12, 10 * MIB + 512),
        // A rest of 1 MiB stays with the block, one of 512 bytes more is split off.
        (11 * MIB, 12, 12 * MIB),
        (11 * MIB - 512, 12, 11 * MIB - 512),
    ] {
        let mut program = Program::new("", 1024);
        program.try_allocate(1, bytes, 0).unwrap();
        assert_eq!(program.figures(), (reserved, reserved, 1, 0, 0), "{bytes}");
        assert_eq!(program.allocated(), allocated, "{bytes}");
    }
}

#[test]
fn small_blocks_are_split_to_the_last_512_bytes() {
    let mut program = Program::new("", 1024);
    program.a(1, 1);
    program.try_allocate(2, MIB - 512, 0).unwrap();
    program.try_allocate(3, 512, 0).unwrap();
    assert_eq!(program.figures(), (2, 2, 1, 0, 0));
    program.try_allocate(4, 1, 0).unwrap();
    assert_eq!(program.figures(), (4, 4, 2, 0, 0));
}

#[test]
fn native_segments_do_not_join_and_expandable_ones_do() {
    // The binary.
    for (conf, peak, device_allocs) in [("", 600, 3), ("expandable_segments:True", 300, 3)] {
        let mut program = Program::new(conf, 1024);
        program.a(1, 100);
        program.a(2, 200);
        program.f(&[1, 2]);
        program.a(3, 300);
        // 100 MiB are 5 frames, 200 are 10; joined they serve 300 with no call.
        let device_allocs = if conf.is_empty() { device_allocs } else { device_allocs - 1 };
        assert_eq!(program.figures(), (peak, peak, device_allocs, 0, 0), "{conf}");
    }
}

#[test]
fn the_smallest_fitting_block_is_taken_and_of_equal_ones_the_lowest() {
    let mut program = Program::new("", 1024);
    let addresses: Vec<u64> =
        [40, 20, 30, 20, 20].iter().zip(0..).map(|(&mib, id)| program.a(id, mib)).collect();
    program.f(&[0, 2, 4, 1]);
    assert_eq!(program.a(5, 25), addresses[2]);
    assert_eq!(program.a(6, 20), addresses[1]);
    assert_eq!(program.a(7, 20), addresses[4]);
}

#[test]
fn the_growable_end_counts_as_large_as_it_can_grow() {
    // The binary: the free end of 30 MiB is the smaller block, the hole of 40 is taken.
    let mut program = Program::new("expandable_segments:True", 1024);
    let first = program.a(1, 40);
    program.a(2, 20);
    program.a(3, 30);
    program.f(&[1, 3]);
    assert_eq!(program.a(4, 25), first);
}

#[test]
fn an_unmapped_hole_is_filled_before_the_end_grows() {
    // The binary: addresses in MiB from the start of the segment.
    let mut program = Program::new("expandable_segments:True", 1024);
    let start = program.a(1, 10);
    program.a(2, 90);
    program.a(3, 20);
    program.f(&[2]);
    program.allocator.empty_cache().unwrap();
    // 10 to 100 MiB were free: the frames from 20 on went. The mapped rest before them is used.
    assert_eq!(program.figures(), (40, 120, 3, 1, 0));
    assert_eq!(program.a(4, 60), start + 10 * MIB);
    // 50 more MiB are needed: three frames.
    assert_eq!(program.figures(), (100, 120, 4, 1, 0));
}

#[test]
fn empty_cache_gives_back_whole_segments_or_whole_frames() {
    // The binary.
    let mut native = Program::new("", 1024);
    native.a(1, 100);
    native.a(2, 4);
    native.f(&[1]);
    native.allocator.empty_cache().unwrap();
    assert_eq!(native.figures(), (20, 120, 2, 1, 0));

    let mut expandable = Program::new("expandable_segments:True", 1024);
    expandable.a(1, 30);
    expandable.a(2, 30);
    expandable.f(&[1]);
    expandable.allocator.empty_cache().unwrap();
    // The second frame has bytes of both.
    assert_eq!(expandable.figures(), (40, 60, 2, 1, 0));
    assert_eq!(expandable.device.counts().of(Call::Unreserve), 0);
    expandable.f(&[2]);
    expandable.allocator.empty_cache().unwrap();
    assert_eq!(expandable.figures(), (0, 60, 2, 2, 0));
    assert_eq!(expandable.device.counts().of(Call::Unreserve), 1);
    assert_eq!(expandable.device.leaks().reservations, 0);
    assert_eq!(expandable.allocator.stats().addresses.current, 0);
}

#[test]
fn short_of_memory_the_cache_is_freed_and_the_request_made_again() {
    // The binary: 400 MiB are cached, 500 fit only without them; then 100 of 600 are left.
    let mut program = Program::new("", 600);
    program.a(1, 400);
    program.f(&[1]);
    program.a(2, 500);
    assert_eq!(program.figures(), (500, 500, 2, 1, 1));
    let refused = program.try_allocate(3, 101 * MIB, 0).unwrap_err();
    let PytorchError::OutOfMemory { requested_bytes, segment_bytes, reserved_bytes, limit_bytes, .. } =
        refused
    else {
        panic!("{refused}");
    };
    assert_eq!((requested_bytes, segment_bytes), (101 * MIB, 102 * MIB));
    assert_eq!((reserved_bytes, limit_bytes), (500 * MIB, None));
    assert_eq!(program.allocator.stats().ooms, 1);

    // The binary: five frames at each of two holes go, ten come at the end.
    let mut program = Program::new("expandable_segments:True", 400);
    for id in 0..4 {
        program.a(id, 100);
    }
    program.f(&[0, 2]);
    program.a(9, 200);
    assert_eq!(program.figures(), (400, 400, 5, 2, 1));
    assert_eq!(program.device.counts().of(Call::Unmap), 10);
}

#[test]
fn blocks_stay_with_their_stream() {
    let mut program = Program::new("", 1024);
    program.try_allocate(1, 20 * MIB, 0).unwrap();
    program.f(&[1]);
    program.try_allocate(2, 20 * MIB, 1).unwrap();
    assert_eq!(program.figures(), (40, 40, 2, 0, 0));
}

#[test]
fn a_block_used_elsewhere_comes_back_with_its_events() {
    let mut program = Program::with_events("", 1024, EventCompletion::ByHand);
    let first = program.a(1, 20);
    for stream in [1, 2, 0, 1] {
        program.allocator.record_stream(&program.blocks[&1], stream).unwrap();
    }
    assert_eq!(program.device.counts().of(Call::EventRecord), 0);
    program.f(&[1]);
    // One for each other stream.
    assert_eq!(program.device.counts().of(Call::EventRecord), 2);
    assert_eq!((program.allocated(), program.allocator.stats().active.current), (0, 20 * MIB));
    assert_ne!(program.a(2, 20), first);
    program.device.complete_all();
    assert_eq!(program.a(3, 20), first);
    assert_eq!(program.allocator.stats().active.current, 40 * MIB);
}

#[test]
fn out_of_memory_waits_for_the_events() {
    // The binary.
    let mut program = Program::with_events("", 20, EventCompletion::ByHand);
    let first = program.a(1, 20);
    program.allocator.record_stream(&program.blocks[&1], 1).unwrap();
    program.f(&[1]);
    program.a(2, 20);
    assert_eq!(program.figures(), (20, 20, 2, 1, 1));
    assert_eq!(program.device.counts().of(Call::EventSynchronize), 1);
    let _ = first;
}

#[test]
fn max_split_size_keeps_large_blocks_whole_for_large_requests() {
    // The binary.
    let mut program = Program::new("max_split_size_mb:200", 1024);
    program.a(1, 300);
    program.f(&[1]);
    program.a(2, 100);
    assert_eq!(program.figures(), (400, 400, 2, 0, 0));

    // The binary: 41 takes all of 60, 39 takes nothing of a cached 60.
    let mut program = Program::new("max_split_size_mb:40", 1024);
    program.a(1, 60);
    program.f(&[1]);
    program.a(2, 41);
    program.a(3, 40);
    assert_eq!(program.allocated(), 100 * MIB);
    program.f(&[2]);
    program.a(5, 39);
    assert_eq!(program.figures(), (140, 140, 3, 0, 0));

    // The binary: 60, 50 and 40 are cached on 160; 100 more need the two largest, which are freed without a retry.
    let mut program = Program::new("max_split_size_mb:40", 160);
    for (id, mib) in [(1, 60), (2, 50), (3, 40)] {
        program.a(id, mib);
    }
    program.f(&[1, 2, 3]);
    program.a(4, 100);
    assert_eq!(program.figures(), (140, 150, 4, 2, 0));

    // The binary: one cached block that is large enough goes alone, even if it is too large to be used.
    let mut program = Program::new("max_split_size_mb:40", 100);
    program.a(1, 70);
    program.f(&[1]);
    program.a(2, 45);
    assert_eq!(program.figures(), (46, 70, 2, 1, 0));

    // The binary: a small request frees a block of the limit, too.
    let mut program = Program::new("max_split_size_mb:40", 80);
    program.a(1, 60);
    program.f(&[1]);
    program.a(2, 30);
    assert_eq!(program.figures(), (30, 60, 2, 1, 0));

    // The binary: 60 and 50 are not 130; they are gone all the same.
    let mut program = Program::new("max_split_size_mb:40", 150);
    for (id, mib) in [(1, 60), (2, 50), (3, 40)] {
        program.a(id, mib);
    }
    program.f(&[1, 2]);
    assert!(program.try_allocate(4, 130 * MIB, 0).unwrap_err().is_out_of_memory());
    assert_eq!(program.figures(), (40, 150, 3, 2, 1));
}

#[test]
fn max_split_size_makes_expandable_segments_grow_around_a_fence() {
    // The binary, PyTorch issue 123548: the hole of 40 MiB before a live block is too large for requests of 39.
    let mut program = Program::new("max_split_size_mb:40,expandable_segments:True", 1024);
    program.a(0, 40);
    program.a(1, 20);
    program.f(&[0]);
    for id in 2..7 {
        program.a(id, 39);
        program.f(&[id]);
    }
    assert_eq!(program.figures(), (100, 100, 3, 0, 0));
}

#[test]
fn max_non_split_rounding_says_how_much_too_large_a_block_may_be() {
    // The binary: 100 MiB are cached, 80 asked for.
    for (rounding, reserved, mallocs) in [(20, 180, 2), (30, 100, 1)] {
        let conf = format!("max_split_size_mb:40,max_non_split_rounding_mb:{rounding}");
        let mut program = Program::new(&conf, 1024);
        program.a(1, 100);
        program.f(&[1]);
        program.a(2, 80);
        assert_eq!(program.figures(), (reserved, reserved, mallocs, 0, 0), "{conf}");
    }
}

#[test]
fn roundup_divisions_round_requests_up() {
    // The binary.
    for (conf, bytes, allocated) in [
        ("roundup_power2_divisions:4", 1_395_864_371, 3 * GIB / 2),
        ("roundup_power2_divisions:[64:8,128:2,>:1]", 130 * MIB, 192 * MIB),
        ("roundup_power2_divisions:[64:8,128:2,>:1]", 260 * MIB, 260 * MIB),
        ("roundup_power2_divisions:[64:8,128:2,>:4]", 260 * MIB, 320 * MIB),
        ("roundup_power2_divisions:[64:8,256:2,>:4]", 130 * MIB, 130 * MIB),
        ("roundup_power2_divisions:[64:8,256:2,>:4]", 33 * MIB, 36 * MIB),
    ] {
        let mut program = Program::new(conf, 2048);
        program.try_allocate(1, bytes, 0).unwrap();
        assert_eq!(program.allocated(), allocated, "{conf} {bytes}");
        assert_eq!(program.allocator.stats().requested.current, bytes);
    }
}

#[test]
fn large_segment_size_is_that_of_segments_and_of_frames() {
    // The binary.
    for (conf, blocks, reserved) in [
        ("large_segment_size_mb:64", &[5][..], 64),
        ("large_segment_size_mb:64", &[10], 10),
        ("large_segment_size_mb:64,expandable_segments:True", &[5, 60], 128),
        ("large_segment_size_mb:12,expandable_segments:True", &[5, 60], 72),
    ] {
        let mut program = Program::new(conf, 1024);
        for (&mib, id) in blocks.iter().zip(0..) {
            program.a(id, mib);
        }
        assert_eq!(program.figures().0, reserved, "{conf} {blocks:?}");
    }
    // Frames of 11 MiB are none on a device of 2 MiB granules. (The binary dies of a refused reservation.)
    let device = Emulator::new(EmulatorConfig::default()).unwrap();
    let refused = Pytorch::new(device, "large_segment_size_mb:11,expandable_segments:True".parse().unwrap());
    let wanted = PytorchError::FrameSize { frame_bytes: 11 * MIB, granularity_bytes: 2 * MIB };
    assert_eq!(refused.unwrap_err(), wanted);
}

#[test]
fn a_memory_fraction_limits_what_is_reserved() {
    // The binary: half of 240 MiB are three blocks of 40.
    for conf in
        ["per_process_memory_fraction:0.5", "per_process_memory_fraction:0.5,expandable_segments:True"]
    {
        let mut program = Program::new(conf, 240);
        for id in 1..4 {
            program.a(id, 40);
        }
        let refused = program.try_allocate(4, 40 * MIB, 0).unwrap_err();
        assert!(refused.to_string().contains("125829120 allowed by the memory fraction"), "{refused}");
        assert_eq!(program.figures(), (120, 120, 3, 0, 1), "{conf}");
        // All freed, 120 in one piece: the native segments must go first, the expandable one is in one piece.
        program.f(&[1, 2, 3]);
        program.a(4, 120);
        let wanted = if program.allocator.conf().expandable_segments {
            (120, 120, 3, 0, 1)
        } else {
            (120, 120, 4, 3, 2)
        };
        assert_eq!(program.figures(), wanted, "{conf}");
    }
    let mut none = Program::new("per_process_memory_fraction:0", 240);
    assert!(none.try_allocate(1, 1, 0).unwrap_err().is_out_of_memory());
    let mut all = Program::new("per_process_memory_fraction:1.0", 240);
    all.a(1, 240);
}

#[test]
fn garbage_collection_frees_old_blocks_above_the_threshold() {
    // The binary: at 80 MiB more, 170 of at most 200 are reserved and the threshold is 100: the cached 60 go.
    let sizes = |program: &mut Program| {
        program.a(1, 40);
        program.a(2, 60);
        program.f(&[1, 2]);
        for (id, mib) in [(3, 30), (4, 70), (5, 80)] {
            program.a(id, mib);
        }
    };
    let mut limited = Program::new("per_process_memory_fraction:0.5,garbage_collection_threshold:0.5", 400);
    sizes(&mut limited);
    assert_eq!(limited.figures(), (190, 190, 4, 1, 0));
    // The binary: without a limit nothing is collected.
    let mut unlimited = Program::new("garbage_collection_threshold:0.5", 400);
    sizes(&mut unlimited);
    assert_eq!(unlimited.figures(), (250, 250, 4, 0, 0));
}

#[test]
fn garbage_collection_goes_by_age() {
    // The binary, limit 200 MiB, threshold 120. Three blocks of 50, 40 and 30 are cached, the first for two searches, the
    // others for one; 61 are asked for with 199 reserved. Average 4/3: the first goes, which is not the 79 wanted; then the
    // average is 1, and both others go.
    let mut program = Program::new("per_process_memory_fraction:0.5,garbage_collection_threshold:0.6", 400);
    for (id, mib) in [(1, 50), (2, 40), (3, 30), (4, 20)] {
        program.a(id, mib);
    }
    program.f(&[1]);
    program.a(5, 59);
    program.f(&[2, 3]);
    program.a(6, 61);
    assert_eq!(program.allocator.stats().device_frees, 3);
    assert_eq!(program.figures(), (142, 150, 6, 3, 0));
}

#[test]
fn a_stream_for_each_call_strands_all_of_its_memory() {
    // A thousand streams that live one after the other, 64 MiB each. The binary ends with 67,108,864,000 bytes reserved
    // in native mode; Concertina needs one stream's memory (its own test shows that).
    let run = |conf: PytorchConf| {
        let device = Emulator::new(EmulatorConfig::default()).unwrap();
        let mut allocator = Pytorch::new(device.clone(), conf).unwrap();
        for _ in 0..1000 {
            let stream = allocator.add_stream(device.stream());
            let block = allocator.allocate(64 * MIB, stream).unwrap();
            allocator.free(block).unwrap();
        }
        (device.counts().mapped_bytes, allocator.stats().allocated.peak)
    };
    assert_eq!(run(PytorchConf::native()), (67_108_864_000, 64 * MIB));
    // 64 MiB are four frames of 20 there.
    assert_eq!(run(PytorchConf::expandable()), (1000 * 80 * MIB, 64 * MIB));
}

#[test]
fn bad_requests_are_refused_and_change_nothing() {
    let mut program = Program::new("", 1024);
    assert_eq!(program.try_allocate(1, 0, 0), Err(PytorchError::ZeroBytes));
    assert_eq!(program.try_allocate(1, 1, 3), Err(PytorchError::UnknownStream { stream: 3, streams: 3 }));
    for bytes in [1 << 60, u64::MAX] {
        assert!(program.try_allocate(1, bytes, 0).unwrap_err().is_out_of_memory());
    }
    program.a(1, 1);
    let unknown = program.allocator.record_stream(&program.blocks[&1], 9);
    assert_eq!(unknown, Err(PytorchError::UnknownStream { stream: 9, streams: 3 }));
    assert_eq!(program.device.counts().of(Call::Malloc), 1);
    assert_eq!(program.device.resolve(Address::new(0)), None);
}
