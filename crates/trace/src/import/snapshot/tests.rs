//! Small snapshots made by hand, and the traces that they must become.
//!
//! Main types: none. Neighbours: `snapshot/tests/windows.rs` has random histories.

mod windows;

use crate::import::pickle::writer::{Data, block, event, segment, snapshot};
use crate::import::{ImportError, Imported, Importer, NoteKind};

fn import(snapshot: &Data) -> Result<Imported, ImportError> {
    Importer::default().read(snapshot.pickle(), "some/dir/snap.pickle")
}

fn imported(snapshot: &Data) -> Imported {
    import(snapshot).unwrap_or_else(|error| panic!("{error}"))
}

/// The events, as lines.
fn lines(imported: &Imported) -> Vec<String> {
    imported.trace.events.iter().map(ToString::to_string).collect()
}

fn notes(imported: &Imported, kind: NoteKind) -> Vec<&str> {
    imported.notes.iter().filter(|note| note.kind == kind).map(|note| &note.text[..]).collect()
}

/// A segment of 1 MiB at 0x100000 with these blocks that are allocated, 512 bytes apart.
fn segment_with(asked: &[u64]) -> Data {
    let blocks = (0..).zip(asked);
    let blocks = blocks.map(|(at, asked)| block(0x10_0000 + at * 512, 512, *asked, "active_allocated"));
    segment(0x10_0000, 1 << 20, blocks.collect())
}

#[test]
fn a_history_becomes_the_requests_of_the_program() {
    let events = vec![
        event("segment_alloc", 0x10_0000, 1 << 20),
        event("alloc", 0x10_0000, 100),
        event("alloc", 0x10_0200, 200).with("stream", 0x7f00_1234),
        event("free_requested", 0x10_0000, 100),
        event("free_completed", 0x10_0000, 100),
        event("alloc", 0x10_0000, 300),
    ];
    let blocks = vec![
        block(0x10_0000, 512, 300, "active_allocated"),
        block(0x10_0200, 512, 200, "active_allocated"),
        block(0x10_0400, (1 << 20) - 1024, 77, "inactive"),
    ];
    let snapshot = snapshot(vec![segment(0x10_0000, 1 << 20, blocks)], vec![events]);
    let settings = Data::Dict(vec![("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128".into())]);
    let imported = imported(&snapshot.with("allocator_settings", settings));
    assert_eq!(lines(&imported), ["a 1 100 0", "a 2 200 1", "f 1", "a 3 300 0"]);
    let header: Vec<_> = imported.trace.header.lines().collect();
    assert_eq!(
        header,
        [
            ("name", "snap"),
            ("source", "imported from snap.pickle, a PyTorch memory snapshot, device 0"),
            ("allocator_settings", "max_split_size_mb:128"),
            ("missing", "waits between streams and of the host; uses on other streams"),
            ("peak_live", "500"),
            ("events", "4"),
        ]
    );
    assert_eq!((imported.blocks, imported.older_blocks, imported.streams), (3, 0, 2));
    assert_eq!((imported.peak_live_bytes, imported.live_at_end_bytes), (500, 500));
}

#[test]
fn blocks_that_are_older_than_the_record_stand_first() {
    // One is freed in the record, one is never named in it.
    let events = vec![
        event("free_completed", 0x10_0800, 9), // the second half of a free before the record
        event("alloc", 0x10_0400, 30),
        event("free_requested", 0x10_0200, 20),
        event("free_completed", 0x10_0200, 20),
    ];
    let blocks = vec![
        block(0x10_0000, 512, 10, "active_allocated"),
        block(0x10_0200, 512, 20, "inactive"),
        block(0x10_0400, 512, 30, "active_allocated"),
    ];
    let imported = imported(&snapshot(vec![segment(0x10_0000, 1536, blocks)], vec![events]));
    assert_eq!(lines(&imported), ["a 1 10 0", "a 2 20 0", "i the record begins", "a 3 30 0", "f 2"]);
    assert_eq!(imported.older_blocks, 2);
    assert!(notes(&imported, NoteKind::Missing)[0].contains("2 blocks of 30 bytes were there"));
}

#[test]
fn a_record_of_a_single_free_has_its_block() {
    for action in ["free_requested", "free_completed"] {
        let imported = imported(&snapshot(vec![], vec![vec![event(action, 0x10_0200, 20)]]));
        assert_eq!(lines(&imported), ["a 1 20 0", "i the record begins", "f 1"], "{action}");
    }
}

#[test]
fn a_free_that_waits_was_used_on_some_other_stream() {
    let events = vec![
        event("alloc", 0x1000, 10),
        event("alloc", 0x2000, 20),
        event("free_requested", 0x1000, 10),
        event("alloc", 0x3000, 30).with("stream", 5),
        event("free_completed", 0x1000, 10),
        event("free_requested", 0x2000, 20), // the last event: still waiting
    ];
    let imported = imported(&snapshot(vec![], vec![events]));
    assert_eq!(lines(&imported), ["a 1 10 0", "a 2 20 0", "u 1 1", "f 1", "a 3 30 2", "u 2 1", "f 2"]);
    assert_eq!(
        notes(&imported, NoteKind::Guessed),
        ["2 frees waited for other streams: a use on one (`u`), just before the free"]
    );
    assert!(
        notes(&imported, NoteKind::Missing)
            .contains(&"which other streams used pending blocks: stream 1 stands for them")
    );
}

#[test]
fn one_kind_of_free_can_be_left_out_of_a_record() {
    let only = |action| {
        let events = vec![event("alloc", 0x1000, 10), event(action, 0x1000, 10), event("alloc", 0x1000, 20)];
        lines(&imported(&snapshot(vec![], vec![events])))
    };
    assert_eq!(only("free_requested"), ["a 1 10 0", "f 1", "a 2 20 0"]);
    assert_eq!(only("free_completed"), ["a 1 10 0", "f 1", "a 2 20 0"]);
}

#[test]
fn without_history_the_trace_has_what_is_live() {
    let blocks = vec![
        block(0x20_0000, 1024, 1000, "active_allocated"),
        block(0x20_0400, 512, 40, "active_pending_free"),
        block(0x20_0600, 512, 0, "inactive"),
    ];
    let private = segment(0x20_0000, 2048, blocks)
        .with("segment_pool_id", Data::Tuple(vec![0.into(), 2.into()]))
        .with("stream", 7);
    let segments = vec![private, segment_with(&[5, 0])];
    let imported = imported(&snapshot(segments.clone(), vec![vec![], vec![]]));
    let expected = ["a 1 5 0", "a 2 512 0", "a 3 1000 1", "a 4 40 1", "u 4 2", "f 4"];
    assert_eq!(lines(&imported), expected);
    assert_eq!((imported.peak_live_bytes, imported.live_at_end_bytes), (1557, 1517));
    assert_eq!(
        notes(&imported, NoteKind::LeftOut),
        ["private pools: 1 of 2 segments, 2 blocks of 1040 bytes; a trace has one pool"]
    );
    assert_eq!(
        notes(&imported, NoteKind::Guessed),
        ["1 block as large as their place: what was asked is not recorded"]
    );
    assert!(notes(&imported, NoteKind::Missing)[0].starts_with("all history: 3 blocks"));

    // Some write the bare list of segments.
    let bare = self::imported(&Data::List(segments));
    assert_eq!(lines(&bare), expected);
}

#[test]
fn the_oldest_layout_has_no_addresses() {
    let history = Data::List(vec![Data::Dict(vec![("addr", 0x10_0200.into()), ("real_size", 33.into())])]);
    let blocks = vec![
        block(0, 512, 0, "inactive").without("address"),
        block(0, 512, 44, "active_allocated").without("address").with("history", history.clone()),
        block(0, 512, 0, "active_allocated").without("address").with("history", history),
    ];
    let segment = segment(0x10_0000, 1536, blocks).without("segment_pool_id");
    let events = vec![event("snapshot", 0, 1536), event("free_requested", 0x10_0400, 33)];
    let imported = imported(&snapshot(vec![segment], vec![events]));
    let expected = [
        "a 1 44 0",
        "a 2 33 0",
        "i the record begins",
        "i snapshot: 1536 bytes mapped",
        "f 2",
        "i after the record",
        "a 3 33 0",
    ];
    assert_eq!(lines(&imported), expected);
}

#[test]
fn an_out_of_memory_is_asked_again() {
    let oom = event("oom", 0, 4096).without("addr").with("device_free", 1000).with("stream", 3);
    let events = vec![
        event("segment_alloc", 0x10_0000, 1 << 20),
        event("alloc", 0x10_0000, 10),
        oom.clone(),
        oom.with("size", 3 << 20),
        event("segment_alloc", 0x40_0000, 5 << 20),
        event("alloc", 0x40_0000, 20),
    ];
    let segments = vec![
        segment_with(&[10]),
        segment(0x40_0000, 5 << 20, vec![block(0x40_0000, 512, 20, "active_allocated")]),
    ];
    let imported = imported(&snapshot(segments, vec![events]));
    // The second asks for more than 1 MiB + 1000 bytes: no allocator could serve it.
    assert_eq!(
        lines(&imported),
        [
            "a 1 10 0",
            "i out of memory: 4096 bytes asked, 1000 free on the device",
            "a 2 4096 1",
            "f 2",
            "i out of memory: 3145728 bytes asked, 1000 free on the device",
            "a 3 20 0",
        ]
    );
    assert_eq!(imported.capacity_bytes, Some((1 << 20) + 1000));
    assert_eq!(imported.trace.header.number("capacity"), Some((1 << 20) + 1000));
    assert_eq!(
        imported.out_of_memory.as_deref(),
        Some(
            "device_traces[0][3]: 3145728 bytes asked, 1000 free on the device, 1048576 mapped; the last of 2"
        )
    );
    assert_eq!(
        notes(&imported, NoteKind::LeftOut),
        ["1 refused request that could not be served in an empty device: the mark alone"]
    );
}

#[test]
fn releases_are_the_programs_where_nothing_needed_them() {
    let frames = |name: &str| Data::List(vec![Data::Dict(vec![("name", name.into())]).shared()]).shared();
    let release = |address: u64| event("segment_free", address, 100);
    let alloc = |address: u64| event("alloc", address, 8);
    let events = vec![
        release(0x1000).with("frames", frames("empty_cache")), // named, though a segment follows
        release(0x2000),
        event("segment_alloc", 0x3000, 100),
        alloc(0x3000),
        release(0x4000).with("frames", frames("forward")), // no need follows
        alloc(0x3100),
        release(0x5000), // a retry
        event("segment_alloc", 0x6000, 100),
        alloc(0x6000),
        event("segment_unmap", 0x7000, 100), // the end
    ];
    let imported = imported(&snapshot(vec![], vec![events]));
    assert_eq!(lines(&imported), ["e", "a 1 8 0", "e", "a 2 8 0", "a 3 8 0", "e"]);
    assert_eq!(
        notes(&imported, NoteKind::Guessed),
        [
            "2 runs of releases that no new segment follows are `empty_cache` (`e`)",
            "1 run of releases before a new segment or an out of memory are the allocator's own",
        ]
    );
}

#[test]
fn what_the_program_said_becomes_marks() {
    let at = |time: i128, event: Data| event.with("time_us", time);
    let step = |text: &str, event: Data| event.with("user_metadata", text);
    let events = vec![
        at(10, step("warm\nup", event("alloc", 0x1000, 1))),
        at(20, step("warm\nup", event("alloc", 0x2000, 2))),
        at(30, step("", event("alloc", 0x3000, 3))),
    ];
    let note = |stage: &str, time: i128, device: i128| {
        let name = ("name", Data::from("Adam.step"));
        Data::Dict(vec![name, ("stage", stage.into()), ("time_us", time.into()), ("device", device.into())])
    };
    let annotations =
        vec![note("END", 30, 0), note("START", 15, 0), note("START", 5, 0), note("START", 16, 1)];
    let imported =
        imported(&snapshot(vec![], vec![events]).with("external_annotations", Data::List(annotations)));
    assert_eq!(
        lines(&imported),
        ["i warm up", "a 1 1 0", "i begin Adam.step", "a 2 2 0", "i end Adam.step", "a 3 3 0"]
    );
    assert_eq!(
        notes(&imported, NoteKind::LeftOut),
        ["1 annotation without a time, or from before the record"]
    );
}

#[test]
fn one_device_is_imported_and_the_others_are_named() {
    let on = |device: i128| segment_with(&[7]).with("device", device);
    let alloc = |bytes| vec![event("alloc", 0x1000, bytes)];

    // The only one with events, whoever has segments.
    let found = imported(&snapshot(vec![on(0)], vec![vec![], alloc(5)]));
    assert_eq!((found.device, lines(&found)), (Some(1), vec!["a 1 5 0".to_owned()]));
    assert_eq!(notes(&found, NoteKind::LeftOut), ["device 0 (0 events, 1 segment)"]);
    // The only one with segments, where none has events.
    assert_eq!(imported(&snapshot(vec![on(3)], vec![vec![]])).device, Some(3));

    let both = snapshot(vec![on(1)], vec![alloc(5), alloc(6)]);
    assert_eq!(
        import(&both).expect_err("which?").to_string(),
        "some/dir/snap.pickle: several devices: choose one with --device N; there are device 0 (1 event, 0 segments), \
         device 1 (1 event, 1 segment)"
    );
    let chosen = |device| Importer { device: Some(device), format: None }.read(both.pickle(), "snap");
    assert_eq!(chosen(0).expect("it is there").peak_live_bytes, 5);
    assert_eq!(
        chosen(2).expect_err("it is not there").to_string(),
        "snap: nothing of device 2; there is device 0 (1 event, 0 segments), device 1 (1 event, 1 segment)"
    );
    assert!(import(&snapshot(vec![], vec![vec![]])).expect_err("nothing").to_string().contains("is empty"));
}

#[test]
fn what_the_trace_leaves_out_is_counted() {
    let events = vec![
        event("alloc", 0x1000, 0), // PyTorch has none; RMM does
        event("free_requested", 0x1000, 0),
        event("annotate", 0x1000, 4),
        event("annotate", 0x2000, 4),
        event("alloc", 0x1000, 4).with("pool_id", Data::Tuple(vec![0.into(), 1.into()])),
    ];
    let imported = imported(&snapshot(vec![segment_with(&[])], vec![events]));
    assert_eq!(lines(&imported), ["a 1 4 0"]);
    assert_eq!(
        notes(&imported, NoteKind::LeftOut),
        [
            "1 allocation from a private pool: the trace has one pool",
            "1 allocation of 0 bytes",
            "2 events with the action annotate",
        ]
    );
    assert_eq!(
        notes(&imported, NoteKind::Guessed),
        ["1 block live in the events and not in the segments: kept live"]
    );
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let alloc = || event("alloc", 0x1000, 10);
    let history = |events: Vec<Data>| snapshot(vec![], vec![events]);
    let layout = |blocks: Vec<Data>| snapshot(vec![segment(0x1000, 1024, blocks)], vec![]);
    let live = |address, asked| block(address, 512, asked, "active_allocated");
    for (data, text) in [
        (
            Data::None,
            "this is no memory snapshot: None instead of a dict with `segments`, or a list of segments",
        ),
        (
            Data::Dict(vec![("a", Data::None)]),
            "this is no memory snapshot: a dict without `segments` instead of",
        ),
        (Data::List(vec![Data::List(vec![])]), "segments[0]: `the entry` is a list, and should be a dict"),
        (snapshot(vec![], vec![]).with("segments", 5), "`segments` is a number, and should be a list"),
        (
            snapshot(vec![], vec![]).with("device_traces", Data::List(vec![Data::None])),
            "`device_traces` is None, and should be lists",
        ),
        (
            history(vec![Data::Float(1.0)]),
            "device_traces[0][0]: `the entry` is a float, and should be a dict",
        ),
        (history(vec![alloc(), alloc().without("size")]), "device_traces[0][1]: no `size`"),
        (
            history(vec![alloc().with("action", 1)]),
            "device_traces[0][0]: `action` is a number, and should be a text",
        ),
        (
            history(vec![alloc().with("size", -5)]),
            "device_traces[0][0]: `size` is -5: expected a number from 0 to 18446744073709551615",
        ),
        (
            history(vec![alloc().with("size", Data::Float(f64::NAN))]),
            "device_traces[0][0]: `size` is a float, and should be a number of 64 bits",
        ),
        (
            history(vec![alloc().with("size", 1_i128 << 64)]),
            "device_traces[0][0]: `size` is a number of more than 64 bits, and should be a number of 64 bits",
        ),
        (
            history(vec![alloc().with("size", 1_i128 << 60)]),
            "device_traces[0][0]: a block of 1152921504606846976 bytes: no device has addresses for more than \
             144115188075855872",
        ),
        (
            history((0..128).map(|at| event("alloc", at << 57, 1 << 57)).collect()),
            "16 EiB are live at once, and a trace counts live bytes in 64 bits",
        ),
        (
            history(vec![alloc(), alloc()]),
            "device_traces[0][1]: allocates at address 0x1000, where device_traces[0][0] allocated a block that nothing \
             freed: the record misses frees, or is damaged",
        ),
        (
            history(vec![event("free_requested", 4096, 1), event("free_requested", 4096, 1)]),
            "device_traces[0][1]: frees address 0x1000, which device_traces[0][0] freed, and nothing allocated it since: \
             the record misses allocations, or is damaged",
        ),
        (
            layout(vec![live(0x1000, 1).with("state", "odd")]),
            "segments[0].blocks[0]: block state \"odd\": expected",
        ),
        (
            layout(vec![live(0x1000, 1), live(0x1000, 1)]),
            "segments[0].blocks[1]: a second block at address 0x1000",
        ),
        (
            layout(vec![live(0x1000, 1).with("address", u64::MAX as i128)]),
            "segments[0].blocks[0]: the blocks of the segment reach beyond the last address",
        ),
        (
            snapshot(vec![segment_with(&[]).with("device", 1_i128 << 32)], vec![]),
            "segments[0]: `device` is 4294967296: expected a number from 0 to 4294967295",
        ),
        (
            history(vec![alloc()]).with("external_annotations", Data::List(vec![1.into()])),
            "external_annotations[0]: `the entry` is a number, and should be a dict",
        ),
    ] {
        let error = import(&data).map(|found| lines(&found)).expect_err(text).to_string();
        let said = error.strip_prefix("some/dir/snap.pickle: ").unwrap_or(&error);
        assert!(said.starts_with(text), "{said}\nshould be\n{text}");
    }
}

#[test]
fn what_is_shared_is_not_walked_again_and_again() {
    // A list of blocks that a thousand segments refer to: a million blocks out of a few thousand bytes.
    let blocks = Data::List((0..1000).map(|at| block(at * 512, 512, 1, "inactive")).collect()).shared();
    let segments = vec![segment(0, 512_000, vec![]).with("blocks", blocks).shared(); 1000];
    let error = import(&snapshot(segments, vec![])).expect_err("they share").to_string();
    assert!(error.contains("the segments share their blocks"), "{error}");

    // One event, a hundred thousand times, and one list of frames in all of them.
    let frames = Data::List(vec![Data::Dict(vec![("name", "f".into())]).shared(); 100_000]).shared();
    let release = event("segment_free", 0, 1).with("frames", frames).shared();
    let imported = imported(&snapshot(vec![], vec![vec![release; 100_000]]));
    assert_eq!(lines(&imported), ["e"]);
}
