//! What only this crate can do: use a handle after its release.
//!
//! Main types: none. Neighbours: `tests/rules.rs` has the other rules.

use concertina_vmm::{Driver, DriverErrorKind, FrameProperties};

use super::{EmulatedHandle, Emulator};
use crate::{EmulatorConfig, Rule};

const PAGE: u64 = 2 << 20;

fn copy(handle: &EmulatedHandle) -> EmulatedHandle {
    EmulatedHandle { instance: handle.instance, key: handle.key }
}

#[test]
fn a_handle_is_released_once_and_not_used_after() {
    let emulator = Emulator::new(EmulatorConfig::default()).unwrap();
    let address = emulator.reserve(4 * PAGE, 0).unwrap();
    let handle = emulator.create(PAGE, &FrameProperties::default()).unwrap();
    let stale = copy(&handle);
    emulator.map(address, PAGE, &handle).unwrap();
    emulator.release(handle).unwrap();

    let mut broken = 0;
    let mut refused = |error: concertina_vmm::DriverError| {
        broken += 1;
        assert_eq!(error.kind, DriverErrorKind::Invalid);
        assert!(error.detail.starts_with("handle-released: "), "{error}");
        assert_eq!(emulator.broken_rules().len(), broken);
        assert_eq!(emulator.broken_rules()[broken - 1].rule, Rule::HandleReleased);
    };
    // The memory is still there through its mapping, the handle is not.
    refused(emulator.release(copy(&stale)).unwrap_err().error);
    refused(emulator.map(address.add(PAGE), PAGE, &stale).unwrap_err());
    assert_eq!(emulator.counts().mapped_bytes, PAGE);
    emulator.unmap(address, PAGE).unwrap();
    refused(emulator.map(address.add(PAGE), PAGE, &stale).unwrap_err());

    // Another frame in the same place is no way back.
    let other = emulator.create(PAGE, &FrameProperties::default()).unwrap();
    assert_eq!(other.key.slot, stale.key.slot);
    refused(emulator.map(address.add(PAGE), PAGE, &stale).unwrap_err());
    refused(emulator.release(stale).unwrap_err().error);
    emulator.release(other).unwrap();
    assert_eq!(emulator.counts().failed(concertina_vmm::Call::Map), 3);
}
