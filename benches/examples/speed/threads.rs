//! What threads cost one another: churns side by side, a thread that looks at the figures of an allocator at work, and
//! blocks that another thread frees.
//!
//! Neighbours: `concertina_bench::side_by_side` runs threads at the same time, `concertina_bench::handover` hands
//! blocks over.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use concertina::Allocator;
use concertina_bench::chunks::{Lane, Spread, Turns};
use concertina_bench::churn::{Churn, Sizes};
use concertina_bench::contender::ByHandle;
use concertina_bench::handover::FreedBy;
use concertina_bench::side_by_side::ns_while_all_run;
use concertina_emulator::Emulator;

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

/// Runs a churn in chunks while another thread takes the statistics of an allocator again and again. Returns the times
/// of the chunks, interrupted ones too, and the mean time of one look.
fn chunks_beside_looks(
    churn: &mut dyn FnMut(u64),
    looked_at: Option<&Allocator<Emulator>>,
) -> (Spread, Option<Duration>) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looks = looked_at.map(|allocator| {
            let done = &done;
            scope.spawn(move || {
                let (begun, mut looks) = (Instant::now(), 0);
                while !done.load(Ordering::Relaxed) {
                    black_box(allocator.stats());
                    looks += 1;
                }
                begun.elapsed() / looks.max(1)
            })
        });
        let mut lanes = [Lane::new("churn", churn)];
        let spread = Turns { rounds: 1, chunks: 400, pairs: 250 }.run(&mut lanes).remove(0);
        done.store(true, Ordering::Relaxed);
        (spread, looks.map(|looks| looks.join().expect("statistics don't panic")))
    })
}

/// Statistics while the allocator works.
pub(crate) fn snapshot() {
    table::title(
        "snapshot: the churn of 1,000 blocks while another thread takes statistics, ns a pair",
        &[
            "`stats()` without a pause; counters are a part of the path and can't be switched off. The ratio is to",
            "a thread that looks at another allocator, which slows the core as much. All chunks count.",
        ],
    );
    let [watched, elsewhere, alone] = [(); 3].map(|()| ByHandle::new());
    let at_watched = watched.allocator().clone();
    // As many blocks, of which none comes or goes.
    let other = Churn::new(ByHandle::new(), BLOCKS, Sizes::ALL);
    let at_other = other.contender().allocator();
    let mut variants = [
        ("looks elsewhere", churn(elsewhere), Some(at_other)),
        ("looks at it", churn(watched), Some(&at_watched)),
        ("nobody looks", churn(alone), None),
    ];
    let mut times = [const { Vec::new() }; 3];
    let mut looks = [const { Vec::new() }; 3];
    for round in 0..ROUNDS {
        for at in 0..variants.len() {
            let at = (at + round) % variants.len();
            let (_, churn, looked_at) = &mut variants[at];
            let (spread, look) = chunks_beside_looks(churn, *looked_at);
            times[at].extend(spread.times());
            looks[at].extend(look.map(|look| look.as_nanos() as f64));
        }
    }
    table::head("other thread", "of looks elsewhere");
    let spreads = times.map(Spread::of);
    for ((name, ..), spread) in variants.iter().zip(&spreads) {
        table::row(name, "concertina", spread, Some(&spreads[0]));
    }
    for ((name, ..), spread) in variants.iter().zip(&spreads) {
        table::say(format_args!(
            "   {name}: {} ns a pair in the mean, interruptions and all",
            table::ns(spread.mean())
        ));
    }
    table::stats_row("nobody else", &other);
    let at_work = Spread::of(looks[1].clone());
    table::row("stats(), beside the churn", "means of turns", &at_work, None);
}

/// Batches of one turn.
const BATCHES: usize = 80;

/// Blocks that another thread frees.
pub(crate) fn handover() {
    table::title(
        "handover: blocks that another thread frees, 256 at once, ns an allocation or a free",
        &[
            "512 B, 64 KiB, 1 MiB and 20 MiB by turns. The other thread frees by turns with the allocating one,",
            "or meanwhile: then a free that finds the heap's lock taken is queued.",
        ],
    );
    let mut contenders = FreedBy::ALL.map(|_| ByHandle::new());
    let mut times = FreedBy::ALL.map(|_| [Vec::new(), Vec::new()]);
    for round in 0..=2 * ROUNDS {
        for ((contender, times), by) in contenders.iter_mut().zip(&mut times).zip(FreedBy::ALL) {
            let handed = by.run(contender, BATCHES);
            // The first round warms up.
            if round > 0 {
                times[0].extend(handed.allocation_ns);
                times[1].extend(handed.free_ns);
            }
        }
    }
    let times = times.map(|of_way| of_way.map(Spread::of));
    let same = times[0].clone();
    table::head("freed by", "of the same thread");
    for (part, what) in ["allocation", "free"].into_iter().enumerate() {
        for (by, times) in FreedBy::ALL.iter().zip(&times) {
            table::row(by.name(), what, &times[part], Some(&same[part]));
        }
    }
}
