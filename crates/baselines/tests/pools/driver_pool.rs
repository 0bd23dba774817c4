//! The driver's pool, worked out by hand: what is documented, and what the model makes of the rest.
//!
//! Neighbours: `world` runs the programs; `ranges` of the source has the joining of neighbours.

use concertina_baselines::{Baseline, DriverPool};
use concertina_emulator::{Emulator, EventCompletion};
use concertina_vmm::Call;

use crate::world::{MIB, World};

const GIB: u64 = 1 << 30;

fn on(capacity_mib: u64, options: &str) -> World<DriverPool<Emulator>> {
    let conf = options.parse().unwrap();
    World::on(capacity_mib * MIB, EventCompletion::ByHand, |device| DriverPool::new(device, conf).unwrap())
}

/// Creates, maps, unmaps, releases and grants of access so far, and MiB held.
fn figures(world: &World<DriverPool<Emulator>>) -> ([u64; 5], u64) {
    let counts = world.device.counts();
    assert_eq!(counts.mapped_bytes, world.allocator.held_bytes());
    let calls = [Call::Create, Call::Map, Call::Unmap, Call::Release, Call::SetAccess];
    (calls.map(|call| counts.of(call)), counts.mapped_bytes / MIB)
}

fn waits(world: &World<DriverPool<Emulator>>) -> (u64, u64) {
    let counts = world.device.counts();
    (counts.of(Call::StreamWait), counts.of(Call::EventSynchronize))
}

#[test]
fn sizes_are_multiples_of_512_bytes_and_the_pool_grows_by_frames_of_32_mib() {
    let mut world = on(1024, "");
    for bytes in [1, 513, 512] {
        assert!(world.allocate(bytes, 0));
    }
    let start = world.address(0).get();
    assert_eq!([1, 2].map(|which| world.address(which).get() - start), [512, 512 + 1024]);
    assert_eq!(world.allocator.used_bytes(), 512 + 1024 + 512);
    assert_eq!(figures(&world), ([1, 1, 0, 0, 1], 32));
    // 40 MiB do not fit into what is left of it: two frames.
    assert!(world.allocate(40 * MIB, 0));
    assert_eq!(figures(&world), ([3, 3, 0, 0, 2], 96));
    // They joined that rest, so that the block begins there and leaves 56 MiB less 2 KiB behind it.
    assert_eq!(world.address(3).get() - start, 2048);
    assert!(world.allocate(56 * MIB - 2048, 0));
    assert_eq!(world.address(4).get() - start, 2048 + 40 * MIB);
    assert_eq!(figures(&world), ([3, 3, 0, 0, 2], 96));
    world.end().unwrap();
}

#[test]
fn a_stream_reuses_its_own_memory_at_once_and_neighbours_join() {
    let mut world = on(1024, "");
    for mib in [10, 22, 40] {
        assert!(world.allocate(mib * MIB, 0));
    }
    let start = world.address(0);
    (0..3).for_each(|_| world.free(0));
    assert!(world.allocate(96 * MIB, 0));
    assert_eq!(world.address(0), start);
    assert_eq!(figures(&world), ([3, 3, 0, 0, 2], 96));
    assert_eq!(waits(&world), (0, 0));
    world.end().unwrap();
}

#[test]
fn memory_of_a_stream_that_the_program_waited_for_is_reused() {
    for (options, follows) in [("", true), ("follow_events:false", false)] {
        let mut world = on(1024, options);
        assert!(world.allocate(32 * MIB, 0));
        let first = world.address(0);
        world.free(0);
        assert!(world.allocate(32 * MIB, 1));
        assert_ne!(world.address(0), first, "nothing orders stream 1 behind the free, and it is not done");
        world.wait(1, 0);
        assert!(world.allocate(32 * MIB, 1));
        assert_eq!(world.address(1) == first, follows, "{options}");
        assert_eq!(waits(&world), (0, 0), "no wait of its own");
        world.end().unwrap();
    }
}

#[test]
fn memory_whose_free_is_seen_done_is_reused() {
    for (options, looks) in [("", true), ("opportunistic:false", false)] {
        let mut world = on(1024, &format!("release_threshold_mb:max,{options}"));
        assert!(world.allocate(32 * MIB, 0));
        let first = world.address(0);
        world.free(0);
        world.step(&crate::world::Op::Complete { stream: 0 }).unwrap();
        assert!(world.allocate(32 * MIB, 1));
        assert_eq!(world.address(0) == first, looks, "{options}");
        // "Made available for allocation regardless of specified stream or disabled allocation policies."
        world.free(0);
        world.synchronize(None);
        assert!(world.allocate(32 * MIB, 2));
        assert!(looks || world.address(0) == first, "{options}");
        assert_eq!(waits(&world), (0, 0));
        world.end().unwrap();
    }
}

#[test]
fn when_there_is_no_more_memory_a_wait_is_put_into_the_stream() {
    // Served, waits of the stream, waits of the host.
    for (options, served, wanted) in [
        ("", true, (1, 0)),
        ("internal_dependencies:false", true, (0, 1)),
        ("internal_dependencies:false,retry:false", false, (0, 0)),
    ] {
        let mut world = on(64, options);
        assert!(world.allocate(64 * MIB, 0));
        world.free(0);
        assert_eq!(world.allocate(64 * MIB, 1), served, "{options}");
        assert_eq!(waits(&world), wanted, "{options}");
        world.check().unwrap();
        world.end().unwrap();
    }
}

#[test]
fn a_synchronisation_gives_back_what_is_over_the_threshold() {
    for (options, held) in [
        ("", 32),
        ("release_threshold_mb:96", 96),
        ("release_threshold_mb:100", 96),
        ("release_threshold_mb:max", 128),
    ] {
        let mut world = on(1024, options);
        for _ in 0..4 {
            assert!(world.allocate(32 * MIB, 0));
        }
        (0..3).for_each(|_| world.free(0));
        world.synchronize(Some(1));
        assert_eq!(world.allocator.held_bytes(), 128 * MIB, "of another stream nothing is known");
        world.synchronize(Some(0));
        assert_eq!(world.allocator.held_bytes(), held * MIB, "{options}");
        world.end().unwrap();
    }
}

#[test]
fn a_frame_with_a_live_block_stays() {
    let mut world = on(1024, "");
    assert!(world.allocate(512, 0));
    assert!(world.allocate(31 * MIB, 0));
    assert!(world.allocate(32 * MIB, 0));
    world.free(2);
    world.free(1);
    world.allocator.release_cached().unwrap();
    // `empty_cache` waits for the streams that have something queued.
    assert_eq!(waits(&world).0, 0);
    assert_eq!(figures(&world), ([2, 2, 1, 1, 2], 32));
    world.end().unwrap();
}

/// Blocks of 40, 24, 40 and 24 MiB on four frames, of which the first and the third are free: a frame each, and 8 MiB.
fn two_holes(options: &str) -> World<DriverPool<Emulator>> {
    let mut world = on(160, options);
    for mib in [40, 24, 40, 24] {
        assert!(world.allocate(mib * MIB, 0));
    }
    assert_eq!(figures(&world), ([4, 4, 0, 0, 2], 128));
    world.free(2);
    world.free(0);
    world.device.complete_all();
    world
}

#[test]
fn free_frames_are_remapped_before_more_is_created() {
    let mut world = two_holes("");
    assert!(world.allocate(64 * MIB, 0));
    assert_eq!(figures(&world), ([4, 6, 2, 0, 3], 128));
    world.check().unwrap();
    // Of 80 MiB in all 16 are free now, in two places.
    assert!(world.allocate(32 * MIB, 0));
    assert!(!world.allocate(16 * MIB, 0));
    world.end().unwrap();

    // Under pressure only: one frame is left to create, and one is moved.
    let mut world = two_holes("remap:pressure");
    assert!(world.allocate(64 * MIB, 0));
    assert_eq!(figures(&world), ([5, 6, 1, 0, 3], 160));
    world.end().unwrap();

    // Not at all: the retry gives two frames back to create them anew; without it there is one, which is not enough.
    let mut world = two_holes("remap:never");
    assert!(world.allocate(64 * MIB, 0));
    assert_eq!(figures(&world), ([7, 6, 2, 3, 3], 128));
    world.end().unwrap();
    let mut world = two_holes("remap:never,retry:false");
    assert!(!world.allocate(64 * MIB, 0));
    assert_eq!(figures(&world), ([5, 4, 0, 1, 2], 128));
    world.end().unwrap();
}

#[test]
fn what_may_still_be_in_use_is_not_remapped() {
    let mut world = on(160, "retry:false");
    for mib in [40, 24, 40, 24] {
        assert!(world.allocate(mib * MIB, 0));
    }
    world.free(2);
    world.free(0);
    assert!(!world.allocate(64 * MIB, 0), "no event is complete");
    world.check().unwrap();
    world.device.complete_all();
    assert!(world.allocate(64 * MIB, 0));
    world.end().unwrap();
}

#[test]
fn small_blocks_all_over_the_pool_hold_it_down() {
    // rmm issue 1245, a hundredth of it: 845 MB are held, in 25 frames, and each has live blocks among free memory: 63 % are
    // in use, and 133 MB are refused though 300 MiB are free.
    let run = |options: &str| {
        let mut world = on(800, options);
        for _ in 0..25 {
            for kib in [512, 1536, 12 << 10, 18 << 10] {
                assert!(world.allocate(kib << 10, 0));
            }
        }
        // Of each frame, 12 MiB in the middle go.
        for frame in (0..25).rev() {
            world.free(4 * frame + 2);
        }
        world.device.complete_all();
        assert_eq!((world.allocator.held_bytes(), world.allocator.used_bytes()), (800 * MIB, 500 * MIB));
        let served = world.allocate(133_000_000, 0);
        world.check().unwrap();
        world.end().unwrap();
        served
    };
    assert!(!run(""));
    // Remapped page by page, it would have been served.
    assert!(run("frame_mb:2"));
}

#[test]
fn a_block_that_other_streams_used_comes_back_when_all_is_done() {
    let mut world = on(1024, "");
    assert!(world.allocate(32 * MIB, 0));
    let first = world.address(0);
    world.read(0, 1);
    world.free(0);
    // PyTorch frees it on a stream of its own: the program's wait for stream 1 says nothing of that one.
    world.wait(0, 1);
    assert!(world.allocate(32 * MIB, 0));
    assert_ne!(world.address(0), first);
    world.device.complete_all();
    assert!(world.allocate(32 * MIB, 0));
    assert_eq!(world.address(1), first);
    assert_eq!(waits(&world), (0, 0));
    world.end().unwrap();

    // When memory is short, stream 2 waits for both.
    let mut world = on(32, "");
    assert!(world.allocate(32 * MIB, 0));
    world.read(0, 1);
    world.free(0);
    assert!(world.allocate(32 * MIB, 2));
    assert_eq!(waits(&world), (2, 0));
    world.end().unwrap();
}

#[test]
fn bad_requests_are_refused_and_change_nothing() {
    let mut world = on(1024, "");
    let mut said = |bytes, stream| world.allocator.allocate(bytes, stream).unwrap_err().to_string();
    assert_eq!(said(0, 0), "allocator failed: 0 bytes asked for; ask for 1 at least");
    assert_eq!(said(1, 3), "allocator failed: no stream 3: 3 were added; add it first");
    for bytes in [GIB + 1, 1 << 60, u64::MAX] {
        assert!(said(bytes, 0).starts_with("out of memory"));
    }
    assert_eq!(world.allocator.held_bytes(), 0);
    let device = world.device.clone();
    let refused = DriverPool::new(device, "frame_mb:3".parse().unwrap()).unwrap_err();
    let wanted = "frames of 3145728 bytes are no multiple of the device's granularity of 2097152 bytes; choose another \
                  size of frames, or another allocator where it is fixed";
    assert_eq!(refused.to_string(), wanted);
}
