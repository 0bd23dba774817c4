//! Host time side by side: `cargo xtask speed` runs this program.
//!
//! Neighbours: one file a group of sections; `concertina_bench::chunks` has the method. mimalloc is this program's own
//! allocator, so that its pairs can be timed too; what Concertina and the others do on the hit path asks it for nothing.
//!
//! ```sh
//! cargo run --release -p concertina-bench --example speed -- hot churn
//! ```

mod churn;
mod hot;
mod peers;
mod replay;
mod scale;
mod table;
mod threads;

use std::process::ExitCode;

use mimalloc::MiMalloc;

#[global_allocator]
static HOST: MiMalloc = MiMalloc;

/// What can be asked for, in the order in which it is run.
const SECTIONS: &[(&str, fn())] = &[
    ("hot", hot::hot),
    ("single", hot::single),
    ("churn", churn::churn),
    ("threads", threads::threads),
    ("snapshot", threads::snapshot),
    ("handover", threads::handover),
    ("live", scale::live),
    ("mapped", scale::mapped),
    ("replay", replay::replay),
];

fn main() -> ExitCode {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let known = |word: &String| SECTIONS.iter().any(|(name, _)| name == word);
    if let Some(word) = asked.iter().find(|word| !known(word)) {
        let names: Vec<&str> = SECTIONS.iter().map(|(name, _)| *name).collect();
        eprintln!("error: no section `{word}`; there are: {}", names.join(", "));
        return ExitCode::from(2);
    }
    for (name, section) in SECTIONS {
        if asked.is_empty() || asked.iter().any(|word| word == name) {
            section();
        }
    }
    ExitCode::SUCCESS
}
