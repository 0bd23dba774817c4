//! What a pair costs that frees a random one of many live blocks and allocates one of another size, by allocator.
//!
//! Neighbours: `hot` has pairs of one size, `scale` more numbers of blocks.

use concertina_bench::chunks::{Lane, Turns};
use concertina_bench::churn::{Churn, Sizes};
use concertina_bench::contender::{ByAddress, ByHandle, Contender, DriverMalloc, HostHeap, Nothing};

use crate::peers::{GpuAllocator, OffsetAllocator};
use crate::table;

fn lane<'a, C: Contender + 'a>(contender: C, blocks: usize, sizes: Sizes) -> Lane<'a>
where
    C::Block: 'a,
{
    let name = contender.name();
    let mut churn = Churn::new(contender, blocks, sizes);
    Lane::new(name, move |pairs| churn.pairs(pairs))
}

/// Random sizes, on one thread.
pub(crate) fn churn() {
    table::title(
        "churn: one of many live blocks goes, another comes, ns a pair",
        &[
            "Log-uniform from 512 B; steady: 131,072 pairs (of 100,000 blocks: 200,000) come before the clock.",
            "mimalloc gives large blocks back to the system and takes them again: its rows are no limit here.",
        ],
    );
    table::head("live blocks", "of concertina's");
    let turns = Turns { rounds: 30, chunks: 60, pairs: 250 };
    let upto =
        |most: &str, blocks: usize| format!("{} to {most}", concertina_bench::number::count(blocks as u64));
    for (most, sizes) in [("64 MiB", Sizes::ALL), ("1 MiB", Sizes::SMALL)] {
        for blocks in [1_000, 100_000] {
            let mut lanes = vec![
                lane(ByHandle::new(), blocks, sizes),
                lane(ByAddress::default(), blocks, sizes),
                lane(OffsetAllocator::default(), blocks, sizes),
                lane(Nothing, blocks, sizes),
            ];
            if blocks <= 1_000 {
                lanes.push(lane(GpuAllocator::default(), blocks, sizes));
                lanes.push(lane(HostHeap::named("mimalloc"), blocks, sizes));
                lanes.push(lane(DriverMalloc::default(), blocks, sizes));
            }
            let spreads = turns.run(&mut lanes);
            for (lane, spread) in lanes.iter().zip(&spreads) {
                table::row(&upto(most, blocks), lane.name(), spread, Some(&spreads[0]));
            }
        }
    }
}
