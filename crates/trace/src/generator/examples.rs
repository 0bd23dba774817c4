//! The three examples by which fragmentation is explained, small enough to follow by hand
//! (`docs/worked-examples.md`).
//!
//! Neighbours: `builder` makes the trace; `benches/traces` holds the same three.

use super::builder::Builder;
use crate::reader::Trace;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The mark before the request that makes the example.
const LAST_REQUEST: &str = "the request that no hole fits";

/// 100, 200, 300 MiB; the middle one is freed; 250 MiB. The device has 700 MiB: 50 more than the live peak.
pub(super) fn middle(seed: u64) -> Trace {
    let mut trace = Builder::new();
    trace.allocate(100 * MIB);
    let middle = trace.allocate(200 * MIB);
    trace.allocate(300 * MIB);
    trace.free(middle);
    trace.mark(LAST_REQUEST);
    trace.allocate(250 * MIB);
    trace.finish(
        "middle",
        "generated: 100, 200 and 300 MiB; free the middle one; 250 MiB",
        &[("seed", seed), ("capacity", 700 * MIB)],
    )
}

/// 4 GiB and eight of 512 MiB; the 4 GiB are freed; 3.5 GiB; every other 512 MiB is freed; 2 GiB. The device has the
/// live peak and not a byte more.
pub(super) fn big_then_alternate(seed: u64) -> Trace {
    let mut trace = Builder::new();
    let big = trace.allocate(4 * GIB);
    let parts: Vec<_> = (0..8).map(|_| trace.allocate(512 * MIB)).collect();
    trace.free(big);
    trace.allocate(3 * GIB + 512 * MIB);
    for part in parts.into_iter().step_by(2) {
        trace.free(part);
    }
    trace.mark(LAST_REQUEST);
    trace.allocate(2 * GIB);
    trace.finish(
        "big-then-alternate",
        "generated: 4 GiB and eight of 512 MiB; free the 4 GiB; 3.5 GiB; free every other 512 MiB; 2 GiB",
        &[("seed", seed), ("capacity", 8 * GIB)],
    )
}

/// Live blocks with holes of 50, 30 and 20 MiB between and behind them; then a request of 80 MiB. The device has the
/// live peak, 550 MiB.
pub(super) fn three_holes(seed: u64) -> Trace {
    let mut trace = Builder::new();
    let mut holes = Vec::new();
    for (used, hole) in [(100, 50), (200, 30), (150, 20)] {
        trace.allocate(used * MIB);
        holes.push(trace.allocate(hole * MIB));
    }
    for hole in holes {
        trace.free(hole);
    }
    trace.mark(LAST_REQUEST);
    trace.allocate(80 * MIB);
    trace.finish(
        "three-holes",
        "generated: used 100, free 50, used 200, free 30, used 150, free 20 MiB; then 80 MiB",
        &[("seed", seed), ("capacity", 550 * MIB)],
    )
}
