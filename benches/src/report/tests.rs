//! The page and the charts of runs whose figures are known by hand. How they look and work in a browser is tested with
//! `cargo xtask`.

use std::collections::BTreeSet;

use concertina_trace::{LoadedTrace, TraceReader, Watch};
use roxmltree::Document;
use serde_json::{Value, json};

use super::{Observed, Report, TraceReport};
use crate::{AllocatorList, Capacity, Case, DeviceSpec, Outcome, PolicyName};

/// A name and labels that would do harm if they were markup, and characters that XML can't hold.
const HOSTILE: &str = "</script><script>alert('1')</script>\"&amp; \u{1}\u{202e}";

/// Runs and observes a trace of this name on all allocators by default: 4 MiB, 2 MiB, the first freed, 6 MiB.
fn observed(name: &str, label: &str) -> TraceReport {
    observed_on(&DeviceSpec::default(), name, label)
}

/// The same on this device.
fn observed_on(device: &DeviceSpec, name: &str, label: &str) -> TraceReport {
    let text = format!(
        "alloc-trace 1\n# name: {name}\na 1 4194304 0\na 2 2097152 0\nf 1\ni {label}\na 3 6291456 0\n"
    );
    let reader = TraceReader::new(text.as_bytes(), "test").expect("a trace");
    let trace = LoadedTrace::read(reader).expect("a trace");
    let watch = Watch::evenly(&trace, 4).with_picture(trace.live_peak().event);
    let case = |allocator| {
        let case = Case { trace: &trace, allocator, policy: PolicyName::Lean, device };
        let outcome = case.run().expect("it runs").outcome;
        Observed { outcome, observation: Some(case.observe(&watch).expect("it runs")) }
    };
    let cases = AllocatorList::default().0.into_iter().map(case).collect();
    TraceReport { name: trace.name().to_owned(), marks: trace.marks().to_vec(), cases }
}

/// An outcome with these figures, without an observation.
fn outcome(allocator: &str, policy: Option<&str>, changes: Value) -> Observed {
    let mut figures = json!({
        "trace": "t", "allocator": allocator, "policy": policy, "device": "emulated", "capacity_bytes": 1000,
        "granularity_bytes": 64, "event_lag": 0, "cost_table": "h100", "events": 5, "live_peak_bytes": 500,
        "mapped_peak_bytes": 600, "mapped_over_live": 1.2, "address_peak_bytes": 600, "address_over_live": 1.2,
        "reserved_address_peak_bytes": 600, "completed": true, "driver_calls": {"malloc": 3, "event_query": 9},
        "driver_calls_by_mark": [], "marks": [], "fences": {"records": 0, "waits": 0}, "modelled_driver_ns": 2_000_000,
        "host_waits": 0, "host_ns_per_event": 10.0
    });
    let object = figures.as_object_mut().expect("an object");
    object.extend(changes.as_object().expect("an object").clone());
    let outcome: Outcome = serde_json::from_value(figures).expect("an outcome");
    Observed { outcome, observation: None }
}

fn report(traces: Vec<TraceReport>) -> Report {
    Report { command: "cargo xtask bench".to_owned(), traces }
}

fn cases(cases: Vec<Observed>) -> Report {
    report(vec![TraceReport { name: "t".to_owned(), marks: Vec::new(), cases }])
}

/// What stands in the cells of a metric, the best with a star.
fn row(page: &str, key: &str) -> Vec<String> {
    let mut cells = Vec::new();
    for cell in page.split("<td").skip(1).filter(|cell| cell.contains(&format!("data-key=\"{key}\""))) {
        let text = cell.split_once('>').expect("a tag").1.split("</td>").next().unwrap_or_default();
        let best = text.contains("★");
        let text = text.rsplit("</span>").next().unwrap_or_default();
        cells.push(format!("{}{text}", if best { "★" } else { "" }));
    }
    cells
}

#[test]
fn nothing_of_a_trace_becomes_markup() {
    let report = report(vec![observed(HOSTILE, HOSTILE)]);
    let page = report.page();
    // The page has one script, its own.
    assert_eq!((page.matches("<script").count(), page.matches("</script").count()), (1, 1), "{page}");
    assert!(page.contains("&lt;script&gt;alert('1')&lt;/script&gt;&quot;&amp;amp;"));
    for text in std::iter::once(page).chain(report.chart_files().into_iter().map(|chart| chart.svg)) {
        assert!(!text.contains(['\u{1}', '\u{202e}']));
    }
    let command = Report { command: HOSTILE.to_owned(), traces: Vec::new() };
    assert_eq!(command.page().matches("<script").count(), 1);
}

#[test]
fn charts_are_documents_of_their_own() {
    let report = report(vec![observed("mine", "half"), observed(HOSTILE, HOSTILE)]);
    let files = report.chart_files();
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    let hostile = "script--script-alert--1----script---amp";
    let expected = ["mine", hostile]
        .map(|slug| ["memory", "mapped", "calls", "map"].map(|chart| format!("{slug}-{chart}.svg")))
        .concat();
    assert_eq!(names, expected);
    for file in &files {
        let document = Document::parse(&file.svg).unwrap_or_else(|error| panic!("{}: {error}", file.name));
        let root = document.root_element();
        assert_eq!(
            (root.tag_name().name(), root.tag_name().namespace()),
            ("svg", Some("http://www.w3.org/2000/svg"))
        );
        let style = root.children().find(|node| node.has_tag_name("style")).and_then(|node| node.text());
        let style = style.expect("a style");
        assert!(style.contains("prefers-color-scheme:dark") && !style.contains("var("), "{style}");
        // Nothing is drawn without a place.
        assert!(!file.svg.contains("NaN") && !file.svg.contains("inf"), "{}", file.name);
    }
    assert_eq!(
        Report::sure_files(["mine", HOSTILE]),
        ["mine-mapped.svg".to_owned(), format!("{hostile}-mapped.svg")]
    );
}

#[test]
fn file_names_are_unlike_for_traces_that_are_called_alike() {
    let names = Report::sure_files(["a b", "a-b", "a-b-2", "a/b"]);
    assert_eq!(names, ["a-b-mapped.svg", "a-b-2-mapped.svg", "a-b-2-2-mapped.svg", "a-b-3-mapped.svg"]);
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 4);
}

#[test]
fn the_page_has_the_figures_and_the_pictures() {
    let page = report(vec![observed("mine", "half")]).page();
    // By hand: 8 MiB live at the peak; direct never holds more. PyTorch takes segments of 20 MiB for blocks of 1 to 10
    // MiB: one for the first two, whose 14 MiB behind them hold the third.
    assert_eq!(row(&page, "mapped_over_live"), ["★1.0000", "2.5000", "2.5000", "★1.0000"]);
    assert_eq!(row(&page, "mapped_peak_bytes")[..2], ["★8 MiB", "20 MiB"]);
    // Three mallocs and a free.
    assert_eq!(row(&page, "memory_calls")[0], "4");
    for part in [
        "5 events",
        "8 MiB live at the peak",
        "80 GiB",
        "MODELLED",
        "name=\"viewport\"",
        "half",
        "cargo xtask bench",
    ] {
        assert!(page.contains(part), "{part}");
    }
    for kind in ["memory", "mapped", "calls", "map"] {
        assert_eq!(page.matches(&format!("data-chart=\"{kind}\"")).count(), 1, "{kind}");
    }
    // Nobody searched.
    assert!(!page.contains("data-chart=\"min-capacity\"") && !page.contains("minimum capacity"));
    // Live: 4, 6, 2, 2 and 8 MiB; direct maps as much.
    let mib = [4, 6, 2, 2, 8].map(|mib: u64| (mib << 20).to_string()).join(",");
    assert!(page.contains(&format!("data-values=\"[[0,1,2,3,4],[{mib}],[{mib}],[20971520")), "{page}");
    // Nothing is loaded from anywhere.
    for loads in ["http://", "https://", " src=", "@import", "url("] {
        assert!(!page.contains(loads), "{loads}");
    }
}

#[test]
fn the_map_shows_each_page_once() {
    let page = report(vec![observed("mine", "half")]).page();
    let values =
        page.split("data-chart=\"map\" data-values=\"").nth(1).and_then(|rest| rest.split('"').next());
    let values: Vec<Vec<Vec<u64>>> = serde_json::from_str(values.expect("values")).expect("numbers");
    let mib = |mib: u64| mib << 20;
    // Direct: two pages given back, two were there before; one page, then three. (The lower ones have no use any more.)
    let held = |cells: &[Vec<u64>]| -> Vec<(u64, u64, u64)> {
        cells.iter().filter(|cell| cell[0] == 0).map(|cell| (cell[1], cell[2], cell[3])).collect()
    };
    assert_eq!(held(&values[0]), [(1, 0, mib(2)); 4]);
    // PyTorch: ten pages in a row; 6 MiB at the end of the first two blocks, or before them.
    let pytorch = held(&values[1]);
    assert_eq!(pytorch.len(), 10);
    assert_eq!(pytorch.iter().map(|cell| cell.2).sum::<u64>(), mib(8));
    assert_eq!(pytorch.iter().filter(|cell| cell.1 == 1).count(), 6);
}

#[test]
fn the_best_is_marked_among_those_that_completed() {
    let page = cases(vec![
        outcome("a", None, json!({"mapped_over_live": 1.3})),
        outcome(
            "b",
            None,
            json!({"mapped_over_live": 1.1, "completed": false, "failure": "out_of_memory",
            "failed_at_event": 1234, "error": "no <memory>"}),
        ),
        outcome("c", None, json!({"mapped_over_live": 1.200_01, "host_waits": 1})),
        outcome("d", None, json!({"mapped_over_live": 1.200_02})),
    ])
    .page();
    // 1.20001 and 1.20002 look the same, so both are the best.
    assert_eq!(row(&page, "mapped_over_live"), ["1.3000", "1.1000*", "★1.2000", "★1.2000"]);
    // What stopped had no chance to wait: it doesn't count.
    assert_eq!(row(&page, "host_waits"), ["★0", "0*", "1", "★0"]);
    // All alike: nobody is better. And only calls that change memory count.
    assert_eq!(row(&page, "memory_calls"), ["3", "3*", "3", "3"]);
    assert!(page.contains("stopped: out of memory at event 1,234. no &lt;memory&gt;"), "{page}");
}

#[test]
fn figures_that_only_some_runs_have_are_shown_where_they_are() {
    // As the JSON of a search for the minimum capacity has them; an outcome that does not know the key drops it.
    let found = outcome("a", None, json!({"device_ns_over_kernels": 1.5, "modelled_device_ns": 7_000_000}));
    let page = cases(vec![found, outcome("b", None, json!({}))]).page();
    assert_eq!(row(&page, "device_ns_over_kernels"), ["1.5000"]);
    assert_eq!(row(&page, "modelled_device_ns"), ["7.0"]);
    assert!(!page.contains("data-key=\"measured_driver_ns\""));
    let gpu = outcome(
        "a",
        None,
        json!({"device": "cuda", "measured_driver_ns": 3_000_000, "modelled_driver_ns": 0}),
    );
    let page = cases(vec![gpu]).page();
    assert_eq!(row(&page, "measured_driver_ns"), ["3.0"]);
    assert!(!page.contains("data-key=\"modelled_driver_ns\"") && !page.contains("data-chart=\"map\""));
}

#[test]
fn an_allocator_has_one_colour_everywhere_and_policies_have_names() {
    let both = || {
        vec![
            outcome("direct", None, json!({})),
            outcome("concertina", Some("lean"), json!({})),
            outcome("concertina", Some("balanced"), json!({})),
            outcome("x", None, json!({})),
        ]
    };
    let page = cases(both()).page();
    assert!(page.contains("concertina (lean)") && page.contains("concertina (balanced)"));
    let one = cases(vec![outcome("concertina", Some("lean"), json!({}))]).page();
    assert!(!one.contains("concertina (lean)"));
    // Blue is Concertina's and grey is direct's, whatever else is there.
    for page in [&page, &one] {
        assert!(
            page.contains("concertina: mapped over live")
                || page.contains("concertina (lean): mapped over live")
        );
        assert!(page.contains("class=\"fill h0\""));
    }
    assert!(
        page.contains("class=\"fill h7\"")
            && page.contains("class=\"fill h1\"")
            && !one.contains("class=\"fill h7\"")
    );
    let many = (0..12).map(|index| outcome(&format!("a{index}"), None, json!({}))).collect();
    let page = cases(many).page();
    // The ninth and later dash their lines.
    assert!(page.contains("class=\"fill h0 dashed\"") || page.contains("class=\"fill h1 dashed\""), "{page}");
}

#[test]
fn who_stops_early_is_shown_where_it_stopped() {
    // PyTorch's first segment has 20 MiB. There is no other reason to fail: direct needs 8.
    let device = DeviceSpec { capacity: Capacity::Bytes(10 << 20), ..DeviceSpec::default() };
    let report = report(vec![observed_on(&device, "mine", "half")]);
    let page = report.page();
    assert_eq!(row(&page, "mapped_peak_bytes"), ["8 MiB", "0 B*", "0 B*", "8 MiB"]);
    assert!(page.contains("stopped: out of memory at event 0"), "{page}");
    // The last event is 4, and what stopped before it says so.
    assert!(page.contains("After event 4.") && page.contains("8 MiB mapped, 100.0 % of it live"));
    assert_eq!(page.matches("when it stopped: 0 B mapped").count(), 4);
    // Its line has no values.
    assert!(page.contains(",[null,null,null,null,null],[null,null,null,null,null],["), "{page}");
    report.chart_files().iter().for_each(|file| drop(Document::parse(&file.svg).expect("XML")));
}

#[test]
fn long_options_have_a_number_that_is_explained() {
    let long = |n: u64| format!("pytorch:max_split_size_mb:{n},garbage_collection_threshold:0.8");
    let short = "pytorch:max_split_size_mb:20";
    let run = [short, &long(30), "direct", &long(40)].map(|name| outcome(name, None, json!({}))).to_vec();
    let report = cases(run);
    let page = report.page();
    for (number, options) in [(1, 30), (2, 40)] {
        assert!(page.contains(&format!("<b>#{number}</b>: {}", long(options))), "{page}");
        // In the key of no chart, but in the tables, with a bar, and where one points.
        assert!(page.matches(&format!("pytorch#{number}")).count() > 4);
    }
    assert!(page.contains(&format!("{short}: mapped over live: 1.2000")) && !page.contains("pytorch#3"));
    for file in report.chart_files() {
        let all = [(1, 30), (2, 40)].map(|(number, options)| format!("#{number}: {}.", long(options)));
        assert!(all.iter().all(|options| file.svg.contains(options)), "{}", file.svg);
    }
}

#[test]
fn nothing_at_all_is_a_page_too() {
    assert!(report(Vec::new()).page().contains("<h1>"));
    let empty = cases(Vec::new());
    assert!(empty.page().contains("<h2>t</h2>") && empty.chart_files().is_empty());
}
