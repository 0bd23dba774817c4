//! The cases are what their reports tell, by figures that were worked out apart.

use super::PublicCase;
use crate::event::{Event, Letter};
use crate::generator::{Generator, GeneratorError, GeneratorOptions};
use crate::loaded::LoadedTrace;
use crate::stat::TraceStat;

fn stat(case: PublicCase) -> TraceStat {
    TraceStat::of(&LoadedTrace::from_trace(&case.generate()).unwrap())
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Live peak in bytes, allocations, streams, and the device that is demanded.
#[test]
fn peaks_and_counts_are_those_of_the_reports() {
    for (case, peak, allocations, streams, capacity) in [
        // 20 blocks of 16 MiB and the next one.
        (PublicCase::Mlx3886, 352_317_440, 20 + 20 * 3_584, 1, None),
        (PublicCase::Pytorch35901, 12_756_899_389, 1 + 1 + 51 + 1, 1, Some(12_795_170_087)),
        // 50 × (1 + 4) × 40 MB.
        (PublicCase::Pytorch96995, 10_000_000_000, 9 * 100, 1, None),
        (PublicCase::Pytorch123548, 25_689_600_000, 224, 1, Some(24 * GIB)),
        (PublicCase::Pytorch172056, 50_000_000_000, 200, 1, None),
        // 64 + 101 × 2 MiB, and the other two of the last cycle.
        (PublicCase::Pytorch193400, 402 * MIB + MIB / 2, 1 + 303, 1, None),
        (PublicCase::PytorchDevlog, 128 * MIB, 12, 1, None),
        (PublicCase::Rmm35, 4_000_000_000, 22, 1, Some(4_001_366_016)),
        (PublicCase::Rmm1664, 64 * MIB, 9, 1, Some(64 * MIB)),
        (PublicCase::Rmm1957, 2 * GIB, 2, 1, Some(2 * GIB)),
        // 35 layers of 800 MiB and both of 530 MiB.
        (PublicCase::Vllm41268, 29_060 * MIB, 36 * 3, 1, None),
        (PublicCase::Vllm52950, 8_000_000_000 + 2 * GIB, 1 + 128, 33, None),
        (PublicCase::Vpmm, 16 * GIB, 4, 1, Some(16 * GIB)),
    ] {
        let stat = stat(case);
        assert_eq!(stat.live_peak.bytes, peak, "{case}");
        assert_eq!(stat.events.of(Letter::A), allocations, "{case}");
        assert_eq!(stat.streams.len(), streams, "{case}");
        assert_eq!(case.generate().header.number("capacity"), capacity, "{case}");
    }
}

#[test]
fn headers_name_the_report_and_agree_with_the_events() {
    for case in PublicCase::ALL.iter().copied() {
        let trace = case.generate();
        assert_eq!(stat(case).disagreements, [], "{case}");
        assert_eq!(trace.header.get("name"), Some(case.name()));
        let source = trace.header.get("source").unwrap();
        assert!(source.starts_with("https://") && source.ends_with(case.description()), "{source}");
        assert_eq!(trace, case.generate(), "{case} is the same every time");
        assert_eq!(case.name().parse(), Ok(Generator::Case(case)));
    }
    let chosen = GeneratorOptions { seed: 7, length: Some(5) };
    let case = Generator::Case(PublicCase::Vpmm);
    assert_eq!(case.generate(&chosen), Err(GeneratorError::FixedLength { generator: case, length: 5 }));
}

/// The pool of the report had taken 84,490,059,776 bytes, of which 53,514,136,688 were in use, when it refused
/// 132,870,728; no hole is that large.
#[test]
fn the_pool_of_rmm1245_is_as_full_as_in_the_report() {
    let trace = PublicCase::Rmm1245.generate();
    let (mut live, mut taken) = (0, 0);
    let mut sizes = std::collections::HashMap::new();
    let mut between = 0;
    for event in &trace.events {
        match event {
            Event::Allocate { id, bytes, .. } => {
                let small = (256 << 10..=512 << 10).contains(bytes);
                assert!(small || (16 * MIB..=120 * MIB).contains(bytes), "{bytes} bytes");
                assert!(small || between > 0 || sizes.is_empty(), "small ones lie between two large ones");
                between = if small { between + 1 } else { 0 };
                sizes.insert(*id, *bytes);
                live += bytes;
                taken = taken.max(live);
            }
            Event::Free { id } => {
                assert!(sizes[id] >= 16 * MIB, "small blocks stay");
                live -= sizes[id];
            }
            _ => break,
        }
    }
    // As near as the sizes of the blocks allow.
    assert!((84_490_059_776 - 120 * MIB..=84_490_059_776).contains(&taken), "{taken}");
    assert!((53_514_136_688 - 120 * MIB..=53_514_136_688).contains(&live), "{live}");
    let requests =
        trace.events.iter().filter(|event| matches!(event, Event::Allocate { bytes: 132_870_728, .. }));
    assert_eq!(requests.count() as u64, (84_490_059_776 - live) / 132_870_728);
}

#[test]
fn the_server_of_kvcached359_is_that_of_its_benchmark() {
    let trace = PublicCase::Kvcached359.generate();
    let blocks = trace.events.iter().filter(|event| event.letter() == Letter::A).count();
    assert!(
        trace.events.iter().all(|event| !matches!(event, Event::Allocate { bytes, .. } if *bytes != 32_768))
    );
    let stat = stat(PublicCase::Kvcached359);
    // At most 1,000 blocks are kept, and 96 requests have at most 1,280 tokens each.
    assert!(stat.live_peak.bytes / 32_768 <= 1_000 + 96 * 80, "{:?}", stat.live_peak);
    let frees = trace.events.iter().filter(|event| event.letter() == Letter::F).count();
    assert_eq!(blocks - frees, 1_000, "what is kept when the server is idle");
    // 2,500 requests, of which three in ten have 4 blocks of their own, the others 192 to 1,024 tokens, and 16 to 256
    // more each: 4 or 38 blocks, and 8.5.
    let expected = 2_500.0 * (0.3 * 4.0 + 0.7 * 38.0 + 8.5);
    assert!((blocks as f64 / expected - 1.0).abs() < 0.05, "{blocks} blocks, about {expected}");
}
