//! What `direct` needs and pays, against numbers worked out by hand.

use std::fs;
use std::path::Path;

use concertina_baselines::Direct;
use concertina_emulator::{CallCost, CostTable, Emulator, EmulatorConfig};
use concertina_trace::{LoadedTrace, Replay, ReplayReport, TraceReader};
use concertina_vmm::Call;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/traces");
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A device of 2 MiB granules and round prices.
fn device(capacity_bytes: u64) -> Emulator {
    let mut prices = CostTable::free_of_charge()
        .with(Call::Malloc, CallCost::flat(1_000_000))
        .with(Call::Free, CallCost::flat(1_000));
    prices.small_malloc_ns = 1;
    let config = EmulatorConfig::default().with_capacity(capacity_bytes).unwrap().with_cost_table(prices);
    Emulator::new(config).unwrap()
}

fn run(trace: &LoadedTrace, capacity_bytes: u64) -> ReplayReport {
    let emulator = device(capacity_bytes);
    let report = Replay::new(trace, &emulator).checked(256).run(&mut Direct::new(emulator.clone()));
    assert!(report.cleanup_failure.is_none() && emulator.is_empty(), "{}", emulator.leaks());
    assert!(emulator.broken_rules().is_empty());
    report
}

fn load(text: &str) -> LoadedTrace {
    let text = format!("alloc-trace 1\n{text}");
    LoadedTrace::read(TraceReader::new(text.as_bytes(), "test").unwrap()).unwrap()
}

fn bundled(name: &str) -> LoadedTrace {
    LoadedTrace::open(&Path::new(FOLDER).join(format!("{name}.trace.zst"))).unwrap()
}

#[test]
fn small_requests_share_granules_and_large_ones_take_whole_ones() {
    // 3 × 900 KiB do not fit into one granule of 2 MiB, 1 MiB takes one of its own, 3 MiB two: five in all.
    let small = 900 * KIB;
    let trace = load(&format!(
        "a 1 {small} 0\na 2 {small} 1\na 3 {small} 0\na 4 {MIB} 0\na 5 {} 0\nu 1 2\nw 1 0\ny 1\ny *\ne\nf 4\nf 1\na 4 100 0\n",
        3 * MIB
    ));
    let report = run(&trace, 10 * MIB);
    assert!(report.completed(), "{:?}", report.failure);
    assert_eq!(report.mapped_peak_bytes(), 10 * MIB);
    // The 1 MiB went back whole; of the first granule only a part.
    assert_eq!(report.counts.mapped_bytes, 8 * MIB);
    assert_eq!(report.address_peak_bytes, 3 * small + 4 * MIB);
    assert_eq!(report.live_peak_bytes, 3 * small + 4 * MIB);
    assert_eq!((report.counts.of(Call::Malloc), report.counts.of(Call::Free)), (6, 2));
    assert_eq!(report.counts.memory_calls(), 8, "it makes no other call");
    assert_eq!(report.host_waits(), 2);
    assert_eq!((report.event_records(), report.device_waits()), (0, 0));
    // Two large and four small mallocs, two frees.
    assert_eq!(report.modelled_driver_ns(), 2_000_000 + 4 + 2_000);

    let failure = run(&trace, 8 * MIB).failure.expect("the fifth granule is not there");
    assert!(failure.cause.is_out_of_memory());
    assert_eq!(failure.event, 4);
}

#[test]
fn the_worked_examples_fit_their_devices_and_every_free_waits() {
    // Mallocs, frees (each a wait of the host), and most bytes at once: all sizes are whole granules.
    for (name, mallocs, frees, peak) in [
        ("s1_middle", 4, 1, 650 * MIB),
        ("s2_big_then_alternate", 11, 5, 8192 * MIB),
        ("s3_three_holes", 7, 3, 550 * MIB),
    ] {
        let trace = bundled(name);
        let report = run(&trace, trace.capacity_bytes().unwrap());
        assert!(report.completed(), "{name}: {:?}", report.failure);
        assert_eq!(report.mapped_peak_bytes(), peak, "{name}");
        assert_eq!(report.counts.of(Call::Malloc), mallocs, "{name}");
        assert_eq!(report.counts.of(Call::Free), frees, "{name}");
        assert_eq!(report.host_waits(), frees, "{name}");
        assert_eq!(report.modelled_driver_ns(), mallocs * 1_000_000 + frees * 1_000, "{name}");
    }
}

/// The page `docs/worked-examples.md` prints these, in milliseconds.
#[test]
fn modelled_times_are_those_of_the_page_on_the_worked_examples() {
    for (name, ns) in
        [("s1_middle", 1_155_486), ("s2_big_then_alternate", 13_324_405), ("s3_three_holes", 1_284_463)]
    {
        let trace = bundled(name);
        let emulator = Emulator::new(EmulatorConfig::default()).unwrap();
        let report = Replay::new(&trace, &emulator).run(&mut Direct::new(emulator.clone()));
        assert_eq!(report.modelled_driver_ns(), ns, "{name}: change the page too");
    }
    let trace = bundled("t1_gpt2_train");
    let emulator = Emulator::new(EmulatorConfig::default()).unwrap();
    let report = Replay::new(&trace, &emulator).run(&mut Direct::new(emulator.clone()));
    assert_eq!(report.counts.memory_calls(), 310_711);
    assert_eq!(report.host_waits(), 154_891);
    assert_eq!(report.modelled_driver_ns() / 100_000_000, 197, "t1: change the page too");
}

#[test]
fn every_bundled_trace_completes_and_keeps_its_blocks_apart() {
    let mut traces = 0;
    for file in fs::read_dir(FOLDER).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "zst") {
            continue;
        }
        traces += 1;
        let trace = LoadedTrace::open(&path).unwrap();
        let report = run(&trace, 80 << 30);
        assert!(report.completed(), "{}: {:?}", trace.name(), report.failure);
        assert_eq!(report.live_peak_bytes, trace.live_peak().bytes, "{}", trace.name());
        assert_eq!(report.marks.len(), trace.marks().len(), "{}", trace.name());
        assert_eq!(report.host_waits(), report.counts.of(Call::Free), "{}", trace.name());
        assert!(report.mapped_peak_bytes() >= report.live_peak_bytes, "{}", trace.name());
    }
    assert_eq!(traces, 13);
}
