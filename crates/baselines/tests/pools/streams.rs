//! What becomes of streams other than the first, call by call.
//!
//! Neighbours: `world` runs the programs.

use concertina_baselines::{Baseline, Bfc, BfcConf, Fixed, FixedConf};
use concertina_emulator::{EmulatedStream, Emulator, EventCompletion};
use concertina_vmm::Call;

use crate::world::{MIB, World};

fn count<A: Baseline<Stream = EmulatedStream>>(world: &World<A>, call: Call) -> u64 {
    world.device.counts().of(call)
}

/// The main stream reuses at once and with no event; another one waits for it first, and what that frees comes back when
/// an event is seen complete.
fn one_stream_orders_all<A: Baseline<Stream = EmulatedStream>>(make: impl FnOnce(Emulator) -> A) {
    let mut world = World::new(EventCompletion::ByHand, make);
    assert!(world.allocate(MIB, 0));
    let first = world.address(0);
    world.free(0);
    assert!(world.allocate(MIB, 0));
    assert_eq!(world.address(0), first);
    assert_eq!(count(&world, Call::EventRecord), 0);
    world.free(0);

    assert!(world.allocate(MIB, 1));
    assert_eq!(world.address(0), first, "behind a wait");
    assert_eq!((count(&world, Call::EventRecord), count(&world, Call::StreamWait)), (1, 1));
    world.free(0);
    assert!(world.allocate(MIB, 1));
    assert_ne!(world.address(0), first, "its event is not complete");
    assert_eq!((count(&world, Call::EventRecord), count(&world, Call::StreamWait)), (3, 2));
    assert_eq!(count(&world, Call::EventQuery), 1);
    world.synchronize(Some(1));
    assert!(world.allocate(MIB, 0));
    assert_eq!(world.address(1), first);
    world.check().unwrap();
    world.end().unwrap();
}

#[test]
fn bfc_is_in_the_order_of_one_stream() {
    one_stream_orders_all(|device| Bfc::new(device, BfcConf::growing()).unwrap());
}

#[test]
fn fixed_is_in_the_order_of_one_stream() {
    one_stream_orders_all(|device| Fixed::new(device, FixedConf::all()));
}

#[test]
fn a_block_that_another_stream_reads_comes_back_when_that_is_done() {
    let mut world = World::new(EventCompletion::ByHand, |device| Fixed::new(device, FixedConf::all()));
    assert!(world.allocate(MIB, 0));
    let first = world.address(0);
    world.read(0, 2);
    world.read(0, 2);
    world.free(0);
    assert_eq!(count(&world, Call::EventRecord), 1, "one event for both");
    assert!(world.allocate(MIB, 0));
    assert_ne!(world.address(0), first);
    world.synchronize(Some(2));
    assert!(world.allocate(MIB, 0));
    assert_eq!(world.address(1), first);
    world.check().unwrap();
}

#[test]
fn out_of_memory_waits_for_what_is_outstanding() {
    let mut world = World::new(EventCompletion::ByHand, |device| Fixed::new(device, FixedConf::all()));
    assert!(world.allocate(300 * MIB, 1));
    world.free(0);
    assert_eq!(count(&world, Call::EventSynchronize), 0);
    assert!(world.allocate(300 * MIB, 2));
    assert_eq!(count(&world, Call::EventSynchronize), 1);
    world.check().unwrap();
}
