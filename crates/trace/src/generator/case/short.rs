//! Cases of a few blocks, as their reports tell them.
//!
//! Neighbours: `case` has the reports. Each adds its events and returns the bytes of the device that the case demands,
//! if it demands one.

use crate::generator::builder::Builder;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// What the mark before the decisive request says.
const DECISIVE: &str = "the request that failed";

/// The block of 10.84 GiB leaves its place to 17 layers of three blocks, of which two stay. The device has three
/// thousandths more than lives at the end.
pub(super) fn large_segment_is_cut(trace: &mut Builder) -> Option<u64> {
    const LARGE: u64 = 11_643_387_904;
    const LIVE_AT_THE_END: u64 = 12_756_899_389;
    trace.allocate(638_951_997);
    let large = trace.allocate(LARGE);
    trace.free(large);
    let mut passing = Vec::new();
    for _ in 0..17 {
        trace.allocate(16_515_072);
        passing.push(trace.allocate(18_191_360));
        trace.allocate(11_400_192);
    }
    for block in passing {
        trace.free(block);
    }
    trace.mark(DECISIVE);
    trace.allocate(LARGE);
    Some(LIVE_AT_THE_END * 1_003 / 1_000)
}

/// 25,689,600,000 bytes at the end.
pub(super) fn device_is_filled(trace: &mut Builder) -> Option<u64> {
    let first = trace.allocate(576_000_000);
    trace.free(first);
    for _ in 0..223 {
        trace.allocate(115_200_000);
    }
    Some(24 * GIB)
}

pub(super) fn cache_is_dropped(trace: &mut Builder) -> Option<u64> {
    for round in 1..=20 {
        trace.mark(format!("round {round}"));
        let tensors: Vec<_> = (0..10).map(|_| trace.allocate(5_000_000_000)).collect();
        for tensor in tensors {
            trace.free(tensor);
        }
        trace.release_cached();
        trace.synchronize_device();
    }
    None
}

pub(super) fn fence(trace: &mut Builder) -> Option<u64> {
    trace.allocate(64 * MIB);
    for cycle in 0..=100 {
        trace.mark(format!("cycle {cycle}"));
        let freed = [trace.allocate(91 * MIB), trace.allocate(45 * MIB + MIB / 2)];
        trace.allocate(2 * MIB);
        for block in freed {
            trace.free(block);
        }
    }
    None
}

pub(super) fn double_size(trace: &mut Builder) -> Option<u64> {
    let blocks: Vec<_> = (0..8).map(|_| trace.allocate(16 * MIB)).collect();
    for block in blocks {
        trace.free(block);
    }
    trace.mark("twice the size");
    for _ in 0..4 {
        trace.allocate(32 * MIB);
    }
    None
}

/// 4,000,000,000 bytes at the peak. The device has these, rounded up to 2 MiB.
pub(super) fn growing_pairs(trace: &mut Builder) -> Option<u64> {
    for round in 10..=20 {
        trace.mark(format!("round {}", round - 9));
        let pair = [trace.allocate(round * 100_000_000), trace.allocate(round * 100_000_000)];
        for block in pair {
            trace.free(block);
        }
    }
    Some(4_000_000_000_u64.next_multiple_of(2 * MIB))
}

pub(super) fn odd_first_block(trace: &mut Builder) -> Option<u64> {
    let first = trace.allocate(1_000_192);
    trace.free(first);
    for _ in 0..8 {
        trace.allocate(8 * MIB);
    }
    Some(64 * MIB)
}

pub(super) fn whole_pool(trace: &mut Builder) -> Option<u64> {
    let first = trace.allocate(512 * MIB);
    trace.free(first);
    trace.mark(DECISIVE);
    trace.allocate(2 * GIB);
    Some(2 * GIB)
}

pub(super) fn five_calls(trace: &mut Builder) -> Option<u64> {
    let first = trace.allocate(10 * GIB);
    trace.allocate(GIB);
    trace.free(first);
    trace.allocate(4 * GIB);
    trace.mark("the last of the five calls");
    trace.allocate(11 * GIB);
    Some(16 * GIB)
}
