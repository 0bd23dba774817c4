//! `cargo xtask trace` from the outside: what is made can be measured and converted, and comes back the same.
//! Neighbours: `bad_input` tests what is refused.

use std::path::Path;
use std::process::Command;

fn xtask(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).args(arguments).output().expect("xtask starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn a_trace_survives_compression_and_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let [plain, compressed, back] =
        ["a.trace", "b.trace.zst", "c.trace"].map(|name| directory.path().join(name));
    xtask(&["trace", "gen", "small-holes", "--seed", "3", "--length", "40", "--out", text(&plain)]);
    xtask(&["trace", "convert", text(&plain), text(&compressed)]);
    xtask(&["trace", "convert", text(&compressed), text(&back)]);
    let [plain, compressed, back] = [plain, compressed, back].map(|path| std::fs::read(path).expect("read"));
    assert!(plain.starts_with(b"alloc-trace 1\n"));
    assert_eq!(plain, back);
    // RFC 8878, section 3.1.1: the magic number of a zstd frame.
    assert!(compressed.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) && compressed.len() < plain.len());
}

#[test]
fn an_imported_log_is_a_trace_that_can_be_replayed() {
    let directory = tempfile::tempdir().expect("a directory");
    let [log, trace] = ["log.csv", "log.trace.zst"].map(|name| directory.path().join(name));
    let rows =
        "1,t,allocate,0x100,104857600,0\n1,t,allocate,0x200,209715200,0x7\n1,t,free,0x100,104857600,0\n";
    std::fs::write(&log, format!("Thread,Time,Action,Pointer,Size,Stream\n{rows}")).expect("written");
    let printed = xtask(&["trace", "import", text(&log), "-o", text(&trace)]);
    assert!(
        printed.contains("live peak     300 MiB") && printed.contains("Next: cargo xtask bench"),
        "{printed}"
    );
    let stat = xtask(&["trace", "stat", text(&trace)]);
    assert!(stat.contains("live peak      300 MiB in 2 blocks") && stat.contains("missing: waits"), "{stat}");
    let bench = xtask(&["bench", text(&trace), "--allocators", "pytorch,concertina", "--capacity", "1.02x"]);
    assert!(bench.contains("concertina") && !bench.contains("out of memory"), "{bench}");
}

#[test]
fn the_figures_of_the_first_worked_example() {
    let stat = xtask(&["trace", "stat", "s1"]);
    // 100 + 200 + 300 MiB, the middle freed, then 250: 650 MiB live in three blocks.
    assert!(stat.contains("live peak      650 MiB in 3 blocks"), "{stat}");
    assert!(stat.contains("4 allocations") && stat.contains("1 frees") && stat.contains("1 marks"), "{stat}");
}

#[test]
fn help_is_printed_with_exit_code_0() {
    for command in [&["--help"][..], &["bench", "--help"], &["trace", "gen", "--help"]] {
        assert!(xtask(command).contains("Examples:"), "{command:?}");
    }
}
