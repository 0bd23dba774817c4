//! `cargo xtask bench` and `replay` from the outside: the table, and the JSON that others read.
//! Neighbours: `bad_input` tests what is refused; the figures themselves are tested in `benches/tests`.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

fn xtask(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).args(arguments).output().expect("xtask starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Runs `bench` with these arguments and reads what it writes.
fn json(arguments: &[&str]) -> Vec<Value> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("new/out.json");
    let path = path.to_str().expect("UTF-8");
    xtask(&[&["bench", "--json", path], arguments].concat());
    let text = std::fs::read_to_string(path).expect("the file is written");
    serde_json::from_str(&text).expect("a list of objects")
}

fn keys(object: &Value) -> BTreeSet<&str> {
    object.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// Keys that other programs read: none may go or change its name.
const PROMISED: &[&str] = &[
    "trace",
    "allocator",
    "policy",
    "device",
    "capacity_bytes",
    "events",
    "live_peak_bytes",
    "mapped_peak_bytes",
    "mapped_over_live",
    "address_peak_bytes",
    "completed",
    "driver_calls",
    "driver_calls_by_mark",
    "fences",
    "modelled_driver_ns",
    "host_waits",
    "host_ns_per_event",
];

#[test]
fn each_case_is_an_object_with_the_promised_keys() {
    let outcomes = json(&["s1", "s3", "--policy", "both", "--check"]);
    let cases: Vec<_> = outcomes.iter().map(|o| (&o["trace"], &o["allocator"], &o["policy"])).collect();
    let expected: Vec<Value> = ["s1_middle", "s3_three_holes"].map(Value::from).to_vec();
    assert_eq!(cases.len(), 10, "{cases:?}");
    for (index, (trace, allocator, policy)) in cases.into_iter().enumerate() {
        assert_eq!(*trace, expected[index / 5]);
        let row = [
            ("direct", Value::Null),
            ("pytorch", Value::Null),
            ("pytorch-expandable", Value::Null),
            ("concertina", "lean".into()),
            ("concertina", "balanced".into()),
        ];
        assert_eq!((allocator, policy), (&Value::from(row[index % 5].0), &row[index % 5].1));
    }
    for outcome in &outcomes {
        let keys = keys(outcome);
        assert!(PROMISED.iter().all(|key| keys.contains(key)), "{keys:?}");
        assert!(!keys.contains("error") && !keys.contains("failed_at_event"), "{keys:?}");
        assert_eq!(outcome["completed"], true);
    }
    // By hand, from the trace: 100 + 200 + 300 MiB, the middle freed, then 250; four mallocs and a free.
    let direct = &outcomes[0];
    assert_eq!(direct["live_peak_bytes"], 650 << 20);
    assert_eq!(direct["events"], 6);
    assert_eq!((&direct["driver_calls"]["malloc"], &direct["driver_calls"]["free"]), (&4.into(), &1.into()));
    assert_eq!(direct["driver_calls_by_mark"], serde_json::json!([4]));
    assert_eq!(direct["fences"], serde_json::json!({"records": 0, "waits": 0}));
}

#[test]
fn a_run_that_stops_says_where_and_why() {
    let outcomes = json(&["s1", "--allocators", "direct", "--capacity", "600MiB"]);
    let outcome = &outcomes[0];
    assert_eq!(outcome["completed"], false);
    assert_eq!(outcome["failure"], "out_of_memory");
    // Events 0 to 2 take 600 MiB, 3 frees 200, 4 is the mark, 5 wants 250.
    assert_eq!(outcome["failed_at_event"], 5);
    assert!(outcome["error"].as_str().expect("a text").contains("262144000"), "{outcome}");
    assert_eq!(outcome["capacity_bytes"], 600 << 20);
}

#[test]
fn options_go_with_the_name_of_their_allocator() {
    let list = "pytorch,pytorch:max_split_size_mb:128,roundup_power2_divisions:[64:8,>:4],direct";
    let outcomes = json(&["s1", "--allocators", list, "--check"]);
    // 100, 200 and 300 MiB, each a segment of its own; 200 are freed, and 250 more asked for. With eight steps between
    // 64 MiB and 128 and four above, these are 104, 224, 320 and 256.
    let reserved: Vec<_> =
        outcomes.iter().map(|o| o["mapped_peak_bytes"].as_u64().expect("bytes") >> 20).collect();
    assert_eq!(reserved, [850, 904, 650]);
    let name = outcomes[1]["allocator"].as_str().expect("a name");
    assert!(name.starts_with("pytorch:max_split_size_mb:128,roundup_power2_divisions:["), "{name}");
    let text = xtask(&["bench", "s1", "--allocators", "pytorch:max_split_size_mb:128"]);
    assert!(text.contains("pytorch#1 ") && text.contains("\n#1: pytorch:max_split_size_mb:128\n"), "{text}");
}

#[test]
fn every_key_is_defined_in_the_documentation() {
    let page = include_str!("../../docs/bench.md");
    let mut outcomes = json(&["s1", "--allocators", "direct"]);
    outcomes.extend(json(&["s1", "--allocators", "direct", "--capacity", "600MiB"]));
    for key in outcomes.iter().flat_map(keys) {
        assert!(page.contains(&format!("| `{key}` |")), "docs/bench.md does not define `{key}`");
    }
    for kind in keys(&outcomes[0]["driver_calls"]) {
        assert!(page.contains(&format!("`{kind}`")), "docs/bench.md does not name the call `{kind}`");
    }
}

#[test]
fn a_trace_of_your_own_and_a_cost_table_of_your_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let [trace, costs] = ["mine.trace.zst", "costs.toml"].map(|name| directory.path().join(name));
    let [trace, costs] = [&trace, &costs].map(|path| path.to_str().expect("UTF-8"));
    xtask(&["trace", "gen", "three-holes", "--out", trace]);
    std::fs::write(
        costs,
        "name = \"mine\"\nbased_on = \"h100\"\n[malloc]\nbase_ns = 7\n[free]\nbase_ns = 5\n",
    )
    .expect("written");
    let outcomes = json(&[trace, "--allocators", "direct", "--cost-table", costs]);
    let calls = &outcomes[0]["driver_calls"];
    let [mallocs, frees] = ["malloc", "free"].map(|kind| calls[kind].as_u64().expect("a count"));
    assert!(mallocs > 0 && frees > 0);
    assert_eq!(outcomes[0]["modelled_driver_ns"], 7 * mallocs + 5 * frees);
    assert_eq!(outcomes[0]["cost_table"], "mine");
}

#[cfg(target_os = "linux")]
#[test]
fn the_way_through_libcuda_gives_the_same_figures() {
    let options = ["s3", "--policy", "both", "--check", "--event-lag", "10", "--device"];
    let [direct, through_libcuda] =
        ["emulated", "emulated-cuda"].map(|device| json(&[&options[..], &[device]].concat()));
    assert_eq!((direct.len(), through_libcuda.len()), (5, 5));
    for (ours, theirs) in direct.iter().zip(&through_libcuda) {
        assert_eq!((&ours["device"], &theirs["device"]), (&"emulated".into(), &"emulated-cuda".into()));
        for key in keys(ours).into_iter().filter(|key| !["device", "host_ns_per_event"].contains(key)) {
            assert_eq!(ours[key], theirs[key], "{key}");
        }
    }
    let text = xtask(&["replay", "s3", "--device", "emulated-cuda"]);
    assert!(text.contains("device             emulated-cuda, 80 GiB"), "{text}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_probe_writes_a_cost_table_that_bench_reads() {
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().to_str().expect("UTF-8");
    let text =
        xtask(&["probe", "--device", "emulated-cuda", "--repeat", "3", "--name", "here", "--out", out]);
    assert!(text.contains("EMULATED") && text.lines().any(|line| line.starts_with("set_access")), "{text}");
    let path = directory.path().join("here.toml");
    let path = path.to_str().expect("UTF-8");
    let written = std::fs::read_to_string(path).expect("written");
    assert!(written.starts_with("# Measured by `cargo xtask probe`"), "{written}");
    let outcomes = json(&["s1", "--allocators", "direct", "--cost-table", path]);
    assert_eq!(outcomes[0]["cost_table"], "here");
    assert!(outcomes[0]["modelled_driver_ns"].as_u64() > Some(0));
}

#[test]
fn replay_shows_what_happened_at_the_marks() {
    let text = xtask(&["replay", "s1", "--allocator", "direct"]);
    // At the mark 100 and 300 MiB live; at the end 250 more.
    let mark = text.lines().find(|line| line.starts_with("the request")).expect("the mark");
    assert!(mark.contains("400 MiB"), "{mark}");
    let end = text.lines().find(|line| line.starts_with("end ")).expect("the end");
    assert!(end.contains("650 MiB"), "{end}");
    assert!(text.contains("modelled"), "{text}");

    let all = xtask(&["replay", "t1", "--allocator", "direct", "--marks", "0"]);
    assert_eq!(all.lines().filter(|line| line.starts_with("step ")).count(), 28);
    let few = xtask(&["replay", "t1", "--allocator", "direct", "--marks", "5"]);
    assert!(
        few.contains("left out") && few.lines().filter(|line| line.starts_with("step ")).count() == 4,
        "{few}"
    );
}
