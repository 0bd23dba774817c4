//! What threads cost one another on the hit path, as ratios that a loaded machine blurs little.
//!
//! Neighbours: `src/threads.rs` has the threads, `benches/threads.rs` times them one by one. All variants run by turns,
//! round after round, and ratios are taken within a round. Two questions, two ways:
//!
//! - Do threads slow one another? Only the times count in which all of them were running.
//! - Do more threads than processors get less done? Then all of the time counts.
//!
//! ```sh
//! cargo run --release -p concertina-bench --example thread_scaling
//! ```

use concertina_bench::threads::{Crew, Sharing};

const ROUNDS: usize = 41;
/// Pairs of all threads together in one run: long enough for the scheduler to spread the threads.
const PAIRS: u64 = 600_000;

struct Variant {
    threads: usize,
    sharing: Sharing,
    crew: Crew,
    /// By round: median ns a pair while all threads ran; `None` if they never did.
    together: Vec<Option<f64>>,
    /// By round: pairs a second of all threads, all the time.
    rates: Vec<f64>,
}

impl Variant {
    fn new(threads: usize, sharing: Sharing) -> Self {
        let crew = Crew::new(threads, sharing);
        Self { threads, sharing, crew, together: Vec::new(), rates: Vec::new() }
    }

    fn round(&mut self) {
        let pairs = PAIRS / self.threads as u64;
        let chunks = self.crew.ns_while_all_run(pairs);
        self.together.push((chunks.len() >= 100).then(|| quantile(chunks, 0.5)));
        self.rates.push(self.crew.pairs_per_second(pairs));
    }

    fn name(&self) -> String {
        format!("{} × {}", self.threads, self.sharing.name())
    }
}

fn main() {
    let mut variants = [
        Variant::new(1, Sharing::Allocator),
        Variant::new(2, Sharing::Nothing),
        Variant::new(2, Sharing::Allocator),
        Variant::new(2, Sharing::Stream),
        Variant::new(4, Sharing::Nothing),
        Variant::new(4, Sharing::Allocator),
        Variant::new(4, Sharing::Stream),
    ];
    for round in 0..ROUNDS {
        // Who comes first changes, so that nobody always runs behind the same other one.
        for at in 0..variants.len() {
            let at = (at + round) % variants.len();
            variants[at].round();
        }
    }

    println!(
        "While all threads run, ns a pair on each; ratios of throughput within a round, their quartiles:"
    );
    for (at, base) in [(1, 0), (2, 1), (3, 1)] {
        let (variant, base) = (&variants[at], &variants[base]);
        let both = variant.together.iter().zip(&base.together);
        let ratios: Vec<f64> = both.filter_map(|(ns, base)| Some((*base)? / (*ns)?)).collect();
        print_ratios(
            &variant.name(),
            quantile(variant.together.iter().flatten().copied().collect(), 0.5),
            &ratios,
            &base.name(),
        );
    }
    println!("All the time, million pairs a second of all threads:");
    for (at, base) in [(1, 0), (2, 1), (3, 2), (4, 1), (5, 2), (6, 3)] {
        let (variant, base) = (&variants[at], &variants[base]);
        let ratios: Vec<f64> =
            variant.rates.iter().zip(&base.rates).map(|(rate, base)| rate / base).collect();
        print_ratios(&variant.name(), quantile(variant.rates.clone(), 0.5) / 1e6, &ratios, &base.name());
    }
}

fn print_ratios(name: &str, value: f64, ratios: &[f64], base: &str) {
    let [low, middle, high] = [0.25, 0.5, 0.75].map(|part| quantile(ratios.to_vec(), part));
    println!(
        "  {name:<22} {value:>6.1}  {middle:.3} ({low:.3} to {high:.3}) of {base}, {} rounds",
        ratios.len()
    );
}

/// The value at this part of the way from the least to the most; not a number where there is none.
fn quantile(mut values: Vec<f64>, part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1) as f64;
    values.get((last * part) as usize).copied().unwrap_or(f64::NAN)
}
