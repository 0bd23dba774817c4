//! The contract of the driver traits, through the C interface.
//!
//! Main types: none. Neighbours: `concertina_vmm::contract` has the cases; the emulator runs the same ones itself.

use std::cell::RefCell;

use concertina_cuda::Cuda;
use concertina_libcuda::{Backing, DeviceConfig, Execution};
use concertina_vmm::contract::{ContractSetup, cases};

use crate::{Machine, PAGE, small, stream};

thread_local! {
    // Each test is a thread: its devices are its own until it ends.
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
}

fn on(machine: &Machine) -> ContractSetup<Cuda> {
    let (context, driver) = machine.program(0);
    let streams = [stream(&context), stream(&context)];
    ContractSetup { driver, device: 0, streams }
}

fn setup() -> ContractSetup<Cuda> {
    MACHINE.with_borrow_mut(|machine| on(machine.insert(Machine::new(&small()))))
}

concertina_vmm::driver_contract!(setup());

/// Every case on devices of several kinds; and each leaves nothing behind.
#[test]
fn every_case_on_every_kind_of_device() {
    let kinds = [
        small(),
        DeviceConfig { granularity_bytes: 64 << 10, capacity_bytes: 4 << 20, ..small() },
        DeviceConfig { granularity_bytes: 16 * PAGE, capacity_bytes: 64 * 16 * PAGE, ..small() },
        DeviceConfig { unmap_spans_mappings: false, memory_pools: false, ..small() },
        DeviceConfig { max_mappings: Some(40), execution: Execution::AtCall, event_lag: 1_000, ..small() },
        DeviceConfig { backing: Backing::Software, ..small() },
    ];
    for kind in kinds {
        for case in cases() {
            let machine = Machine::new(&kind);
            {
                let setup = on(&machine);
                (case.run)(&setup);
            }
            if let Err(held) = machine.libcuda.check_nothing_held() {
                panic!("{} on {kind:?}: {held}", case.name);
            }
            if let Err(raced) = machine.libcuda.check_no_races() {
                panic!("{} on {kind:?}: {raced}", case.name);
            }
        }
    }
}
