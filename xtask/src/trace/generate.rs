//! `cargo xtask trace gen`: a trace by rule and seed.
//!
//! Main types: [`GenerateArgs`]. Neighbours: the generators are `concertina_trace`'s.

use std::path::PathBuf;

use clap::Args;
use concertina_trace::{Generator, GeneratorOptions};

use super::encoding_of;
use crate::error::XtaskError;

/// Arguments of `trace gen`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask trace gen three-holes --out three.trace             as text, to read along
  cargo xtask trace gen random --seed 7 --out random.trace.zst
  cargo xtask trace gen nlp-dynamic --length 100 --out nlp.trace.zst

The same kind, seed and length give the same trace on every machine.")]
pub(crate) struct GenerateArgs {
    /// Which generator: middle, big-then-alternate, three-holes, nlp-dynamic, small-holes, random, or the name of a
    /// public case (docs/cases.md).
    #[arg(value_name = "KIND")]
    kind: Generator,
    /// The seed of the random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How long, in steps (nlp-dynamic), holes (small-holes) or events (random).
    #[arg(long, value_name = "N")]
    length: Option<u64>,
    /// The file to write; with the ending .zst it is compressed.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Makes the trace and saves it.
pub(super) fn run(args: GenerateArgs) -> Result<(), XtaskError> {
    let trace = args.kind.generate(&GeneratorOptions { seed: args.seed, length: args.length })?;
    let saved = trace.save(&args.out, encoding_of(&args.out));
    saved.map_err(|source| XtaskError::WriteTrace { path: args.out.clone(), source })?;
    println!("{}: {} events; {}", args.out.display(), trace.events.len(), args.kind.description());
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use concertina_trace::Generator;

    #[test]
    fn the_help_names_every_generator() {
        let mut command = crate::cli::Cli::command();
        let generate =
            command.find_subcommand_mut("trace").and_then(|trace| trace.find_subcommand_mut("gen"));
        let help = generate.expect("the command").render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for generator in Generator::ALL {
            assert!(help.contains(generator.name()), "{generator} is not in the help");
        }
    }
}
