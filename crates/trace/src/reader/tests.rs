//! First lines, headers, live IDs, encodings and broken files.

use std::io::{self, BufReader, Cursor, Read};

use super::{Trace, TraceReader};
use crate::event::{Event, Letter};
use crate::lines::{Encoding, MAX_LINE_BYTES};
use crate::mistake::{Mistake, ReadError, ReadErrorKind};

fn read(text: impl AsRef<[u8]>) -> Result<Trace, ReadError> {
    TraceReader::new(text.as_ref(), "test")?.into_trace()
}

/// The line and mistake of a text that must have one.
fn mistake(text: impl AsRef<[u8]>) -> (u64, Mistake) {
    let error = read(text).expect_err("the text has a mistake");
    assert_eq!(&*error.file, "test");
    match error.kind {
        ReadErrorKind::Mistake(mistake) => (error.line.expect("mistakes have a line"), mistake),
        other => panic!("{other}"),
    }
}

fn compressed(text: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(text, 3).unwrap()
}

#[test]
fn header_lines_come_first_and_in_order() {
    let trace = read("alloc-trace 1\n# name: x\n# source: a: b\na 1 5 0\ni end\n").unwrap();
    assert_eq!(trace.header.lines().collect::<Vec<_>>(), [("name", "x"), ("source", "a: b")]);
    assert_eq!(trace.events.len(), 2);
    assert_eq!(trace.first_event_line(), 4);
    assert_eq!(mistake("alloc-trace 1\na 1 5 0\n# name: x\n").0, 3);
    assert_eq!(
        mistake("alloc-trace 1\n#name: x\n"),
        (2, Mistake::MalformedHeader { found: "#name: x".into() })
    );
}

#[test]
fn a_trace_without_events_or_without_a_last_line_break_is_one() {
    assert_eq!(read("alloc-trace 1").unwrap(), Trace::default());
    assert_eq!(read("alloc-trace 1\n").unwrap(), Trace::default());
    assert_eq!(read("alloc-trace 1\ne").unwrap().events, [Event::ReleaseCached]);
}

#[test]
fn the_first_line_says_format_and_version() {
    let not_a_trace = |found: &str| (1, Mistake::NotATrace { found: found.into() });
    assert_eq!(mistake(""), not_a_trace(""));
    assert_eq!(mistake("\n"), not_a_trace(""));
    assert_eq!(mistake("alloc-trace\n"), not_a_trace("alloc-trace"));
    assert_eq!(mistake("Alloc-trace 1\n"), not_a_trace("Alloc-trace 1"));
    assert_eq!(mistake("\u{feff}alloc-trace 1\n"), not_a_trace("\u{feff}alloc-trace 1"));
    for version in ["2", "1.0", "", "1 ", "01"] {
        let found = version.into();
        assert_eq!(mistake(format!("alloc-trace {version}\n")), (1, Mistake::UnknownVersion { found }));
    }
}

#[test]
fn live_ids_are_tracked() {
    assert_eq!(
        mistake("alloc-trace 1\na 1 5 0\nf 1\na 1 5 0\na 1 6 0\n"),
        (5, Mistake::AllocatedAgain { id: 1, since_line: 4 })
    );
    assert_eq!(
        mistake("alloc-trace 1\n# name: x\na 1 5 0\nf 1\nf 1\n"),
        (5, Mistake::NotLive { letter: Letter::F, id: 1 })
    );
    assert_eq!(mistake("alloc-trace 1\nf 9\n"), (2, Mistake::NotLive { letter: Letter::F, id: 9 }));
    assert_eq!(mistake("alloc-trace 1\nu 9 1\n"), (2, Mistake::NotLive { letter: Letter::U, id: 9 }));
    let most = u64::MAX;
    assert_eq!(
        mistake(format!("alloc-trace 1\na 1 {most} 0\na 2 1 0\n")),
        (3, Mistake::TooMuchLive { id: 2, bytes: 1 })
    );
}

#[test]
fn the_reader_tells_line_and_live_bytes_and_stops_at_an_error() {
    let mut reader =
        TraceReader::new("alloc-trace 1\n# a: b\na 1 5 0\na 2 7 0\nf 1\nx\nf 2\n".as_bytes(), "test")
            .unwrap();
    let mut seen = Vec::new();
    while let Some(Ok(_)) = reader.next() {
        seen.push((reader.line(), reader.live_bytes()));
    }
    assert_eq!(seen, [(3, 5), (4, 12), (5, 7)]);
    assert_eq!(reader.line(), 6);
    assert!(reader.next().is_none());
}

#[test]
fn the_content_decides_the_encoding() {
    let text = b"alloc-trace 1\na 1 5 0\n";
    assert_eq!(TraceReader::new(&text[..], "x.trace.zst").unwrap().encoding(), Encoding::Plain);
    let packed = compressed(text);
    let reader = TraceReader::new(&packed[..], "x.trace").unwrap();
    assert_eq!(reader.encoding(), Encoding::Zstd);
    assert_eq!(reader.into_trace().unwrap(), read(text).unwrap());
    // Two frames one after the other are one text, and a skippable one before them is none of it.
    let (first, second) = text.split_at(9);
    let skippable = [0x53, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 0xff, 0xff];
    let frames = [&skippable[..], &compressed(first), &compressed(second)].concat();
    assert_eq!(read(frames).unwrap(), read(text).unwrap());
}

#[test]
fn a_source_may_come_byte_by_byte() {
    struct Dribble<R>(R);
    impl<R: Read> Read for Dribble<R> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let most = buffer.len().min(1);
            self.0.read(&mut buffer[..most])
        }
    }
    let text = b"alloc-trace 1\n# name: x\na 1 5 0\nf 1\n";
    for bytes in [text.to_vec(), compressed(text)] {
        let reader = TraceReader::new(BufReader::new(Dribble(Cursor::new(bytes))), "test").unwrap();
        assert_eq!(reader.into_trace().unwrap(), read(text).unwrap());
    }
}

#[test]
fn a_zstd_file_cut_off_anywhere_is_an_error() {
    let text: String = (0..2_000).map(|id| format!("a {id} {} 0\n", id * 7919 % 4093 + 1)).collect();
    let packed = compressed(format!("alloc-trace 1\n{text}").as_bytes());
    assert_eq!(read(&packed).unwrap().events.len(), 2_000);
    for length in 0..packed.len() {
        let error = read(&packed[..length]).expect_err("the file is cut off");
        match error.kind {
            ReadErrorKind::Truncated => assert!(length >= 4),
            // Too short to be known as zstd.
            ReadErrorKind::Mistake(Mistake::NotATrace { .. } | Mistake::NotUtf8 { .. }) => {
                assert!(length < 4);
            }
            other => panic!("cut to {length}: {other}"),
        }
    }
}

#[test]
fn damaged_zstd_is_an_error_with_file_and_line() {
    let packed = zstd::bulk::compress(b"alloc-trace 1\na 1 5 0\n", 3).unwrap();
    let damaged = [&packed[..4], &[0xff; 40]].concat();
    let error = read(damaged).unwrap_err();
    assert!(matches!(error.kind, ReadErrorKind::Damaged(_)), "{error}");
    assert!(error.to_string().starts_with("test:1: the zstd data is damaged"), "{error}");
    // Anything else behind the frame is no zstd either.
    let error = read([&packed[..], b"and more"].concat()).unwrap_err();
    assert!(matches!(error.kind, ReadErrorKind::Damaged(_)), "{error}");
    assert_eq!(error.line, Some(3));
}

#[test]
fn lines_have_a_bound_and_are_utf8() {
    let fits = format!("alloc-trace 1\ni {}\n", "x".repeat(MAX_LINE_BYTES - 2));
    assert_eq!(read(fits).unwrap().events.len(), 1);
    let long = format!("alloc-trace 1\ne\ni {}\n", "x".repeat(MAX_LINE_BYTES - 1));
    assert_eq!(mistake(&long), (3, Mistake::LongLine { most: MAX_LINE_BYTES }));
    assert_eq!(mistake(compressed(long.as_bytes())), (3, Mistake::LongLine { most: MAX_LINE_BYTES }));
    let (line, found) = mistake(b"alloc-trace 1\ni caf\xe9\n");
    assert_eq!((line, found), (2, Mistake::NotUtf8 { found: "i caf\u{fffd}".into() }));
    assert_eq!(mistake(vec![0_u8; 1_000_000]), (1, Mistake::LongLine { most: MAX_LINE_BYTES }));
}

#[test]
fn a_file_that_the_system_refuses_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("none.trace");
    let error = TraceReader::open(&missing).unwrap_err();
    assert!(matches!(error.kind, ReadErrorKind::Io(_)) && error.line.is_none());
    assert!(error.to_string().starts_with(&format!("{}: can't read: ", missing.display())), "{error}");
    assert!(matches!(TraceReader::open(folder.path()).unwrap_err().kind, ReadErrorKind::Io(_)));
}

#[test]
fn errors_read_as_file_line_and_reason() {
    let error = read("alloc-trace 1\na 1 0 0\n").unwrap_err();
    assert_eq!(error.to_string(), "test:2: SIZE 0 for ID 1: the smallest allocation is 1 byte");
    let error = read("alloc-trace 1\nq 1\n").unwrap_err();
    assert_eq!(error.to_string(), "test:2: unknown letter \"q\": expected one of a f u w y e i");
}
