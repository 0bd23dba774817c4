//! The table against a map, and from several threads.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::thread;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;
const END: u64 = 1 << ADDRESS_BITS;

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert { address: u64, entry: Entry },
    Find(u64),
    Take(u64),
}

/// Few addresses, so that they meet: at the ends of MiBs, of leaves and of the table, and between steps.
fn addresses() -> impl Strategy<Value = u64> {
    let leaf = prop_oneof![Just(0), Just(1 << LEAF_BITS), Just(END)];
    let near = (leaf, -3_i64..=3, -3_i64..=3)
        .prop_map(|(leaf, mib, steps)| leaf.wrapping_add_signed((mib << LARGE_BITS) + steps * 512));
    prop_oneof![8 => near.clone(), 1 => near.prop_map(|address| address.wrapping_add(256)), 1 => any::<u64>()]
}

fn entries() -> impl Strategy<Value = Entry> {
    let bytes = prop_oneof![
        Just(1),
        Just(512),
        Just(1024),
        Just(MIB - 1),
        Just(MIB),
        Just(MIB + 1),
        Just(3 * MIB),
        Just(1 << 40),
    ];
    let block = prop_oneof![0_u32..3, Just(u32::MAX - 1)];
    let number = || prop_oneof![0_u32..3, Just(u32::MAX)];
    (block, number(), number(), bytes).prop_map(|(block, generation, stream, bytes)| Entry {
        id: BlockId::new(block, generation),
        stream,
        bytes,
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let insert = (addresses(), entries()).prop_map(|(address, entry)| Step::Insert { address, entry });
    let step = prop_oneof![2 => insert, 1 => addresses().prop_map(Step::Find), 1 => addresses().prop_map(Step::Take)];
    vec(step, 1..200)
}

proptest! {
    // A table is 2 MiB of roots.
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Of blocks that do not overlap, as an allocator hands them out, and of frees of anything.
    #[test]
    fn it_is_a_map(steps in steps()) {
        let table = AddressTable::new();
        let mut model: BTreeMap<u64, Entry> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Insert { address, entry } => {
                    let Some(end) = address.checked_add(entry.bytes) else { continue };
                    let before = model.range(..end).next_back();
                    if before.is_none_or(|(at, before)| at + before.bytes <= address) {
                        let fits = address.is_multiple_of(512) && address < END;
                        prop_assert_eq!(table.insert(Address::new(address), entry), fits);
                        if fits {
                            model.insert(address, entry);
                        }
                    }
                }
                Step::Find(address) => {
                    prop_assert_eq!(table.find(Address::new(address)), model.get(&address).copied());
                }
                Step::Take(address) => {
                    prop_assert_eq!(table.take(Address::new(address)), model.remove(&address));
                }
            }
        }
        for (address, entry) in model {
            prop_assert_eq!(table.take(Address::new(address)), Some(entry));
        }
    }
}

fn entry(block: u64, bytes: u64) -> Entry {
    Entry { id: BlockId::new(block as u32, 7), stream: 3, bytes }
}

#[test]
fn an_address_is_its_own() {
    // The second leaf begins in the middle.
    let range = || (1 << LEAF_BITS) - 512 * MIB..(1 << LEAF_BITS) + 512 * MIB;
    for (stride, bytes) in [(512 * 31, 512 * 30), (MIB + 512, MIB), (MIB, MIB)] {
        let table = AddressTable::new();
        let all = || range().step_by(stride as usize);
        for address in all() {
            assert!(table.insert(Address::new(address), entry(address / 512, bytes)));
        }
        assert!(all().all(|address| table.take(Address::new(address + 512)).is_none()));
        assert!(
            all().all(|address| { table.take(Address::new(address)) == Some(entry(address / 512, bytes)) })
        );
        assert!(all().all(|address| table.take(Address::new(address)).is_none()));
    }
}

#[test]
fn what_is_left_of_a_large_block_is_no_trap() {
    let table = AddressTable::new();
    let (place, behind) = (Address::new(MIB + 512), Address::new(MIB + 1024));
    assert!(table.insert(place, entry(1, 3 * MIB)));
    assert_eq!((table.take(behind), table.take(place)), (None, Some(entry(1, 3 * MIB))));
    assert!(table.insert(place, entry(2, 512)) && table.insert(behind, entry(3, MIB)));
    assert_eq!(table.find(place), Some(entry(2, 512)));
    assert_eq!((table.take(place), table.take(behind)), (Some(entry(2, 512)), Some(entry(3, MIB))));
}

/// Four threads hand blocks round as an allocator does, where one address is one thread's at a time, and all try to take
/// every block: what one has taken, no other gets, and nobody sees half of a block and half of the next one. All words
/// of a block tell its round.
#[test]
fn threads_never_share_a_block() {
    const THREADS: usize = 4;
    const PLACES: u64 = 64;
    const ROUNDS: u64 = 50_000;
    // Half of them in each of two leaves.
    let start = |place: u64| Address::new(((place % 2) << LEAF_BITS) + place / 2 * 4 * MIB);
    let of_round = |round: u64| {
        let bytes = if round.is_multiple_of(2) { MIB + round } else { 1 + round };
        Entry { id: BlockId::new(round as u32, round as u32), stream: round as u32, bytes }
    };
    let table = AddressTable::new();
    // Places in nobody's hands and without a block, with the number of their round.
    let free: Mutex<Vec<(u64, u64)>> = Mutex::new((0..PLACES).map(|place| (place, 0)).collect());
    let (inserted, taken) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for number in 0..ROUNDS {
                    let popped = free.lock().unwrap().pop();
                    if let Some((place, round)) = popped {
                        assert!(table.insert(start(place), of_round(round)));
                        inserted.fetch_add(1, Ordering::Relaxed);
                    }
                    if let Some(found) = table.find(start((number + 1) % PLACES)) {
                        assert_eq!(found, of_round(u64::from(found.id.number())));
                    }
                    let place = number % PLACES;
                    if let Some(found) = table.take(start(place)) {
                        let round = u64::from(found.id.number());
                        assert_eq!(found, of_round(round));
                        taken.fetch_add(1, Ordering::Relaxed);
                        free.lock().unwrap().push((place, round + 1));
                    }
                }
            });
        }
    });
    let left = PLACES as usize - free.into_inner().unwrap().len();
    assert!(taken.load(Ordering::Relaxed) > PLACES as usize);
    assert_eq!(inserted.into_inner(), taken.into_inner() + left, "each block was taken once");
}
