//! Small logs made by hand.
//!
//! Main types: none. Neighbours: `rmm`.

use crate::import::{ImportError, ImportFormat, Imported, Importer, NoteKind};

const NAMES: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

fn import(rows: &str) -> Result<Imported, ImportError> {
    Importer::default().read(format!("{NAMES}{rows}").into_bytes(), "rmm_log.dev0.csv")
}

fn lines(imported: &Imported) -> Vec<String> {
    imported.trace.events.iter().map(ToString::to_string).collect()
}

fn notes(imported: &Imported, kind: NoteKind) -> Vec<&str> {
    imported.notes.iter().filter(|note| note.kind == kind).map(|note| &note.text[..]).collect()
}

#[test]
fn a_log_of_two_threads_is_read_in_its_order() {
    let imported = import(
        "12,10:00:00.000001,allocate,0x7f0000000000,1000,0x0\n\
         34,10:00:00.000002,allocate,0x7f0000001000,2000,0x55d0\n\
         12,10:00:00.000003,free,0x7f0000000000,1000,0x0\n\
         34,10:00:00.000004,allocate,0x7f0000000000,3000,0x55d0\r\n\
         \n\
         12,10:00:00.000005,free,0x7f0000001000,2000,0x0",
    )
    .expect("a log");
    assert_eq!(imported.format, ImportFormat::RmmLog);
    // The last free is on the default stream, and the block is of another: that one used it.
    let expected = ["a 1 1000 0", "a 2 2000 1", "f 1", "a 3 3000 1", "u 2 0", "f 2"];
    assert_eq!(lines(&imported), expected);
    assert_eq!(imported.trace.header.get("name"), Some("rmm_log.dev0"));
    assert_eq!((imported.peak_live_bytes, imported.live_at_end_bytes), (5000, 3000));
    assert_eq!(
        notes(&imported, NoteKind::Guessed),
        ["1 free on another stream than the block's: a use there (`u`), then the free"]
    );
}

#[test]
fn default_streams_have_several_names() {
    let imported = import(
        "1,t,allocate,0x10,1,0\n\
         1,t,allocate,0x20,2,0x1\n\
         1,t,allocate,0x30,3,(nil)\n\
         1,t,allocate,0x40,4,0x2\n\
         9,t,allocate,0x50,5,0x2\n\
         1,t,allocate,0x60,6,2\n",
    )
    .expect("a log");
    assert_eq!(lines(&imported), ["a 1 1 0", "a 2 2 0", "a 3 3 0", "a 4 4 1", "a 5 5 2", "a 6 6 1"]);
}

#[test]
fn refused_requests_older_blocks_and_nothing_at_all() {
    let imported = import(
        "1,t,allocate,(nil),0,0\n\
         1,t,free,(nil),0,0\n\
         1,t,free,0x5000,70,0\n\
         1,t,allocate failure,(nil),80,0x9\n\
         1,t,allocate failure,(nil),99999999999999,0\n\
         1,t,allocate,0x5000,60,0\n",
    )
    .expect("a log");
    assert_eq!(
        lines(&imported),
        [
            "a 1 70 0",
            "i the record begins",
            "f 1",
            "i out of memory: 80 bytes asked",
            "a 2 80 1",
            "f 2",
            "i out of memory: 99999999999999 bytes asked",
            "a 3 60 0",
        ]
    );
    assert_eq!(
        notes(&imported, NoteKind::LeftOut),
        ["1 refused request that no device could serve: the mark alone", "1 allocation of 0 bytes"]
    );
}

#[test]
fn columns_may_be_in_any_order() {
    let text = "Size,Pointer,Stream,Action,Thread,Time\n5,0x10,0,allocate,1,t\n";
    let imported = Importer::default().read(text.into(), "log").expect("a log");
    assert_eq!(lines(&imported), ["a 1 5 0"]);
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    for (rows, text) in [
        ("1,t,realloc,0x1,1,0", "2: action \"realloc\": expected allocate, free or allocate failure"),
        ("1,t,allocate,0x1,1", "2: 5 fields, and there are 6 columns: \"1,t,allocate,0x1,1\""),
        ("1,t,allocate,0x1,-1,0", "2: Size \"-1\" is not a number from 0 to 18446744073709551615"),
        (
            "1,t,allocate,0x1ffffffffffffffff,1,0",
            "2: Pointer \"0x1ffffffffffffffff\" is not a number from 0 to 18446744073709551615",
        ),
        ("1,t,allocate,0x+1,1,0", "2: Pointer \"0x+1\" is not a number from"),
        ("x,t,allocate,0x1,1,0x2", "2: Thread \"x\" is not a number from"),
        ("\n1,t,allocate,0x1,NaN,0", "3: Size \"NaN\" is not a number from"),
        (
            "1,t,allocate,0x1,1,0\n1,t,allocate,0x1,1,0",
            "3: allocates at address 0x1, where line 2 allocated a block that nothing freed: the record misses frees",
        ),
        (
            "1,t,free,0x1,1,0\n1,t,free,0x1,1,0",
            "3: frees address 0x1, which line 2 freed, and nothing allocated it since",
        ),
        (
            "1,t,allocate,0x1,1000000000000000000,0",
            "2: a block of 1000000000000000000 bytes: no device has addresses for more than 144115188075855872",
        ),
    ] {
        let error = import(rows).map(|found| lines(&found)).expect_err(text).to_string();
        let said = error.strip_prefix("rmm_log.dev0.csv:").unwrap_or(&error);
        assert!(said.starts_with(text), "{said}\nshould be\n{text}");
    }
    let no_size = Importer::default().read(b"Thread,Action,Pointer,Stream\n".to_vec(), "log");
    assert_eq!(
        no_size.expect_err("no size").to_string(),
        "log:1: no column \"Size\"; the columns are \"Thread,Action,Pointer,Stream\""
    );
}
