//! `cargo xtask probe`, `contract` and `gpu` from the outside, over the emulated libcuda: the files that others read, and
//! exit codes. Neighbours: what is measured is tested in `benches/tests/probe.rs`; bad input in `bad_input`.

#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use concertina_emulator::CostTable;
use concertina_vmm::Call;
use serde_json::Value;

fn xtask(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(arguments).args(["--device", "emulated-cuda"]);
    command
}

fn out(directory: &Path) -> &str {
    directory.to_str().expect("UTF-8")
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn json(path: PathBuf) -> Value {
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("JSON")
}

/// No line is wider than 100 columns, and the first lines say that there was no device.
#[track_caller]
fn assert_honest(text: &str) {
    for line in text.lines().filter(|line| !line.starts_with("written: ") && !line.starts_with("logs: ")) {
        assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
    }
    assert!(text.lines().take(4).any(|line| line.starts_with("EMULATED")), "{text}");
}

#[test]
fn a_probe_writes_figures_and_a_table_that_is_found_by_its_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let measured = directory.path().join("some-gpu/2026-01-31");
    let output =
        xtask(&["probe", "--out", out(&measured), "--name", "some-gpu"]).output().expect("xtask starts");
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_honest(&text);
    assert!(text.contains("0 of 26 rules are otherwise than expected"), "{text}");

    let table = CostTable::find("some-gpu", directory.path()).expect("it lies below");
    assert_eq!(table.name, "some-gpu");
    for call in Call::ALL {
        assert!(table.of(*call).base_ns > 0, "{} costs nothing", call.name());
    }
    let comments = fs::read_to_string(measured.join("some-gpu.toml")).expect("written");
    assert!(comments.contains("# EMULATED"), "{comments}");

    let figures = json(measured.join("some-gpu.json"));
    assert_eq!(figures["device"]["emulated"], true);
    for key in ["name", "date", "driver_for_cuda", "concertina", "total_bytes", "granularity_bytes"] {
        assert!(!figures["device"][key].is_null(), "{key}");
    }
    let lists = ["timings", "fits", "waits", "rules", "fresh_memory", "bandwidth", "left_out", "failed"];
    for key in lists {
        assert!(figures[key].is_array(), "{key}");
    }
    // The table is the figures'.
    let unmap = figures["timings"].as_array().expect("a list").iter().find(|timing| {
        (&timing["call"], &timing["load"], &timing["bytes"])
            == (&"unmap".into(), &"idle".into(), &(2 << 20).into())
    });
    let base_ns = unmap.expect("it was timed")["median_ns"].as_u64();
    assert_eq!(base_ns, Some(table.of(Call::Unmap).base_ns));
}

/// Every table that is kept must be one, so that its name works.
#[test]
fn tables_that_are_committed_are_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/measurements");
    let mut directories = vec![root.clone()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("the directory of measurements").flatten() {
            let path = entry.path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "toml") {
                let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("UTF-8").to_owned();
                assert_eq!(CostTable::from_file(&path).expect("a table").name, stem);
                CostTable::find(&stem, &root).expect("found by its name");
            }
        }
    }
}

#[test]
fn the_contract_is_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("contract.json");
    let output = xtask(&["contract", "--json", out(&path)]).output().expect("xtask starts");
    assert!(output.status.success(), "{}", said(&output));
    let cases = json(path);
    let cases = cases.as_array().expect("a list");
    assert_eq!(cases.len(), concertina_vmm::contract::cases::<concertina_emulator::Emulator>().len());
    assert!(cases.iter().all(|case| case["passed"] == true), "{cases:?}");
}

fn outcomes(directory: &Path) -> Vec<(String, String, String)> {
    let whole = json(directory.join("gpu.json"));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let outcomes = whole["outcomes"].as_array().expect("a list").clone();
    outcomes.iter().map(|of| (text(&of["part"]), text(&of["what"]), text(&of["status"]))).collect()
}

#[test]
fn all_parts_run_and_what_does_not_fit_is_skipped() {
    let directory = tempfile::tempdir().expect("a directory");
    let large = directory.path().join("large.trace");
    fs::write(&large, "alloc-trace 1\n# name: large\na 1 90000000000 0\nf 1\n").expect("written");
    let results = directory.path().join("results");
    let traces = format!("s1,{}", out(&large));
    let parts = ["gpu", "--parts", "bench,probe,contract", "--traces", &traces, "--out", out(&results)];
    let output = xtask(&parts).output().expect("xtask starts");
    assert!(output.status.success(), "{}", said(&output));
    assert_honest(&String::from_utf8(output.stdout).expect("UTF-8"));
    let expected = [
        ("contract", "every case", "passed"),
        ("probe", "short", "passed"),
        ("bench", "large concertina", "skipped"),
        ("bench", "s1_middle concertina", "passed"),
        ("bench", "large direct", "skipped"),
        ("bench", "s1_middle direct", "passed"),
    ];
    let expected = expected.map(|(part, what, status)| (part.to_owned(), what.to_owned(), status.to_owned()));
    assert_eq!(outcomes(&results), expected);
    let whole = json(results.join("gpu.json"));
    let why = whole["outcomes"][2]["detail"].as_str().expect("a text").to_owned();
    assert!(why.starts_with("needs ") && why.contains("free are 80 GiB"), "{why}");
    assert_eq!(whole["outcomes"][3]["figures"]["trace"], "s1_middle");
    assert_eq!(whole["outcomes"][0]["figures"].as_array().map(Vec::len), Some(31));
    assert!(results.join("concertina-emulated-device.toml").is_file());
    assert!(!results.join("logs").exists() && !results.join("case.json").exists());
}

#[test]
fn a_part_that_fails_stops_no_other_and_is_told_by_the_exit_code() {
    let directory = tempfile::tempdir().expect("a directory");
    let parts = ["gpu", "--parts", "examples,bench", "--traces", "s1", "--out", out(directory.path())];
    // A cargo that builds nothing.
    let output = xtask(&parts).env("CARGO", "false").output().expect("xtask starts");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("error: 1 parts failed on this device"), "{}", said(&output));
    let outcomes = outcomes(directory.path());
    let of = |what: &str| outcomes.iter().find(|of| of.1 == what).map(|of| of.2.as_str());
    assert_eq!((of("build"), of("saxpy")), (Some("failed"), Some("skipped")));
    assert_eq!(of("s1_middle concertina"), Some("passed"));
    assert!(directory.path().join("logs/examples-build.txt").is_file());
}

/// With a cargo that has nothing to do: examples are there if all tests were built, and else can't be started.
#[test]
fn examples_are_run_where_they_were_built() {
    let directory = tempfile::tempdir().expect("a directory");
    let arguments = ["gpu", "--parts", "examples", "--traces", "s1", "--out", out(directory.path())];
    let output = xtask(&arguments).env("CARGO", "true").output().expect("xtask starts");
    let profile = Path::new(env!("CARGO_BIN_EXE_xtask")).parent().expect("a directory");
    let outcomes = outcomes(directory.path());
    assert!(outcomes.len() > 2, "{outcomes:?}");
    for (_, what, status) in outcomes.iter().filter(|of| of.1 != "build") {
        let built = profile.join("examples").join(what).is_file();
        assert_eq!(status == "passed", built, "{what}: {}", said(&output));
    }
}

#[test]
fn without_time_nothing_is_begun() {
    let directory = tempfile::tempdir().expect("a directory");
    let arguments = ["gpu", "--budget", "0", "--traces", "s1", "--out", out(directory.path())];
    let output = xtask(&arguments).output().expect("xtask starts");
    assert!(output.status.success(), "{}", said(&output));
    let outcomes = outcomes(directory.path());
    assert!(outcomes.iter().all(|of| of.2 == "skipped"), "{outcomes:?}");
    assert!(outcomes.len() >= 6, "{outcomes:?}");
}
