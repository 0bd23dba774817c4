//! Blocks that are freed by their address.
//!
//! Neighbours: `src/by_address.rs`; `src/address_table/tests.rs` has the table alone. A program runs on two allocators: one
//! by address, and one with raw blocks and a map of them, which is the model. Both see the same.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::mpsc::channel;

use concertina::{Address, Allocator, ByAddress, Config, Error, Layout, RawAllocation, Stream};
use concertina_emulator::{Emulator, EmulatorConfig};
use concertina_vmm::CaptureStatus;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const SIZES: [u64; 8] = [1, 512, 4 << 10, 300 << 10, MIB - 1, MIB, 3 * MIB + 700, 20 * MIB];

/// One step of a program. Numbers are taken modulo what there is.
#[derive(Clone, Copy, Debug)]
enum Op {
    Allocate {
        size: usize,
        alignment: u32,
        stream: usize,
    },
    Free {
        nth: usize,
    },
    /// Of an address so many bytes from that of a block.
    FreeNear {
        nth: usize,
        bytes: i64,
    },
    Record {
        nth: usize,
        stream: usize,
    },
    /// The stream is retired, and another one comes in its place.
    Replace {
        stream: usize,
    },
    Trim,
}

fn op() -> impl Strategy<Value = Op> {
    let near = prop_oneof![-3_i64..=3, (-3_i64..=3).prop_map(|steps| steps * 512), Just(1 << 20)];
    let alignment = prop_oneof![4 => Just(0_u32), 1 => 1_u32..14];
    prop_oneof![
        8 => (0..SIZES.len(), alignment, 0..2_usize)
            .prop_map(|(size, alignment, stream)| Op::Allocate { size, alignment, stream }),
        6 => any::<usize>().prop_map(|nth| Op::Free { nth }),
        3 => (any::<usize>(), near).prop_map(|(nth, bytes)| Op::FreeNear { nth, bytes }),
        2 => (any::<usize>(), 0..2_usize).prop_map(|(nth, stream)| Op::Record { nth, stream }),
        1 => (0..2_usize).prop_map(|stream| Op::Replace { stream }),
        1 => Just(Op::Trim),
    ]
}

/// What both allocators are for.
trait Face {
    fn new(allocator: &Allocator<Emulator>) -> Self;
    fn allocate(&mut self, layout: Layout, stream: &Stream<Emulator>) -> Result<Address, Error>;
    fn free(&mut self, address: Address) -> Option<()>;
    fn record(&mut self, address: Address, stream: &Stream<Emulator>) -> Option<()>;
    fn bytes(&self, address: Address) -> Option<u64>;
}

fn there(result: Result<(), Error>, asked: Address) -> Option<()> {
    match result {
        Ok(()) => Some(()),
        Err(Error::NoBlockAt { address }) if address == asked => None,
        Err(error) => panic!("{error}"),
    }
}

impl Face for ByAddress<Emulator> {
    fn new(allocator: &Allocator<Emulator>) -> Self {
        allocator.by_address()
    }

    fn allocate(&mut self, layout: Layout, stream: &Stream<Emulator>) -> Result<Address, Error> {
        Self::allocate(self, layout, stream)
    }

    fn free(&mut self, address: Address) -> Option<()> {
        there(Self::free(self, address), address)
    }

    fn record(&mut self, address: Address, stream: &Stream<Emulator>) -> Option<()> {
        there(self.record_stream(address, stream), address)
    }

    fn bytes(&self, address: Address) -> Option<u64> {
        Self::bytes(self, address)
    }
}

/// The model.
struct Map {
    allocator: Allocator<Emulator>,
    blocks: BTreeMap<Address, RawAllocation>,
}

impl Face for Map {
    fn new(allocator: &Allocator<Emulator>) -> Self {
        Self { allocator: allocator.clone(), blocks: BTreeMap::new() }
    }

    fn allocate(&mut self, layout: Layout, stream: &Stream<Emulator>) -> Result<Address, Error> {
        let raw = self.allocator.allocate_raw(layout, stream)?;
        assert_eq!(self.blocks.insert(raw.address(), raw), None);
        Ok(raw.address())
    }

    fn free(&mut self, address: Address) -> Option<()> {
        self.blocks.remove(&address).map(|raw| self.allocator.free_raw(raw).unwrap())
    }

    fn record(&mut self, address: Address, stream: &Stream<Emulator>) -> Option<()> {
        self.blocks.get(&address).map(|&raw| self.allocator.record_stream_raw(raw, stream).unwrap())
    }

    fn bytes(&self, address: Address) -> Option<u64> {
        self.blocks.get(&address).map(|raw| raw.bytes())
    }
}

fn allocator(capacity_bytes: u64) -> (Emulator, Allocator<Emulator>) {
    let config = EmulatorConfig::default().with_capacity(capacity_bytes).expect("whole pages");
    let device = Emulator::new(config).expect("a device");
    let allocator = Allocator::new(device.clone(), Config::default()).expect("settings that can be");
    (device, allocator)
}

struct Side<F> {
    device: Emulator,
    allocator: Allocator<Emulator>,
    streams: Vec<Stream<Emulator>>,
    face: F,
    // In the order of the allocations.
    live: Vec<Address>,
}

impl<F: Face> Side<F> {
    fn new() -> Self {
        let (device, allocator) = allocator(128 * MIB);
        let streams = (0..2).map(|_| allocator.register_stream(device.stream())).collect();
        Self { face: F::new(&allocator), device, allocator, streams, live: Vec::new() }
    }

    /// What the program sees of a step.
    fn step(&mut self, op: Op) -> String {
        let Self { face, streams, live, .. } = self;
        let nth_of = |nth: usize| nth % live.len().max(1);
        match op {
            Op::Allocate { size, alignment, stream } => {
                let layout = Layout::new(SIZES[size]).aligned_to(512 << alignment);
                let allocated = face.allocate(layout, &streams[stream]);
                live.extend(allocated.as_ref().ok());
                format!("{allocated:?}")
            }
            Op::Free { nth } if !live.is_empty() => {
                let address = live.remove(nth_of(nth));
                let seen = (face.bytes(address), face.free(address));
                // The second free is refused.
                format!("{seen:?} {:?} {:?}", face.free(address), face.bytes(address))
            }
            Op::FreeNear { nth, bytes } if !live.is_empty() => {
                let address = Address::new(live[nth_of(nth)].get().wrapping_add_signed(bytes));
                live.retain(|&at| at != address);
                format!("{:?} {:?}", face.bytes(address), face.free(address))
            }
            Op::Record { nth, stream } if !live.is_empty() => {
                format!("{:?}", face.record(live[nth_of(nth)], &streams[stream]))
            }
            Op::Free { .. } | Op::FreeNear { .. } | Op::Record { .. } => String::new(),
            Op::Replace { stream } => {
                streams[stream] = self.allocator.register_stream(self.device.stream());
                String::new()
            }
            Op::Trim => format!("{:?}", self.allocator.trim()),
        }
    }
}

proptest! {
    #[test]
    fn it_is_an_allocator_with_a_map(program in prop::collection::vec(op(), 1..100)) {
        let (mut side, mut model) = (Side::<ByAddress<Emulator>>::new(), Side::<Map>::new());
        for (at, op) in program.into_iter().enumerate() {
            prop_assert_eq!(side.step(op), model.step(op), "step {}, {:?}", at, op);
        }
        prop_assert_eq!(side.allocator.stats(), model.allocator.stats());
        prop_assert_eq!(side.device.counts().memory_calls(), model.device.counts().memory_calls());
        prop_assert_eq!(side.allocator.audit(), Vec::<String>::new());
        for address in side.live.clone() {
            prop_assert_eq!(Face::free(&mut side.face, address), Some(()));
        }
        prop_assert_eq!((side.allocator.stats().live_bytes, side.allocator.stats().live_blocks), (0, 0));
        // Neither the table nor the books of the streams that it keeps hold memory of the device.
        let Side { device, allocator, streams, face, .. } = side;
        drop(streams);
        allocator.trim_wait().unwrap();
        allocator.trim();
        prop_assert_eq!(allocator.stats().mapped_bytes, 0);
        drop(face);
        allocator.close().unwrap();
        prop_assert!(device.is_empty(), "left: {}", device.leaks());
    }
}

/// Each thread frees what the others allocated. Two try every second free, and one of them succeeds, unless the other one
/// comes late and finds the next block at the address.
#[test]
fn threads_free_for_one_another_and_only_once() {
    const THREADS: usize = 4;
    const BLOCKS: u64 = 3_000;
    // Room for all blocks at once: a thread may be done before another one has begun.
    let (device, allocator) = allocator(2 * THREADS as u64 * BLOCKS * MIB);
    let by_address = allocator.by_address();
    let freed: u64 = std::thread::scope(|scope| {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel::<Address>()).unzip();
        let threads: Vec<_> = receivers
            .into_iter()
            .enumerate()
            .map(|(thread, receiver)| {
                // To the two threads after this one.
                let to = [1, 2].map(|next| senders[(thread + next) % THREADS].clone());
                let stream = allocator.register_stream(device.stream());
                let by_address = &by_address;
                scope.spawn(move || {
                    let free = |address| u64::from(there(by_address.free(address), address).is_some());
                    let mut freed = 0;
                    for number in 0..BLOCKS {
                        let bytes = SIZES[number as usize % SIZES.len()].min(MIB);
                        let address = by_address.allocate(Layout::new(bytes), &stream).unwrap();
                        if number.is_multiple_of(2) {
                            freed += free(address);
                        } else {
                            to.iter().for_each(|to| to.send(address).unwrap());
                        }
                        freed += receiver.try_iter().map(free).sum::<u64>();
                    }
                    drop(to);
                    freed + receiver.iter().map(free).sum::<u64>()
                })
            })
            .collect();
        drop(senders);
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    // Each free that succeeded was the only one of some block.
    assert_eq!(freed, THREADS as u64 * BLOCKS);
    assert_eq!((allocator.stats().live_bytes, allocator.stats().live_blocks), (0, 0));
    assert_eq!(allocator.audit(), Vec::<String>::new());
}

#[test]
fn memory_of_a_graph_pool_is_freed_by_address_as_well() {
    let (device, allocator) = allocator(64 * MIB);
    let own = device.stream();
    let stream = allocator.register_stream(own.clone());
    let by_address = allocator.by_address();
    let pool = allocator.graph_pool();
    let scope = stream.capture(&pool).unwrap();
    device.set_capture_status(&own, CaptureStatus::Active);
    let address = by_address.allocate(Layout::new(3 * MIB), &stream).unwrap();
    assert_eq!((allocator.stats().pinned_bytes, by_address.bytes(address)), (4 * MIB, Some(3 * MIB)));
    device.set_capture_status(&own, CaptureStatus::None);
    scope.end().unwrap();
    let beside = by_address.allocate(Layout::new(MIB), &stream).unwrap();
    assert_eq!(allocator.stats().live_bytes, 4 * MIB);
    by_address.record_stream(address, &stream).unwrap();
    by_address.free(address).unwrap();
    assert_eq!(there(by_address.free(address), address), None);
    assert_eq!(there(by_address.record_stream(address, &stream), address), None);
    by_address.free(beside).unwrap();
    assert_eq!(allocator.stats().live_bytes, 0);
}

/// A stream that is registered late has its blocks elsewhere.
#[test]
fn there_may_be_any_number_of_streams() {
    let (device, allocator) = allocator(64 * MIB);
    let by_address = allocator.by_address();
    for number in 0..5_000_u64 {
        let stream = allocator.register_stream(device.stream());
        if number.is_multiple_of(100) || number > 4_090 {
            let address = by_address.allocate(Layout::new(512 + number), &stream).unwrap();
            assert_eq!(by_address.bytes(address), Some(512 + number));
            drop(stream);
            by_address.free(address).unwrap();
            assert_eq!(there(by_address.free(address), address), None);
        }
    }
    assert_eq!(allocator.stats().live_bytes, 0);
}

#[test]
fn blocks_are_of_one_value_and_one_allocator() {
    let ((device, allocator), (other_device, other)) = (allocator(64 * MIB), allocator(64 * MIB));
    let (stream, foreign) =
        (allocator.register_stream(device.stream()), other.register_stream(other_device.stream()));
    let (first, second) = (allocator.by_address(), allocator.by_address());
    assert!(matches!(first.allocate(Layout::new(512), &foreign), Err(Error::ForeignStream)));
    assert!(matches!(first.allocate(Layout::new(0), &stream), Err(Error::Request(_))));
    let address = first.allocate(Layout::new(512), &stream).unwrap();
    assert!(matches!(first.record_stream(address, &foreign), Err(Error::ForeignStream)));
    assert_eq!(there(second.free(address), address), None);
    let error = second.free(address).unwrap_err().to_string();
    assert!(error.contains(&address.to_string()), "{error}");
    for wrong in [0, 1, u64::MAX, 1 << 48, address.get() + 256, address.get() | 1 << 60] {
        assert_eq!(there(first.free(Address::new(wrong)), Address::new(wrong)), None);
        assert_eq!(first.bytes(Address::new(wrong)), None);
    }
    // What is live when it is dropped stays live, and goes with the allocator.
    drop(first);
    assert_eq!(allocator.stats().live_bytes, 512);
    drop((second, stream));
    allocator.close().unwrap();
    assert!(device.is_empty(), "left: {}", device.leaks());
}
