//! The table against a map, and from several threads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Tests cover 2^28 addresses: eight leaves.
const BITS: u32 = 28;

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(u64),
    Take(u64),
}

/// Few addresses, so that they meet: at the ends of leaves and of the table, and between steps.
fn addresses() -> impl Strategy<Value = u64> {
    let near = (0_u64..=9, -3_i64..=3)
        .prop_map(|(leaf, steps)| (leaf << LEAF_BITS).wrapping_add_signed(steps * 512));
    prop_oneof![8 => near.clone(), 1 => near.prop_map(|address| address.wrapping_add(256)), 1 => any::<u64>()]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    vec(prop_oneof![addresses().prop_map(Step::Insert), addresses().prop_map(Step::Take)], 1..200)
}

proptest! {
    #[test]
    fn it_is_a_map(steps in steps()) {
        let table = BlockTable::covering(BITS);
        let mut model = HashMap::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Insert(address) => {
                    let fits = address % 512 == 0 && address < 1 << BITS && !model.contains_key(&address);
                    let inserted = table.insert(address, number);
                    prop_assert_eq!(inserted, if fits { Ok(()) } else { Err(number) });
                    if fits {
                        model.insert(address, number);
                    }
                }
                Step::Take(address) => prop_assert_eq!(table.take(address), model.remove(&address)),
            }
        }
        for (address, number) in model {
            prop_assert_eq!(table.take(address), Some(number));
        }
    }
}

#[test]
fn an_address_is_its_own() {
    let table = BlockTable::covering(BITS);
    let all = || (0..1_u64 << BITS).step_by(512 * 31);
    for address in all() {
        table.insert(address, address).unwrap();
    }
    assert!(all().all(|address| table.take(address + 512).is_none()));
    assert!(all().all(|address| table.take(address) == Some(address)));
    assert!(all().all(|address| table.take(address).is_none()));
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
    let table = BlockTable::covering(BITS);
    for address in [0, 512, 3 << LEAF_BITS, (1 << BITS) - 512] {
        assert!(table.insert(address, value()).is_ok());
    }
    drop(table.insert(512, value()));
    assert_eq!(count(), 1, "the one that had no place");
    drop(table.take(512));
    assert_eq!(count(), 2);
    drop(table);
    assert_eq!(count(), 5);
}

/// Four threads hand blocks round as an allocator does, where one address is one thread's at a time, and all try to take
/// every value: what one has taken, no other gets.
#[test]
fn threads_never_share_a_value() {
    const THREADS: usize = 4;
    const ADDRESSES: u64 = 64;
    const ROUNDS: u64 = 50_000;
    let drops = Arc::new(AtomicUsize::new(0));
    let table = BlockTable::covering(BITS);
    // In nobody's hands and without a value.
    let free: Mutex<Vec<u64>> =
        Mutex::new((0..ADDRESSES).map(|n| ((n % 8) << LEAF_BITS) + n / 8 * 512).collect());
    let inserted = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    if let Some(address) = { free.lock().unwrap().pop() } {
                        let done = table.insert(address, (address, Counted(Arc::clone(&drops))));
                        assert!(done.is_ok(), "{address:#x} has a value");
                        inserted.fetch_add(1, Ordering::Relaxed);
                    }
                    let wanted = round % ADDRESSES;
                    let wanted = ((wanted % 8) << LEAF_BITS) + wanted / 8 * 512;
                    if let Some((address, counted)) = table.take(wanted) {
                        assert_eq!(address, wanted);
                        drop(counted);
                        free.lock().unwrap().push(address);
                    }
                }
            });
        }
    });
    let left = ADDRESSES as usize - free.into_inner().unwrap().len();
    let inserted = inserted.into_inner();
    assert!(inserted > ADDRESSES as usize);
    assert_eq!(drops.load(Ordering::Relaxed), inserted - left);
    drop(table);
    assert_eq!(drops.load(Ordering::Relaxed), inserted, "each value went once");
}

#[test]
fn bits_are_those_of_addresses() {
    let fits = |bits, address| BlockTable::covering(bits).insert(address, ()).is_ok();
    assert!(fits(0, 0) && fits(25, (1 << 25) - 512) && !fits(25, 1 << 25));
    assert!(fits(48, (1 << 48) - 512) && !fits(48, 1 << 48));
}
