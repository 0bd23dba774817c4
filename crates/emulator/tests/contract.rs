//! The contract of the driver traits, on emulated devices of several granularities and speeds.
//!
//! Main types: none; a module a device. Neighbours: `concertina_vmm::contract` has the cases.

use concertina_emulator::{Emulator, EmulatorConfig, EventCompletion};
use concertina_vmm::contract::ContractSetup;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn setup(config: EmulatorConfig) -> ContractSetup<Emulator> {
    let device = config.device;
    let driver = Emulator::new(config).unwrap();
    let streams = [driver.stream(), driver.stream()];
    ContractSetup { driver, device, streams }
}

/// A device of 64 pages.
fn device(granularity_bytes: u64) -> EmulatorConfig {
    EmulatorConfig { capacity_bytes: 64 * granularity_bytes, granularity_bytes, ..EmulatorConfig::default() }
}

mod granularity_64_kib {
    concertina_vmm::driver_contract!(super::setup(super::device(64 * super::KIB)));
}

mod granularity_2_mib {
    concertina_vmm::driver_contract!(super::setup(super::device(2 * super::MIB)));
}

mod granularity_32_mib {
    concertina_vmm::driver_contract!(super::setup(super::device(32 * super::MIB)));
}

mod second_device_with_lag_and_no_spanning_unmap {
    use concertina_emulator::{EmulatorConfig, EventCompletion};

    concertina_vmm::driver_contract!(super::setup(EmulatorConfig {
        device: 3,
        unmap_spans_mappings: false,
        event_completion: EventCompletion::AfterOperations(1_000),
        ..super::device(2 * super::MIB)
    }));
}

/// Every case, also those that the macro might not name, with events completed by hand only; and each leaves an empty
/// device behind.
#[test]
fn every_case_leaves_nothing() {
    for case in concertina_vmm::contract::cases() {
        let config = EmulatorConfig { event_completion: EventCompletion::ByHand, ..device(2 * MIB) };
        let setup = setup(config);
        (case.run)(&setup);
        assert!(setup.driver.is_empty(), "{}: {}", case.name, setup.driver.leaks());
        assert_eq!(setup.driver.recount(), setup.driver.leaks(), "{}", case.name);
    }
}
