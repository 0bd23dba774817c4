//! The page of `bench --html` in a real browser: what it shows, that it works without a mouse, that nothing overflows
//! on a phone, and that the console stays empty. Neighbours: `browser` speaks with Chromium; without one these tests
//! are skipped, unless `CONCERTINA_BROWSER` is `required`.

mod browser;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use browser::Browser;

/// Widths in pixels: a small phone, a desk.
const WIDTHS: [u32; 2] = [360, 1280];
const SCHEMES: [&str; 2] = ["light", "dark"];
/// Driver calls that change memory.
const MEMORY_CALLS: [&str; 9] =
    ["reserve", "unreserve", "create", "release", "map", "unmap", "set_access", "malloc", "free"];

/// What `bench` wrote for these arguments.
struct Written {
    folder: TempDir,
    outcomes: Vec<Value>,
}

impl Written {
    fn by(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let [page, charts, json] =
            ["new/page.html", "charts", "out.json"].map(|name| folder.path().join(name));
        let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .arg("bench")
            .args(arguments)
            .args([Path::new("--html"), &page, Path::new("--svg"), &charts, Path::new("--json"), &json])
            .output()
            .expect("xtask starts");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        // The table in the terminal stays.
        assert!(String::from_utf8_lossy(&output.stdout).contains("modelled"));
        let text = std::fs::read_to_string(&json).expect("the file is written");
        Self { folder, outcomes: serde_json::from_str(&text).expect("a list of objects") }
    }

    fn page(&self) -> PathBuf {
        self.folder.path().join("new/page.html")
    }

    fn charts(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.path().join("charts")).expect("the folder is there");
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        paths
    }
}

/// Every figure of a table: its key, its column from 0, its exact value and its text.
const FIGURES: &str = "
    [...document.querySelectorAll('[data-table]')].flatMap((table) =>
        [...table.querySelectorAll('td[data-key]')].map((cell) => ({
            table: table.dataset.table,
            row: cell.closest('tr').dataset.trace ?? null,
            key: cell.dataset.key,
            column: cell.cellIndex - 1,
            value: Number(cell.dataset.value),
            text: cell.textContent,
        })))";

/// A figure as the JSON has it.
fn in_json(outcome: &Value, key: &str) -> f64 {
    if key == "memory_calls" {
        return MEMORY_CALLS
            .iter()
            .map(|call| outcome["driver_calls"][call].as_f64().expect("a count"))
            .sum();
    }
    let value = outcome.pointer(&format!("/{key}")).unwrap_or_else(|| panic!("no {key} in {outcome}"));
    value.as_f64().unwrap_or_else(|| panic!("{key} is no number: {value}"))
}

#[test]
fn tables_say_what_the_json_says() {
    let Some(mut browser) = Browser::start() else { return };
    let written = Written::by(&["s1", "s3", "--policy", "both"]);
    browser.visit(&written.page());
    let figures = browser.value(FIGURES);
    let figures = figures.as_array().expect("a list");
    let allocators = 5;
    for figure in figures {
        let trace = if figure["row"].is_null() { &figure["table"] } else { &figure["row"] };
        let of_trace: Vec<_> = written.outcomes.iter().filter(|outcome| outcome["trace"] == *trace).collect();
        assert_eq!(of_trace.len(), allocators, "{figure}");
        let outcome = of_trace[figure["column"].as_u64().expect("a column") as usize];
        let key = figure["key"].as_str().expect("a key");
        assert_eq!(figure["value"].as_f64(), Some(in_json(outcome, key)), "{figure} of {outcome}");
    }
    // At a glance 2 traces; then at least 9 rows for each.
    assert!(figures.len() >= allocators * (2 + 2 * 9), "{}", figures.len());
    // By hand (100 + 200 + 300 MiB, the middle freed, then 250): 650 MiB, and nobody has less.
    let of_direct = |key: &str| {
        let found = figures
            .iter()
            .find(|figure| figure["table"] == "s1_middle" && figure["column"] == 0 && figure["key"] == key);
        found.expect("a cell")["text"].as_str().expect("a text").to_owned()
    };
    assert_eq!(of_direct("mapped_peak_bytes"), "★best: 650 MiB");
    assert_eq!(of_direct("mapped_over_live"), "★best: 1.0000");
    assert_eq!(of_direct("memory_calls"), "5");
    let heads = browser.value(
        "[...document.querySelectorAll('[data-table=s1_middle] thead th')].map((th) => th.textContent)",
    );
    let expected = [
        "less is better",
        "direct",
        "pytorch",
        "pytorch-expandable",
        "concertina (lean)",
        "concertina (balanced)",
    ];
    assert_eq!(heads, json!(expected));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn on_every_screen_all_is_there_and_nothing_overflows() {
    let Some(mut browser) = Browser::start() else { return };
    let long = "pytorch:max_split_size_mb:128,roundup_power2_divisions:[64:8,>:1]";
    let list = format!("direct,pytorch,{long},concertina");
    let written = Written::by(&["s1", "s7", "--allocators", &list]);
    for width in WIDTHS {
        for scheme in SCHEMES {
            browser.screen(width, scheme);
            browser.visit(&written.page());
            let place = format!("{width} px, {scheme}");
            let overflow = "[document.documentElement.scrollWidth, innerWidth]";
            let sizes = browser.value(overflow);
            assert_eq!(sizes[1], width, "{place}");
            assert!(sizes[0].as_u64() <= sizes[1].as_u64(), "{place}: {sizes}");
            // Also with everything unfolded.
            browser
                .value("document.querySelectorAll('details').forEach((details) => { details.open = true; })");
            let sizes = browser.value(overflow);
            assert!(sizes[0].as_u64() <= sizes[1].as_u64(), "{place}, unfolded: {sizes}");
            let charts = browser.value(
                "[...document.querySelectorAll('.trace')].map((trace) =>
                    [...trace.querySelectorAll('figure')].map((figure) => {
                        const drawn = [...figure.querySelectorAll('.plot svg')];
                        const seen = drawn.filter((svg) => svg.getClientRects().length);
                        const box = seen[0].getBoundingClientRect();
                        return [figure.dataset.chart, seen.length, box.height > 60 && box.width > 250,
                                seen[0].querySelectorAll('path, rect').length > 5];
                    }))",
            );
            let chart = |name: &str| json!([name, 1, true, true]);
            let each = json!(["memory", "mapped", "calls", "map"].map(chart));
            assert_eq!(charts, json!([each, each]), "{place}");
            // Dark is dark: the first channel of the page's colour.
            let red =
                browser.value("Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])");
            assert_eq!(red.as_u64().expect("a colour") < 100, scheme == "dark", "{place}");
            // Text can be read: as large on a phone as on a desk, give or take.
            let size = browser.value(
                "(() => {
                   const drawn = [...document.querySelectorAll('.plot svg')];
                   const svg = drawn.find((svg) => svg.getClientRects().length);
                   return 12 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width; })()",
            );
            assert!((11.0..15.0).contains(&size.as_f64().expect("a size")), "{place}: {size}");
            assert_eq!(browser.complaints(), [""; 0], "{place}");
        }
    }
}

/// The middle of what a selector finds first, scrolled to.
fn middle(browser: &mut Browser, selector: &str) -> (f64, f64) {
    let place = browser.value(&format!(
        "(() => {{
            const found = [...document.querySelectorAll({selector:?})].find((one) => one.getClientRects().length);
            found.scrollIntoView({{ block: 'center' }});
            const box = found.getBoundingClientRect();
            return [box.left + box.width / 2, box.top + box.height / 2];
        }})()"
    ));
    (place[0].as_f64().expect("a place"), place[1].as_f64().expect("a place"))
}

fn readout(browser: &mut Browser, chart: &str) -> String {
    browser.text(&format!("document.querySelector('[data-chart={chart}] .readout').textContent"))
}

#[test]
fn values_are_shown_to_mouse_finger_and_keyboard() {
    let Some(mut browser) = Browser::start() else { return };
    let written = Written::by(&["s1", "--allocators", "direct,pytorch,concertina", "--policy", "lean"]);
    for width in WIDTHS {
        let finger = width < 700;
        browser.screen(width, "light");
        browser.visit(&written.page());
        assert!(readout(&mut browser, "memory").starts_with("Point at the chart"));

        // Events 0 to 2 take 100, 200 and 300 MiB, 3 frees 200, 4 is a mark, 5 takes 250. The caches keep what was
        // freed, and PyTorch has no room for 250 MiB in 200.
        browser.value("document.querySelector('[data-chart=memory] .plot').focus()");
        browser.press("End");
        let at_end =
            "event 5 · live, as asked: 650 MiB · direct: 650 MiB · pytorch: 850 MiB · concertina: 650 MiB";
        assert_eq!(readout(&mut browser, "memory"), at_end);
        browser.press("ArrowLeft");
        browser.press("ArrowLeft");
        let freed =
            "event 3 · live, as asked: 400 MiB · direct: 400 MiB · pytorch: 600 MiB · concertina: 600 MiB";
        assert_eq!(readout(&mut browser, "memory"), freed);
        browser.press("Home");
        assert!(
            readout(&mut browser, "memory")
                .starts_with("event 0 · live, as asked: 100 MiB · direct: 100 MiB")
        );

        let (x, y) = middle(&mut browser, "[data-chart=memory] .plot svg .live");
        // Of the area under the curve: between events 2 and 3.
        browser.point(x, y, finger);
        let told = readout(&mut browser, "memory");
        assert!(told.starts_with("event 2 · live, as asked: 600") || told == freed, "{told}");
        let seen = browser.value(
            "[...document.querySelectorAll('[data-chart=memory] .cursor.on')]
                .filter((one) => one.getClientRects().length).length",
        );
        assert_eq!(seen, 1);

        // 850 MiB over 650.
        let (x, y) = middle(&mut browser, "[data-chart=mapped] .plot svg .hit:nth-of-type(2) rect");
        browser.point(x, y, finger);
        assert_eq!(readout(&mut browser, "mapped"), "pytorch: mapped over live: 1.3077");

        browser.value("document.querySelector('[data-chart=calls] .plot').focus()");
        browser.press("ArrowRight");
        assert_eq!(readout(&mut browser, "calls"), "direct: malloc: 4 of 5 calls");
        browser.press("ArrowRight");
        assert_eq!(readout(&mut browser, "calls"), "direct: free: 1 of 5 calls");

        // 100 MiB are 50 pages of 2 MiB, all live.
        let (x, y) = middle(&mut browser, "[data-chart=map] .plot svg [data-map='0']");
        browser.point(x, y, finger);
        assert!(readout(&mut browser, "map").starts_with("direct · "), "{}", readout(&mut browser, "map"));
        browser.press("Home");
        browser.value("document.querySelector('[data-chart=map] .plot').focus()");
        browser.press("Home");
        assert_eq!(
            readout(&mut browser, "map"),
            "direct · 1 page held, 0 of them idle · 2 MiB of 2 MiB live"
        );
        assert_eq!(browser.complaints(), [""; 0], "{width} px");
    }
}

#[test]
fn the_theme_can_be_chosen() {
    let Some(mut browser) = Browser::start() else { return };
    let written = Written::by(&["s1", "--allocators", "direct"]);
    browser.screen(1280, "dark");
    browser.visit(&written.page());
    let look =
        "[document.getElementById('theme').textContent, getComputedStyle(document.body).backgroundColor]";
    let [dark, light] = ["rgb(18, 21, 24)", "rgb(246, 246, 243)"];
    assert_eq!(browser.value(look), json!(["Theme: system", dark]));
    for expected in
        [json!(["Theme: light", light]), json!(["Theme: dark", dark]), json!(["Theme: system", dark])]
    {
        browser.value("document.getElementById('theme').click()");
        assert_eq!(browser.value(look), expected);
    }
    browser.screen(1280, "light");
    assert_eq!(browser.value(look), json!(["Theme: system", light]));
    assert_eq!(browser.complaints(), [""; 0]);
    // An empty console is only worth as much as the look at it.
    browser.value("void console.error('on purpose')");
    assert_eq!(browser.complaints().len(), 1);
}

#[test]
fn a_hostile_trace_stays_text() {
    let Some(mut browser) = Browser::start() else { return };
    let name = "</style></title><script>window.owned = 1</script><img src=x onerror=owned=2>\"'&amp;";
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("mine.trace");
    std::fs::write(&path, format!("alloc-trace 1\n# name: {name}\na 1 5000000 0\ni {name}\nf 1\n"))
        .expect("written");
    let written = Written::by(&[path.to_str().expect("UTF-8"), "--at", &format!("mark:{name}")]);
    browser.screen(360, "dark");
    browser.visit(&written.page());
    assert_eq!(browser.text("document.querySelector('.trace h2').textContent"), name);
    assert_eq!(
        browser.text("document.querySelector('[data-table=marks] tbody th').textContent.slice(0, 20)"),
        name[..20]
    );
    let found = browser.value(
        "[typeof owned, document.images.length, document.scripts.length, document.querySelectorAll('style').length,
          document.documentElement.scrollWidth <= innerWidth]",
    );
    assert_eq!(found, json!(["undefined", 0, 1, 1, true]));
    assert_eq!(browser.complaints(), [""; 0]);
    for chart in written.charts() {
        browser.visit(&chart);
        assert_eq!(
            browser.value("[typeof owned, document.images?.length ?? 0]"),
            json!(["undefined", 0]),
            "{chart:?}"
        );
    }
}

#[test]
fn charts_can_be_seen_alone() {
    let Some(mut browser) = Browser::start() else { return };
    let written = Written::by(&["s1", "s3"]);
    let charts = written.charts();
    let names: Vec<_> =
        charts.iter().map(|path| path.file_name().expect("a name").to_string_lossy()).collect();
    let expected = ["s1_middle", "s3_three_holes"]
        .map(|trace| ["calls", "map", "mapped", "memory"].map(|chart| format!("{trace}-{chart}.svg")))
        .concat();
    assert_eq!(names, expected);
    for (chart, scheme) in charts.iter().zip(SCHEMES.iter().cycle()) {
        browser.screen(1280, scheme);
        browser.visit(chart);
        let seen = browser.value(
            "[document.documentElement.localName, document.querySelectorAll('parsererror').length,
              document.querySelectorAll('text').length > 4, getComputedStyle(document.querySelector('.paper')).fill]",
        );
        let paper = if *scheme == "dark" { "rgb(26, 30, 34)" } else { "rgb(255, 255, 255)" };
        assert_eq!(seen, json!(["svg", 0, true, paper]), "{chart:?}");
        assert_eq!(browser.complaints(), [""; 0], "{chart:?}");
    }
}
