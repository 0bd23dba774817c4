//! What threads cost one another: churns side by side, a thread that looks at the figures of an allocator at work, and blocks
//! that another thread frees.
//!
//! Neighbours: `concertina_bench::side_by_side` and `concertina_bench::threads` have the loops.

use std::hint::black_box;
use std::time::Duration;

use concertina_bench::chunks::Spread;
use concertina_bench::churn::{Churn, Sizes};
use concertina_bench::contender::ByHandle;
use concertina_bench::side_by_side::ns_while_all_run;
use concertina_bench::threads::{Crew, Handover, Sharing};

use crate::table;

/// How often each variant has its turn.
const ROUNDS: usize = 25;

/// Pairs of the first thread in one turn.
const PAIRS: u64 = 100_000;

/// Live blocks of each churn.
const BLOCKS: usize = 1_000;

/// Threads of a variant, and what they took.
struct Side<'a> {
    name: &'static str,
    loops: Vec<Box<dyn FnMut(u64) + Send + 'a>>,
    /// By thread.
    ns: Vec<Vec<f64>>,
}

impl<'a> Side<'a> {
    fn new(name: &'static str, loops: Vec<Box<dyn FnMut(u64) + Send + 'a>>) -> Self {
        Self { name, ns: vec![Vec::new(); loops.len()], loops }
    }

    fn turn(&mut self) {
        let times = ns_while_all_run(&mut self.loops, PAIRS);
        self.ns.iter_mut().zip(times).for_each(|(all, times)| all.extend(times));
    }
}

fn by_turns(sides: &mut [Side<'_>]) {
    for round in 0..ROUNDS {
        for at in 0..sides.len() {
            let at = (at + round) % sides.len();
            sides[at].turn();
        }
    }
}

/// A warm churn as a loop.
fn churn<'a>(contender: ByHandle) -> Box<dyn FnMut(u64) + Send + 'a> {
    let mut churn = Churn::new(contender, BLOCKS, Sizes::ALL);
    Box::new(move |pairs| churn.pairs(pairs))
}

/// Churns on two threads.
pub(crate) fn threads() {
    table::title(
        "threads: the churn of 1,000 blocks up to 64 MiB on two threads, ns a pair on each",
        &[
            "Of the chunks during which both threads ran. On two hyperthreads of one core each slows the other",
            "whatever they do: so the ratio is to threads that share nothing.",
        ],
    );
    let one = ByHandle::new();
    let other = one.on_another_stream();
    let mut sides = [
        Side::new("an allocator each", vec![churn(ByHandle::new()), churn(ByHandle::new())]),
        Side::new("a stream each", vec![churn(one), churn(other)]),
        Side::new("one thread alone", vec![churn(ByHandle::new())]),
    ];
    by_turns(&mut sides);
    let spreads: Vec<Spread> = sides.iter().map(|side| Spread::of(side.ns.concat())).collect();
    table::head("threads", "of an allocator each");
    for (side, spread) in sides.iter().zip(&spreads) {
        table::row(side.name, "concertina", spread, Some(&spreads[0]));
    }
}

/// Pairs that the looking thread is asked for, for each time that it takes the statistics.
const PAIRS_A_LOOK: u64 = 16;

/// A loop that takes the statistics of an allocator.
fn looks<'a>(at: &ByHandle) -> Box<dyn FnMut(u64) + Send + 'a> {
    let allocator = at.allocator().clone();
    Box::new(move |pairs| {
        for _ in 0..pairs / PAIRS_A_LOOK {
            black_box(allocator.stats());
        }
    })
}

/// Statistics while the allocator works.
pub(crate) fn snapshot() {
    table::title(
        "snapshot: the churn of 1,000 blocks while another thread takes statistics, ns a pair",
        &[
            "Counters are a part of the path and can't be switched off. Of the chunks during which both threads",
            "ran; the ratio is to a thread that looks at another allocator, which slows the core as much.",
        ],
    );
    let [watched, other, alone] = [(); 3].map(|()| ByHandle::new());
    let (at_watched, at_other) = (looks(&watched), looks(&other));
    let unwatched = ByHandle::new();
    let mut sides = [
        Side::new("looked at elsewhere", vec![churn(unwatched), at_other]),
        Side::new("looked at", vec![churn(watched), at_watched]),
        Side::new("nobody beside", vec![churn(alone)]),
    ];
    by_turns(&mut sides);
    table::head("statistics", "of looks elsewhere");
    let spreads: Vec<Spread> = sides.iter().map(|side| Spread::of(side.ns[0].clone())).collect();
    for (side, spread) in sides.iter().zip(&spreads) {
        table::row(side.name, "concertina", spread, Some(&spreads[0]));
    }
    let look = Spread::of(sides[1].ns[1].iter().map(|ns| ns * PAIRS_A_LOOK as f64).collect());
    table::row("(one stats())", "concertina", &look, None);
}

/// Blocks of one measurement of a handover.
const HANDED: u64 = 20_000;

/// Blocks that another thread frees.
pub(crate) fn handover() {
    table::title(
        "handover: blocks that another thread frees, through a channel of 64, ns a block",
        &[
            "512 B, 64 KiB, 1 MiB and 20 MiB by turns. Each value is of 20,000 blocks, so that p99 is the worst",
            "of few. What a free by another thread costs is the first row less the second.",
        ],
    );
    let (handover, crew) = (Handover::new(), Crew::new(1, Sharing::Nothing));
    let ns = |time: Duration| time.as_nanos() as f64 / HANDED as f64;
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..60 {
        times[0].push(ns(handover.run(HANDED)));
        times[1].push(ns(handover.run_channel_only(HANDED)));
        times[2].push(ns(crew.run(HANDED)));
    }
    table::head("freed by", "of the same thread");
    let [blocks, channel, same] = times.map(Spread::of);
    table::row("another thread", "concertina", &blocks, Some(&same));
    table::row("(the channel, of numbers)", "", &channel, None);
    table::row("the same thread", "concertina", &same, Some(&same));
}
