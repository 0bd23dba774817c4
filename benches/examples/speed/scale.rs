//! How the cost of a pair grows: with the blocks that are live, and with the pages that are mapped.
//!
//! Neighbours: `churn` compares allocators at two numbers of blocks.

use concertina_bench::chunks::{Lane, Turns};
use concertina_bench::churn::{Churn, Sizes};
use concertina_bench::contender::{ByHandle, Contender, Nothing};
use concertina_bench::number::count;

use crate::peers::OffsetAllocator;
use crate::table;

/// How lanes take turns here.
const TURNS: Turns = Turns { rounds: 30, chunks: 40, pairs: 250 };

/// Times the same loop at several scales by turns, and prints a row each, compared with the first.
fn rows<C: Contender>(kind: &str, scales: &mut [(String, Churn<C>)], run: fn(&mut Churn<C>, u64)) {
    let names: Vec<&str> = scales.iter().map(|(_, churn)| churn.contender().name()).collect();
    let mut lanes = Vec::new();
    for (name, churn) in scales {
        lanes.push(Lane::new(format!("{kind}, {name}"), |pairs| run(churn, pairs)));
    }
    let spreads = TURNS.run(&mut lanes);
    for ((lane, name), spread) in lanes.iter().zip(&names).zip(&spreads) {
        table::row(lane.name(), name, spread, Some(&spreads[0]));
    }
}

/// By live blocks.
pub(crate) fn live() {
    table::title(
        "live: a pair by live blocks, ns a pair",
        &[
            "All blocks log-uniform, 512 B to 1 MiB. `hot`: 64 KiB again and again. `hit`: one of the sizes, and its",
            "free at once. `churn`: one of the blocks goes, another comes; its loop walks the blocks, too.",
        ],
    );
    table::head("pair, live blocks", "of 1,000 blocks");
    fn at_scales<C: Contender>(new: fn() -> C) -> Vec<(String, Churn<C>)> {
        let scales = [1_000, 10_000, 100_000, 1_000_000];
        scales.map(|blocks| (count(blocks as u64), Churn::new(new(), blocks, Sizes::SMALL))).into()
    }
    let mut concertina = at_scales(ByHandle::new);
    rows("hot", &mut concertina, |churn, pairs| churn.pairs_of(64 << 10, pairs));
    rows("hit", &mut concertina, Churn::hits);
    rows("churn", &mut concertina, Churn::pairs);
    concertina.iter().for_each(|(blocks, churn)| table::stats_row(blocks, churn));
    drop(concertina);
    let mut peer = at_scales(OffsetAllocator::default);
    rows("hit", &mut peer, Churn::hits);
    rows("churn", &mut peer, Churn::pairs);
    drop(peer);
    rows("churn", &mut at_scales(|| Nothing), Churn::pairs);
}

/// By mapped pages.
pub(crate) fn mapped() {
    table::title(
        "mapped: a pair by mapped pages, ns a pair",
        &[
            "Pages were mapped for blocks of 20 MiB, and every second block was freed. `hot`: 20 MiB again and",
            "again. `hit`: 1 to 20 MiB, and its free at once. `churn`: 50 live blocks of 1 to 20 MiB beside.",
        ],
    );
    table::head("pair, mapped pages", "of 1,000 pages");
    let mut scales = [1_000, 10_000, 100_000]
        .map(|pages| (count(pages), Churn::new(ByHandle::with_mapped(pages), 50, Sizes::LARGE)));
    rows("hot", &mut scales, |churn, pairs| churn.pairs_of(Sizes::LARGE.most, pairs));
    rows("hit", &mut scales, Churn::hits);
    rows("churn", &mut scales, Churn::pairs);
    scales.iter().for_each(|(pages, churn)| table::stats_row(pages, churn));
    for (name, churn) in &scales {
        let pages = churn.contender().allocator().stats().mapped_bytes / churn.contender().page_bytes();
        table::say(format_args!("   {name} pages at the start: {} mapped at the end", count(pages)));
    }
}
