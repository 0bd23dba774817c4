//! Each rule can fail: a tree with one mistake gives one finding, at its place. Neighbours: the rules beside this file.

use super::layers::LAYERS;
use super::{Tree, check};

const FORBID: &str = "//! A crate.\n#![forbid(unsafe_code)]\n";

/// The findings of these files, as printed.
fn findings<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    check(&Tree::from_texts(files)).iter().map(ToString::to_string).collect()
}

/// Asserts that the files give just one finding, which begins with `place` and has `words` in it.
#[track_caller]
fn assert_one<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>, place: &str, words: &str) {
    let found = findings(files);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with(&format!("{place}: ")), "{found:?} is not at {place}");
    assert!(found[0].contains(words), "{found:?} does not say {words}");
}

const HEAP_OK: &str =
    "[package]\nname = \"concertina-heap\"\n[dependencies]\nconcertina-vmm.workspace = true\n";

#[test]
fn a_tidy_tree_gives_no_finding() {
    let files = [
        ("crates/heap/Cargo.toml", HEAP_OK),
        ("crates/heap/src/lib.rs", FORBID),
        (
            "README.md",
            "# A b\n[there](#a-b) [docs](docs/x.md#c) [dir](crates) [web](https://example.org/page/)\n",
        ),
        (
            "docs/x.md",
            "## C\n```sh\ncargo xtask bench t1 --capacity 1.02x  # a comment\n```\n[up](../README.md)\n",
        ),
    ];
    assert_eq!(findings(files), Vec::<String>::new());
}

#[test]
fn an_arrow_may_not_point_up() {
    let manifest = "[package]\nname = \"concertina-vmm\"\n[dependencies]\nconcertina-heap.workspace = true\n";
    assert_one([("crates/vmm/Cargo.toml", manifest)], "crates/vmm/Cargo.toml:4", "`concertina-heap`");
}

#[test]
fn an_arrow_may_not_hide_behind_a_target_a_rename_or_a_build_script() {
    let hidden = [
        "[target.'cfg(unix)'.dependencies]\nconcertina-trace = { path = \"../trace\" }\n",
        "[dependencies]\ntraces = { path = \"../trace\", package = \"concertina-trace\" }\n",
        "[build-dependencies]\nconcertina-trace.workspace = true\n",
        "[dev-dependencies]\nconcertina-trace.workspace = true\n",
    ];
    for tables in hidden {
        let manifest = format!("[package]\nname = \"concertina-vmm\"\n{tables}");
        assert_one(
            [("crates/vmm/Cargo.toml", manifest.as_str())],
            "crates/vmm/Cargo.toml:4",
            "`concertina-trace`",
        );
    }
}

#[test]
fn the_lowest_layers_may_be_tested_on_the_emulator_but_not_built_on_it() {
    for purpose in ["dev-dependencies", "dependencies"] {
        let manifest = format!(
            "[package]\nname = \"concertina-heap\"\n[{purpose}]\nconcertina-emulator.workspace = true\n"
        );
        let found = findings([("crates/heap/Cargo.toml", manifest.as_str())]);
        assert_eq!(found.is_empty(), purpose == "dev-dependencies", "{purpose}: {found:?}");
    }
}

#[test]
fn every_crate_has_a_place_and_its_name() {
    let stranger = "[package]\nname = \"concertina-extras\"\n";
    assert_one([("crates/extras/Cargo.toml", stranger)], "crates/extras/Cargo.toml", "LAYERS");
    assert_one([("crates/heap/Cargo.toml", stranger)], "crates/heap/Cargo.toml:2", "`concertina-extras`");
    assert_one([("crates/heap/Cargo.toml", "[package\n")], "crates/heap/Cargo.toml", "TOML");
}

#[test]
fn a_file_needs_a_header_a_noun_and_an_end() {
    assert_one([("crates/heap/src/bins.rs", "use x;\n")], "crates/heap/src/bins.rs:1", "header");
    assert_one([("crates/heap/src/utils.rs", "//! U.\n")], "crates/heap/src/utils.rs", "`utils`");
    assert_one([("crates/heap/src/base/mod.rs", "//! B.\n")], "crates/heap/src/base/mod.rs", "`base`");
    let long = "//! L.\n".repeat(601);
    assert_one([("crates/heap/src/bins.rs", long.as_str())], "crates/heap/src/bins.rs", "601 lines");
}

#[test]
fn unsafe_is_found_where_it_is_code_and_only_there() {
    let code = "//! unsafe\nfn f() {\n    // unsafe\n    let _ = \"unsafe\";\n    m!(r#\"unsafe\"#, { unsafe { g() } });\n}\n";
    assert_one([("crates/heap/src/bins.rs", code)], "crates/heap/src/bins.rs:5", "`unsafe`");
    assert_one([("crates/cudart/src/x.rs", code)], "crates/cudart/src/x.rs:5", "`unsafe`");
    assert_eq!(findings([("crates/cuda/src/raw.rs", code)]), Vec::<String>::new());
    assert_one([("crates/heap/src/bins.rs", "//! H.\nfn f( {\n")], "crates/heap/src/bins.rs:2", "Rust");
}

#[test]
fn the_root_of_a_safe_crate_forbids_unsafe_code() {
    assert_one([("crates/heap/src/lib.rs", "//! H.\n")], "crates/heap/src/lib.rs", "forbid");
    assert_one(
        [("crates/heap/src/lib.rs", "//! H.\n// #![forbid(unsafe_code)]\n")],
        "crates/heap/src/lib.rs",
        "forbid",
    );
    assert_eq!(findings([("crates/capi/src/lib.rs", "//! C.\n")]), Vec::<String>::new());
}

#[test]
fn a_command_in_a_page_must_exist_with_its_options_and_values() {
    let wrong = [
        "benchmark",
        "bench --capcity 1GiB",
        "bench --capacity 80GB?",
        "replay",
        "bench --allocators jemalloc",
    ];
    for command in wrong {
        let page = format!("# T\n\n```sh\ncargo xtask {command}\n```\n");
        assert_one([("README.md", page.as_str())], "README.md:4", &format!("`cargo xtask {command}`"));
    }
    assert_one([("README.md", "Run `cargo xtask fly`.\n")], "README.md:1", "`cargo xtask fly`");
    // A sentence may name a command without its arguments; a block is to be typed.
    let named = "Ask `cargo xtask trace gen` or `cargo xtask trace`.\n";
    assert_eq!(findings([("README.md", named)]), Vec::<String>::new());
    assert_one([("README.md", "```sh\ncargo xtask trace gen\n```\n")], "README.md:2", "KIND");
    let continued = "```sh\ncargo xtask bench \\\n  --fly\n```\n";
    assert_one([("README.md", continued)], "README.md:2", "--fly");
    let right =
        "```console\n$ cargo xtask bench --help\n$ cargo xtask bench t1 > log && cargo xtask tidy\n```\n";
    assert_eq!(findings([("README.md", right)]), Vec::<String>::new());
}

#[test]
fn a_link_must_lead_to_a_file_and_a_heading() {
    assert_one([("README.md", "\n[x](docs/none.md)\n")], "README.md:2", "`docs/none.md`");
    assert_one([("docs/a.md", "[x](../../outside.md)\n")], "docs/a.md:1", "`../../outside.md`");
    assert_one([("docs/a.md", "# One\n[x](#two)\n")], "docs/a.md:2", "`#two`");
    let two_pages = [("docs/a.md", "[x](b.md#nowhere)\n"), ("docs/b.md", "# Somewhere\n")];
    assert_one(two_pages, "docs/a.md:1", "heading of docs/b.md");
}

#[test]
fn no_path_of_one_machine() {
    let path = ["", "home", "ada", "gpu"].join("/");
    let page = format!("\nSee `{path}`.\n");
    assert_one([("README.md", page.as_str())], "README.md:2", &format!("`{path}`"));
    let code = format!("//! A.\nconst A: &str = \"{path}\";\n");
    assert_one([("crates/heap/src/bins.rs", code.as_str())], "crates/heap/src/bins.rs:2", &path);
}

#[test]
fn every_dependency_is_described_and_nothing_else() {
    let workspace = "[workspace.dependencies]\nconcertina-vmm = { path = \"crates/vmm\" }\nserde = \"1\"\n";
    let member =
        "[package]\nname = \"concertina-heap\"\n[dependencies]\nserde.workspace = true\nbitvec = \"1\"\n";
    let files = |page| {
        [("Cargo.toml", workspace), ("crates/heap/Cargo.toml", member), ("docs/dependencies.md", page)]
    };
    assert_one(files("| `serde` | x |\n"), "crates/heap/Cargo.toml:5", "`bitvec`");
    assert_one(files("| `bitvec` | x |\n"), "Cargo.toml:3", "`serde`");
    assert_one(files("| `serde` |\n| `bitvec` |\n| `rand` |\n"), "docs/dependencies.md:3", "`rand`");
}

#[test]
fn the_layers_are_in_the_order_of_the_drawing() {
    let names: Vec<&str> = LAYERS.iter().map(|layer| layer.directory.trim_start_matches("crates/")).collect();
    let drawn = ["vmm", "heap", "emulator", "libcuda", "cuda", "trace", "baselines", "concertina", "capi"];
    assert_eq!(names[..drawn.len()], drawn);
    assert_eq!(names[drawn.len()..], ["benches/peer-capi", "benches", "xtask"]);
}

#[test]
fn a_tree_is_read_from_the_disk_without_build_outputs() {
    let root = tempfile::tempdir().expect("a directory");
    for file in ["src/lib.rs", "target/debug/x.rs", ".ci/run", "blob.zst"] {
        let path = root.path().join(file);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        std::fs::write(path, "//! X.\n").expect("a file");
    }
    let tree = Tree::load(root.path()).expect("readable");
    assert_eq!(tree.paths().collect::<Vec<_>>(), [".ci/run", "blob.zst", "src/lib.rs"]);
    assert_eq!(tree.text("blob.zst"), None);
    assert_eq!(tree.text(".ci/run"), Some("//! X.\n"));
    assert!(tree.contains("src") && !tree.contains("sr"));
}
