//! GMLake's rules, each worked out by hand.
//!
//! Neighbours: `audit` says what must hold of the books; random programs with kernels are in `tests/stitch` of this
//! crate.

use std::collections::BTreeMap;

use concertina_emulator::{CallFilter, Emulator, EmulatorConfig, EventCompletion, Fault};
use concertina_trace::target::TargetError;
use concertina_vmm::{Call, DriverErrorKind};

use super::audit::audit;
use super::{Gmlake, GmlakeBlock};
use crate::baseline::Baseline;

const MIB: u64 = 1 << 20;

/// An allocator on a device of its own, and the blocks that the program has.
struct Program {
    device: Emulator,
    allocator: Gmlake<Emulator>,
    blocks: BTreeMap<u32, GmlakeBlock>,
}

impl Program {
    fn new(conf: &str, capacity_mib: u64) -> Self {
        Self::on(conf, EmulatorConfig::default().with_capacity(capacity_mib * MIB).unwrap())
    }

    fn on(conf: &str, config: EmulatorConfig) -> Self {
        let device = Emulator::new(config).unwrap();
        let mut allocator = Gmlake::new(device.clone(), conf.parse().unwrap()).unwrap();
        for _ in 0..2 {
            allocator.add_stream(device.stream());
        }
        Self { device, allocator, blocks: BTreeMap::new() }
    }

    fn try_bytes(&mut self, id: u32, bytes: u64, stream: u32) -> Result<u64, TargetError> {
        let block = Baseline::allocate(&mut self.allocator, bytes, stream)?;
        self.check();
        let address = block.address().get();
        assert!(self.blocks.insert(id, block).is_none(), "{id} is live");
        Ok(address)
    }

    /// A block of so many MiB on stream 0; its address.
    fn a(&mut self, id: u32, mib: u64) -> u64 {
        self.try_bytes(id, mib * MIB, 0).unwrap()
    }

    fn f(&mut self, ids: &[u32]) {
        for id in ids {
            self.allocator.free(self.blocks.remove(id).unwrap()).unwrap();
            self.check();
        }
    }

    fn check(&self) {
        assert_eq!(audit(&self.allocator), Vec::<String>::new());
        assert_eq!(self.allocator.held_bytes(), self.device.counts().mapped_bytes);
    }

    fn count(&self, call: Call) -> u64 {
        self.device.counts().of(call)
    }

    fn held_mib(&self) -> u64 {
        self.allocator.held_bytes() / MIB
    }

    /// sBlocks made, used again, dropped.
    fn stitching(&self) -> (u64, u64, u64) {
        let stats = self.allocator.stats();
        (stats.stitched, stats.reused, stats.dropped)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        assert_eq!(self.device.broken_rules().len(), 0, "{:?}", self.device.broken_rules());
    }
}

/// Stitches for all requests of the large pool.
const ALL: &str = "fragLimit:0";

#[test]
fn large_requests_are_multiples_of_2_mib_in_segments_of_20_mib_or_of_their_own_size() {
    // `round_size`, `get_allocation_size`: bytes asked for, MiB held, MiB used.
    for (bytes, held, used) in [
        (MIB + 1, 20, 2),
        (2 * MIB + 1, 20, 4),
        (8 * MIB + 1, 10, 10),
        (10 * MIB + 1, 12, 12),
        (11 * MIB, 12, 12),
    ] {
        let mut program = Program::new("", 1024);
        program.try_bytes(1, bytes, 0).unwrap();
        assert_eq!((program.held_mib(), program.allocator.used_bytes() / MIB), (held, used), "{bytes}");
        // `VirBlock`: each frame is created, mapped and made accessible by itself, in one reservation.
        for call in [Call::Create, Call::Map, Call::SetAccess] {
            assert_eq!(program.count(call), held / 2, "{bytes}");
        }
        assert_eq!(program.count(Call::Reserve), 1);
    }
    // `kSmallSize`: 1 MiB is small, and packed into 2 MiB by `cudaMalloc`.
    let mut program = Program::new("", 1024);
    program.a(1, 1);
    assert_eq!((program.held_mib(), program.count(Call::Malloc), program.count(Call::Create)), (2, 1, 0));
}

#[test]
fn the_smallest_pblock_is_split_and_joins_again() {
    let mut program = Program::new("", 1024);
    let first = program.a(1, 60);
    let second = program.a(2, 40);
    program.f(&[1, 2]);
    // `get_free_block`: best fit is the segment of 40, and the rest of it stays free.
    assert_eq!(program.a(3, 10), second);
    assert_eq!(program.a(4, 30), second + 10 * MIB);
    assert_eq!(program.a(5, 60), first);
    program.f(&[3, 4]);
    // `try_merge_blocks`.
    assert_eq!(program.a(6, 40), second);
    assert_eq!(program.held_mib(), 100);
    assert_eq!(program.stitching(), (0, 0, 0));
}

#[test]
fn fragments_are_stitched_from_the_largest_on_and_the_last_one_is_split() {
    let mut program = Program::new(ALL, 1024);
    for (id, mib) in [(1, 20), (2, 40), (3, 30)] {
        program.a(id, mib);
    }
    program.f(&[1, 2, 3]);
    let (maps, accesses) = (program.count(Call::Map), program.count(Call::SetAccess));
    // 40, 30, and 10 of the 20.
    program.a(4, 80);
    assert!(program.blocks[&4].is_stitched());
    assert_eq!(program.held_mib(), 90, "nothing is created");
    assert_eq!(program.count(Call::Map) - maps, 40);
    assert_eq!(program.count(Call::SetAccess) - accesses, 40, "one a frame");
    assert_eq!(program.count(Call::Unmap), 0, "the pBlocks stay mapped");
    // The other 10 of the 20 are free.
    program.a(5, 10);
    assert_eq!(program.held_mib(), 90);
    assert_eq!(program.stitching(), (1, 0, 0));
}

#[test]
fn below_the_limit_nothing_is_stitched() {
    // `fragLimit`, 512 MiB if not given: a request of just so many is.
    for (conf, mib, stitched) in
        [("", 510, 0), ("", 512, 1), ("fragLimit:67108864", 62, 0), ("fragLimit:67108864", 64, 1)]
    {
        let mut program = Program::new(conf, 4096);
        program.a(1, mib / 2 + 1);
        program.a(2, mib / 2 + 1);
        program.f(&[1, 2]);
        program.a(3, mib);
        assert_eq!(program.allocator.stats().stitched, stitched, "{conf} {mib}");
    }
}

#[test]
fn a_frame_has_one_user_and_blocks_become_free_with_their_frames() {
    let mut program = Program::new(ALL, 1024);
    let (first, second) = (program.a(1, 20), program.a(2, 20));
    program.f(&[1, 2]);
    let stitched = program.a(3, 40);
    // Both pBlocks are lent: the next request is served by new frames.
    program.a(4, 20);
    assert_eq!(program.held_mib(), 60);
    program.f(&[3]);
    // Free again: as pBlocks, which come first, ...
    assert_eq!(program.a(5, 20), first);
    // ... so that the sBlock is fragmented, and 40 are stitched of the second and of new ones, or created. Here there
    // is one free pBlock only, and stitching wants two.
    program.a(6, 40);
    assert_eq!(program.held_mib(), 100);
    program.f(&[5]);
    // Now it is whole again, and used again: no pBlock has 40.
    let calls = program.device.counts().memory_calls();
    assert_eq!(program.a(7, 40), stitched);
    assert_eq!(program.device.counts().memory_calls(), calls, "no call");
    assert_eq!(program.stitching(), (1, 1, 0));
    program.f(&[7]);
    assert_eq!([program.a(8, 20), program.a(9, 20)], [first, second]);
}

#[test]
fn the_end_of_an_sblock_that_is_not_used_is_free_for_others() {
    let mut program = Program::new(ALL, 1024);
    let (first, second) = (program.a(1, 20), program.a(2, 20));
    program.f(&[1, 2]);
    let stitched = program.a(3, 40);
    program.f(&[3]);
    // 30 are in no pBlock. Of two equal pBlocks the higher one was stitched first; of the lower one 10 are used.
    assert_eq!(program.a(4, 30), stitched);
    assert_eq!(program.a(5, 10), first + 10 * MIB);
    assert_eq!(program.held_mib(), 40);
    program.f(&[4]);
    assert_eq!(program.a(6, 20), second);
    assert_eq!(program.a(7, 10), first);
}

#[test]
fn an_sblock_serves_requests_that_are_not_too_small_for_it() {
    // `reuseLimit`: 60 MiB for 30 is twice the request. No pBlock has 30.
    for (conf, reused) in [("reuseLimit:2", 1), ("reuseLimit:1.9", 0)] {
        let mut program = Program::new(&format!("{ALL},{conf}"), 1024);
        for id in 1..=3 {
            program.a(id, 20);
        }
        program.f(&[1, 2, 3]);
        program.a(4, 60);
        program.f(&[4]);
        program.a(5, 30);
        assert_eq!(program.stitching(), (2 - reused, reused, 0), "{conf}");
        assert_eq!(program.held_mib(), 60, "{conf}");
    }
}

#[test]
fn the_level_says_when_fragments_are_stitched() {
    // Two of 20 free, beside 40 that are live; a request of 40 on a device of 100 and of 80.
    for (conf, capacity, figures) in [
        // Eagerly, or because there are no more frames.
        ("defragLevel:0", 100, (80, 1, 0)),
        ("defragLevel:1", 120, (120, 0, 0)),
        ("defragLevel:1", 100, (80, 1, 0)),
        // After the cache was given back there is enough, and nothing to be stitched.
        ("defragLevel:2", 100, (80, 0, 1)),
    ] {
        let mut program = Program::new(&format!("{ALL},{conf}"), capacity);
        for (id, mib) in [(1, 20), (2, 20), (3, 40)] {
            program.a(id, mib);
        }
        program.f(&[1, 2]);
        program.a(4, 40);
        let stats = *program.allocator.stats();
        assert_eq!((program.held_mib(), stats.stitched, stats.alloc_retries), figures, "{conf} {capacity}");
    }
    // Of two segments only one half is free each: the cache can't be given back, but stitched.
    let mut program = Program::new(&format!("{ALL},defragLevel:2"), 80);
    for id in 1..=4 {
        program.a(id, 20);
    }
    program.f(&[1, 2, 3, 4]);
    for id in 1..=4 {
        program.a(id, 10);
        program.a(10 + id, 10);
    }
    program.f(&[11, 12]);
    program.a(20, 20);
    assert_eq!((program.held_mib(), program.stitching()), (80, (1, 0, 0)));
}

#[test]
fn what_is_missing_is_created_and_stitched_with_re_alloc() {
    // The paper's fourth outcome: 30 are free, 50 are wanted. The code creates all 50 unless told otherwise.
    for (conf, held, stitched) in [("reAlloc:0", 80, 0), ("reAlloc:1", 50, 1)] {
        let mut program = Program::new(&format!("{ALL},{conf}"), 1024);
        program.a(1, 30);
        program.f(&[1]);
        program.a(2, 50);
        assert_eq!((program.held_mib(), program.allocator.stats().stitched), (held, stitched), "{conf}");
    }
    // `get_allocation_size`: 2 MiB are missing, a segment of 20 is created.
    let mut program = Program::new(&format!("{ALL},reAlloc:1"), 1024);
    program.a(1, 30);
    program.f(&[1]);
    program.a(2, 32);
    assert_eq!((program.held_mib(), program.allocator.stats().stitched), (50, 1));
    // Below the limit all is created.
    let mut program = Program::new("reAlloc:1", 1024);
    program.a(1, 30);
    program.f(&[1]);
    program.a(2, 50);
    assert_eq!((program.held_mib(), program.allocator.stats().stitched), (80, 0));
}

#[test]
fn over_the_limit_on_addresses_all_that_nobody_has_is_dropped() {
    // `autoGC`: at 1 GiB. Each round stitches 300 MiB of new pBlocks.
    let mut program = Program::new(&format!("{ALL},autoGC:1"), 8192);
    for round in 0..4 {
        let id = round * 10;
        program.a(id, 150);
        program.a(id + 1, 150);
        program.f(&[id, id + 1]);
        program.a(id + 2, 300);
        // Keep the pBlocks of this round out of the way of the next ones.
        program.f(&[id + 2]);
        program.a(id + 3, 150);
        program.a(id + 4, 150);
    }
    // 300, 600, 900, and with 1,200 the three others go: each of them is fragmented.
    assert_eq!(program.stitching(), (4, 0, 3));
    assert_eq!(program.count(Call::Unmap), 3, "one call a block");
    assert_eq!(program.count(Call::Unreserve), 3);
}

#[test]
fn an_sblock_is_not_dropped_before_its_last_use_is_done() {
    for done in [false, true] {
        // With `autoGC:0` each new sBlock drops all that can go.
        let config = EmulatorConfig::default().with_event_completion(EventCompletion::ByHand);
        let conf = format!("{ALL},autoGC:0");
        let mut program = Program::on(&conf, config.with_capacity(1024 * MIB).unwrap());
        for id in 1..=4 {
            program.a(id, 20);
        }
        program.f(&[1, 2]);
        program.a(5, 40);
        program.f(&[5, 3, 4]);
        if done {
            program.device.synchronize_device().unwrap();
        }
        program.a(6, 80);
        assert_eq!(program.stitching(), (2, 0, u64::from(done)), "done: {done}");
        assert_eq!(program.count(Call::EventSynchronize), 0);
    }
}

#[test]
fn the_cache_goes_segment_by_segment_with_the_sblocks_over_it() {
    let mut program = Program::new(ALL, 1024);
    program.a(1, 20);
    program.a(2, 20);
    program.a(3, 1);
    program.f(&[1, 2, 3]);
    program.a(4, 40);
    program.f(&[4]);
    program.a(5, 4);
    program.allocator.empty_cache().unwrap();
    // One segment has a live block; the other one, the sBlock over both and the small pool's segment go.
    assert_eq!(program.held_mib(), 20);
    assert_eq!(program.stitching(), (1, 0, 1));
    assert_eq!((program.count(Call::Unmap), program.count(Call::Release)), (2, 10));
    assert_eq!((program.count(Call::Free), program.count(Call::Unreserve)), (1, 2));
    program.f(&[5]);
    program.allocator.empty_cache().unwrap();
    assert_eq!(program.device.leaks().mapped_bytes, 0);
}

#[test]
fn memory_stays_with_its_stream() {
    let mut program = Program::new(ALL, 1024);
    program.a(1, 20);
    program.a(2, 20);
    program.f(&[1, 2]);
    for (id, bytes) in [(3, 20 * MIB), (4, 40 * MIB)] {
        program.try_bytes(id, bytes, 1).unwrap();
    }
    assert_eq!((program.held_mib(), program.stitching()), (100, (0, 0, 0)));
    // Short of memory, what is free of one stream is given back, and so it serves the other.
    let mut program = Program::new(ALL, 60);
    program.a(1, 40);
    program.f(&[1]);
    program.try_bytes(2, 60 * MIB, 1).unwrap();
    assert_eq!(program.allocator.stats().alloc_retries, 1);
}

#[test]
fn a_block_that_other_streams_use_comes_back_when_they_are_done() {
    let config = EmulatorConfig::default().with_event_completion(EventCompletion::ByHand);
    let mut program = Program::on(ALL, config.with_capacity(1024 * MIB).unwrap());
    let first = program.a(1, 20);
    program.allocator.record_stream(program.blocks.get_mut(&1).unwrap(), 1).unwrap();
    program.f(&[1]);
    assert_ne!(program.a(2, 20), first);
    program.device.synchronize_device().unwrap();
    assert_eq!(program.a(3, 20), first);
}

#[test]
fn each_free_records_an_event() {
    // `insert_free_event_into_alloc_stream`; with `record_stream` it is one for each other stream instead.
    let mut program = Program::new("", 1024);
    for (id, mib) in [(1, 1), (2, 20), (3, 20)] {
        program.a(id, mib);
    }
    program.f(&[1, 2]);
    assert_eq!(program.count(Call::EventRecord), 2);
    program.allocator.record_stream(program.blocks.get_mut(&3).unwrap(), 1).unwrap();
    program.f(&[3]);
    assert_eq!(program.count(Call::EventRecord), 3);
    assert_eq!(program.count(Call::EventQuery), 0);
    program.a(4, 40);
    assert_eq!(program.count(Call::EventQuery), 1);
}

#[test]
fn where_mappings_are_short_sblocks_are_dropped() {
    // 80 MiB in pBlocks are 40 mappings, an sBlock of 40 MiB has 20: there is room for one of the latter.
    let mut config = EmulatorConfig::default().with_capacity(1024 * MIB).unwrap();
    config.max_mappings = Some(60);
    let mut program = Program::on(ALL, config);
    for id in 1..=4 {
        program.a(id, 20);
    }
    program.f(&[1, 2]);
    program.a(5, 40);
    program.f(&[5]);
    program.a(6, 20);
    program.f(&[3]);
    // 40 of the other two: the first sBlock is fragmented, and goes.
    program.a(7, 40);
    assert_eq!(program.stitching(), (2, 0, 1));
    assert_eq!(program.device.counts().mappings, 60);
}

#[test]
fn too_much_is_refused_and_leaves_everything_as_it_was() {
    let mut program = Program::new(ALL, 100);
    program.a(1, 40);
    let error = program.try_bytes(2, 80 * MIB, 0).expect_err("60 are left");
    assert!(matches!(error, TargetError::OutOfMemory(_)), "{error}");
    assert!(error.to_string().contains("83886080 bytes asked for, 41943040 held"), "{error}");
    assert!(matches!(program.try_bytes(2, 1 << 60, 0), Err(TargetError::OutOfMemory(_))));
    assert!(matches!(program.try_bytes(2, 0, 0), Err(TargetError::Failed(_))));
    assert!(matches!(program.try_bytes(2, MIB, 9), Err(TargetError::Failed(_))));
    program.a(3, 60);
    // A call that fails half-way is undone.
    program.f(&[3]);
    program.a(4, 20);
    program.device.fail(Fault::once(CallFilter::Kind(Call::SetAccess), 7, DriverErrorKind::NotReady));
    program.f(&[1, 4]);
    let reservations = program.device.leaks().reservations;
    assert!(matches!(program.try_bytes(5, 90 * MIB, 0), Err(TargetError::Failed(_))));
    assert_eq!(program.device.leaks().reservations, reservations);
    program.a(5, 90);
    assert_eq!(program.stitching(), (1, 0, 0));
}
