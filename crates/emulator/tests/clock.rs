//! The virtual clock, against values worked out by hand from the published figures, and cost tables from files.
//!
//! Main types: none. Neighbours: `src/cost.rs`, `src/cost_file.rs`.

use concertina_emulator::{CallCost, CostFileError, CostTable, Emulator, EmulatorConfig};
use concertina_vmm::{Accessor, Call, Driver, FrameProperties};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const PAGE: u64 = 2 * MIB;
const PROPERTIES: FrameProperties = FrameProperties { device: 0 };
const ACCESSORS: [Accessor; 1] = [Accessor::Device(0)];

fn device(table: CostTable) -> Emulator {
    Emulator::new(EmulatorConfig::default().with_cost_table(table)).unwrap()
}

#[test]
fn one_page_there_and_back_on_an_h100() {
    let emulator = device(CostTable::h100());
    let address = emulator.reserve(64 * PAGE, 0).unwrap();
    let handle = emulator.create(PAGE, &PROPERTIES).unwrap();
    emulator.map(address, PAGE, &handle).unwrap();
    emulator.set_access(address, PAGE, &ACCESSORS).unwrap();
    // 10 + 28.5 + 3.3 + 60 microseconds.
    assert_eq!(emulator.counts().modelled_ns, 101_800);
    assert_eq!(emulator.ns_in_calls(), 101_800);
    emulator.unmap(address, PAGE).unwrap();
    emulator.release(handle).unwrap();
    emulator.unreserve(address, 64 * PAGE).unwrap();
    // And 42 + 23.4 + 2.
    let counts = emulator.counts();
    assert_eq!(counts.modelled_ns, 169_200);
    let by_kind = [
        (Call::Reserve, 10_000),
        (Call::Create, 28_500),
        (Call::Map, 3_300),
        (Call::SetAccess, 60_000),
        (Call::Unmap, 42_000),
        (Call::Release, 23_400),
        (Call::Unreserve, 2_000),
    ];
    for (call, ns) in by_kind {
        assert_eq!(counts.modelled_ns_of(call), ns, "{call}");
        assert_eq!(counts.of(call), 1, "{call}");
    }
    assert_eq!(counts.memory_calls(), 7);
}

#[test]
fn the_lines_of_the_h100_go_through_both_points() {
    let table = CostTable::h100();
    let points = [
        (Call::Create, 28_500, 55_000),
        (Call::Map, 3_300, 5_000),
        (Call::SetAccess, 60_000, 80_000),
        (Call::Unmap, 42_000, 60_000),
        (Call::Release, 23_400, 67_000),
    ];
    for (call, small, large) in points {
        assert_eq!(table.of(call).of_bytes(64 << 10), small, "{call}: a smaller page costs the same");
        assert_eq!(table.of(call).of_bytes(2 * MIB), small, "{call}");
        // Half-way between 2 and 112 MiB.
        assert_eq!(table.of(call).of_bytes(57 * MIB), (small + large) / 2, "{call}");
        assert_eq!(table.of(call).of_bytes(112 * MIB), large, "{call}");
    }
    // Beyond: 28,500 + 26,500 * 1022 / 110.
    assert_eq!(table.of(Call::Create).of_bytes(GIB), 274_709);
    // 28,500 + 26,500 * 30 / 110 = 28,500 + 7,227.3.
    assert_eq!(table.of(Call::Create).of_bytes(32 * MIB), 35_727);
}

#[test]
fn a_call_over_many_mappings() {
    let emulator = device(CostTable::h100());
    let address = emulator.reserve(GIB, 0).unwrap();
    let large = emulator.create(112 * MIB, &PROPERTIES).unwrap();
    let small = emulator.create(PAGE, &PROPERTIES).unwrap();
    emulator.map(address, 112 * MIB, &large).unwrap();
    emulator.map(address.add(112 * MIB), PAGE, &small).unwrap();
    emulator.map(address.add(112 * MIB + PAGE), PAGE, &small).unwrap();
    emulator.set_access(address, 112 * MIB + 2 * PAGE, &ACCESSORS).unwrap();
    // The call 60, the size of the large one 20, two further mappings 1 each.
    assert_eq!(emulator.counts().modelled_ns_of(Call::SetAccess), 82_000);
    emulator.set_access(address.add(112 * MIB), 2 * PAGE, &ACCESSORS).unwrap();
    assert_eq!(emulator.counts().modelled_ns_of(Call::SetAccess), 82_000 + 61_000);
    emulator.unmap(address, 112 * MIB + 2 * PAGE).unwrap();
    // 42, the size 18, two further mappings 5 each.
    assert_eq!(emulator.counts().modelled_ns_of(Call::Unmap), 70_000);
}

#[test]
fn mallocs_by_size() {
    let emulator = device(CostTable::h100());
    let cost = |bytes| {
        let before = emulator.counts().modelled_ns;
        let address = emulator.malloc(bytes).unwrap();
        let ns = emulator.counts().modelled_ns - before;
        emulator.free(address).unwrap();
        ns
    };
    assert_eq!(cost(1), 5_000);
    assert_eq!(cost(MIB - 1), 5_000);
    assert_eq!(cost(MIB), 100_000);
    assert_eq!(cost(2 * MIB), 100_000);
    // Half-way between 2 and 1,024 MiB.
    assert_eq!(cost(513 * MIB), 550_000);
    assert_eq!(cost(GIB), 1_000_000);
    assert_eq!(emulator.counts().modelled_ns_of(Call::Free), 6 * 14_000);
}

#[test]
fn a_steal_of_a_page_on_an_a100() {
    let emulator = device(CostTable::a100());
    let address = emulator.reserve(2 * PAGE, 0).unwrap();
    let handle = emulator.create(PAGE, &PROPERTIES).unwrap();
    for page in [address, address.add(PAGE)] {
        emulator.map(page, PAGE, &handle).unwrap();
        emulator.set_access(page, PAGE, &ACCESSORS).unwrap();
    }
    // 19 + 193 + 2 * (1.45 + 36) microseconds.
    assert_eq!(emulator.counts().modelled_ns, 286_900);
    emulator.unmap(address, 2 * PAGE).unwrap();
    // 25.6 and one further mapping.
    assert_eq!(emulator.counts().modelled_ns_of(Call::Unmap), 30_600);
}

#[test]
fn calls_on_events_are_charged() {
    let emulator = device(CostTable::h100());
    let stream = emulator.stream();
    let event = emulator.event_create().unwrap();
    emulator.event_record(&event, &stream).unwrap();
    emulator.event_query(&event).unwrap();
    emulator.event_synchronize(&event).unwrap();
    emulator.stream_wait(&stream, &event).unwrap();
    emulator.capture_status(&stream).unwrap();
    emulator.memory_info().unwrap();
    // 0.7 + 1 + 0.5 + 1 + 0.7 + 0.3 + 8.
    assert_eq!(emulator.counts().modelled_ns, 12_200);
    assert_eq!(emulator.counts().memory_calls(), 0);
}

#[test]
fn a_table_from_a_text() {
    let text = "
        name = 'h200'
        based_on = 'h100'
        [set_access]
        base_ns = 50
        per_gib_ns = 1024
        per_mapping_ns = 7
        [malloc]
        base_ns = 1
    ";
    let table = CostTable::from_toml(text).unwrap();
    assert_eq!(table.name, "h200");
    assert_eq!(*table.of(Call::SetAccess), CallCost { base_ns: 50, per_gib_ns: 1_024, per_mapping_ns: 7 });
    assert_eq!(table.of(Call::SetAccess).of_mappings([2 * MIB, 3 * MIB, 5 * MIB]), 50 + 1 + 3 + 14);
    assert_eq!(*table.of(Call::Malloc), CallCost::flat(1), "what a section leaves out is 0");
    assert_eq!(table.of(Call::Create), CostTable::h100().of(Call::Create));
    assert_eq!(table.small_malloc_ns, 5_000);
}

#[test]
fn a_whole_table_from_a_file() {
    let mut text = "small_malloc_ns = 3\n".to_owned();
    for call in Call::ALL {
        text += &format!("[{}]\nbase_ns = {}\n", call.name(), *call as u64 + 100);
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("costs.toml");
    std::fs::write(&path, text).unwrap();
    let table = CostTable::from_file(&path).unwrap();
    assert_eq!(table.name, "custom");
    for call in Call::ALL {
        assert_eq!(*table.of(*call), CallCost::flat(*call as u64 + 100), "{call}");
    }

    let missing = directory.path().join("nowhere.toml");
    let error = CostTable::from_file(&missing).unwrap_err().to_string();
    assert!(error.contains("nowhere.toml"), "{error}");
    std::fs::write(&path, "based_on = 'h100'\n[map]\nbase_ns = -4\n").unwrap();
    let error = CostTable::from_file(&path).unwrap_err().to_string();
    for part in ["costs.toml", "`map.base_ns`", "-4"] {
        assert!(error.contains(part), "{part} in: {error}");
    }
}

#[test]
fn bad_tables_are_one_clear_line() {
    let cases = [
        ("based_on = 'h100'\n[map]\nbase_ns = 'x'", "`map.base_ns` is \"x\""),
        ("based_on = 'h100'\n[map]\nbase_ns = 1.5", "`map.base_ns` is 1.5"),
        ("based_on = 'h100'\n[map]\nbase_ns = 1000000000001", "`map.base_ns` is 1000000000001"),
        ("based_on = 'h100'\n[map]\nper_gib_ns = 1", "no `map.base_ns`"),
        ("based_on = 'h100'\n[map]\nbase_ns = 1\nslope = 2", "unknown key `map.slope`"),
        ("based_on = 'h100'\nmap = 3", "`map` is 3"),
        ("based_on = 'h100'\n[mapp]\nbase_ns = 1", "unknown key `mapp`"),
        ("based_on = 'v100'", "`based_on` is \"v100\""),
        ("based_on = 3", "`based_on` is 3"),
        ("based_on = 'h100'\nname = 3", "`name` is 3"),
        ("based_on = 'h100'\nsmall_malloc_ns = [1]", "`small_malloc_ns` is an array"),
        ("", "no `small_malloc_ns`"),
        ("small_malloc_ns = 1\n[map]\nbase_ns = 1", "no `reserve`"),
        ("name = 'x'\nbased_on =\n", "line 2"),
        ("name = 'x'\nname = 'y'", "line 2"),
    ];
    for (text, part) in cases {
        let error = CostTable::from_toml(text).expect_err(part).to_string();
        assert!(error.contains(part), "{part} in: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let syntax = CostTable::from_toml("\n\n]").unwrap_err();
    assert!(matches!(syntax, CostFileError::Syntax { line: 3, .. }), "{syntax:?}");
}

#[test]
fn sums_do_not_overflow() {
    let cost = CallCost { base_ns: u64::MAX, per_gib_ns: u64::MAX, per_mapping_ns: u64::MAX };
    assert_eq!(cost.of_bytes(u64::MAX), u64::MAX);
    assert_eq!(cost.of_mappings([GIB; 3]), u64::MAX);
    let emulator = device(CostTable::free_of_charge().with(Call::MemoryInfo, cost));
    emulator.memory_info().unwrap();
    emulator.memory_info().unwrap();
    assert_eq!(emulator.counts().modelled_ns, u64::MAX);
}
