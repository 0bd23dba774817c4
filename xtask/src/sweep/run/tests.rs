//! A sweep as its user has it: files in, files out. Neighbours: `merge` and `show` are tried on the same results.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use tempfile::TempDir;

use crate::cli::{Cli, Command};
use crate::error::XtaskError;
use crate::sweep::plan::Plan;
use crate::sweep::results;
use crate::sweep::show::Pivot;

/// Two traces, three allocators of which one has two policies, two capacities, two lags: 2 x 4 x 2 x 2.
const GRID: &str = r#"
traces = ["s1", "s3"]
allocators = ["direct", "pytorch:max_split_size_mb:64", "concertina"]
policies = ["lean", "balanced"]
capacities = ["1GiB", "1x"]
event_lags = [0, 10]
"#;
const POINTS: usize = 32;

/// A folder with a description.
struct Folder(TempDir);

impl Folder {
    fn new(description: &str) -> Self {
        let folder = Self(tempfile::tempdir().expect("a folder"));
        fs::write(folder.path("sweep.toml"), description).expect("written");
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs the command line with paths below the folder for words that begin with `@`.
    fn call(&self, line: &str) -> Result<(), XtaskError> {
        let word = |word: &str| match word.strip_prefix('@') {
            Some(name) => self.path(name).to_string_lossy().into_owned(),
            None => word.to_owned(),
        };
        let line = ["xtask", "sweep"].into_iter().chain(line.split(' ')).map(word);
        match Cli::try_parse_from(line).expect("a command line").command {
            Command::Sweep(args) => crate::sweep::run(args),
            other => panic!("{other:?}"),
        }
    }

    fn lines(&self, name: &str) -> Vec<results::ResultLine> {
        let found = results::read(&self.path(name)).expect("results");
        found.into_iter().map(|recorded| recorded.result.counted()).collect()
    }

    fn said(&self, line: &str) -> String {
        self.call(line).expect_err(line).to_string().replace(&*self.0.path().to_string_lossy(), "")
    }
}

#[test]
fn all_points_have_a_result_in_the_order_of_the_grid() {
    let folder = Folder::new(GRID);
    folder.call("@sweep.toml -o @all.jsonl --jobs 3").expect("run");
    let lines = folder.lines("all.jsonl");
    assert_eq!(lines.len(), POINTS);
    let plan = Plan::open(&folder.path("sweep.toml")).expect("a plan");
    let ids = |of: &[results::ResultLine]| of.iter().map(|line| line.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&lines), plan.points.iter().map(|planned| planned.id.clone()).collect::<Vec<_>>());
    // s1: 650 MiB live at once, so that PyTorch's segments do not fit on 1x of it at first.
    let of = |allocator: &str, policy: &str, capacity: &str| {
        let found = lines.iter().find(|line| {
            let point = &line.point;
            (point.trace.as_str(), point.allocator.as_str()) == ("s1_middle", allocator)
                && (point.policy.as_str(), point.capacity.as_str()) == (policy, capacity)
        });
        found.expect("a point").outcome.clone().expect("it ran")
    };
    let direct = of("direct", "-", "1x");
    assert_eq!((direct.capacity_bytes, direct.mapped_peak_bytes), (650 << 20, 650 << 20));
    assert!(of("concertina", "lean", "1x").completed);
    assert_eq!(of("concertina", "lean", "1GiB").mapped_peak_bytes, 650 << 20);
    // Again: nothing is left to do, and the file stays.
    let text = || fs::read_to_string(folder.path("all.jsonl")).expect("read");
    let before = text();
    folder.call("@sweep.toml -o @all.jsonl").expect("nothing to do");
    let changed = before
        .lines()
        .zip(text().lines())
        .find(|(before, after)| before != after)
        .map(|(line, _)| line.to_owned());
    assert_eq!((changed, text().len()), (None, before.len()));
}

#[test]
fn a_run_that_was_killed_goes_on_wherever_it_was_cut_off() {
    let folder = Folder::new("traces = [\"s1\"]\nallocators = [\"direct\", \"concertina\"]\n");
    folder.call("@sweep.toml -o @all.jsonl").expect("run");
    let whole = fs::read(folder.path("all.jsonl")).expect("read");
    let wanted = folder.lines("all.jsonl");
    let first_line = whole.iter().position(|&byte| byte == b'\n').expect("two lines") + 1;
    // In each place of the last line, and in some of the first.
    for cut in (0..first_line).step_by(97).chain(first_line..whole.len()) {
        fs::write(folder.path("all.jsonl"), &whole[..cut]).expect("written");
        // What is whole is kept as it is: its host time is not measured anew.
        folder.call("@sweep.toml -o @all.jsonl").expect("run");
        assert_eq!(folder.lines("all.jsonl"), wanted, "cut off at {cut}");
        let again = fs::read(folder.path("all.jsonl")).expect("read");
        assert_eq!(again.starts_with(&whole[..first_line]), cut >= first_line, "cut off at {cut}");
    }
}

#[test]
fn shards_merged_are_the_whole_whatever_their_order() {
    let folder = Folder::new(GRID);
    folder.call("@sweep.toml -o @whole.jsonl").expect("run");
    for part in 1..=3 {
        folder.call(&format!("@sweep.toml -o @part-{part}.jsonl --shard {part}/3")).expect("run");
    }
    folder
        .call("merge @sweep.toml -o @merged.jsonl @part-3.jsonl @part-1.jsonl @part-2.jsonl")
        .expect("merged");
    assert_eq!(folder.lines("merged.jsonl"), folder.lines("whole.jsonl"));
    // One twice is no harm; one too few is told.
    folder.call("merge @sweep.toml -o @again.jsonl @merged.jsonl @part-1.jsonl").expect("merged");
    assert_eq!(folder.lines("again.jsonl"), folder.lines("whole.jsonl"));
    let said = folder.said("merge @sweep.toml -o @few.jsonl @part-1.jsonl @part-2.jsonl");
    assert!(said.starts_with("10 of 32 points have no result, the first is s1_middle, direct"), "{said}");
    assert!(!folder.path("few.jsonl").exists());
    folder.call("merge @sweep.toml -o @few.jsonl @part-1.jsonl @part-2.jsonl --partial").expect("merged");
    assert_eq!(folder.lines("few.jsonl").len(), 22);
}

#[test]
fn results_that_contradict_each_other_or_are_of_another_sweep_are_refused() {
    let folder = Folder::new(GRID);
    folder.call("@sweep.toml -o @whole.jsonl").expect("run");
    let text = fs::read_to_string(folder.path("whole.jsonl")).expect("read");
    let forged = text.replacen("\"mapped_peak_bytes\":681574400", "\"mapped_peak_bytes\":1", 1);
    assert_ne!(forged, text);
    fs::write(folder.path("forged.jsonl"), forged).expect("written");
    let said = folder.said("merge @sweep.toml -o @out.jsonl @whole.jsonl @forged.jsonl");
    assert!(said.contains("have different results for s1_middle, direct"), "{said}");
    assert!(said.starts_with("/whole.jsonl:") && said.contains("/forged.jsonl:"), "{said}");

    fs::write(folder.path("other.toml"), GRID.replace("[0, 10]", "[0]")).expect("written");
    let said = folder.said("@other.toml -o @whole.jsonl");
    assert!(
        said.starts_with("/whole.jsonl:2: s1_middle, direct, 1GiB, 2MiB, lag 10, h100 is no point"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(folder.path("whole.jsonl")).expect("read"), text, "nothing was lost");
    folder.call("@other.toml -o @whole.jsonl --fresh").expect("anew");
    assert_eq!(folder.lines("whole.jsonl").len(), POINTS / 2);
}

#[test]
fn a_point_that_cannot_begin_is_a_result_and_one_is_searched_for() {
    let folder = Folder::new(
        "traces = [\"s1\"]\nallocators = [\"pytorch-expandable\", \"concertina\"]\n\
         granularities = [\"2MiB\", \"4MiB\"]\ncapacities = [\"min\"]\n",
    );
    folder.call("@sweep.toml -o @all.jsonl").expect("run");
    let lines = folder.lines("all.jsonl");
    let errors: Vec<_> = lines.iter().filter_map(|line| line.error.as_deref()).collect();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("no multiple of the device's granularity"), "{errors:?}");
    let found = |place: usize| lines[place].outcome.as_ref().and_then(|outcome| outcome.min_capacity_bytes);
    // By PyTorch's binary: 1.0154 of 650 MiB.
    assert_eq!((found(0), found(1), found(2)), (Some(660 << 20), None, Some(650 << 20)));
    let pivot = Pivot::new(&lines, "granularity", "allocator", "min_capacity_bytes", &[]).expect("a table");
    assert_eq!(
        pivot.csv(),
        "granularity,pytorch-expandable,concertina\r\n2MiB,692060160,681574400\r\n4MiB,error,683671552\r\n"
    );
}

#[test]
fn a_table_says_what_it_cannot_show() {
    let folder = Folder::new(GRID);
    folder.call("@sweep.toml -o @all.jsonl").expect("run");
    let lines = folder.lines("all.jsonl");
    let said = |rows, columns, value, conditions: &[(&str, &str)]| {
        Pivot::new(&lines, rows, columns, value, conditions).expect_err("it can't").to_string()
    };
    assert!(
        said("traces", "allocator", "mapped_over_live", &[])
            .starts_with("no row `traces`; there are: trace,")
    );
    assert!(
        said("trace", "allocator", "mapped", &[]).contains("no value `mapped`; there are: "),
        "{lines:?}"
    );
    assert_eq!(
        said("trace", "allocator", "mapped_over_live", &[("policy", "-")]),
        "row s1_middle, column direct has several results, which differ in capacity, timing; choose with --where \
         capacity=..."
    );
    assert_eq!(
        said("trace", "allocator", "events", &[("policy", "x")]),
        "no result is left after --where; 32 were read"
    );
    let one = [("capacity", "1GiB"), ("timing", "lag 0"), ("policy", "lean")];
    let pivot = Pivot::new(&lines, "trace", "allocator", "driver_calls.create", &one).expect("a table");
    assert!(pivot.csv().starts_with("trace,concertina\r\ns1_middle,325\r\n"), "{}", pivot.csv());
    folder.call("show @all.jsonl --where capacity=1GiB --where policy=- --columns timing --rows allocator --csv @t.csv")
        .expect_err("two traces in one cell");
}

/// Each with what must be said of it.
#[test]
fn a_description_that_means_nothing_is_refused_with_its_place() {
    let with = |line: &str| format!("traces = [\"s1\"]\nallocators = [\"direct\"]\n{line}\n");
    let cases = [
        (String::new(), "missing field `traces`"),
        ("traces = 3".to_owned(), "line 1: invalid type: integer"),
        (with("speed = 1"), "line 3: unknown field `speed`"),
        (with("capacities = [\"0\"]"), "capacities: `0` is a size of 0"),
        (with("capacities = []"), "capacities: the list is empty"),
        (with("granularities = [\"3MiB\"]"), "granularities: `3MiB` is no power of two"),
        (with("policies = [\"greedy\"]"), "policies: no policy `greedy`"),
        (with("event_lags = [1, 1]"), "event_lags: `1` stands there twice"),
        (with("event_lags = [-1]"), "line 3: "),
        (with("cost_tables = [\"tpu\"]"), "tpu"),
        (with("x = ["), "line "),
        ("traces = [\"s99\"]\nallocators = [\"direct\"]".to_owned(), "no trace `s99`"),
        (
            "traces = [\"s1\", \"s1_middle\"]\nallocators = [\"direct\"]".to_owned(),
            "`s1_middle` stands there twice",
        ),
        ("traces = [\"s1\"]\nallocators = [\"jemalloc\"]".to_owned(), "allocators: no allocator `jemalloc`"),
        (
            "traces = [\"s1\"]\nallocators = [\"direct:x:1\"]".to_owned(),
            "allocators: allocator `direct` takes no",
        ),
    ];
    for (text, wanted) in cases {
        let folder = Folder::new(&text);
        let said = folder.said("@sweep.toml -o @out.jsonl");
        assert!(said.contains(wanted) && !said.contains('\n'), "{text:?}: {said}");
        assert!(!folder.path("out.jsonl").exists(), "{text:?}");
    }
    let many: Vec<String> = (0..1_000_001).map(|lag: u32| lag.to_string()).collect();
    let folder = Folder::new(&with(&format!("event_lags = [{}]", many[..100].join(","))));
    folder.call("@sweep.toml --dry-run").expect("a hundred points");
    let lists =
        format!("event_lags = [{}]\nmax_mappings = [{}]", many[..1001].join(","), many[1..1001].join(","));
    let said = Folder::new(&with(&lists)).said("@sweep.toml --dry-run");
    assert!(said.ends_with("the grid has 1001000 points; a sweep has at most 1000000"), "{said}");
}

#[test]
fn the_committed_example_is_what_this_program_finds() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/sweeps");
    let plan = Plan::open(&docs.join("granularity.toml")).expect("a plan");
    let committed = results::read(&docs.join("granularity.jsonl")).expect("results");
    assert_eq!(committed.len(), plan.points.len(), "of each point");
    for (recorded, planned) in committed.iter().zip(&plan.points) {
        assert_eq!((&recorded.result.id, &recorded.result.point), (&planned.id, &planned.point));
    }
    // Those of the smallest trace, whole.
    for (recorded, planned) in committed.iter().zip(&plan.points) {
        if planned.point.trace == "s4_nlp_dynamic" {
            assert_eq!(
                super::run_one(&plan, planned).counted(),
                recorded.result.counted(),
                "{}",
                planned.point
            );
        }
    }
}
