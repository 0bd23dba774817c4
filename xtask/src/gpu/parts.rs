//! The parts: which programs they are, how long each may take, and what is read from them.
//!
//! Main types: [`Trace`]. Neighbours: `child` runs them; the examples are those that the manifest of `concertina` names.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use concertina_bench::{AllocatorName, TraceFile};
use concertina_trace::LoadedTrace;
use concertina_vmm::Call;
use serde_json::Value;

use super::child::{Child, End};
use super::outcome::{Outcome, Status};
use super::{LOGS, MeasuredDevice, Whole};
use crate::error::XtaskError;
use crate::figures::{bytes, count};

/// Most seconds of each kind of process.
const CONTRACT: u64 = 60;
const BUILD: u64 = 180;
const EXAMPLE: u64 = 20;
const PROBE: u64 = 80;
const CASE: u64 = 60;
/// Of cudaMalloc, which takes long on many traces, and is only there to compare with.
const DIRECT: u64 = 30;

/// Below this many seconds nothing is begun any more.
const LEAST: u64 = 2;

/// Live bytes that a device must have room for in 16ths: an allocator that runs 5 % over them needs no more.
const ROOM: u64 = 17;

/// A trace, as far as it matters here.
#[derive(Debug)]
pub(super) struct Trace {
    word: String,
    name: String,
    live_peak_bytes: u64,
    events: usize,
}

/// The traces that these words name, or all bundled ones; the shortest first.
///
/// # Errors
/// No such trace, or one that can't be read.
pub(super) fn traces(words: &[String]) -> Result<Vec<Trace>, XtaskError> {
    let files = match words {
        [] => TraceFile::bundled(),
        words => words.iter().map(|word| TraceFile::find(word)).collect::<Result<_, _>>()?,
    };
    let mut traces = Vec::with_capacity(files.len());
    for file in files {
        // The parts run elsewhere.
        let path = fs::canonicalize(file.path()).unwrap_or_else(|_| file.path().to_owned());
        let loaded = LoadedTrace::open(&path)?;
        traces.push(Trace {
            word: path.to_string_lossy().into_owned(),
            name: file.name().to_owned(),
            live_peak_bytes: loaded.live_peak().bytes,
            events: loaded.steps().len(),
        });
    }
    traces.sort_by_key(|trace| trace.events);
    Ok(traces)
}

impl Whole<'_> {
    /// The time that a process of at most `most_s` seconds has; none if it is not worth beginning.
    fn limit(&self, most_s: u64) -> Option<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        (left >= Duration::from_secs(LEAST)).then(|| left.min(Duration::from_secs(most_s)))
    }

    /// Runs one process, and says how it went; `read` tells what was found where it ended well.
    fn go(
        &mut self,
        part: &'static str,
        what: &str,
        most_s: u64,
        child: Child<'_>,
        read: impl FnOnce(&Path) -> (Status, String, Value),
    ) -> Status {
        let Some(limit) = self.limit(most_s) else {
            self.outcomes.push(Outcome::skipped(part, what, "no time was left"));
            return Status::Skipped;
        };
        self.bar.set_message(format!("{part}: {what}"));
        let (end, took) = child.run(limit, || self.bar.tick());
        let (status, detail, figures) = match end {
            End::Well => read(&self.directory),
            End::Badly(why) => (Status::Failed, why, Value::Null),
            End::Stopped => {
                (Status::Failed, format!("stopped: not done in {} s", limit.as_secs()), Value::Null)
            }
        };
        let outcome = Outcome { part, what: what.to_owned(), status, took_ms: 0, detail, figures };
        self.outcomes.push(outcome.took(took));
        status
    }

    fn log(&self, part: &str, what: &str) -> PathBuf {
        self.directory.join(LOGS).join(format!("{part}-{what}.txt"))
    }

    /// This program, with other arguments, on the same device.
    fn xtask(&self, part: &str, what: &str, arguments: &[&str]) -> Child<'static> {
        // There is a path: it was started from it.
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("xtask"));
        Child::new(program, Path::new("."), self.log(part, what))
            .with(arguments)
            .with(&["--device", self.device.name()])
    }
}

fn nothing_read(_: &Path) -> (Status, String, Value) {
    (Status::Passed, String::new(), Value::Null)
}

/// The JSON file, which goes.
fn take(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_default();
    let _ = fs::remove_file(path);
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

pub(super) fn contract(whole: &mut Whole<'_>) {
    let file = whole.directory.join("contract.json");
    let child = whole.xtask("contract", "cases", &["contract", "--json", &file.to_string_lossy()]);
    whole.go("contract", "every case", CONTRACT, child, |_| {
        let cases = take(&file);
        let passed = cases.as_array().map_or(0, Vec::len);
        (Status::Passed, format!("{passed} cases"), cases)
    });
    // Of a run that failed, too.
    if file.exists()
        && let Some(last) = whole.outcomes.last_mut()
    {
        last.figures = take(&file);
    }
}

/// The examples that need CUDA, by the manifest of `concertina`.
fn example_names(root: &Path) -> Result<Vec<String>, String> {
    let path = root.join("crates/concertina/Cargo.toml");
    let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
    let manifest: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let needs_cuda = |example: &toml::Value| {
        let features = example.get("required-features")?.as_array()?;
        features.iter().any(|feature| feature.as_str() == Some("cuda")).then_some(())
    };
    let examples = manifest.get("example").and_then(toml::Value::as_array).into_iter().flatten();
    let examples = examples.filter(|example| needs_cuda(example).is_some());
    Ok(examples.filter_map(|example| Some(example.get("name")?.as_str()?.to_owned())).collect())
}

pub(super) fn examples(whole: &mut Whole<'_>) {
    let part = "examples";
    let names = match example_names(whole.root) {
        Ok(names) => names,
        Err(why) => {
            let failed = Outcome::skipped(part, "all", why);
            whole.outcomes.push(Outcome { status: Status::Failed, ..failed });
            return;
        }
    };
    // Beside this program: with its profile.
    let program = std::env::current_exe().unwrap_or_default();
    let Some((profile, target)) = program.parent().and_then(|profile| Some((profile, profile.parent()?)))
    else {
        whole.outcomes.push(Outcome::skipped(part, "all", "this program's directory is not known"));
        return;
    };
    let cargo = std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from);
    let target = target.to_string_lossy();
    let build = Child::new(cargo, whole.root, whole.log(part, "build"))
        .with(&["build", "--package", "concertina", "--features", "cuda", "--target-dir", &target])
        .with(&names.iter().flat_map(|name| ["--example", name]).collect::<Vec<_>>());
    let build = if profile.ends_with("release") { build.with(&["--release"]) } else { build };
    let built = whole.go(part, "build", BUILD, build, nothing_read);
    for name in names {
        if built != Status::Passed {
            whole.outcomes.push(Outcome::skipped(part, name, "not built"));
            continue;
        }
        let child = Child::new(profile.join("examples").join(&name), whole.root, whole.log(part, &name));
        let child = match whole.device {
            MeasuredDevice::Cuda => child,
            MeasuredDevice::EmulatedCuda => child.with(&["--emulated"]),
        };
        // Each checks its own result.
        whole.go(part, &name, EXAMPLE, child, nothing_read);
    }
}

pub(super) fn probe(whole: &mut Whole<'_>) {
    let (directory, name) = (whole.directory.to_string_lossy().into_owned(), whole.name.clone());
    let child = whole.xtask("probe", "short", &["probe", "--short", "--out", &directory, "--name", &name]);
    whole.go("probe", "short", PROBE, child, |directory| {
        let text = fs::read_to_string(directory.join(format!("{name}.json"))).unwrap_or_default();
        let figures: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        let rules = figures["rules"].as_array().map_or(0, Vec::len);
        let timings = figures["timings"].as_array().map_or(0, Vec::len);
        // The figures have files of their own.
        (Status::Passed, format!("{timings} timings, {rules} rules, in {name}.json"), Value::Null)
    });
}

pub(super) fn bench(whole: &mut Whole<'_>, traces: &[Trace]) {
    let free = whole.facts.free_bytes;
    for allocator in [AllocatorName::Concertina, AllocatorName::Direct] {
        for trace in traces {
            let what = format!("{} {allocator}", trace.name);
            let needed = trace.live_peak_bytes / 16 * ROOM;
            if needed > free {
                let why = format!("needs {}, free are {}", bytes(needed), bytes(free));
                whole.outcomes.push(Outcome::skipped("bench", what, why));
                continue;
            }
            case(whole, trace, allocator, &what);
        }
    }
}

fn case(whole: &mut Whole<'_>, trace: &Trace, allocator: AllocatorName, what: &str) {
    let file = whole.directory.join("case.json");
    let json = file.to_string_lossy();
    let arguments = ["bench", &trace.word, "--allocators", allocator.name(), "--json", &json];
    let child = whole.xtask("bench", &what.replace(' ', "-"), &arguments);
    let most = if allocator == AllocatorName::Direct { DIRECT } else { CASE };
    let status = whole.go("bench", what, most, child, |_| found(take(&file)));
    let _ = fs::remove_file(&file);
    if let (Status::Failed, AllocatorName::Direct, Some(last)) =
        (status, allocator, whole.outcomes.last_mut())
        && last.detail.starts_with("stopped")
    {
        last.status = Status::Stopped;
    }
}

/// What a case's JSON says.
fn found(outcomes: Value) -> (Status, String, Value) {
    let outcome = outcomes.get(0).cloned().unwrap_or(Value::Null);
    if outcome["completed"] != Value::Bool(true) {
        let why = outcome["error"].as_str().unwrap_or("it wrote no outcome").to_owned();
        return (Status::Failed, why, outcome);
    }
    let of_memory = Call::ALL.iter().filter(|call| call.is_memory_call());
    let calls: u64 = of_memory.filter_map(|call| outcome["driver_calls"][call.name()].as_u64()).sum();
    let driver = outcome["measured_driver_ns"].as_u64().or(outcome["modelled_driver_ns"].as_u64());
    let mapped = outcome["mapped_over_live"].as_f64().unwrap_or(f64::NAN);
    let seconds = driver.unwrap_or(0) as f64 / 1e9;
    (Status::Passed, format!("{mapped:.4} × live, {} calls, {seconds:.2} s", count(calls)), outcome)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{example_names, found, traces};
    use crate::gpu::outcome::Status;
    use crate::process::repository_root;

    #[test]
    fn every_example_file_is_found() {
        let directory = repository_root().join("crates/concertina/examples");
        let files = std::fs::read_dir(directory).expect("the directory of the examples").flatten();
        let mut files: Vec<String> = files
            .filter_map(|file| file.file_name().to_str()?.strip_suffix(".rs").map(str::to_owned))
            .collect();
        files.sort();
        let mut names = example_names(&repository_root()).expect("a manifest");
        names.sort();
        assert_eq!(names, files);
        assert!(names.contains(&"saxpy".to_owned()));
    }

    #[test]
    fn the_shortest_trace_comes_first() {
        let words = ["t1", "s1", "s6"].map(str::to_owned);
        let names: Vec<String> =
            traces(&words).expect("bundled").into_iter().map(|trace| trace.name).collect();
        assert_eq!(names, ["s1_middle", "s6_random", "t1_gpt2_train"]);
    }

    #[test]
    fn a_case_is_read_from_its_json() {
        let outcome = json!([{
            "completed": true, "driver_calls": { "map": 1_000, "unmap": 234, "event_query": 5 }, "mapped_over_live": 1.05,
            "measured_driver_ns": 250_000_000, "modelled_driver_ns": 0,
        }]);
        let (status, detail, _) = found(outcome);
        assert_eq!((status, detail.as_str()), (Status::Passed, "1.0500 × live, 1,234 calls, 0.25 s"));
        let (status, detail, _) = found(json!([{ "completed": false, "error": "out of memory" }]));
        assert_eq!((status, detail.as_str()), (Status::Failed, "out of memory"));
        assert_eq!(found(json!([])).0, Status::Failed);
    }
}
