//! The bundled traces: all readable, true to their headers, and the examples equal to the made ones.

use std::fs;
use std::path::PathBuf;

use concertina_trace::{
    Encoding, Generator, GeneratorOptions, LoadedTrace, PublicCase, Trace, TraceReader, TraceStat,
};

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/traces"))
}

/// Name, events, live peak in bytes, marks, streams: counted with a few lines of another language.
const BUNDLED: [(&str, u64, u64, usize, usize); 13] = [
    ("s1_middle", 6, 681_574_400, 1, 1),
    ("s2_big_then_alternate", 17, 8_589_934_592, 1, 1),
    ("s3_three_holes", 11, 576_716_800, 1, 1),
    ("s4_nlp_dynamic", 352_599, 15_156_823_184, 1_500, 1),
    ("s5_small_holes", 2_498, 13_857_829_316, 13, 1),
    ("s6_random", 200_001, 16_647_861_117, 51, 1),
    ("s7_streams", 220_934, 16_187_545_742, 600, 3),
    ("t1_gpt2_train", 310_822, 40_575_084_648, 28, 1),
    ("t2_llama_lora", 1_009_932, 35_714_504_072, 42, 1),
    ("t4_bert_train", 505_390, 38_671_636_780, 75, 1),
    ("t5_resnet50_multiscale", 301_548, 35_266_553_984, 177, 2),
    ("t7_serve_nopaging", 700_399, 33_746_878_720, 115, 1),
    ("t8_moe_train", 620_842, 47_350_763_652, 28, 1),
];

#[test]
fn every_bundled_trace_is_what_its_header_says() {
    let mut files: Vec<_> = fs::read_dir(folder()).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.to_string_lossy().contains(".trace"));
    files.sort();
    assert_eq!(files.len(), BUNDLED.len());
    for (path, (name, events, peak, marks, streams)) in files.iter().zip(BUNDLED) {
        let reader = TraceReader::open(path).unwrap();
        assert_eq!(reader.encoding(), Encoding::Zstd);
        let trace = LoadedTrace::read(reader).unwrap();
        assert_eq!(trace.name(), name);
        let stat = TraceStat::of(&trace);
        assert_eq!(stat.disagreements, [], "{name}");
        assert_eq!(stat.events.total(), events, "{name}");
        assert_eq!(stat.live_peak.bytes, peak, "{name}");
        assert_eq!(trace.live_peak().bytes, peak, "{name}");
        assert_eq!(trace.live_peak().event, stat.live_peak.event, "{name}");
        assert_eq!(trace.marks().len(), marks, "{name}");
        assert_eq!(trace.streams().len(), streams, "{name}");
    }
}

#[test]
fn the_made_examples_are_the_bundled_ones() {
    for (file, generator) in [
        ("s1_middle", Generator::Middle),
        ("s2_big_then_alternate", Generator::BigThenAlternate),
        ("s3_three_holes", Generator::ThreeHoles),
    ] {
        let bundled = Trace::open(&folder().join(format!("{file}.trace.zst"))).unwrap();
        let made = generator.generate(&GeneratorOptions::default()).unwrap();
        assert_eq!(made.events, bundled.events, "{generator}");
        assert_eq!(made.header.number("capacity"), bundled.header.number("capacity"), "{generator}");
    }
}

/// `cargo xtask trace gen NAME --out benches/traces/cases/NAME.trace.zst` makes such a file.
#[test]
fn the_public_cases_are_what_their_rules_make() {
    for case in PublicCase::ALL {
        let bundled = Trace::open(&folder().join(format!("cases/{case}.trace.zst"))).unwrap();
        assert!(bundled == case.generate(), "{case}");
    }
}
