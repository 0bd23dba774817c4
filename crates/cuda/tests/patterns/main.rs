//! No byte of a live block changes that its owner did not write: allocators on the emulated libcuda with real host pages.
//!
//! Main types: none. Neighbours: `program` makes random programs, `run` does them, `device` has the kernels that write and
//! check patterns; `steal` is a program by hand.
//!
//! The programs run in a child process: a touch of what is not mapped is a fault that ends it. The parent then tells the
//! seed and the operations so far.

#![cfg(target_os = "linux")]
// Kernels are launched by `sys`, and follow device addresses.
#![allow(unsafe_code)]

mod device;
mod program;
mod run;
mod steal;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use program::Program;
use run::Happened;

/// Programs, and operations of each: 120,000 together.
const PROGRAMS: u64 = 40;
const OPERATIONS: usize = 3_000;

/// Names the file in which the child says where it is; to be set for the child only.
const PROGRESS: &str = "CONCERTINA_PATTERNS_PROGRESS";
/// Runs one program in this process, to look into a failure.
const SEED: &str = "CONCERTINA_PATTERNS_SEED";

/// Where the child is: seed and operation.
struct Progress(File);

impl Progress {
    fn tell(&self, seed: u64, operation: usize) {
        let bytes = [seed.to_le_bytes(), (operation as u64).to_le_bytes()].concat();
        self.0.write_all_at(&bytes, 0).expect("the file is writable");
    }

    fn read(file: &File) -> (u64, usize) {
        let mut bytes = [0; 16];
        file.read_exact_at(&mut bytes, 0).expect("the child wrote it");
        let [seed, operation] = [&bytes[..8], &bytes[8..]].map(|half| half.try_into().expect("8 bytes"));
        (u64::from_le_bytes(seed), u64::from_le_bytes(operation) as usize)
    }
}

#[test]
fn live_bytes_change_only_by_their_owner() {
    if let Some(path) = std::env::var_os(PROGRESS) {
        return all_programs(&Progress(File::options().write(true).open(path).expect("the parent made it")));
    }
    let progress = tempfile::NamedTempFile::new().expect("a file");
    if let Ok(seed) = std::env::var(SEED) {
        let seed = seed.parse().expect("a number");
        let progress = Progress(progress.reopen().expect("a file"));
        println!("{:?}", run::run(&Program::random(seed, OPERATIONS), |at| progress.tell(seed, at)));
        return;
    }
    let status = Command::new(std::env::current_exe().expect("this program"))
        .args(["live_bytes_change_only_by_their_owner", "--exact", "--nocapture"])
        .env(PROGRESS, progress.path())
        .status()
        .expect("this program starts");
    if !status.success() {
        let (seed, last) = Progress::read(progress.as_file());
        let program = Program::random(seed, OPERATIONS);
        let text: String =
            program.to_string().lines().take(last + 2).map(|line| format!("{line}\n")).collect();
        panic!("{status}; again with {SEED}={seed}. Up to where it failed, the program is\n{text}");
    }
}

fn all_programs(progress: &Progress) {
    let mut all = Happened::default();
    for seed in 0..PROGRAMS {
        progress.tell(seed, 0);
        all.add(run::run(&Program::random(seed, OPERATIONS), |at| progress.tell(seed, at)));
    }
    eprintln!("{all:?}");
    assert!(all.operations >= 100_000, "{all:?}");
    // The programs must get to where bytes could be mixed up.
    let rare =
        [all.stolen, all.revived, all.trimmed_bytes, all.refused, all.foreign, all.retired, all.device_waits];
    assert!(rare.iter().all(|times| *times >= 100), "{all:?}");
}
