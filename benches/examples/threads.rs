//! Throughput of the hit path on several threads, as ratios that a loaded machine blurs little.
//!
//! Neighbours: `src/threads.rs` has the threads, `benches/threads.rs` times them one by one. All variants run by turns,
//! round after round. Two ratios are printed: the median of those within a round, with its quartiles, and that of the
//! best rates (of every tenth run), when nothing else had the processors.
//!
//! ```sh
//! cargo run --release -p concertina-bench --example threads
//! ```

use concertina_bench::threads::{Crew, Handover, Sharing};

const ROUNDS: usize = 501;
/// Some milliseconds: few runs are interrupted.
const PAIRS: u64 = 10_000;

fn main() {
    let crew = |threads, sharing| (threads, sharing, Crew::new(threads, sharing));
    let crews = [
        crew(1, Sharing::Allocator),
        crew(2, Sharing::Nothing),
        crew(2, Sharing::Allocator),
        crew(2, Sharing::Stream),
        crew(4, Sharing::Nothing),
        crew(4, Sharing::Allocator),
        crew(4, Sharing::Stream),
    ];
    let handover = Handover::new();
    let mut rates = vec![Vec::new(); crews.len()];
    let mut handovers = Vec::new();
    for round in 0..ROUNDS {
        let mut order: Vec<usize> = (0..crews.len()).collect();
        // Who comes first changes, so that nobody always runs behind the same other one.
        order.rotate_left(round % crews.len());
        for at in order {
            rates[at].push(crews[at].2.pairs_per_second(PAIRS));
        }
        let blocks = PAIRS / 5;
        let ns = |time: std::time::Duration| time.as_nanos() as f64 / blocks as f64;
        handovers.push((ns(handover.run(blocks)), ns(handover.run_channel_only(blocks))));
    }

    println!("{ROUNDS} rounds of {PAIRS} pairs a thread; million pairs a second, all threads together");
    println!(
        "{:>7}  {:<17} {:>7} {:>7}  ratios of medians, of best, to",
        "threads", "sharing", "median", "best"
    );
    // What each is compared with: by the number of threads and what they share.
    let to = [0, 1, 1, 1, 1, 2, 3];
    for (at, (threads, sharing, _)) in crews.iter().enumerate() {
        let (base_threads, base_sharing, _) = &crews[to[at]];
        let ratios = rates[at].iter().zip(&rates[to[at]]).map(|(rate, base)| rate / base);
        let [low, ratio, high] = quantiles(ratios.collect(), [0.25, 0.5, 0.75]);
        let [median, best] = quantiles(rates[at].clone(), [0.5, 0.9]);
        let [base_best] = quantiles(rates[to[at]].clone(), [0.9]);
        println!(
            "{threads:>7}  {:<17} {:>7.2} {:>7.2}  {ratio:.3} ({low:.2} to {high:.2}), {:.3}: {base_threads} × {}",
            sharing.name(),
            median / 1e6,
            best / 1e6,
            best / base_best,
            base_sharing.name(),
        );
    }
    // The least of every tenth run, as above.
    let [blocks] = quantiles(handovers.iter().map(|(blocks, _)| *blocks).collect(), [0.1]);
    let [channel] = quantiles(handovers.iter().map(|(_, channel)| *channel).collect(), [0.1]);
    println!(
        "freed by another thread: {blocks:.0} ns a block; {channel:.0} ns an empty item of the same channel"
    );
}

/// The values at these parts of the way from the least to the most.
fn quantiles<const COUNT: usize>(mut values: Vec<f64>, parts: [f64; COUNT]) -> [f64; COUNT] {
    values.sort_by(f64::total_cmp);
    parts.map(|part| values[((values.len() - 1) as f64 * part) as usize])
}
