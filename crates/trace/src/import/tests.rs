//! Files that are something else, cut off, damaged or hostile: an error, or a trace that is sound, and never a panic.
//!
//! Main types: none. Neighbours: the tests of each format beside it.

use proptest::prelude::*;

use super::pickle::writer::{Data, block, event, segment, snapshot};
use super::{ImportError, ImportErrorKind, ImportFormat, Imported, Importer};
use crate::loaded::LoadedTrace;

const LOG: &str = "Thread,Time,Action,Pointer,Size,Stream\n\
    12,10:00:00.000001,allocate,0x7f00,1000,0x0\n\
    34,10:00:00.000002,free,0x7f00,1000,0x55d0\n\
    34,10:00:00.000004,allocate failure,(nil),3000,0x55d0\n";
const TABLE: &str = "id,lower,upper,size\n7,0,3,10\n8,3,5,20\n9,1,4,30\n";

/// A snapshot with something of everything.
fn small_snapshot() -> Data {
    let frames =
        Data::List(vec![Data::Dict(vec![("name", "empty_cache".into()), ("line", 7.into())])]).shared();
    let events = vec![
        event("segment_alloc", 0x7f00_0000_0000, 2 << 20).with("frames", frames.clone()),
        event("alloc", 0x7f00_0000_0000, 1000)
            .with("time_us", 1_700_000_000_000_000)
            .with("user_metadata", "x"),
        event("free_requested", 0x7f00_0000_0400, 70_000).with("stream", 0x5500_0000_1234),
        event("oom", 0, 5 << 30).without("addr").with("device_free", 4096),
        event("free_completed", 0x7f00_0000_0400, 70_000).with("frames", frames.clone()),
        event("segment_free", 0x7f10_0000_0000, 2 << 20).with("frames", frames),
        event("snapshot", 0, 2 << 20),
    ];
    let blocks = vec![
        block(0x7f00_0000_0000, 1024, 1000, "active_allocated"),
        block(0x7f00_0000_0400, 1024, 700, "active_pending_free"),
        block(0x7f00_0000_0800, 2048, 0, "inactive"),
    ];
    let segment = segment(0x7f00_0000_0000, 2 << 20, blocks).with("is_expandable", Data::Bool(true));
    let note = Data::Dict(vec![("name", "step".into()), ("stage", "START".into()), ("time_us", 5.into())]);
    let settings = Data::Dict(vec![
        ("PYTORCH_CUDA_ALLOC_CONF", "".into()),
        ("garbage_collection_threshold", Data::Float(0.5)),
    ]);
    snapshot(vec![segment], vec![events])
        .with("allocator_settings", settings)
        .with("external_annotations", Data::List(vec![note]))
}

/// Imports what may be anything. If that succeeds, a reader takes the trace, and it says of itself what is so.
fn try_import(bytes: Vec<u8>, format: Option<ImportFormat>) -> Result<Imported, ImportError> {
    let length = bytes.len();
    let imported = Importer { format, device: None }.read(bytes, "file")?;
    let loaded = LoadedTrace::from_trace(&imported.trace).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(loaded.live_peak().bytes, imported.peak_live_bytes);
    assert_eq!(loaded.steps().len() as u64, imported.trace.header.number("events").expect("it is there"));
    // No record of so few bytes has more events: each takes some, in the record.
    assert!(
        imported.trace.events.len() <= 2 * length + 8,
        "{} events of {length} bytes",
        loaded.steps().len()
    );
    Ok(imported)
}

#[test]
fn the_small_files_are_sound() {
    let found = try_import(small_snapshot().pickle(), None).expect("a snapshot");
    assert_eq!((found.format, found.blocks), (ImportFormat::PytorchSnapshot, 2));
    let found = try_import(LOG.into(), None).expect("a log");
    assert_eq!((found.format, found.blocks), (ImportFormat::RmmLog, 2));
    let found = try_import(TABLE.into(), None).expect("a table");
    assert_eq!((found.format, found.blocks), (ImportFormat::Lifetimes, 3));
    // The same, packed.
    let packed = zstd::encode_all(&small_snapshot().pickle()[..], 3).expect("it is packed");
    let found = try_import(packed, None).expect("a snapshot");
    assert_eq!((found.format, found.blocks), (ImportFormat::PytorchSnapshot, 2));
}

#[test]
fn what_is_no_record_is_named() {
    for (bytes, text) in [
        (&b""[..], "file: the file is empty"),
        (b"alloc-trace 1\n", "file: this is a trace already and needs no import"),
        (b"\x1f\x8b\x08\0", "file: this is a gzip file: unpack it and import what is in it"),
        (b"PK\x03\x04", "file: this is a zip file: unpack it and import what is in it"),
        (
            b"[     7][10:00:00:000000][info  ] ----- RMM LOG BEGIN [PTDS DISABLED] -----\n",
            "file: this is RMM's debug log, which is no record of allocations",
        ),
        (b"{\"traceEvents\": []}", "file: unknown format: it begins with \"{\\\"traceEvents\\\": []}\""),
        (b"\xff\xfe\0", "file: unknown format: it begins with"),
        (b"\n", "file: unknown format: it begins with \"\""),
        // Python writes protocols 0 and 1 only when told to.
        (b"(lp0\n.", "file: unknown format: it begins with \"(lp0\""),
    ] {
        let error = try_import(bytes.to_vec(), None).expect_err(text).to_string();
        assert!(error.starts_with(text), "{error}\nshould be\n{text}");
    }
    // Whoever insists gets the error of that format.
    let insisted =
        |format| try_import(b"cos\nsystem\n(tR.".to_vec(), Some(format)).expect_err("no").to_string();
    assert_eq!(
        insisted(ImportFormat::PytorchSnapshot),
        "file: byte 0: GLOBAL would run code when unpickled; a memory snapshot is plain data and has none. Don't \
         unpickle this"
    );
    assert_eq!(insisted(ImportFormat::RmmLog), "file:1: no column \"Thread\"; the columns are \"cos\"");
    assert_eq!(insisted(ImportFormat::Lifetimes), "file:1: no column \"id\"; the columns are \"cos\"");
}

#[test]
fn a_snapshot_that_is_cut_off_is_an_error_wherever_it_is_cut() {
    let whole = small_snapshot().pickle();
    for length in 1..whole.len() {
        let error = try_import(whole[..length].to_vec(), None).expect_err("cut off");
        assert!(
            matches!(error.kind, ImportErrorKind::Pickle(_)),
            "{length} of {} bytes: {error}",
            whole.len()
        );
    }
}

#[test]
fn a_text_that_is_cut_off_is_an_error_or_a_shorter_record() {
    for text in [LOG, TABLE] {
        for length in 0..text.len() {
            if let Err(error) = try_import(text.as_bytes()[..length].into(), None) {
                assert!(!error.to_string().is_empty());
            }
        }
    }
}

#[test]
fn formats_are_called_by_their_names() {
    for format in ImportFormat::ALL {
        assert_eq!(format.to_string().parse(), Ok(format));
    }
    let error = "json".parse::<ImportFormat>().expect_err("no format").to_string();
    assert_eq!(error, "unknown format \"json\": expected pytorch-snapshot, rmm-log or lifetimes");
}

fn whole_file() -> impl Strategy<Value = (Vec<u8>, ImportFormat)> {
    prop_oneof![
        4 => Just((small_snapshot().pickle(), ImportFormat::PytorchSnapshot)),
        1 => Just((LOG.as_bytes().to_vec(), ImportFormat::RmmLog)),
        1 => Just((TABLE.as_bytes().to_vec(), ImportFormat::Lifetimes)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    /// Bytes of a sound file that are changed, taken out or put in.
    #[test]
    fn damage_is_an_error_or_changes_what_is_recorded(
        (mut bytes, format) in whole_file(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3), 1..6),
    ) {
        for (at, byte, kind) in damage {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, byte),
            }
        }
        if let Err(error) = try_import(bytes, Some(format)) {
            prop_assert!(error.to_string().starts_with("file"), "{}", error);
        }
    }

    /// Rows of fields that look right one by one.
    #[test]
    fn rows_of_any_fields_are_an_error_or_a_record(
        rows in prop::collection::vec(prop::collection::vec(
            prop::sample::select(&["", "0", "1", "2", "0x1", "0x2", "(nil)", "-1", "NaN", "allocate", "free",
                "allocate failure", "18446744073709551615", "144115188075855872", "9223372036854775807", "\"", "\u{fffd}"][..]),
            3..7), 0..12),
        format in prop::sample::select(&[ImportFormat::RmmLog, ImportFormat::Lifetimes][..]),
    ) {
        let names = match format {
            ImportFormat::RmmLog => "Action,Pointer,Size,Stream,Thread",
            _ => "id,lower,upper,size",
        };
        let columns = names.split(',').count();
        let rows = rows.iter().map(|row| row[..row.len().min(columns)].join(","));
        let text = [names.to_owned()].into_iter().chain(rows).collect::<Vec<_>>().join("\n");
        if let Err(error) = try_import(text.into_bytes(), Some(format)) {
            prop_assert!(error.to_string().starts_with("file:"), "{}", error);
        }
    }
}
