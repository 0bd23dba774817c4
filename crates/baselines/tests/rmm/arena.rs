//! The rules of RMM 25.4's arena: `arena_memory_resource.hpp`, `detail/arena.hpp`.
//!
//! Neighbours: holes inside superblocks are tested in `superblocks`.

use concertina_baselines::{RmmArena, RmmArenaConf, RmmError};
use concertina_emulator::{Emulator, EmulatorConfig};
use concertina_vmm::Call;

use crate::program::{KIB, MIB, Program, STREAMS, is_out_of_memory};

type ArenaProgram = Program<RmmArena<Emulator>>;

/// `handles`, `get_arena`, `expand_arena`: up to 1 MiB from superblocks of the stream, each of 1 MiB; more from the
/// global arena.
#[test]
fn small_requests_come_from_superblocks_of_their_stream() {
    let mut program = ArenaProgram::new("initial:1", 64);
    assert_eq!(program.a(1, 500, 0), 0);
    assert_eq!(program.a(2, 500, 1), MIB);
    assert_eq!(program.a(3, 3 * MIB, 0), 2 * MIB);
    // Just one superblock, and it does not fit into the first one.
    assert_eq!(program.a(4, MIB, 0), 5 * MIB);
    // The second step of 256 bytes of the first superblock is taken, too.
    assert_eq!(program.a(5, 1, 0), 512);
    assert_eq!(program.a(6, MIB + 1, 1), 6 * MIB);
    assert_eq!(program.a(7, 2 * MIB, 2), 7 * MIB + 256);
    assert_eq!((program.count(Call::Malloc), program.held_mib()), (1, 64.0));
    program.end();
}

/// `first_fit`: the lowest address, though a hole further on fits better.
#[test]
fn the_first_hole_that_fits_is_taken() {
    let mut program = ArenaProgram::new("initial:1", 64);
    for (id, mib) in [(1, 4), (2, 2), (3, 2), (4, 2)] {
        program.a(id, mib * MIB, 0);
    }
    program.f(&[1, 3]);
    assert_eq!(program.a(5, 2 * MIB, 0), 0);
    assert_eq!(program.a(6, 2 * MIB, 0), 2 * MIB);
    assert_eq!(program.a(7, 2 * MIB, 0), 6 * MIB);
    program.end();
}

/// `split`, `coalesce`: empty superblocks that touch are one, and the rest of one must have 1 MiB.
#[test]
fn superblocks_of_the_global_arena_are_joined_when_empty() {
    let mut program = ArenaProgram::new("initial:1", 8);
    program.a(1, 4 * MIB, 0);
    program.a(2, 4 * MIB, 0);
    assert!(is_out_of_memory(&program.try_allocate(3, MIB, 0)));
    program.f(&[1]);
    // It keeps the 4 MiB: half a MiB would be left.
    assert_eq!(program.a(3, 3 * MIB + 512 * KIB, 0), 0);
    program.f(&[2, 3]);
    assert_eq!(program.a(4, 8 * MIB, 0), 0);
    program.end();
}

/// `acquire`: the superblock that an arena gets may have large blocks in it. `deallocate`: those are then found in the
/// stream's own arena, after a wait of the host.
#[test]
fn an_arena_may_get_a_superblock_with_large_blocks_in_it() {
    let mut program = ArenaProgram::new("initial:1", 64);
    program.a(1, 4 * MIB, 0);
    program.a(2, 2 * MIB, 0);
    program.f(&[1]);
    assert_eq!(program.a(3, 3 * MIB + 512 * KIB, 0), 0);
    assert_eq!(program.a(4, 256 * KIB, 0), 3 * MIB + 512 * KIB);
    let waits = program.count(Call::EventSynchronize);
    program.f(&[3]);
    assert_eq!(program.count(Call::EventSynchronize), waits + 1);
    // The 3.5 MiB are with the stream's arena now: the global one does not place there.
    assert_eq!(program.a(5, 2 * MIB, 0), 6 * MIB);
    assert_eq!(program.a(6, 256, 0), 0);
    program.end();
}

/// `deallocate_from_other_arena`: if another stream has got the superblock, the host waits twice.
#[test]
fn a_large_block_is_found_in_the_arena_of_another_stream() {
    let mut program = ArenaProgram::new("initial:1", 64);
    program.a(1, 4 * MIB, 0);
    program.a(2, 2 * MIB, 0);
    program.f(&[1]);
    assert_eq!(program.a(3, 3 * MIB + 512 * KIB, 0), 0);
    assert_eq!(program.a(4, 256 * KIB, 2), 3 * MIB + 512 * KIB);
    let waits = program.count(Call::EventSynchronize);
    program.f(&[3]);
    assert_eq!(program.count(Call::EventSynchronize), waits + 2);
    assert_eq!(program.a(5, 256, 0), 6 * MIB);
    assert_eq!(program.a(6, 256, 2), 0);
    program.end();
}

/// `deallocate_async`: the host waits before a large block is free, and not for a small one.
#[test]
fn the_host_waits_at_the_free_of_a_large_block() {
    let mut program = ArenaProgram::new("initial:1", 64);
    program.a(1, MIB, 0);
    program.a(2, MIB + 1, 0);
    for id in [1, 2] {
        program.write(id);
    }
    program.f(&[1]);
    assert_eq!((program.count(Call::EventRecord), program.count(Call::EventSynchronize)), (0, 0));
    program.f(&[2]);
    assert_eq!((program.count(Call::EventRecord), program.count(Call::EventSynchronize)), (1, 1));
    program.end();
}

/// `defragment`: if nothing fits the host waits for all, and what arenas have goes back and is joined.
#[test]
fn arenas_give_back_what_they_have_when_nothing_fits() {
    let mut program = ArenaProgram::new("initial:1", 4);
    for id in 0..4 {
        assert_eq!(program.a(id, MIB, id % 2), u64::from(id) * MIB);
        program.write(id);
    }
    program.f(&[0, 1, 2]);
    assert_eq!(program.count(Call::EventSynchronize), 0);
    assert_eq!(program.a(4, 3 * MIB, 2), 0);
    program.write(4);
    assert_eq!(program.count(Call::EventSynchronize), u64::from(STREAMS));
    // Its superblock went back with it: one wait for it to be found there. (`deallocate_from_other_arena`)
    program.f(&[3]);
    assert_eq!(program.count(Call::EventSynchronize), u64::from(STREAMS) + 1);
    assert_eq!(program.a(5, MIB, 0), 3 * MIB);
    // In vain; live blocks stay where they are.
    assert!(is_out_of_memory(&program.try_allocate(6, 256, 0)));
    assert_eq!((program.defect(), program.device.races()), (None, vec![]));
    program.end();
}

/// `align_to_size_class`, which RMM must be compiled for.
#[test]
fn sizes_may_be_rounded_to_classes() {
    for (options, bytes) in [("initial:1", 2304), ("initial:1,size_classes:true", 2560)] {
        let mut program = ArenaProgram::new(options, 64);
        program.a(1, 2049, 0);
        assert_eq!(program.a(2, 1, 0), bytes, "{options}");
        program.f(&[1]);
        assert_eq!(program.a(3, 2049, 0), 0);
        program.end();
    }
}

/// `default_size`, and the least that `global_arena` takes.
#[test]
fn the_arena_is_half_of_what_is_free() {
    let device = Emulator::new(EmulatorConfig::default().with_capacity(4 * MIB).unwrap()).unwrap();
    let arena = |conf: &str| {
        let conf: RmmArenaConf = conf.parse().unwrap();
        RmmArena::new(device.clone(), conf).map(|arena| arena.held_bytes())
    };
    assert_eq!(arena(""), Ok(2 * MIB));
    assert_eq!(arena("initial:0.25"), Ok(MIB));
    assert_eq!(arena("initial:0.125"), Err(RmmError::ArenaTooSmall { bytes: 512 * KIB }));
    assert!(device.is_empty(), "{}", device.leaks());
}
