//! What an emulated driver library needs of the emulator: addresses of its choice, handles as numbers, more handles.
//!
//! Main types: none. Neighbours: `src/emulator.rs`, `src/config.rs`; `concertina-libcuda` is such a library.

use concertina_emulator::{AddressLayout, ConfigError, Emulator, EmulatorConfig, Rule};
use concertina_vmm::{Accessor, Address, Driver, FrameProperties};

const PAGE: u64 = 2 << 20;
const LAYOUT: AddressLayout = AddressLayout { mallocs: 1 << 40, reservations: 1 << 41 };

fn emulator() -> Emulator {
    Emulator::new(EmulatorConfig {
        address_layout: LAYOUT,
        address_space_bytes: 1 << 41,
        capacity_bytes: 8 * PAGE,
        ..EmulatorConfig::default()
    })
    .unwrap()
}

#[test]
fn addresses_lie_where_they_were_put() {
    let emulator = emulator();
    assert_eq!(emulator.malloc(PAGE).unwrap(), Address::new(1 << 40));
    assert_eq!(emulator.malloc(PAGE).unwrap(), Address::new((1 << 40) + PAGE));
    let reserved = emulator.reserve(PAGE, 0).unwrap();
    assert_eq!(reserved, Address::new(1 << 41));
    let frame = emulator.create(PAGE, &FrameProperties::default()).unwrap();
    emulator.map(reserved, PAGE, &frame).unwrap();
    assert_eq!(emulator.resolve(reserved).unwrap().offset_bytes, 0);
    assert_eq!(emulator.resolve(Address::new((1 << 40) + PAGE + 7)).unwrap().offset_bytes, 7);
    assert!(emulator.resolve(Address::new((1 << 40) - 1)).is_none());
    assert!(emulator.resolve(Address::new((1 << 41) + PAGE)).is_none());
}

#[test]
fn a_layout_out_of_order_is_refused() {
    let wrong = [
        (0, 1 << 41),
        (1 << 41, 1 << 41),
        (1 << 41, 1 << 40),
        (1 << 40, (1 << 41) + 4096),
        (1 << 40, !0 - 1),
    ];
    for (mallocs, reservations) in wrong {
        let address_layout = AddressLayout { mallocs, reservations };
        let refused = Emulator::new(EmulatorConfig { address_layout, ..EmulatorConfig::default() });
        let error = refused.expect_err("no such layout");
        assert_eq!(error, ConfigError::AddressLayout { mallocs, reservations, granularity_bytes: PAGE });
    }
}

#[test]
fn a_handle_is_a_number_and_back() {
    let emulator = emulator();
    let properties = FrameProperties::default();
    let first = emulator.create(PAGE, &properties).unwrap().into_raw();
    let second = emulator.create(PAGE, &properties).unwrap().into_raw();
    assert_ne!(first, second);
    assert!(first != 0 && second != 0);
    assert!(emulator.holds(first) && emulator.holds(second));

    emulator.release(emulator.handle_from_raw(first)).unwrap();
    assert!(!emulator.holds(first) && emulator.holds(second));
    // The slot is given again, the number is not.
    let third = emulator.create(PAGE, &properties).unwrap().into_raw();
    assert_ne!(third, first);
    for wrong in [first, 0, u64::MAX, 12_345] {
        let error = emulator.release(emulator.handle_from_raw(wrong)).unwrap_err().error;
        assert!(error.detail.starts_with(Rule::HandleReleased.name()), "{error}");
    }
    for handle in [second, third] {
        emulator.release(emulator.handle_from_raw(handle)).unwrap();
    }
    assert!(emulator.is_empty(), "{}", emulator.leaks());
}

#[test]
fn a_retained_handle_outlives_the_one_it_was_retained_from() {
    let emulator = emulator();
    let at = emulator.reserve(2 * PAGE, 0).unwrap();
    assert!(emulator.retain(at).is_none(), "nothing is mapped there");
    let handle = emulator.create(PAGE, &FrameProperties::default()).unwrap();
    emulator.map(at, PAGE, &handle).unwrap();
    let again = emulator.retain(at.add(4711)).unwrap();
    assert_eq!(emulator.leaks().handles, 2);
    let number = emulator.resolve(at).unwrap().memory.to_raw();

    emulator.release(handle).unwrap();
    emulator.unmap(at, PAGE).unwrap();
    assert_eq!(emulator.leaks(), emulator.recount());
    assert!(emulator.holds(number), "one handle is left");
    emulator.map(at.add(PAGE), PAGE, &again).unwrap();
    emulator.set_access(at.add(PAGE), PAGE, &[Accessor::Device(0)]).unwrap();
    assert_eq!(again.into_raw(), number);
    emulator.release(emulator.handle_from_raw(number)).unwrap();
    assert!(emulator.holds(number), "one mapping is left");
    let last = emulator.retain(at.add(PAGE)).unwrap();
    emulator.unmap(at.add(PAGE), PAGE).unwrap();
    emulator.release(last).unwrap();
    assert!(!emulator.holds(number));
    emulator.unreserve(at, 2 * PAGE).unwrap();
    assert!(emulator.is_empty(), "{}", emulator.leaks());
}
