//! Files that are no results, and parts of lines.

use std::fs;

use super::{ResultFile, read};

#[test]
fn a_line_that_is_no_result_is_named_and_nothing_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("results.jsonl");
    for (text, line) in [("{}\n", 1), ("\n", 1), ("\u{0}\n", 1), ("[1]\n{\"id\":3}\n", 1), ("null\nx", 1)] {
        fs::write(&path, text).expect("written");
        for said in [read(&path).map(drop), ResultFile::open(&path).map(drop)] {
            let said = said.expect_err(text).to_string();
            assert!(
                said.contains(&format!("results.jsonl:{line}: no result of a sweep: ")),
                "{text:?}: {said}"
            );
        }
        assert_eq!(fs::read_to_string(&path).expect("read"), text, "as it was");
    }
    fs::write(&path, b"\xff\xfe\n").expect("written");
    assert!(read(&path).is_err());
    // A single part of a line is what a killed run leaves.
    fs::write(&path, "{\"id\":\"a").expect("written");
    assert_eq!(read(&path).expect("nothing in it").len(), 0);
    assert_eq!(ResultFile::open(&path).expect("nothing in it").1.len(), 0);
    assert_eq!(fs::read_to_string(&path).expect("read"), "");
}
