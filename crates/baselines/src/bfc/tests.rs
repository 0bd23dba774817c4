//! The rules of the source, worked out by hand, and the sizes of mallocs.
//!
//! Neighbours: random programs on all pools are in `tests/pools` of this crate.

use concertina_emulator::{Emulator, EmulatorConfig};
use concertina_vmm::Call;

use super::{Bfc, BfcConf, rounded};
use crate::baseline::Baseline;
use crate::main_stream::PoolBlock;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

struct Program {
    device: Emulator,
    allocator: Bfc<Emulator>,
}

impl Program {
    fn new(options: &str, capacity_mib: u64) -> Self {
        let config = EmulatorConfig::default().with_capacity(capacity_mib * MIB).expect("a device");
        let device = Emulator::new(config).expect("a device");
        let conf: BfcConf = options.parse().expect(options);
        let mut allocator = Bfc::new(device.clone(), conf).expect("an allocator");
        allocator.add_stream(device.stream());
        Self { device, allocator }
    }

    fn a(&mut self, bytes: u64) -> PoolBlock {
        self.allocator.allocate(bytes, 0).expect("room")
    }

    /// A block that is not freed.
    fn hold(&mut self, bytes: u64) {
        let _ = self.a(bytes);
    }

    fn f(&mut self, block: PoolBlock) {
        self.allocator.free(block).expect("freed");
    }

    fn is_refused(&mut self, bytes: u64) -> bool {
        self.allocator.allocate(bytes, 0).is_err_and(|error| error.to_string().starts_with("out of memory"))
    }

    /// Mallocs and frees so far, and MiB that the driver gave.
    fn figures(&self) -> (u64, u64, u64) {
        let counts = self.device.counts();
        (counts.of(Call::Malloc), counts.of(Call::Free), counts.mapped_bytes / MIB)
    }

    /// Where a block lies in the first malloc.
    fn at(&self, block: &PoolBlock) -> u64 {
        block.address - self.allocator.carving.mallocs().next().expect("a malloc")
    }
}

#[test]
fn sizes_are_multiples_of_256_bytes() {
    // RoundedBytes.
    assert_eq!([1, 256, 257, 512].map(rounded), [256, 256, 512, 512]);
    let mut program = Program::new("", 64);
    let blocks = [1, 257, 256].map(|bytes| program.a(bytes));
    assert_eq!(blocks.each_ref().map(|block| program.at(block)), [0, 256, 768]);
    assert_eq!(program.allocator.used_bytes(), 256 + 512 + 256);
}

#[test]
fn mallocs_double_from_2_mib_and_until_the_request_fits() {
    // Extend: 2 MiB; the next would be 4; 20 MiB need three doublings to 32, and then it stays at 32.
    let mut program = Program::new("", 1024);
    program.hold(MIB);
    assert_eq!(program.figures(), (1, 0, 2));
    program.hold(20 * MIB);
    assert_eq!(program.figures(), (2, 0, 2 + 32));
    program.hold(17 * MIB);
    assert_eq!(program.figures(), (3, 0, 2 + 32 + 32));
    // That one was no doubling of its own, so that the next one is of 64.
    program.hold(33 * MIB);
    assert_eq!(program.figures(), (4, 0, 2 + 32 + 32 + 64));
}

#[test]
fn the_last_malloc_is_what_the_limit_leaves() {
    // min(curr_region_allocation_bytes_, available_bytes): 2 + 4 + 8 of 20 MiB, and 6 in place of 16.
    let mut program = Program::new("", 20);
    for mib in [2, 4, 8] {
        program.hold(mib * MIB);
    }
    assert!(program.is_refused(7 * MIB));
    assert_eq!(program.figures(), (3, 0, 14));
    program.hold(5 * MIB);
    assert_eq!(program.figures(), (4, 0, 20));
}

#[test]
fn a_refused_malloc_is_asked_for_again_at_nine_tenths() {
    // Somebody else takes 40 of 100 MiB after the limit of 100 was set. 33 MiB ask for 64, which are not there any more:
    // 2^26 × 0.9 in single precision is 60,397,976, and 60,398,080 in steps of 256; that is 29 granules.
    let mut program = Program::new("", 100);
    let other = concertina_vmm::Driver::malloc(&program.device, 40 * MIB).expect("room");
    program.hold(33 * MIB);
    assert_eq!(program.device.counts().failed(Call::Malloc), 1);
    assert_eq!(program.allocator.held_bytes(), 60_398_080);
    assert_eq!(program.figures(), (2, 0, 40 + 58));
    concertina_vmm::Driver::free(&program.device, other).expect("freed");
}

#[test]
fn a_block_is_split_if_it_is_twice_as_large_or_if_much_is_left() {
    // ShouldSplitChunk. Of 16 MiB, 8 are split off, and 8 MiB + 256 take all.
    for (bytes, used) in [(8 * MIB, 8 * MIB), (8 * MIB + 1, 16 * MIB)] {
        let mut program = Program::new("", 1024);
        let all = program.a(16 * MIB);
        program.f(all);
        program.hold(bytes);
        assert_eq!(program.allocator.used_bytes(), used, "{bytes}");
    }
    // Of 512 MiB, 384 leave 128 over, which are split off; 384 MiB + 256 bytes leave less.
    for (bytes, used) in [(384 * MIB, 384 * MIB), (384 * MIB + 256, 512 * MIB)] {
        let mut program = Program::new("", 1024);
        let all = program.a(512 * MIB);
        program.f(all);
        program.hold(bytes);
        assert_eq!(program.allocator.used_bytes(), used, "{bytes}");
    }
    // internal_fragmentation_fraction: 1/64 of 1024 MiB are 16.
    for (bytes, used) in [(112 * MIB, 112 * MIB), (112 * MIB + 256, 128 * MIB)] {
        let mut program = Program::new("internal_fragmentation_fraction:0.015625", 1024);
        let all = program.a(128 * MIB);
        program.f(all);
        program.hold(bytes);
        assert_eq!(program.allocator.used_bytes(), used, "{bytes}");
    }
}

#[test]
fn the_smallest_free_block_is_taken_and_neighbours_join() {
    let mut program = Program::new("", 64);
    // 2 MiB of 512, 256, 512, 256 and 512 KiB: each is split off at least twice as much, the last takes the rest.
    let [first, second, third, fourth, last] = [512, 256, 512, 256, 512].map(|kib| program.a(kib * KIB));
    assert_eq!(program.at(&last), 1536 * KIB);
    program.f(first);
    program.f(fourth);
    let small = program.a(200 * KIB);
    assert_eq!(program.at(&small), 1280 * KIB, "256 KiB is the smaller hole");
    program.f(small);
    // 512 + 256 + 512 + 256 KiB join.
    program.f(second);
    program.f(third);
    let large = program.a(1536 * KIB);
    assert_eq!(program.at(&large), 0);
    program.f(last);
    program.f(large);
    assert_eq!(program.allocator.carving.free_mallocs().len(), 1);
    assert_eq!(program.figures(), (1, 0, 2));
}

#[test]
fn adjacent_mallocs_do_not_join() {
    // 2, 4 and 8 MiB are free; the emulator gives them adjacent addresses; 9 MiB need a malloc of 16.
    let mut program = Program::new("garbage_collection:false", 64);
    let blocks = [2, 4, 8].map(|mib| program.a(mib * MIB));
    blocks.into_iter().for_each(|block| program.f(block));
    program.hold(9 * MIB);
    assert_eq!(program.figures(), (4, 0, 30));
}

#[test]
fn free_mallocs_go_when_that_makes_room() {
    // DeallocateFreeRegions: of 20 MiB, 2, 4, 8 and 6 are held. 11 do not fit anywhere; with the free 2 and 8 given back
    // there are 10, which is not enough: nothing is given back. With 4 more there are 14: they go.
    let sizes = [2, 4, 8, 6];
    for (options, completes) in [("", true), ("garbage_collection:false", false)] {
        let mut program = Program::new(options, 20);
        let [two, four, eight, _six] = sizes.map(|mib| program.a(mib * MIB));
        program.f(two);
        program.f(eight);
        assert!(program.is_refused(11 * MIB));
        assert_eq!(program.figures(), (4, 0, 20));
        program.f(four);
        if completes {
            program.hold(11 * MIB);
            assert_eq!(program.figures(), (5, 3, 20));
        } else {
            assert!(program.is_refused(11 * MIB));
            assert_eq!(program.figures(), (4, 0, 20));
        }
    }
}

#[test]
fn without_growth_all_is_taken_at_once() {
    // TensorFlow's default, and JAX's three quarters.
    for (options, mib) in [("allow_growth:false", 256), ("allow_growth:false,memory_fraction:0.75", 192)] {
        let mut program = Program::new(options, 256);
        assert_eq!(program.figures(), (0, 0, 0), "with the first request");
        program.hold(1);
        assert_eq!(program.figures(), (1, 0, mib));
        program.hold(mib * MIB - 256);
        assert!(program.is_refused(1));
        assert_eq!(program.figures(), (1, 0, mib));
    }
}

#[test]
fn bad_requests_are_refused_and_change_nothing() {
    let mut program = Program::new("", 64);
    let said = |program: &mut Program, bytes, stream| {
        program.allocator.allocate(bytes, stream).expect_err("refused").to_string()
    };
    assert_eq!(said(&mut program, 0, 0), "allocator failed: 0 bytes asked for; ask for 1 at least");
    assert_eq!(said(&mut program, 1, 1), "allocator failed: no stream 1: 1 were added; add it first");
    for bytes in [65 * MIB, 1 << 60, u64::MAX] {
        assert!(program.is_refused(bytes));
    }
    assert_eq!(program.figures(), (0, 0, 0));
}
