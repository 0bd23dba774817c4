//! `cargo xtask`: the people's door to Concertina.
//!
//! Main types: [`Cli`]. Neighbours: one file a command; this one only dispatches.

#![forbid(unsafe_code)]

#[macro_use]
mod stdout;

mod bench;
mod ci;
mod cli;
mod contract;
mod date;
mod error;
mod figures;
mod gpu;
mod instructions;
mod measured_device;
mod probe;
mod process;
mod replay;
mod speed;
mod sweep;
mod test;
mod tidy;
mod trace;

use std::process::ExitCode;

use clap::Parser as _;
use clap::error::ErrorKind;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let root = process::repository_root();
    let result = match cli.command {
        Command::Bench(args) => bench::run(args),
        Command::Probe(args) => probe::run(&root, args),
        Command::Contract(args) => contract::run(args),
        Command::Gpu(args) => gpu::run(&root, args),
        Command::Replay(args) => replay::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Instructions(args) => instructions::run(&root, args),
        Command::Speed(args) => speed::run(&root, args),
        Command::Trace(args) => trace::run(args),
        Command::Test(args) => test::run(&root, args),
        Command::Tidy(args) => tidy::run(&root, args),
        Command::Ci(args) => ci::run(&root, args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            error.exit_code()
        }
    }
}

/// Help is printed as it is; a mistake in one line, with exit code 2.
fn refuse(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed pipe is no failure of ours.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => {
            eprintln!("error: {}", cli::one_line(error));
            ExitCode::from(2)
        }
    }
}
