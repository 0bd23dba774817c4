//! Owners of all kinds, dropped on any thread in any order: in the end every device is empty.
//!
//! Neighbours: `docs/locking.md`; `src/allocation/tests.rs` counts the references of one thread. A handle leaves its reference
//! behind the lock of a heap, where it keeps that very heap: a circle that is not broken leaks an allocator, and a last
//! reference that is dropped under the lock which its heap is behind waits for ever.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use concertina::{
    Allocation, Allocator, ByAddress, CaptureScope, Config, CrossStream, GraphPool, Growable, Growth,
    HostWait, Layout, OnStream, Policy, RawAllocation, Stream,
};
use concertina_emulator::{Emulator, EmulatorConfig, EventCompletion};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const MIB: u64 = 1 << 20;
const SIZES: [u64; 8] = [1, 512, 5 << 10, 300 << 10, MIB - 1, MIB, 3 * MIB, 11 * MIB];
const THREADS: usize = 4;

/// What keeps an allocator alive.
#[allow(dead_code, reason = "it is there to be dropped")]
enum Owner {
    Block(Allocation<Emulator>, Here),
    Stream(Stream<Emulator>),
    OnStream(OnStream<Emulator>),
    Growable(Growable<Emulator>),
    Pool(GraphPool<Emulator>),
    Scope(CaptureScope<Emulator>),
    ByAddress(Arc<ByAddress<Emulator>>),
    Allocator(Allocator<Emulator>),
    Raw(Allocator<Emulator>, RawAllocation),
}

/// Live blocks of one device by their address.
#[derive(Clone, Default)]
struct Blocks(Arc<Mutex<BTreeMap<u64, u64>>>);

/// A live block in the book: leaves it when dropped.
struct Here(Blocks, u64);

impl Blocks {
    fn enter(&self, block: &Allocation<Emulator>) -> Here {
        let (start, bytes) = (block.address().get(), block.bytes());
        let mut book = self.0.lock().unwrap();
        let before = book.range(..start + bytes).next_back().map(|(start, bytes)| start + bytes);
        assert!(before.is_none_or(|end| end <= start), "two live blocks overlap");
        book.insert(start, bytes);
        Here(self.clone(), start)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().remove(&self.1).unwrap();
    }
}

impl Owner {
    fn let_go(self) {
        match self {
            Self::Block(block, here) => {
                drop(here);
                drop(block);
            }
            Self::Raw(allocator, raw) => allocator.free_raw(raw).unwrap(),
            owner => drop(owner),
        }
    }
}

/// What threads hand to one another: an allocator's owners.
struct Place {
    device: Emulator,
    blocks: Blocks,
    owners: Mutex<Vec<Owner>>,
    // So that there is one, until somebody drops it.
    anchor: Mutex<Option<(Allocator<Emulator>, Stream<Emulator>)>>,
}

impl Place {
    fn new(dice: &mut ChaCha8Rng) -> Self {
        let completion = match dice.random_range(0..4) {
            0 => EventCompletion::AtOnce,
            1 => EventCompletion::AfterOperations(7),
            2 => EventCompletion::ByHand,
            _ => EventCompletion::BySeed(dice.random()),
        };
        let device = Emulator::new(EmulatorConfig {
            capacity_bytes: dice.random_range(20..200) * 2 * MIB,
            event_completion: completion,
            virtual_memory: dice.random_bool(0.75),
            ..EmulatorConfig::default()
        })
        .unwrap();
        let rules = [CrossStream::Never, CrossStream::Completed, CrossStream::DeviceWait];
        let config = Config::builder()
            .policy(if dice.random_bool(0.5) { Policy::Lean } else { Policy::Balanced })
            .cross_stream(rules[dice.random_range(0..3)])
            .host_wait(if dice.random_bool(0.5) { HostWait::Never } else { HostWait::LastResort });
        let allocator = Allocator::new(device.clone(), config.build()).unwrap();
        let stream = allocator.register_stream(device.stream());
        let anchor = Mutex::new(Some((allocator, stream)));
        Self { device, blocks: Blocks::default(), owners: Mutex::default(), anchor }
    }

    fn put(&self, owner: Owner) {
        self.owners.lock().unwrap().push(owner);
    }

    fn take(&self, dice: &mut ChaCha8Rng) -> Option<Owner> {
        let mut owners = self.owners.lock().unwrap();
        let most = owners.len();
        (most > 0).then(|| owners.swap_remove(dice.random_range(0..most)))
    }

    fn allocators(&self) -> Option<Allocator<Emulator>> {
        if let Some((allocator, _)) = &*self.anchor.lock().unwrap() {
            return Some(allocator.clone());
        }
        self.owners.lock().unwrap().iter().find_map(|owner| match owner {
            Owner::Allocator(allocator) => Some(allocator.clone()),
            _ => None,
        })
    }

    fn stream(&self, dice: &mut ChaCha8Rng) -> Option<Stream<Emulator>> {
        let owners = self.owners.lock().unwrap();
        let all: Vec<_> = owners
            .iter()
            .filter_map(|owner| match owner {
                Owner::Stream(stream) => Some(stream),
                _ => None,
            })
            .collect();
        if all.is_empty() || dice.random_bool(0.3) {
            return self.anchor.lock().unwrap().as_ref().map(|(_, stream)| stream.clone());
        }
        Some(all[dice.random_range(0..all.len())].clone())
    }

    fn pool(&self) -> Option<GraphPool<Emulator>> {
        self.owners.lock().unwrap().iter().find_map(|owner| match owner {
            Owner::Pool(pool) => Some(pool.clone()),
            _ => None,
        })
    }

    fn by_address(&self) -> Option<Arc<ByAddress<Emulator>>> {
        self.owners.lock().unwrap().iter().find_map(|owner| match owner {
            Owner::ByAddress(by_address) => Some(Arc::clone(by_address)),
            _ => None,
        })
    }

    fn step(&self, dice: &mut ChaCha8Rng, kept: &mut Vec<Owner>) {
        let layout = Layout::new(SIZES[dice.random_range(0..SIZES.len())]);
        match dice.random_range(0..100) {
            0..30 => {
                let (Some(allocator), Some(stream)) = (self.allocators(), self.stream(dice)) else { return };
                for _ in 0..dice.random_range(1..12) {
                    let Ok(block) = allocator.allocate(layout, &stream) else { continue };
                    let here = self.blocks.enter(&block);
                    let block = Owner::Block(block, here);
                    match dice.random_range(0..3) {
                        0 => block.let_go(),
                        1 => self.put(block),
                        _ => kept.push(block),
                    }
                }
            }
            30..50 => {
                for _ in 0..dice.random_range(1..6) {
                    self.take(dice).into_iter().for_each(Owner::let_go);
                }
            }
            50..60 => kept.drain(..).for_each(Owner::let_go),
            60..66 => {
                let Some(allocator) = self.allocators() else { return };
                self.put(Owner::Stream(allocator.register_stream(self.device.stream())));
                self.put(Owner::Allocator(allocator));
            }
            66..70 => {
                // A stream's last moment, with hits on the way.
                let Some(allocator) = self.allocators() else { return };
                let stream = allocator.register_stream(self.device.stream());
                for _ in 0..4 {
                    if let Ok(block) = allocator.allocate(layout, &stream) {
                        let here = self.blocks.enter(&block);
                        self.put(Owner::Block(block, here));
                    }
                }
                drop((allocator, stream));
            }
            70..74 => {
                let (Some(allocator), Some(stream)) = (self.allocators(), self.stream(dice)) else { return };
                self.put(Owner::OnStream(allocator.on(&stream).unwrap()));
            }
            74..78 => {
                let (Some(allocator), Some(stream)) = (self.allocators(), self.stream(dice)) else { return };
                if let Ok(mut growable) = allocator.reserve_growable(8 * MIB, &stream) {
                    drop(growable.grow_to(3 * MIB));
                    self.put(Owner::Growable(growable));
                }
            }
            78..81 => {
                let Some(allocator) = self.allocators() else { return };
                self.put(Owner::Pool(allocator.graph_pool_with(Growth::Create)));
            }
            81..85 => {
                let (Some(pool), Some(stream)) = (self.pool(), self.stream(dice)) else { return };
                if let Ok(scope) = stream.capture(&pool) {
                    self.put(Owner::Scope(scope));
                }
            }
            85..87 => {
                let Some(allocator) = self.allocators() else { return };
                self.put(Owner::ByAddress(Arc::new(allocator.by_address())));
            }
            87..90 => {
                let (Some(by_address), Some(stream)) = (self.by_address(), self.stream(dice)) else { return };
                if let Ok(address) = by_address.allocate(layout, &stream)
                    && dice.random_bool(0.9)
                {
                    by_address.free(address).unwrap();
                }
            }
            90..93 => {
                let (Some(allocator), Some(stream)) = (self.allocators(), self.stream(dice)) else { return };
                if let Ok(raw) = allocator.allocate_raw(layout, &stream) {
                    self.put(Owner::Raw(allocator, raw));
                }
            }
            93..96 => {
                let Some(stream) = self.stream(dice) else { return };
                if let Some(Owner::Block(block, here)) = self.take(dice) {
                    block.record_stream(&stream).unwrap();
                    self.put(Owner::Block(block, here));
                }
            }
            _ => {
                let Some(allocator) = self.allocators() else { return };
                allocator.stats();
                allocator.trim();
            }
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn owners_go_on_any_thread_in_any_order() {
    for seed in number("LIFETIMES_FIRST", 0)..number("LIFETIMES", 20) {
        if seed % 50 == 0 {
            println!("seed {seed}");
        }
        let mut dice = ChaCha8Rng::seed_from_u64(seed);
        let heaps: Vec<Place> = (0..2).map(|_| Place::new(&mut dice)).collect();
        let meeting = Barrier::new(THREADS + 1);
        let owners = |heap: &Place| heap.owners.lock().unwrap().len();
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (heaps, meeting) = (&heaps, &meeting);
                scope.spawn(move || {
                    let mut dice = ChaCha8Rng::seed_from_u64(seed << 8 | thread as u64);
                    let mut kept: Vec<Vec<Owner>> = heaps.iter().map(|_| Vec::new()).collect();
                    let steps = number("LIFETIMES_STEPS", 300);
                    for half in 0..2 {
                        for step in 0..steps {
                            let at = dice.random_range(0..heaps.len());
                            if half == 1 && dice.random_range(0..steps) * 2 < step {
                                let anchor = heaps[at].anchor.lock().unwrap().take();
                                drop(anchor);
                            }
                            heaps[at].step(&mut dice, &mut kept[at]);
                        }
                        if half == 0 {
                            meeting.wait();
                            meeting.wait();
                        }
                    }
                    kept.into_iter().flatten().for_each(Owner::let_go);
                    // Of all owners that are left, each thread drops some.
                    while heaps.iter().any(|heap| heap.take(&mut dice).map(Owner::let_go).is_some()) {}
                });
            }
            meeting.wait();
            for heap in &heaps {
                if let Some(allocator) = heap.allocators() {
                    let broken = allocator.audit();
                    assert!(broken.is_empty(), "seed {seed}: {broken:?}");
                }
            }
            meeting.wait();
        });
        for heap in &heaps {
            let anchor = heap.anchor.lock().unwrap().take();
            drop(anchor);
            assert_eq!(owners(heap), 0);
            assert!(heap.device.is_empty(), "seed {seed}, left: {}", heap.device.leaks());
            assert_eq!(heap.device.broken_rules(), Vec::new(), "seed {seed}");
        }
    }
}
