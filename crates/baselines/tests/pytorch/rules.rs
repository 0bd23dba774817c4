//! Sizes, places, streams, and what happens when memory is short.
//!
//! Neighbours: `options` has what changes them.

use concertina_baselines::{Pytorch, PytorchConf, PytorchError};
use concertina_emulator::{Emulator, EmulatorConfig, EventCompletion};
use concertina_vmm::{Address, Call};

use crate::program::{MIB, Program};

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
