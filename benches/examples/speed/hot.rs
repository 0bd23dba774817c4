//! What a pair of an allocation and its free costs when nothing but the pair happens, by size and allocator; and how
//! far a single pair may be from the median.
//!
//! Neighbours: `churn` has pairs among many live blocks.

use concertina_bench::chunks::{Lane, Spread, Turns, clock_cost};
use concertina_bench::contender::{ByAddress, ByHandle, Contender, DriverMalloc, HostHeap, InScope};

use crate::peers::{GpuAllocator, OffsetAllocator};
use crate::table;

/// Sizes in bytes.
const SIZES: [(&str, u64); 5] =
    [("512 B", 512), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20), ("20 MiB", 20 << 20), ("200 MiB", 200 << 20)];

/// The largest size for which the host's own allocator is asked.
const HOST_MOST: u64 = 1 << 20;

/// Blocks of 64 KiB that stay live beside the pair.
const NEIGHBOURS: usize = 1_000;

/// A contender that has neighbours, and one warm pair behind it.
fn lane<'a, C: Contender + 'a>(mut contender: C, bytes: u64) -> Lane<'a>
where
    C::Block: 'a,
{
    let neighbours: Vec<C::Block> = (0..NEIGHBOURS).map(|_| contender.allocate(64 << 10)).collect();
    contender.pairs(bytes, 1);
    Lane::new(contender.name(), move |pairs| {
        // Kept for as long as the lane is.
        let _ = &neighbours;
        contender.pairs(bytes, pairs);
    })
}

/// Pairs of one size.
pub(crate) fn hot() {
    table::title(
        "hot: an allocation and its free, ns a pair",
        &[
            "1,000 blocks of 64 KiB live beside it. In brackets: the medians. mimalloc is the limit: same",
            "size up to 1 MiB; larger sizes are compared with its pair of 512 B.",
        ],
    );
    table::head("size", "of mimalloc's");
    let turns = Turns { rounds: 40, chunks: 100, pairs: 250 };
    for (name, bytes) in SIZES {
        let limit = if bytes <= HOST_MOST { bytes } else { 512 };
        let on_stream = ByHandle::new().on_stream();
        let mut lanes = [
            lane(HostHeap::named("mimalloc"), limit),
            lane(ByHandle::new(), bytes),
            lane(InScope::of(&on_stream), bytes),
            lane(ByAddress::default(), bytes),
            lane(OffsetAllocator::default(), bytes),
            lane(GpuAllocator::default(), bytes),
            lane(DriverMalloc::default(), bytes),
        ];
        let spreads = turns.run(&mut lanes);
        for (lane, spread) in lanes.iter().zip(&spreads) {
            if lane.name() == "mimalloc" && limit != bytes {
                table::row(name, "mimalloc, of 512 B", spread, None);
            } else {
                table::row(name, lane.name(), spread, Some(&spreads[0]));
            }
        }
    }
}

/// Single pairs.
pub(crate) fn single() {
    let clock = clock_cost().as_nanos();
    table::title(
        "single: one pair at a time, ns",
        &[
            &format!(
                "Each pair between two looks at the clock, whose own cost ({clock} ns) is taken off. Where"
            ),
            "all times are multiples of one, that is the clock's step: ratios of a few steps say little.",
            "On the right: p99 over the median, of all pairs and (in brackets) of the best tenth of rounds.",
        ],
    );
    table::head("size", "p99 over median");
    for (name, bytes) in SIZES {
        let mut lanes = [
            lane(HostHeap::named("mimalloc"), bytes.min(HOST_MOST)),
            lane(ByHandle::new(), bytes),
            lane(OffsetAllocator::default(), bytes),
        ];
        // Rounds by themselves, so that the quiet ones can be told from the others.
        let rounds: Vec<Vec<Spread>> =
            (0..60).map(|_| Turns { rounds: 1, chunks: 5_000, pairs: 1 }.run(&mut lanes)).collect();
        for (at, lane) in lanes.iter().enumerate() {
            let of_lane = || rounds.iter().map(|round| &round[at]);
            let all = Spread::of(of_lane().flat_map(Spread::times).collect());
            let ratios = Spread::of(of_lane().map(|round| round.p99() / round.median()).collect());
            let contender = match lane.name() {
                "mimalloc" if bytes > HOST_MOST => "mimalloc, of 1 MiB",
                name => name,
            };
            let ratio = format!("{:.2} ({:.2})", all.p99() / all.median(), ratios.quantile(100));
            let [best, median, p99] = [all.best(), all.median(), all.p99()].map(table::ns);
            table::say(format_args!(
                "{name:<26} {contender:<20} {best:>9} {median:>9} {p99:>9}  {ratio:>20}"
            ));
        }
    }
}
