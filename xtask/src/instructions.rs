//! `cargo xtask instructions`: how many instructions an allocation and its free take when they make no driver call.
//!
//! Main types: [`InstructionsArgs`]. Neighbours: `benches/examples/hit_pairs.rs` is what runs under callgrind;
//! `benches/benches/hit_path.rs` times the same pairs. A count that noise can't touch, so that it is checked.

use std::path::Path;
use std::process::{Command, Output};

use clap::Args;

use crate::error::XtaskError;
use crate::process::Step;

/// Most instructions that a pair may take, by face: 5 to 7 % over what rustc 1.95 gives on x86-64. Lower them when the
/// code gets better. Every size takes the same.
const CEILINGS: [(&str, u64); 5] =
    [("handle", 170), ("scoped", 138), ("on-stream", 173), ("by-address", 254), ("raw", 197)];

/// Sizes, in bytes.
const SIZES: [(&str, u64); 5] =
    [("512 B", 512), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20), ("20 MiB", 20 << 20), ("200 MiB", 200 << 20)];

/// Pairs of the shorter run; the longer one has twice as many.
const PAIRS: u64 = 10_000;

/// Arguments of `instructions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask instructions       the pairs of all sizes; needs valgrind")]
pub(crate) struct InstructionsArgs {}

/// Counts the instructions of a pair by face and size. Where valgrind is not installed it says so and checks nothing.
///
/// # Errors
/// A pair over its ceiling, or a program that failed.
pub(crate) fn run(root: &Path, _args: InstructionsArgs) -> Result<(), XtaskError> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("note: valgrind is not installed: the instructions of a hit are not counted");
        return Ok(());
    }
    Step::cargo(&["build", "--release", "--package", "concertina-bench", "--example", "hit_pairs"])
        .run(root)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let program = root.join(target).join("release/examples/hit_pairs");
    println!("{:<10} {:>8} {:>20} {:>8}", "face", "size", "instructions a pair", "ceiling");
    let mut over = 0;
    let rows = CEILINGS.iter().flat_map(|face| SIZES.iter().map(move |size| (face, size)));
    for (&(face, ceiling), &(size, bytes)) in rows {
        let [once, twice] = [PAIRS, 2 * PAIRS].map(|pairs| count(&program, face, bytes, pairs));
        let pair = twice?.saturating_sub(once?) / PAIRS;
        over += usize::from(pair > ceiling);
        println!(
            "{face:<10} {size:>8} {pair:>20} {ceiling:>8}{}",
            if pair > ceiling { "  over" } else { "" }
        );
    }
    if over == 0 { Ok(()) } else { Err(XtaskError::Instructions { pairs: over }) }
}

/// The instructions of one whole run.
fn count(program: &Path, face: &str, bytes: u64, pairs: u64) -> Result<u64, XtaskError> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program);
    command.args([face, &bytes.to_string(), &pairs.to_string()]);
    let line = || format!("valgrind --tool=callgrind {} {face} {bytes} {pairs}", program.display());
    let Output { status, stderr, .. } =
        command.output().map_err(|source| XtaskError::Start { command: line(), source })?;
    let said = String::from_utf8_lossy(&stderr);
    let collected = collected(&said).filter(|_| status.success());
    collected.ok_or_else(|| {
        eprint!("{said}");
        XtaskError::Step { command: line(), status }
    })
}

/// The count in what callgrind says at the end.
fn collected(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_count_is_read_from_what_callgrind_says() {
        let said = "==7== Events    : Ir\n==7== Collected : 123456\n==7== \n";
        assert_eq!(super::collected(said), Some(123_456));
        assert_eq!(super::collected("==7== Process terminating"), None);
    }
}
