//! The command line.
//!
//! Main types: [`Cli`], [`Command`]. Neighbours: each command's arguments stand in its own file; `tidy` parses the
//! commands that the documentation shows with the same type.

use clap::{Parser, Subcommand};

use crate::{bench, ci, contract, gpu, instructions, probe, replay, speed, sweep, test, tidy, trace};

/// Bench, replay, test and check Concertina, an allocator for GPU memory on CUDA virtual memory.
#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", version, disable_help_subcommand = true)]
#[command(after_help = "Examples:
  cargo xtask bench              all bundled traces, side by side with cudaMalloc
  cargo xtask replay t1          one trace, mark by mark
  cargo xtask test               all tests
  cargo xtask bench --help       options and more examples of one command")]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Replay traces on several allocators and print what each needed, side by side.
    Bench(bench::BenchArgs),
    /// Replay one trace on one allocator and print what happened at each mark.
    Replay(replay::ReplayArgs),
    /// Measure a CUDA driver: what calls cost, which rules hold, how fast memory is.
    Probe(probe::ProbeArgs),
    /// Run the contract of the driver traits on a CUDA device.
    Contract(contract::ContractArgs),
    /// Everything that a machine with a GPU is for: contract, examples, probe and bench, in one go.
    Gpu(gpu::GpuArgs),
    /// Run a grid of experiments from a file: traces, allocators, devices.
    Sweep(sweep::SweepArgs),
    /// Count the instructions of an allocation and its free; needs valgrind.
    Instructions(instructions::InstructionsArgs),
    /// Time an allocation and its free, beside other allocators and by what is live.
    Speed(speed::SpeedArgs),
    /// Look at traces, make them, convert them.
    Trace(trace::TraceArgs),
    /// Run all tests.
    Test(test::TestArgs),
    /// Check the house rules: layers, headers, unsafe code, links, commands in the documentation.
    Tidy(tidy::TidyArgs),
    /// Run everything that must pass before a change is merged.
    Ci(ci::CiArgs),
}

/// What clap has to say, in one line: the part before its hints.
pub(crate) fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Cli;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_examples_in_its_help() {
        fn check(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:\n  cargo xtask "), "{} has no examples", command.get_name());
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}
