//! Made traces are what their names say, every time.

use std::str::FromStr;

use super::{Generator, GeneratorError, GeneratorOptions};
use crate::event::{Event, Letter};
use crate::loaded::LoadedTrace;
use crate::reader::Trace;
use crate::stat::TraceStat;

fn make(generator: Generator, seed: u64, length: Option<u64>) -> Trace {
    generator.generate(&GeneratorOptions { seed, length }).unwrap()
}

fn stat(trace: &Trace) -> TraceStat {
    TraceStat::of(&LoadedTrace::from_trace(trace).unwrap())
}

fn events(text: &str) -> Vec<Event> {
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn the_middle_one_is_freed() {
    let trace = make(Generator::Middle, 1, None);
    let text = "a 1 104857600 0\na 2 209715200 0\na 3 314572800 0\nf 2\ni the request that no hole fits\na 2 262144000 0";
    assert_eq!(trace.events, events(text));
    assert_eq!(trace.header.number("capacity"), Some(734_003_200));
}

#[test]
fn headers_agree_with_the_events() {
    for generator in Generator::ALL {
        let length = generator.length_unit().map(|_| 60);
        let trace = make(generator, 3, length);
        let stat = stat(&trace);
        assert!(stat.disagreements.is_empty(), "{generator}: {:?}", stat.disagreements);
        assert_eq!(trace.header.number("events"), Some(stat.events.total()));
        assert_eq!(trace.header.number("peak_live"), Some(stat.live_peak.bytes));
        assert_eq!(trace.header.number("seed"), Some(3));
        assert_eq!(trace.header.get("name"), Some(generator.name()));
        let capacity = trace.header.number("capacity");
        assert_eq!(capacity.is_some(), generator.length_unit().is_none());
        assert!(capacity.is_none_or(|bytes| bytes >= stat.live_peak.bytes), "{generator}");
    }
}

#[test]
fn the_seed_decides_everything() {
    for generator in [Generator::NlpDynamic, Generator::SmallHoles, Generator::Random] {
        let first = make(generator, 7, Some(50));
        assert_eq!(first, make(generator, 7, Some(50)));
        assert_ne!(first.events, make(generator, 8, Some(50)).events);
    }
}

/// A change of the draws would silently change what a seed means to those who noted it down.
#[test]
fn seeds_keep_their_meaning() {
    let trace = make(Generator::Random, 1, Some(8));
    let lines: Vec<_> = trace.events.iter().map(ToString::to_string).collect();
    assert_eq!(lines, SEED_1, "events of `random` with seed 1");
}

const SEED_1: [&str; 8] = [
    "i allocation 1",
    "a 1 162543667 0",
    "a 2 151080 0",
    "a 3 33155553 0",
    "a 4 130668841 0",
    "a 5 120342865 0",
    "a 6 1024 0",
    "a 7 1024 0",
];

#[test]
fn random_has_the_sizes_and_lifetimes_of_its_description() {
    let stat = stat(&make(Generator::Random, 1, None));
    assert_eq!(stat.events.total(), 200_000);
    assert!(stat.smallest_bytes >= 512 && stat.largest_bytes == 256 << 20);
    let allocations = stat.events.of(Letter::A);
    assert!((99_000..102_000).contains(&allocations), "{allocations} allocations");
    assert_eq!(stat.events.of(Letter::I), allocations.div_ceil(2_000));
    // 19 octaves share all sizes but the powers of two evenly.
    for class in &stat.sizes[..19] {
        assert!((class.allocations as f64 / allocations as f64 - 1.0 / 19.0).abs() < 0.005, "{class:?}");
    }
    // Two events an allocation.
    assert!((230..350).contains(&stat.lifetimes.median), "{:?}", stat.lifetimes);
    assert!(stat.lifetimes.most > 50_000, "{:?}", stat.lifetimes);
    assert!((12 << 30..20 << 30).contains(&stat.live_peak.bytes), "{:?}", stat.live_peak);
}

#[test]
fn no_hole_of_small_holes_fits_the_request() {
    let trace = make(Generator::SmallHoles, 1, None);
    let mark = trace.events.iter().position(|event| event.letter() == Letter::I).unwrap();
    let (before, after) = trace.events.split_at(mark);
    let freed: Vec<u64> = before.iter().filter(|event| event.letter() == Letter::F).map(id).collect();
    assert!(freed.len() >= 300, "{} holes", freed.len());
    let mut hole_bytes = 0;
    for event in before {
        if let Event::Allocate { id, bytes, .. } = event
            && freed.contains(id)
        {
            assert!(*bytes <= 30 << 20);
            hole_bytes += bytes;
        }
    }
    assert_eq!(after[1].to_string(), "a 1 536870912 0");
    assert!(hole_bytes > 2 * (512 << 20), "{hole_bytes} bytes are free");
    // Neighbours are never freed together.
    assert!(freed.iter().all(|id| id % 2 == 1));
}

fn id(event: &Event) -> u64 {
    match event {
        Event::Allocate { id, .. } | Event::Free { id } | Event::RecordStream { id, .. } => *id,
        _ => panic!("{event} has no ID"),
    }
}

#[test]
fn every_step_of_nlp_dynamic_returns_to_the_weights() {
    let trace = make(Generator::NlpDynamic, 1, None);
    let stat = stat(&trace);
    assert_eq!(stat.marks.len(), 1_500);
    let weights = stat.marks[0].live;
    assert!(
        stat.marks.iter().all(|mark| (mark.live.bytes, mark.live.blocks) == (weights.bytes, weights.blocks))
    );
    // 3 × (8 layers of 12 H² + 9 H and a vocabulary of 16,000 H), 4 bytes each, for H = 1,024.
    assert_eq!(weights.bytes, 3 * 4 * (8 * (12 * 1024 * 1024 + 9 * 1024) + 16_000 * 1024));
    assert!(stat.distinct_sizes > 3_000, "{} sizes", stat.distinct_sizes);
    assert!((12 << 30..20 << 30).contains(&stat.live_peak.bytes), "{:?}", stat.live_peak);
}

#[test]
fn names_and_lengths_are_checked() {
    for generator in Generator::ALL {
        assert_eq!(Generator::from_str(generator.name()), Ok(generator));
    }
    let error = "rando".parse::<Generator>().unwrap_err().to_string();
    assert_eq!(
        error,
        "unknown generator \"rando\": expected one of middle, big-then-alternate, three-holes, nlp-dynamic, \
         small-holes, random, or a public case: kvcached359, mlx3886, pytorch35901, pytorch96995, pytorch123548, \
         pytorch172056, pytorch193400, pytorch-devlog, rmm35, rmm1245, rmm1664, rmm1957, vllm41268, vllm52950, vpmm"
    );
    let fixed = Generator::Middle.generate(&GeneratorOptions { seed: 0, length: Some(5) });
    assert_eq!(fixed, Err(GeneratorError::FixedLength { generator: Generator::Middle, length: 5 }));
    for length in [0, u64::MAX] {
        let refused = Generator::Random.generate(&GeneratorOptions { seed: 0, length: Some(length) });
        assert!(matches!(refused, Err(GeneratorError::LengthOutOfRange { .. })), "{length}");
    }
    assert_eq!(make(Generator::Random, 0, Some(1)).events.len(), 1);
    assert_eq!(make(Generator::SmallHoles, 0, Some(1)).header.number("holes"), Some(1));
}
