//! Which devices there can be.
//!
//! Main types: none. Neighbours: `src/config.rs`.

use concertina_emulator::{ConfigError, Emulator, EmulatorConfig, EventCompletion};
use concertina_vmm::{Address, Driver, DriverErrorKind, FrameProperties};

const MIB: u64 = 1 << 20;

fn refused(config: EmulatorConfig) -> ConfigError {
    Emulator::new(config).expect_err("no such device")
}

#[test]
fn the_default_is_an_h100() {
    let emulator = Emulator::new(EmulatorConfig::default()).unwrap();
    let info = emulator.memory_info().unwrap();
    assert_eq!((info.free_bytes, info.total_bytes), (80 << 30, 80 << 30));
    assert_eq!(emulator.granularity(&FrameProperties::default()).unwrap(), 2 * MIB);
    assert!(emulator.capabilities().virtual_memory);
    assert!(emulator.capabilities().unmap_spans_mappings);
    assert_eq!(EmulatorConfig::default().event_completion, EventCompletion::AtOnce);
    assert_eq!(EmulatorConfig::default().cost_table.name, "h100");
}

#[test]
fn a_device_may_have_no_virtual_memory() {
    let emulator =
        Emulator::new(EmulatorConfig { virtual_memory: false, ..EmulatorConfig::default() }).unwrap();
    assert!(!emulator.capabilities().virtual_memory);
    let properties = FrameProperties::default();
    let refused = [
        emulator.granularity(&properties).unwrap_err(),
        emulator.reserve(2 * MIB, 0).unwrap_err(),
        emulator.create(2 * MIB, &properties).unwrap_err(),
        emulator.unmap(Address::new(2 * MIB), 2 * MIB).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind, DriverErrorKind::NotSupported, "{error}");
    }
    // No rule was broken: the program may ask. Mallocs and events work.
    assert_eq!(emulator.broken_rules(), Vec::new());
    let address = emulator.malloc(MIB).unwrap();
    let event = emulator.event_create().unwrap();
    emulator.event_record(&event, &emulator.stream()).unwrap();
    emulator.free(address).unwrap();
    drop(event);
    assert!(emulator.is_empty());
}

#[test]
fn values_that_no_device_has_are_named() {
    for capacity_bytes in [0, 2 * MIB + 1, MIB, 1 << 47, u64::MAX] {
        let error = refused(EmulatorConfig { capacity_bytes, ..EmulatorConfig::default() });
        assert_eq!(error, ConfigError::Capacity { bytes: capacity_bytes, granularity_bytes: 2 * MIB });
        assert!(error.to_string().contains(&capacity_bytes.to_string()), "{error}");
    }
    for granularity_bytes in [0, 1, 2048, 3 * MIB, u64::MAX, 1 << 63] {
        let error = refused(EmulatorConfig { granularity_bytes, ..EmulatorConfig::default() });
        assert_eq!(error, ConfigError::Granularity { bytes: granularity_bytes });
        assert!(error.to_string().contains(&granularity_bytes.to_string()), "{error}");
    }
    for address_space_bytes in [0, MIB, (1 << 48) + 2 * MIB, u64::MAX] {
        let error = refused(EmulatorConfig { address_space_bytes, ..EmulatorConfig::default() });
        assert!(error.to_string().contains(&address_space_bytes.to_string()), "{error}");
    }
    let error = refused(EmulatorConfig { max_mappings: Some(0), ..EmulatorConfig::default() });
    assert_eq!(error, ConfigError::NoMappings);
}

#[test]
fn a_capacity_is_rounded_down_to_granules() {
    let config = EmulatorConfig::default();
    assert_eq!(config.clone().with_capacity(7 * MIB).unwrap().capacity_bytes, 6 * MIB);
    assert_eq!(config.clone().with_capacity(6 * MIB).unwrap().capacity_bytes, 6 * MIB);
    let coarse = config.clone().with_granularity(32 * MIB).with_capacity(100 * MIB).unwrap();
    assert_eq!(coarse.capacity_bytes, 96 * MIB);
    for bytes in [0, 1, 2 * MIB - 1] {
        let error = config.clone().with_capacity(bytes).unwrap_err();
        assert_eq!(error, ConfigError::CapacityUnderGranule { bytes, granularity_bytes: 2 * MIB });
    }
    assert!(config.clone().with_capacity(u64::MAX).is_err());
    assert_eq!(
        config.with_granularity(0).with_capacity(MIB).unwrap_err(),
        ConfigError::Granularity { bytes: 0 }
    );
}

/// The largest device that can be asked for is made, and a reservation of all its addresses too, at the smallest
/// granularity.
#[test]
fn the_largest_device_works() {
    let config = EmulatorConfig {
        capacity_bytes: 1 << 46,
        granularity_bytes: 4096,
        address_space_bytes: 1 << 48,
        ..EmulatorConfig::default()
    };
    let emulator = Emulator::new(config).unwrap();
    let address = emulator.reserve(1 << 48, 0).unwrap();
    let handle = emulator.create(4096, &FrameProperties::default()).unwrap();
    let last = address.add((1 << 48) - 4096);
    emulator.map(last, 4096, &handle).unwrap();
    assert!(emulator.resolve(last).is_some());
    let pieces = emulator.resolve_range(address, 1 << 48);
    assert_eq!(pieces.iter().map(|piece| piece.bytes).collect::<Vec<_>>(), [(1 << 48) - 4096, 4096]);
    emulator.unmap(last, 4096).unwrap();
    emulator.unreserve(address, 1 << 48).unwrap();
    emulator.release(handle).unwrap();
    assert!(emulator.is_empty());
}
