//! Public reports of what went wrong for users of other allocators, as sequences of requests: what a replay of the public
//! cases among the traces does not show, such as limits, refusals and addresses.
//!
//! Neighbours: `givebacks` has the one about a mapping that fails part-way; `benches/tests/cases.rs` has the traces. Each
//! names its report; sizes are in bytes.

use concertina::{Allocation, Allocator, Config, Error, Layout, Policy, Stream};
use concertina_emulator::{Emulator, EmulatorConfig};

use crate::program::{GIB, MIB};

const PAGE: u64 = 2 * MIB;

struct Case {
    device: Emulator,
    allocator: Allocator<Emulator>,
    stream: Stream<Emulator>,
}

type Block = Allocation<Emulator>;

impl Case {
    fn new(config: EmulatorConfig, settings: Config) -> Self {
        let device = Emulator::new(config).unwrap();
        let allocator = Allocator::new(device.clone(), settings).unwrap();
        let stream = allocator.register_stream(device.stream());
        Self { device, allocator, stream }
    }

    /// A device of so many bytes.
    fn on(capacity_bytes: u64, policy: Policy) -> Self {
        let config = EmulatorConfig::default().with_capacity(capacity_bytes).unwrap();
        Self::new(config, Config::builder().policy(policy).build())
    }

    fn try_allocate(&self, bytes: u64) -> Result<Block, Error> {
        self.allocator.allocate(Layout::new(bytes), &self.stream)
    }

    fn allocate(&self, bytes: u64) -> Block {
        self.try_allocate(bytes).unwrap_or_else(|error| panic!("{error}"))
    }

    fn end(self) {
        assert_eq!(self.allocator.audit(), Vec::<String>::new());
        drop(self.stream);
        self.allocator.close().unwrap();
        assert!(self.device.is_empty(), "left: {}", self.device.leaks());
        assert_eq!(self.device.broken_rules(), Vec::new());
    }
}

const POLICIES: [Policy; 2] = [Policy::Lean, Policy::Balanced];

/// pytorch #123548: expandable segments with a largest split: under pressure a mapped block is returned by the wrong
/// call.
#[test]
fn a_device_is_filled_to_the_last_block_and_refuses_the_next_one() {
    for policy in POLICIES {
        let case = Case::on(24 * GIB, policy);
        drop(case.allocate(576_000_000));
        let blocks: Vec<Block> = (0..223).map(|_| case.allocate(115_200_000)).collect();
        assert_eq!(case.allocator.stats().live_bytes, 25_689_600_000);
        let refused = case.try_allocate(115_200_000);
        assert!(refused.as_ref().is_err_and(Error::is_out_of_memory), "{refused:?}");
        assert_eq!(case.allocator.stats().live_blocks, 223);
        drop(blocks);
        case.end();
    }
}

/// rmm #1664: a small odd initial part wastes the last block.
#[test]
fn an_odd_first_block_wastes_nothing() {
    for policy in POLICIES {
        let case = Case::on(64 * MIB, policy);
        drop(case.allocate(1_000_192));
        let blocks: Vec<Block> = (0..8).map(|_| case.allocate(8 * MIB)).collect();
        assert_eq!(case.allocator.stats().live_bytes, 64 * MIB);
        assert!(case.try_allocate(1).is_err_and(|error| error.is_out_of_memory()));
        drop(blocks);
        case.end();
    }
}

/// rmm #35: each growth adds a new part and freed parts are not used again: 24 GB are taken for 4 GB live.
#[test]
fn blocks_that_grow_take_no_more_than_the_largest_of_them() {
    let case = Case::on(80 * GIB, Policy::Lean);
    for round in 0..=10 {
        let bytes = (10 + round) * 100_000_000;
        let blocks = (case.allocate(bytes), case.allocate(bytes));
        drop(blocks);
    }
    let stats = case.allocator.stats();
    assert_eq!(stats.live_peak_bytes, 4_000_000_000);
    assert_eq!(stats.mapped_peak_bytes, 4_000_000_000_u64.next_multiple_of(PAGE));
    case.end();
}

/// mlx #3886: a cache of keys and values that grows by concatenation never finds its size in a block cache.
///
/// With `balanced` the calls do not grow with the length. With `lean` there is no frame to spare, so that every page of
/// a new block may take one from elsewhere: a map each.
#[test]
fn a_cache_that_grows_by_concatenation_finds_its_memory() {
    for (policy, most_ratio) in [(Policy::Lean, 1.012), (Policy::Balanced, 1.055)] {
        let case = Case::on(80 * GIB, policy);
        let mut blocks: Vec<Block> = (0..20).map(|_| case.allocate(2 * MIB)).collect();
        let mut before = u64::MAX;
        for part in 1..=7 {
            let calls = case.device.counts().memory_calls();
            let lengths = 512 * part + 1..=512 * (part + 1);
            let pages: u64 = lengths.clone().map(|length: u64| (4096 * length).div_ceil(PAGE)).sum();
            for length in lengths {
                for block in &mut blocks {
                    *block = case.allocate(4096 * length);
                }
            }
            let calls = case.device.counts().memory_calls() - calls;
            // One access and one unmap a request beside the maps.
            assert!(calls <= 20 * (pages + 2 * 512), "{policy:?}, part {part}: {calls} calls");
            // The first part is the warm-up, with frames to create.
            if policy == Policy::Balanced && part > 1 {
                assert!(calls <= before, "part {part}: {calls} calls after {before}");
                before = calls;
            }
        }
        let stats = case.allocator.stats();
        assert_eq!(stats.live_peak_bytes, 352_317_440);
        let ratio = stats.mapped_peak_bytes as f64 / stats.live_peak_bytes as f64;
        assert!(ratio <= most_ratio, "{policy:?}: mapped over live is {ratio}");
        drop(blocks);
        case.end();
    }
}

/// cupy #7678: under a limit of the pool, cached bytes count against the request.
#[test]
fn free_bytes_do_not_count_against_the_limit() {
    for policy in POLICIES {
        let settings = Config::builder().policy(policy).limit_bytes(GIB).build();
        let case = Case::new(EmulatorConfig::default(), settings);
        drop(case.allocate(512 * MIB));
        let block = case.allocate(768 * MIB);
        assert!(case.allocator.stats().mapped_peak_bytes <= GIB);
        drop(block);
        case.end();
    }
}

/// llama.cpp #29142: a fixed reservation of 32 GiB is refused on a device with 20 to 34 GB free, and the process ends.
#[test]
fn scarce_addresses_get_smaller_reservations() {
    for policy in POLICIES {
        let config = EmulatorConfig { address_space_bytes: 31 * GIB, ..EmulatorConfig::default() };
        let case = Case::new(config, Config::builder().policy(policy).build());
        let other = case.allocator.register_stream(case.device.stream());
        let mut blocks = Vec::new();
        for round in 0..24 {
            let stream = if round % 4 == 0 { &other } else { &case.stream };
            blocks.push(case.allocator.allocate(Layout::new(GIB - 512 * round), stream).unwrap());
            blocks.push(case.allocator.allocate(Layout::new(512 + round), stream).unwrap());
        }
        assert!(case.allocator.stats().live_bytes > 23 * GIB);
        drop((blocks, other));
        case.end();
    }
}

/// Addresses that the user's part of a process has.
const ADDRESSES: u64 = 128 << 40;
/// Eight of these are in the machine.
const DEVICE: u64 = 192 * GIB;

/// pytorch pull request 192269: 9/8 of the device are reserved for each stream, on eight devices. 75 streams leave no
/// room for another.
#[test]
fn streams_on_eight_devices_leave_addresses() {
    assert_eq!(ADDRESSES / (8 * (DEVICE + DEVICE / 8)), 75);
    let mut reserved = 0;
    for policy in [Policy::Lean, Policy::Balanced].repeat(4) {
        let case = Case::on(DEVICE, policy);
        let streams: Vec<_> =
            (0..100).map(|_| case.allocator.register_stream(case.device.stream())).collect();
        let mut blocks: Vec<Block> = Vec::new();
        for stream in &streams {
            blocks.push(case.allocator.allocate(Layout::new(MIB), stream).unwrap());
            blocks.push(case.allocator.allocate(Layout::new(16 * MIB), stream).unwrap());
        }
        reserved += case.device.counts().reserved_peak_bytes;
        drop((blocks, streams));
        case.end();
    }
    // A sixteenth of the device for large blocks and a 128th for small ones: a thousand streams would do.
    assert_eq!(reserved, 8 * 100 * (DEVICE / 16 + DEVICE / 128));
    assert!(10 * reserved < ADDRESSES, "{reserved} bytes of addresses");
}

/// The same where there are too few addresses for all streams: reservations get smaller first, down to what is asked
/// for, and then the error says what is short and what to do.
#[test]
fn streams_that_use_up_the_addresses_are_told() {
    let config = EmulatorConfig { address_space_bytes: GIB, ..EmulatorConfig::default() };
    let case = Case::new(config, Config::default());
    let mut streams = Vec::new();
    let mut blocks = Vec::new();
    let refused = loop {
        let stream = case.allocator.register_stream(case.device.stream());
        match case.allocator.allocate(Layout::new(2 * MIB), &stream) {
            Ok(block) => blocks.push(block),
            Err(error) => break error,
        }
        streams.push(stream);
    };
    // A sixteenth of the device is 5 GiB; of its halves, 640, 320, 40, 20 and 4 MiB find room, in this order.
    assert_eq!((640 + 320 + 40 + 20 + 4) * MIB, GIB);
    assert_eq!(blocks.len(), 5);
    assert_eq!(case.device.counts().reserved_bytes, GIB);
    let text = refused.to_string();
    assert!(refused.is_out_of_memory() && text.contains("no addresses or mappings left"), "{text}");
    assert!(text.ends_with("trim, or use fewer streams"), "{text}");
    // A stream that goes leaves its addresses to others.
    drop((blocks.pop(), streams.pop()));
    let stream = case.allocator.register_stream(case.device.stream());
    blocks.push(case.allocator.allocate(Layout::new(2 * MIB), &stream).unwrap());
    drop((blocks, streams, stream));
    case.end();
}
