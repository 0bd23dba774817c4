//! Each option that changes memory.
//!
//! Neighbours: `rules` has what holds without them.

use concertina_baselines::{Pytorch, PytorchError};
use concertina_emulator::{Emulator, EmulatorConfig};

use crate::program::{MIB, Program};

const GIB: u64 = 1 << 30;

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
    // The binary, limit 200 MiB, threshold 120. Three blocks of 50, 40 and 30 are cached, the first for two searches,
    // the others for one; 61 are asked for with 200 reserved. Average 4/3: the first goes, which is not the 80 wanted;
    // then the average is 1, and both others go.
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
