//! What is written is read back; what is broken is found, where a reader of three rules finds it too.

use std::collections::{HashMap, HashSet};

use concertina_trace::{
    Encoding, Event, Header, LoadedTrace, MAX_LINE_BYTES, Mistake, ReadError, Trace, TraceReader, TraceStat,
    TraceWriter, WriteError,
};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::valid;

fn read(bytes: &[u8]) -> Result<Trace, ReadError> {
    TraceReader::new(bytes, "test")?.into_trace()
}

/// The first line with a mistake, found the slow and simple way. For texts of few lines.
fn first_wrong_line(bytes: &[u8]) -> Option<u64> {
    let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    if lines.last() == Some(&&b""[..]) {
        lines.pop();
    }
    let wrong = |number: usize| Some(number as u64 + 1);
    if lines.first() != Some(&&b"alloc-trace 1"[..]) {
        return wrong(0);
    }
    let mut live = HashSet::new();
    let mut in_header = true;
    let mut bytes_live = 0_u128;
    let mut sizes = HashMap::new();
    for (number, line) in lines.iter().enumerate().skip(1) {
        let Ok(line) = std::str::from_utf8(line) else { return wrong(number) };
        if in_header && line.starts_with('#') {
            let key = line.strip_prefix("# ").and_then(|rest| rest.split_once(':'));
            let fine = key.is_some_and(|(key, value)| {
                !key.is_empty()
                    && key.trim_matches(' ') == key
                    && (value.is_empty() || value.starts_with(' '))
            });
            if fine {
                continue;
            }
            return wrong(number);
        }
        in_header = false;
        let fields: Vec<&str> = line.split(' ').collect();
        let number_at = |at: usize| -> Option<u64> {
            let digits = fields[at].chars().all(|character| character.is_ascii_digit());
            fields[at].parse().ok().filter(|_| digits)
        };
        let stream_at = |at: usize| number_at(at).filter(|stream| *stream <= 4_294_967_295);
        let fine = match (fields[0], fields.len()) {
            ("a", 4) => match (number_at(1), number_at(2), stream_at(3)) {
                (Some(id), Some(size), Some(_)) => {
                    bytes_live += u128::from(size);
                    sizes.insert(id, size);
                    size > 0 && live.insert(id) && bytes_live < 1 << 64
                }
                _ => false,
            },
            ("f", 2) => number_at(1).is_some_and(|id| {
                bytes_live -= sizes.remove(&id).map_or(0, u128::from);
                live.remove(&id)
            }),
            ("u", 3) => number_at(1).is_some_and(|id| live.contains(&id)) && stream_at(2).is_some(),
            ("w", 3) => stream_at(1).is_some() && stream_at(2).is_some(),
            ("y", 2) => fields[1] == "*" || stream_at(1).is_some(),
            ("e", 1) => true,
            ("i", _) => line.len() > 2,
            _ => false,
        };
        if !fine {
            return wrong(number);
        }
    }
    None
}

/// One change to a text: bytes are put in, overwritten or taken out.
fn mutation() -> impl Strategy<Value = (Index, u8, Vec<u8>)> {
    let patch = prop_oneof![
        "[0-9 afuwyei#*\n]{1,4}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 1..3),
        Just(Vec::new()),
    ];
    (any::<Index>(), 0_u8..6, patch)
}

proptest! {
    #[test]
    fn written_text_reads_back(trace in valid::trace()) {
        let bytes = trace.write(Vec::new(), Encoding::Plain).unwrap();
        prop_assert_eq!(&read(&bytes).unwrap(), &trace);
    }

    #[test]
    fn loading_agrees_with_a_recount(trace in valid::trace()) {
        let loaded = LoadedTrace::from_trace(&trace).unwrap();
        let mut live = HashMap::new();
        let (mut peak, mut most_blocks) = (0_u64, 0);
        for event in &trace.events {
            match event {
                Event::Allocate { id, bytes, .. } => { live.insert(*id, *bytes); }
                Event::Free { id } => { live.remove(id); }
                _ => {}
            }
            peak = peak.max(live.values().sum());
            most_blocks = most_blocks.max(live.len());
        }
        prop_assert_eq!(loaded.live_peak().bytes, peak);
        prop_assert_eq!(loaded.slot_count() as usize, most_blocks);
        prop_assert_eq!(loaded.steps().len(), trace.events.len());
        let stat = TraceStat::of(&loaded);
        prop_assert_eq!(stat.live_peak.bytes, peak);
        prop_assert_eq!(stat.live_at_end.bytes, live.values().sum::<u64>());
        prop_assert_eq!(stat.live_at_end.blocks as usize, live.len());
        // From the file and from memory it is the same.
        let text = trace.write(Vec::new(), Encoding::Plain).unwrap();
        let again = LoadedTrace::read(TraceReader::new(&text[..], "test").unwrap()).unwrap();
        prop_assert_eq!(again.steps(), loaded.steps());
        prop_assert_eq!(again.line_of(0), loaded.line_of(0));
    }

    #[test]
    fn mutated_text_fails_at_the_first_wrong_line(
        trace in valid::trace(),
        mutations in prop::collection::vec(mutation(), 1..4),
    ) {
        let mut text = trace.write(Vec::new(), Encoding::Plain).unwrap();
        for (at, removed, patch) in mutations {
            let at = at.index(text.len() + 1);
            let end = (at + usize::from(removed)).min(text.len());
            text.splice(at..end, patch);
        }
        // An emptied text or one that begins like zstd has no lines to compare.
        prop_assume!(Encoding::of_magic(&text) == Encoding::Plain);
        let found = match read(&text) {
            Ok(_) => None,
            Err(error) => error.line,
        };
        prop_assert_eq!(found, first_wrong_line(&text), "{}", String::from_utf8_lossy(&text));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes);
        let _ = read(&[b"alloc-trace 1\n", &bytes[..]].concat());
        let _ = read(&[&[0x28, 0xb5, 0x2f, 0xfd], &bytes[..]].concat());
    }
}

// Few cases: the tables of zstd's level 19 take 50 ms to set up.
proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn written_zstd_reads_back(trace in valid::trace()) {
        let bytes = trace.write(Vec::new(), Encoding::Zstd).unwrap();
        let reader = TraceReader::new(&bytes[..], "test").unwrap();
        prop_assert_eq!(reader.encoding(), Encoding::Zstd);
        prop_assert_eq!(&reader.into_trace().unwrap(), &trace);
    }

    #[test]
    fn mutated_zstd_never_panics(
        trace in valid::trace(),
        mutations in prop::collection::vec(mutation(), 60),
    ) {
        let written = trace.write(Vec::new(), Encoding::Zstd).unwrap();
        for (at, removed, patch) in mutations {
            let mut bytes = written.clone();
            let at = at.index(bytes.len() + 1);
            let end = (at + usize::from(removed)).min(bytes.len());
            bytes.splice(at..end, patch);
            // The checksum of the frame finds what the decoder lets pass.
            if let Ok(read) = read(&bytes) {
                prop_assert_eq!(&read, &trace);
            }
        }
    }
}

#[test]
fn the_writer_refuses_what_no_reader_takes() {
    let mut writer = TraceWriter::new(Vec::new(), Encoding::Plain, &Header::new()).unwrap();
    writer.write(&Event::Allocate { id: 1, bytes: 5, stream: 0 }).unwrap();
    let long = "x".repeat(MAX_LINE_BYTES - 1).into_boxed_str();
    for event in [
        Event::Allocate { id: 1, bytes: 5, stream: 0 },
        Event::Allocate { id: 2, bytes: 0, stream: 0 },
        Event::Allocate { id: 2, bytes: u64::MAX, stream: 0 },
        Event::Free { id: 2 },
        Event::RecordStream { id: 2, stream: 1 },
        Event::Mark { label: "".into() },
        Event::Mark { label: "two\nlines".into() },
        Event::Mark { label: long },
    ] {
        let refused = writer.write(&event);
        assert!(matches!(refused, Err(WriteError::Mistake { line: 3, .. })), "{event}: {refused:?}");
    }
    let refused = writer.write(&Event::Allocate { id: 1, bytes: 5, stream: 0 }).unwrap_err();
    let WriteError::Mistake { mistake, .. } = refused else { panic!("{refused}") };
    assert_eq!(mistake, Mistake::AllocatedAgain { id: 1, since_line: 2 });
    writer.write(&Event::Free { id: 1 }).unwrap();
    assert_eq!(writer.finish().unwrap(), b"alloc-trace 1\na 1 5 0\nf 1\n");
}
