//! What the host pays for a table of blocks by address: only for what is written.
//!
//! Neighbours: `by_address.rs` has what the table does. One test, since it looks at the whole process.

#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

use concertina::{Allocator, Config, Layout};
use concertina_emulator::{Emulator, EmulatorConfig};

const MIB: u64 = 1 << 20;

/// All memory of this process and what of it is backed, in bytes.
fn memory() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let bytes = |key| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    (bytes("VmSize:"), bytes("VmRSS:"))
}

#[test]
fn a_table_is_backed_where_blocks_begin() {
    let device = Emulator::new(EmulatorConfig::default()).unwrap();
    let allocator = Allocator::new(device.clone(), Config::default()).unwrap();
    let stream = allocator.register_stream(device.stream());
    let sizes = [512, 4 << 10, MIB, 20 * MIB, 512];
    // What the allocator itself takes, it has.
    for raw in sizes.map(|bytes| allocator.allocate_raw(Layout::new(bytes), &stream).unwrap()) {
        allocator.free_raw(raw).unwrap();
    }
    let (size, backed) = memory();
    let by_address = allocator.by_address();
    let blocks = sizes.map(|bytes| by_address.allocate(Layout::new(bytes), &stream).unwrap());
    let (size_after, backed_after) = memory();
    // The slots of 4 GiB, and of those some pages: 2 MiB each at most. The roots are 2 MiB.
    assert!(size_after - size >= 128 * MIB, "{size} {size_after}");
    assert!(backed_after.saturating_sub(backed) < 16 * MIB, "{backed} {backed_after}");
    blocks.into_iter().for_each(|block| by_address.free(block).unwrap());
}
