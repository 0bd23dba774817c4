//! The rules of RMM 25.4's pool: `pool_memory_resource.hpp`, `detail/stream_ordered_memory_resource.hpp`.
//!
//! Neighbours: the fit and the joining of holes are tested in `free_list`.

use concertina_baselines::{RmmError, RmmPool, RmmPoolConf};
use concertina_emulator::{Emulator, EmulatorConfig};
use concertina_vmm::Call;

use crate::program::{MIB, Program, is_out_of_memory};

type PoolProgram = Program<RmmPool<Emulator>>;

/// `size_to_grow`: as much again as the pool has, or what is asked for.
#[test]
fn the_pool_doubles() {
    let mut program = PoolProgram::new("", 64);
    program.a(1, 6 * MIB, 0);
    assert_eq!(program.held_mib(), 6.0);
    program.a(2, MIB, 0);
    assert_eq!(program.held_mib(), 12.0);
    // The holes, of 5 MiB, are too small.
    program.a(3, 20 * MIB, 0);
    assert_eq!(program.held_mib(), 32.0);
    program.a(4, 30 * MIB, 0);
    assert_eq!(program.held_mib(), 64.0);
    assert_eq!(program.count(Call::Malloc), 4);
    program.end();
}

/// `try_to_expand`: half of it while the driver refuses, down to what is asked for.
#[test]
fn growth_is_halved_while_the_driver_refuses() {
    let mut program = PoolProgram::new("", 64);
    program.a(1, 40 * MIB, 0);
    // 40 are refused, 20 are not.
    program.a(2, 3 * MIB, 0);
    assert_eq!((program.held_mib(), program.device.counts().failed(Call::Malloc)), (60.0, 1));
    // 60, 30 and 18 are refused, and 15 would be too little.
    assert!(is_out_of_memory(&program.try_allocate(3, 18 * MIB, 0)));
    assert_eq!((program.held_mib(), program.device.counts().failed(Call::Malloc)), (60.0, 4));
    // 60, 30, 17.5: what is asked for is never cut. 4 MiB are left, and the hole has 17.
    assert!(is_out_of_memory(&program.try_allocate(3, 17 * MIB + 1, 0)));
    program.a(3, 17 * MIB, 0);
    // 60, 30, 15, 7.5, 3.75: the last is given.
    program.a(4, MIB, 0);
    assert_eq!(program.held_mib(), 63.75);
    program.end();
}

/// `size_to_grow`: with a maximum, half of what is left to it, or what is asked for; `try_to_expand` asks for nothing
/// that goes beyond.
#[test]
fn with_a_maximum_the_pool_grows_by_half_of_what_is_left() {
    let mut program = PoolProgram::new("maximum:0.5", 64);
    program.a(1, 2 * MIB, 0);
    assert_eq!(program.held_mib(), 16.0);
    program.a(2, 15 * MIB, 0);
    assert_eq!(program.held_mib(), 31.0);
    program.a(3, 2 * MIB, 0);
    // A hole of 12 MiB, and 1 MiB to the maximum.
    assert!(is_out_of_memory(&program.try_allocate(4, 13 * MIB, 0)));
    assert_eq!((program.count(Call::Malloc), program.device.counts().failed(Call::Malloc)), (2, 0));
    program.end();
}

/// `initialize_pool`: it goes to the list of the default stream. Others take of it behind a wait.
#[test]
fn what_it_begins_with_belongs_to_the_default_stream() {
    let mut program = PoolProgram::new("initial:0.5", 64);
    assert_eq!((program.held_mib(), program.count(Call::Malloc)), (32.0, 1));
    assert_eq!(program.a(1, MIB, 0), 0);
    assert_eq!(program.count(Call::StreamWait), 0);
    assert_eq!(program.a(2, 1, 1), MIB);
    assert_eq!(program.count(Call::StreamWait), 1);
    // What is left stays where it was, and 1 byte is 256.
    assert_eq!(program.a(3, 1, 0), MIB + 256);
    assert_eq!(program.a(4, 1, 2), MIB + 512);
    assert_eq!((program.count(Call::StreamWait), program.count(Call::Malloc)), (2, 1));
    program.end();
}

/// `get_block`: its own list comes first, though another has a better fit.
#[test]
fn a_stream_takes_from_its_own_list_first() {
    let mut program = PoolProgram::new("", 64);
    let wide = program.a(1, 10 * MIB, 1);
    program.a(2, 4 * MIB, 0);
    program.f(&[1, 2]);
    let waits = program.count(Call::StreamWait);
    assert_eq!(program.a(3, 4 * MIB, 1), wide);
    assert_eq!(program.count(Call::StreamWait), waits);
    program.end();
}

/// `get_block_from_other_stream`: the first stream that has a fit, though a later one has a better one. Streams are in
/// the order in which the pool met them.
#[test]
fn the_first_stream_that_fits_is_robbed() {
    let mut program = PoolProgram::new("", 64);
    let wide = program.a(1, 12 * MIB, 2);
    program.a(2, 8 * MIB, 1);
    program.a(3, 4 * MIB, 1);
    program.a(4, 24 * MIB, 0);
    // No more holes in the segments of 12, 12 and 24 MiB than these two.
    program.f(&[1, 2]);
    let waits = program.count(Call::StreamWait);
    assert_eq!(program.a(5, 8 * MIB, 0), wide);
    assert_eq!(program.count(Call::StreamWait), waits + 1);
    // 4 MiB of it are with stream 2 still: no wait.
    assert_eq!(program.a(6, 4 * MIB, 2), wide + 8 * MIB);
    assert_eq!(program.count(Call::StreamWait), waits + 1);
    program.end();
}

/// `get_block_from_other_stream`, `merge_lists`: if no list has a fit, they are joined into the stream's own, one wait
/// each, until there is one.
#[test]
fn lists_are_joined_before_the_pool_grows() {
    let mut program = PoolProgram::new("initial:0.5", 32);
    program.a(1, 8 * MIB, 0);
    program.a(2, 8 * MIB, 1);
    program.f(&[1, 2]);
    assert_eq!(program.count(Call::StreamWait), 1);
    assert_eq!(program.a(3, 16 * MIB, 0), 0);
    assert_eq!((program.count(Call::StreamWait), program.count(Call::Malloc)), (2, 1));
    // Both are with stream 0 now.
    program.f(&[3]);
    assert_eq!(program.a(4, 16 * MIB, 0), 0);
    assert_eq!(program.count(Call::StreamWait), 2);
    program.end();
}

/// `is_contiguous_before`: the start of a segment is not joined to what lies before it, though it touches it. (rmm issue
/// 35: the pool takes more and more.)
#[test]
fn segments_are_not_joined() {
    let mut program = PoolProgram::new("", 64);
    assert_eq!(program.a(1, 8 * MIB, 0), 0);
    assert_eq!(program.a(2, 8 * MIB, 0), 8 * MIB);
    program.f(&[1, 2]);
    program.a(3, 16 * MIB, 0);
    assert_eq!((program.held_mib(), program.count(Call::Malloc)), (32.0, 3));
    program.end();
}

/// `do_deallocate`: an event is recorded at each free. `release`: nothing goes back before the end.
#[test]
fn each_free_records_an_event_and_nothing_goes_back() {
    let mut program = PoolProgram::new("", 64);
    for id in 0..5 {
        program.a(id, MIB, id % 2);
    }
    assert_eq!((program.count(Call::EventCreate), program.count(Call::EventRecord)), (2, 0));
    program.f(&[0, 1, 2, 3, 4]);
    assert_eq!((program.count(Call::EventCreate), program.count(Call::EventRecord)), (2, 5));
    let held = program.held_mib();
    concertina_baselines::Baseline::release_cached(&mut program.allocator).unwrap();
    assert_eq!((program.held_mib(), program.count(Call::Free)), (held, 0));
    assert_eq!(program.device.counts().host_waits, 0);
    program.end();
}

/// Blocks that were written go to another stream, and back, and through a joined list: each time behind a wait.
#[test]
fn two_streams_do_not_race() {
    let mut program = PoolProgram::new("initial:1", 16);
    program.a(1, 8 * MIB, 0);
    program.a(2, 8 * MIB, 1);
    for id in [1, 2] {
        program.write(id);
    }
    program.f(&[1, 2]);
    for (id, stream) in [(3, 0), (4, 1), (5, 0)] {
        program.a(id, 16 * MIB, stream);
        program.write(id);
        program.f(&[id]);
    }
    assert_eq!(program.device.races(), []);
    program.end();
}

/// RMM issue 2489: a joined list keeps an event that is older than what was put in, or was never recorded. So the third
/// stream writes while the first may still.
#[test]
fn a_third_stream_races_after_lists_were_joined() {
    let mut program = PoolProgram::new("initial:1", 4);
    program.a(1, 4 * MIB, 1);
    program.write(1);
    program.f(&[1]);
    // In vain, but now stream 2 has the list.
    assert!(is_out_of_memory(&program.try_allocate(2, 8 * MIB, 2)));
    assert_eq!(program.device.races(), []);
    program.a(3, 4 * MIB, 0);
    program.write(3);
    assert_eq!(program.device.races().len(), 1);
    program.end();
}

#[test]
fn what_it_can_not_do_is_said() {
    let device = Emulator::new(EmulatorConfig::default().with_capacity(64 * MIB).unwrap()).unwrap();
    let pool = |initial: f64, maximum: Option<f64>| {
        RmmPool::new(device.clone(), RmmPoolConf { initial, maximum }).map(|pool| pool.held_bytes())
    };
    let over = RmmError::InitialOverMaximum { initial_bytes: 48 * MIB, maximum_bytes: 32 * MIB };
    assert_eq!(pool(0.75, Some(0.5)), Err(over));
    assert_eq!(pool(0.5, Some(0.5)), Ok(32 * MIB));
    // Fractions are cut to whole steps: a hundredth of 64 MiB is 671,088.64 bytes.
    assert_eq!(pool(0.01, None), Ok(670_976));
    assert!(device.is_empty(), "{}", device.leaks());

    let mut program = PoolProgram::new("", 64);
    let said = |result: Result<u64, concertina_trace::target::TargetError>| result.unwrap_err().to_string();
    let zero = said(program.try_allocate(1, 0, 0));
    assert_eq!(zero, "allocator failed: 0 bytes asked for; ask for 1 at least");
    let unknown = said(program.try_allocate(1, 1, 3));
    assert_eq!(unknown, "allocator failed: no stream 3: 3 were added; add it first");
    assert!(is_out_of_memory(&program.try_allocate(1, u64::MAX, 0)));
    program.end();
}
