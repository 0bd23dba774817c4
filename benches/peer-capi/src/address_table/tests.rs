//! The table against a map, and from several threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Tests cover 2^32 addresses: four leaves.
const BITS: u32 = 32;
const MIB: u64 = 1 << 20;

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert { address: u64, bytes: u64 },
    Take(u64),
}

/// Few addresses, so that they meet: at the ends of MiBs, of leaves and of the table, and between steps.
fn addresses() -> impl Strategy<Value = u64> {
    let near = (0_u64..=4, -3_i64..=3, -3_i64..=3).prop_map(|(leaf, mib, steps)| {
        (leaf << LEAF_BITS).wrapping_add_signed((mib << LARGE_BITS) + steps * 512)
    });
    prop_oneof![8 => near.clone(), 1 => near.prop_map(|address| address.wrapping_add(256)), 1 => any::<u64>()]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes =
        prop_oneof![Just(1), Just(512), Just(1024), Just(MIB - 1), Just(MIB), Just(MIB + 1), Just(3 * MIB)];
    let insert = (addresses(), bytes).prop_map(|(address, bytes)| Step::Insert { address, bytes });
    vec(prop_oneof![insert, addresses().prop_map(Step::Take)], 1..200)
}

proptest! {
    /// Of blocks that do not overlap, as an allocator hands them out, and of frees of anything.
    #[test]
    fn it_is_a_map(steps in steps()) {
        let table = AddressTable::covering(BITS);
        let mut model: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Insert { address, bytes } => {
                    let Some(end) = address.checked_add(bytes) else { continue };
                    let is_free = model.range(..end).next_back().is_none_or(|(at, (bytes, _))| at + bytes <= address);
                    if is_free {
                        let fits = address % 512 == 0 && address < 1 << BITS;
                        let inserted = table.insert(address, bytes, number);
                        prop_assert_eq!(inserted, if fits { Ok(()) } else { Err(number) });
                        if fits {
                            model.insert(address, (bytes, number));
                        }
                    }
                }
                Step::Take(address) => {
                    prop_assert_eq!(table.take(address), model.remove(&address).map(|(_, number)| number));
                }
            }
        }
        for (address, (_, number)) in model {
            prop_assert_eq!(table.take(address), Some(number));
        }
    }
}

#[test]
fn an_address_is_its_own() {
    for (stride, bytes) in [(512 * 31, 512 * 30), (MIB + 512, MIB), (MIB, MIB)] {
        let table = AddressTable::covering(BITS);
        let all = || (0..1_u64 << BITS).step_by(stride as usize);
        for address in all() {
            table.insert(address, bytes, address).unwrap();
        }
        assert!(all().all(|address| table.take(address + 512).is_none()));
        assert!(all().all(|address| table.take(address) == Some(address)));
        assert!(all().all(|address| table.take(address).is_none()));
    }
}

#[test]
fn where_a_block_is_there_comes_no_other() {
    let table = AddressTable::covering(BITS);
    assert_eq!(table.insert(512, 512, 'a'), Ok(()));
    assert_eq!(table.insert(512, 512, 'b'), Err('b'));
    assert_eq!(table.insert(MIB + 512, MIB, 'c'), Ok(()));
    assert_eq!(table.insert(MIB + 1024, 2 * MIB, 'd'), Err('d'));
    assert_eq!(
        (table.take(512), table.take(MIB + 1024), table.take(MIB + 512)),
        (Some('a'), None, Some('c'))
    );
    // What is left of a large block is no trap for a small one in its place, with a large one behind it.
    assert_eq!(table.insert(MIB + 512, 512, 'e'), Ok(()));
    assert_eq!(table.take(MIB + 512), Some('e'));
    assert_eq!(table.insert(MIB + 512, 512, 'f'), Ok(()));
    assert_eq!(table.insert(MIB + 1024, MIB, 'g'), Ok(()));
    assert_eq!((table.take(MIB + 512), table.take(MIB + 1024)), (Some('f'), Some('g')));
}

/// Counts its drops.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn every_value_is_dropped_once() {
    let drops = Arc::new(AtomicUsize::new(0));
    let value = || Counted(Arc::clone(&drops));
    let count = || drops.load(Ordering::Relaxed);
    let table = AddressTable::covering(BITS);
    for (address, bytes) in [(0, 1), (512, 1), (3 << LEAF_BITS, MIB), ((1 << BITS) - 512, 512)] {
        assert!(table.insert(address, bytes, value()).is_ok());
    }
    drop(table.insert(512, 1, value()));
    assert_eq!(count(), 1, "the one that had no place");
    drop(table.take(512));
    assert_eq!(count(), 2);
    drop(table);
    assert_eq!(count(), 5);
}

/// Four threads hand blocks round as an allocator does, where one address is one thread's at a time, and all try to take
/// every value: what one has taken, no other gets. Places are of a large block and a small one behind it, or of two small
/// ones.
#[test]
fn threads_never_share_a_value() {
    const THREADS: usize = 4;
    const PLACES: u64 = 64;
    const ROUNDS: u64 = 50_000;
    let start = |place: u64| ((place % 4) << LEAF_BITS) + place / 4 * 4 * MIB;
    let second = |place: u64| start(place) + MIB + 512;
    let drops = Arc::new(AtomicUsize::new(0));
    let table = AddressTable::covering(BITS);
    // Places in nobody's hands and without a value, with the number of their round.
    let free: Mutex<Vec<(u64, u64)>> = Mutex::new((0..PLACES).map(|place| (place, 0)).collect());
    let inserted = AtomicUsize::new(0);
    let insert = |address, bytes, round| {
        let value = (address, round, Counted(Arc::clone(&drops)));
        assert!(table.insert(address, bytes, value).is_ok(), "{address:#x} has a value");
        inserted.fetch_add(1, Ordering::Relaxed);
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for number in 0..ROUNDS {
                    let popped = free.lock().unwrap().pop();
                    if let Some((place, round)) = popped {
                        insert(second(place), 512, round);
                        // Whoever takes the first owns the place, and takes the second.
                        insert(start(place), if round % 2 == 0 { MIB } else { 512 }, round);
                    }
                    let place = number % PLACES;
                    if let Some((address, round, counted)) = table.take(start(place)) {
                        assert_eq!(address, start(place));
                        drop(counted);
                        let (address, at, _) = table.take(second(place)).expect("put in before the first");
                        assert_eq!((address, at), (second(place), round));
                        free.lock().unwrap().push((place, round + 1));
                    }
                }
            });
        }
    });
    let left = 2 * (PLACES as usize - free.into_inner().unwrap().len());
    let inserted = inserted.into_inner();
    assert!(inserted > 4 * PLACES as usize);
    assert_eq!(drops.load(Ordering::Relaxed), inserted - left);
    drop(table);
    assert_eq!(drops.load(Ordering::Relaxed), inserted, "each value went once");
}

#[test]
fn bits_are_those_of_addresses() {
    let fits = |bits, address| AddressTable::covering(bits).insert(address, 512, ()).is_ok();
    assert!(fits(0, 0) && fits(30, (1 << 30) - 512) && !fits(30, 1 << 30));
    assert!(fits(48, (1 << 48) - 512) && !fits(48, 1 << 48));
}
