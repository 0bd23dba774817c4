//! Bad input to each command: exit code 2, one line on standard error, the value in it. Neighbours: the texts come from
//! the crates that found the mistake; here only the door is tested.

use std::path::Path;
use std::process::{Command, Output};

fn xtask(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask")).args(arguments).output().expect("xtask starts")
}

/// Asserts exit code 2, nothing on standard output, and one line on standard error with all of `words` in it.
#[track_caller]
fn assert_refused(arguments: &[&str], words: &[&str]) {
    let output = xtask(arguments);
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    assert_eq!(error.lines().count(), 1, "{arguments:?}: {error}");
    assert!(error.starts_with("error: "), "{error}");
    for word in words {
        assert!(error.contains(word), "{arguments:?}: `{word}` is not in: {error}");
    }
    assert!(output.stdout.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn values_of_options() {
    let cases: &[(&[&str], &[&str])] = &[
        (
            &["bench", "--allocators", "direct,jemalloc"],
            &["--allocators", "`jemalloc`", "direct, driver-pool, pytorch, pytorch-expandable, bfc"],
        ),
        (
            &["bench", "--allocators", "direct,pytorch:max_split_size_mb:2"],
            &["--allocators", "`pytorch`", "`max_split_size_mb` is at least 20"],
        ),
        (&["bench", "--capacity", "0"], &["--capacity", "`0`", "a size of 0"]),
        (&["bench", "--capacity", "80GB?"], &["--capacity", "`80GB?`", "`GB?`"]),
        (&["bench", "--capacity", "80G"], &["`G`", "80G", "GiB"]),
        (&["bench", "--capacity", "-1"], &["-1"]),
        (&["bench", "--capacity", "0x"], &["`0x`"]),
        (&["bench", "--granularity", "3MiB"], &["--granularity", "`3MiB`", "power of two"]),
        (&["bench", "--granularity", "1"], &["`1`", "4KiB"]),
        (&["bench", "--policy", "greedy"], &["--policy", "'greedy'", "lean, balanced, both"]),
        (&["bench", "--device", "h100"], &["--device", "'h100'", "emulated"]),
        (&["bench", "s1", "--max-mappings", "0"], &["mapping budget of 0"]),
        (&["bench", "s1", "--device", "cuda", "--capacity", "1GiB"], &["--capacity", "--device cuda"]),
        (&["bench", "s1", "--device", "cuda", "--check"], &["emulated-cuda"]),
        (
            &["bench", "s1", "--html", "x.html", "--at", "noon"],
            &["--at", "`noon`", "peak, event:N or mark:LABEL"],
        ),
        (&["bench", "s1", "--at", "event:1"], &["--html", "--svg"]),
        (&["bench", "s1", "s3", "--svg", "x", "--at", "event:7"], &["`s1_middle`", "no event 7", "it has 6"]),
        (&["bench", "s1", "--svg", "x", "--at", "mark:noon"], &["`s1_middle`", "no mark `noon`"]),
        (&["probe", "--device", "emulated"], &["--device", "'emulated'", "emulated-cuda"]),
        (&["probe", "--name", "An H200"], &["--name", "`An H200`", "small letters"]),
        (&["probe", "--budget", "long"], &["--budget", "'long'"]),
        (&["contract", "--device", "emulated"], &["--device", "'emulated'"]),
        (&["gpu", "--parts", "contract,coffee"], &["--parts", "'coffee'", "examples"]),
        (&["gpu", "--device", "emulated-cuda", "--traces", "t99"], &["`t99`", "t1, t2"]),
        (&["bench", "--event-lag", "soon"], &["--event-lag", "'soon'"]),
        (&["replay", "t1", "--policy", "greedy"], &["--policy", "`greedy`", "lean, balanced"]),
        (&["replay", "t1", "--allocator", "jemalloc"], &["--allocator", "`jemalloc`"]),
        (&["replay", "t1", "--capacity", "80GB?"], &["`80GB?`"]),
        (&["trace", "gen", "fractal", "--out", "x"], &["fractal", "random"]),
        (&["trace", "gen", "random", "--seed", "-1", "--out", "x"], &["-1"]),
        (
            &["trace", "import", "x", "--format", "json"],
            &["\"json\"", "pytorch-snapshot, rmm-log or lifetimes"],
        ),
        (&["trace", "import", "x", "--device", "-1"], &["-1"]),
    ];
    for (arguments, words) in cases {
        assert_refused(arguments, words);
    }
}

#[test]
fn shape_of_the_command_line() {
    assert_refused(&["fly"], &["'fly'"]);
    assert_refused(&["bench", "--capcity", "1GiB"], &["--capcity"]);
    assert_refused(&["replay"], &["<TRACE>"]);
    assert_refused(&["trace", "gen", "random"], &["--out <FILE>"]);
}

#[test]
fn traces_that_are_not_there() {
    assert_refused(&["bench", "t99"], &["`t99`", "t1, t2"]);
    assert_refused(&["replay", "none/such.trace"], &["`none/such.trace`"]);
    assert_refused(&["trace", "stat", "none.trace.zst"], &["`none.trace.zst`"]);
    assert_refused(&["trace", "convert", "none.trace", "out.trace"], &["none.trace"]);
    assert_refused(&["trace", "import", "none.pickle"], &["none.pickle", "can't read"]);
}

#[test]
fn files_that_are_no_traces() {
    let directory = tempfile::tempdir().expect("a directory");
    let wrong = [
        ("letter.trace", "alloc-trace 1\n# name: x\na 1 10 0\nq 1\n", [":4", "\"q\""]),
        ("zero.trace", "alloc-trace 1\na 1 0 0\n", [":2", "SIZE 0"]),
        ("again.trace", "alloc-trace 1\na 1 10 0\na 1 10 0\n", [":3", "1"]),
        ("unknown.trace", "alloc-trace 1\na 1 10 0\nf 2\n", [":3", "2"]),
        ("stranger.trace", "hello\n", [":1", "hello"]),
    ];
    for (name, content, words) in wrong {
        let path = directory.path().join(name);
        std::fs::write(&path, content).expect("written");
        for command in
            [&["bench", text(&path)][..], &["replay", text(&path)], &["trace", "stat", text(&path)]]
        {
            assert_refused(command, &[name, words[0], words[1]]);
        }
    }
}

#[test]
fn files_that_can_not_be_imported() {
    let directory = tempfile::tempdir().expect("a directory");
    let wrong: [(&str, &[u8], [&str; 2]); 4] = [
        ("code.pickle", b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R.", ["byte 14", "STACK_GLOBAL"]),
        ("cut.pickle", b"\x80\x04]\x8c\x20address", ["byte 3", "cut off"]),
        (
            "rmm.csv",
            b"Thread,Time,Action,Pointer,Size,Stream\n1,t,allocate,0x1,-5,0\n",
            ["rmm.csv:2", "\"-5\""],
        ),
        ("plan.csv", b"id,lower,upper,size\n1,5,4,10\n", ["plan.csv:2", "from 5 to 4"]),
    ];
    let out = directory.path().join("new.trace");
    for (name, content, words) in wrong {
        let path = directory.path().join(name);
        std::fs::write(&path, content).expect("written");
        assert_refused(&["trace", "import", text(&path), "-o", text(&out)], &[name, words[0], words[1]]);
    }
    let left = std::fs::read_dir(directory.path()).expect("listed").count();
    assert_eq!(left, wrong.len(), "a failed import leaves nothing behind");
}

#[test]
fn a_trace_that_is_cut_off() {
    let whole = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/traces/t1_gpt2_train.trace.zst");
    let bytes = std::fs::read(whole).expect("the trace");
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("cut.trace.zst");
    std::fs::write(&path, &bytes[..bytes.len() / 2]).expect("written");
    assert_refused(&["bench", text(&path)], &["cut.trace.zst:", "cut off"]);
    assert_refused(&["trace", "stat", text(&path)], &["cut.trace.zst:", "cut off"]);

    let converted = directory.path().join("new.trace");
    assert_refused(&["trace", "convert", text(&path), text(&converted)], &["cut.trace.zst:", "cut off"]);
    let left: Vec<_> = std::fs::read_dir(directory.path()).expect("listed").collect();
    assert_eq!(left.len(), 1, "a failed conversion leaves nothing behind");
}

#[test]
fn a_device_that_can_not_be() {
    assert_refused(&["bench", "s1", "--capacity", "1MiB"], &["1048576", "2097152"]);
    assert_refused(&["replay", "s1", "--capacity", "0.001x"], &["2097152"]);
    assert_refused(&["bench", "s1", "--cost-table", "none.toml"], &["`none.toml`", "h100, a100"]);
    assert_refused(&["replay", "s1", "--cost-table", "h300"], &["`h300`", "h100, a100"]);
}

#[test]
fn a_machine_without_a_gpu() {
    for command in ["probe", "contract", "gpu"] {
        let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
        // Where there is one, it is hidden.
        let output = xtask.arg(command).env("CUDA_VISIBLE_DEVICES", "-1").output().expect("xtask starts");
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{command}: {error}");
        assert!(error.starts_with("error: no CUDA device: ") && error.lines().count() == 1, "{error}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_file_that_can_not_be_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("file");
    std::fs::write(&place, "").expect("written");
    let below = place.join("out.json");
    assert_refused(&["probe", "--device", "emulated-cuda", "--out", text(&below)], &["out.json"]);
    assert_refused(&["bench", "s1", "--json", text(&below)], &["out.json"]);
    assert_refused(&["bench", "s1", "--html", text(&below)], &["out.json"]);
    assert_refused(&["bench", "s1", "--svg", text(&place)], &["file"]);
    // A directory is in the place of a chart.
    std::fs::create_dir_all(directory.path().join("charts/s1_middle-mapped.svg")).expect("made");
    let charts = directory.path().join("charts");
    assert_refused(&["bench", "s1", "--svg", text(&charts)], &["s1_middle-mapped.svg"]);
    assert_refused(&["trace", "gen", "middle", "--out", text(&below)], &["out.json"]);
}
