//! The model of the driver's own malloc: whole granules, and small blocks that share them.
//!
//! Main types: none. Neighbours: `src/malloc_area.rs`.

use std::collections::BTreeSet;

use concertina_emulator::{Emulator, EmulatorConfig};
use concertina_vmm::{Address, Driver, FrameProperties};
use proptest::prelude::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn device(granularity_bytes: u64, granules: u64) -> Emulator {
    let capacity_bytes = granules * granularity_bytes;
    Emulator::new(EmulatorConfig { granularity_bytes, capacity_bytes, ..EmulatorConfig::default() }).unwrap()
}

#[test]
fn large_ones_take_whole_granules() {
    let emulator = device(2 * MIB, 8);
    let one = emulator.malloc(MIB).unwrap();
    assert_eq!(emulator.counts().mapped_bytes, 2 * MIB);
    let three = emulator.malloc(4 * MIB + 1).unwrap();
    assert_eq!(emulator.counts().mapped_bytes, 8 * MIB);
    assert!(emulator.malloc(8 * MIB + 1).unwrap_err().is_out_of_memory());
    let four = emulator.malloc(8 * MIB).unwrap();
    assert!(emulator.create(2 * MIB, &FrameProperties::default()).unwrap_err().is_out_of_memory());
    for address in [one, three, four] {
        emulator.free(address).unwrap();
    }
    assert!(emulator.is_empty());
    assert_eq!(emulator.counts().mapped_peak_bytes, 16 * MIB);
}

#[test]
fn small_ones_share_a_granule_until_the_last_goes() {
    let emulator = device(2 * MIB, 8);
    // 1,024 bytes each after rounding to 256: 2,048 fit in a granule.
    let blocks: Vec<Address> = (0..2_048).map(|_| emulator.malloc(1_000).unwrap()).collect();
    assert_eq!(emulator.counts().mapped_bytes, 2 * MIB);
    let over = emulator.malloc(1).unwrap();
    assert_eq!(emulator.counts().mapped_bytes, 4 * MIB);
    emulator.free(over).unwrap();
    assert_eq!(emulator.counts().mapped_bytes, 2 * MIB);
    // First fit: the lowest hole that is large enough.
    emulator.free(blocks[3]).unwrap();
    emulator.free(blocks[700]).unwrap();
    emulator.free(blocks[701]).unwrap();
    assert_eq!(emulator.malloc(1_025).unwrap(), blocks[700]);
    assert_eq!(emulator.malloc(256).unwrap(), blocks[3]);
    assert_eq!(emulator.counts().mapped_bytes, 2 * MIB);
    assert_eq!(emulator.recount(), emulator.leaks());
}

#[test]
fn whole_granules_lie_at_the_lowest_address_where_they_fit() {
    let emulator = device(2 * MIB, 16);
    let at = |address: Address, base: Address| (address.get() - base.get()) / MIB;
    let blocks: Vec<Address> = (0..5).map(|_| emulator.malloc(2 * MIB).unwrap()).collect();
    let base = blocks[0];
    assert_eq!(blocks.iter().map(|&block| at(block, base)).collect::<Vec<_>>(), [0, 2, 4, 6, 8]);
    emulator.free(blocks[1]).unwrap();
    emulator.free(blocks[3]).unwrap();
    // Free are 2 to 4 and 6 to 8; 4 MiB fit behind all others only.
    let four = emulator.malloc(4 * MIB).unwrap();
    assert_eq!(at(four, base), 10);
    emulator.free(blocks[2]).unwrap();
    // Now 2 to 8 is free in one piece, and is cut from its front.
    let [three, small] = [3 * MIB, 1].map(|bytes| emulator.malloc(bytes).unwrap());
    assert_eq!((at(three, base), at(small, base)), (2, 6));
    assert!(emulator.resolve(blocks[3]).is_some(), "the address is another malloc's now");
    assert_eq!(emulator.resolve(blocks[2]).unwrap().memory, emulator.resolve(three).unwrap().memory);
    assert_eq!(emulator.recount(), emulator.leaks());
}

#[test]
fn at_64_kib_the_limit_is_a_granule() {
    let emulator = device(64 * KIB, 64);
    let address = emulator.malloc(64 * KIB).unwrap();
    assert_eq!(emulator.counts().mapped_bytes, 64 * KIB);
    emulator.malloc(64 * KIB - 1).unwrap();
    assert_eq!(emulator.counts().mapped_bytes, 128 * KIB);
    emulator.malloc(64 * KIB + 1).unwrap();
    assert_eq!(emulator.counts().mapped_bytes, 256 * KIB);
    emulator.free(address).unwrap();
}

#[test]
fn a_32_mib_granule_is_taken_by_one_mebibyte() {
    let emulator = device(32 * MIB, 2);
    emulator.malloc(MIB).unwrap();
    emulator.malloc(MIB - 1).unwrap();
    assert!(emulator.malloc(MIB).unwrap_err().is_out_of_memory());
    emulator.malloc(MIB - 1).unwrap();
}

#[test]
fn what_is_behind_a_malloc() {
    let emulator = device(2 * MIB, 8);
    let large = emulator.malloc(3 * MIB).unwrap();
    let first = emulator.malloc(1_000).unwrap();
    let second = emulator.malloc(10).unwrap();
    let backing = |address| emulator.resolve(address).unwrap();
    assert_eq!(backing(large).offset_bytes, 0);
    assert_eq!(backing(large.add(3 * MIB - 1)).offset_bytes, 3 * MIB - 1);
    assert_eq!(backing(large).memory, backing(large.add(3 * MIB - 1)).memory);
    assert!(backing(large).accessible);
    assert_eq!(backing(first).memory, backing(second).memory, "they share a granule");
    assert_ne!(backing(first).memory, backing(large).memory);
    assert_eq!((backing(first).offset_bytes, backing(second).offset_bytes), (0, 1_024));
    emulator.free(first).unwrap();
    assert_eq!(emulator.resolve(first), None, "free, though in a granule in use");
    assert_eq!(backing(second).offset_bytes, 1_024);
    let old = backing(large).memory;
    emulator.free(large).unwrap();
    assert_eq!(emulator.resolve(large), None);
    let again = emulator.malloc(4 * MIB).unwrap();
    assert_ne!(backing(again).memory, old, "other memory, wherever it lies");

    let pieces = emulator.resolve_range(again, 4 * MIB);
    assert_eq!(pieces.len(), 1);
    assert_eq!(pieces[0].bytes, 4 * MIB);
}

#[derive(Clone, Debug)]
enum Step {
    Malloc(u64),
    Free(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_u32..20, 0.0..1.0).prop_map(|(log, part)| Step::Malloc((1 << log) + ((1 << log) as f64 * part) as u64)),
        1 => (MIB..9 * MIB).prop_map(Step::Malloc),
        3 => any::<usize>().prop_map(Step::Free),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Against a plain list of live blocks: none overlap, each is aligned, and the memory taken is exactly the
    /// granules that a live block lies in.
    #[test]
    fn programs(steps in prop::collection::vec(step(), 1..300), log in prop::sample::select(vec![16_u32, 21, 25])) {
        let granule = 1_u64 << log;
        let emulator = device(granule, (64 * MIB).div_ceil(granule));
        let mut live: Vec<(u64, u64)> = Vec::new();
        for step in steps {
            match step {
                Step::Malloc(bytes) => match emulator.malloc(bytes) {
                    Ok(address) => {
                        let start = address.get();
                        prop_assert!(address.is_aligned_to(256));
                        for &(other, length) in &live {
                            prop_assert!(start + bytes <= other || other + length <= start);
                        }
                        live.push((start, bytes));
                    }
                    Err(error) => {
                        prop_assert!(error.is_out_of_memory());
                        let free = emulator.memory_info().unwrap().free_bytes;
                        prop_assert!(free < bytes.next_multiple_of(granule), "{free} bytes were free for {bytes}");
                    }
                },
                Step::Free(which) if !live.is_empty() => {
                    let (start, _) = live.swap_remove(which % live.len());
                    emulator.free(Address::new(start)).unwrap();
                    prop_assert!(emulator.resolve(Address::new(start)).is_none());
                }
                Step::Free(_) => {}
            }
            let granules: BTreeSet<u64> = live
                .iter()
                .flat_map(|&(start, bytes)| start / granule..=(start + bytes - 1) / granule)
                .collect();
            prop_assert_eq!(emulator.counts().mapped_bytes, granules.len() as u64 * granule);
            prop_assert_eq!(emulator.recount(), emulator.leaks());
            prop_assert_eq!(emulator.leaks().mallocs, live.len() as u64);
        }
        for (start, bytes) in live {
            prop_assert!(emulator.resolve(Address::new(start + bytes - 1)).is_some());
            emulator.free(Address::new(start)).unwrap();
        }
        prop_assert!(emulator.is_empty());
        prop_assert!(emulator.broken_rules().is_empty());
    }
}
