//! Cost tables are found by their names.
//!
//! Main types: none. Neighbours: `cargo xtask bench --cost-table` asks for them.

use std::fs;
use std::path::Path;

use concertina_emulator::{CostFileError, CostTable};

fn write(directory: &Path, path: &str, create_ns: u64) {
    let path = directory.join(path);
    fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("UTF-8");
    let text = format!("name = {stem:?}\nbased_on = \"h100\"\n[create]\nbase_ns = {create_ns}\n");
    fs::write(path, text).expect("written");
}

fn create_ns(word: &str, directory: &Path) -> u64 {
    CostTable::find(word, directory).expect("found").of(concertina_vmm::Call::Create).base_ns
}

#[test]
fn tables_are_found_by_name_by_path_and_below_a_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path();
    write(root, "nvidia-h200/2026-09-30/nvidia-h200.toml", 1);
    write(root, "nvidia-h200/2026-10-01/nvidia-h200.toml", 2);
    write(root, "gb10.toml", 3);
    // A measured one does not take the place of one that is compiled in.
    write(root, "other/h100.toml", 4);
    fs::write(root.join("gb10.json"), "{}").expect("written");
    assert_eq!(create_ns("nvidia-h200", root), 2, "the newest");
    assert_eq!(create_ns("gb10", root), 3);
    assert_eq!(create_ns("h100", root), 28_500);
    let path = root.join("other/h100.toml");
    assert_eq!(create_ns(path.to_str().expect("UTF-8"), root), 4);
    assert_eq!(CostTable::find("a100", &root.join("not there")).expect("compiled in"), CostTable::a100());
}

#[test]
fn a_word_that_names_none_is_quoted_beside_those_that_there_are() {
    let directory = tempfile::tempdir().expect("a directory");
    write(directory.path(), "x/gb10.toml", 3);
    let error = CostTable::find("h300", directory.path()).expect_err("there is none");
    assert!(matches!(error, CostFileError::NotFound { .. }), "{error:?}");
    assert_eq!(error.to_string(), "no cost table `h300`: neither a file nor one of h100, a100, gb10");
    fs::write(directory.path().join("bad.toml"), "create = 1").expect("written");
    let error = CostTable::find("bad", directory.path()).expect_err("it is no table").to_string();
    assert!(error.contains("bad.toml"), "{error}");
}

#[test]
fn every_name_has_a_table_of_that_name() {
    for name in CostTable::NAMES {
        assert_eq!(CostTable::named(name).expect("compiled in").name, *name);
    }
    assert_eq!(CostTable::named("H100"), None);
}
