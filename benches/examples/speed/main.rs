//! Host time side by side: `cargo xtask speed` runs this program.
//!
//! Neighbours: one file a group of sections; `concertina_bench::chunks` has the method. mimalloc is this program's own
//! allocator, so that its pairs can be timed too; what Concertina and the others do on the hit path asks it for
//! nothing.
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

use concertina_bench::SpeedSection;
use mimalloc::MiMalloc;

#[global_allocator]
static HOST: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let asked: Result<Vec<SpeedSection>, _> = std::env::args().skip(1).map(|word| word.parse()).collect();
    let asked = match asked {
        Ok(asked) => asked,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    // Each once, in their order whatever order they are asked for in.
    for section in SpeedSection::ALL.iter().filter(|section| asked.is_empty() || asked.contains(section)) {
        match section {
            SpeedSection::Hot => hot::hot(),
            SpeedSection::Single => hot::single(),
            SpeedSection::Churn => churn::churn(),
            SpeedSection::Threads => threads::threads(),
            SpeedSection::Snapshot => threads::snapshot(),
            SpeedSection::Handover => threads::handover(),
            SpeedSection::Live => scale::live(),
            SpeedSection::Mapped => scale::mapped(),
            SpeedSection::Replay => replay::replay(),
        }
    }
    ExitCode::SUCCESS
}
