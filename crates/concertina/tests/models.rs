//! The lock-free pieces, each in a program so small that loom runs it under every schedule: named by the race.
//!
//! Main types: none. Neighbours: `schedules.rs` has larger programs under random schedules; `docs/locking.md` has the
//! arguments. Built with `RUSTFLAGS="--cfg loom"` only, by `cargo xtask test`.
//!
//! At most [`PREEMPTIONS`] times a thread is stopped where it need not wait: with two threads, nearly every race shows by
//! then, and the number of schedules stays in the thousands. The device is the emulator, whose lock is loom's as well: that
//! a driver puts the calls for one stream in an order is what the ticks stand on.

#![cfg(loom)]

use std::sync::Arc;

use concertina::{Allocation, Allocator, Config, Layout, Policy, Stream};
use concertina_emulator::{EmulatedStream, Emulator, EmulatorConfig};

const PAGE: u64 = 2 << 20;
const PREEMPTIONS: usize = 2;

/// A device of four pages, and an allocator on it.
struct Site {
    device: Emulator,
    allocator: Allocator<Emulator>,
}

impl Site {
    fn new() -> Arc<Self> {
        let config = EmulatorConfig::default().with_capacity(4 * PAGE).unwrap();
        let device = Emulator::new(config).unwrap();
        let config = Config::builder().policy(Policy::Lean).reservation_bytes(8 * PAGE).build();
        let allocator = Allocator::new(device.clone(), config).unwrap();
        Arc::new(Self { device, allocator })
    }

    fn stream(&self) -> (Stream<Emulator>, EmulatedStream) {
        let own = self.device.stream();
        (self.allocator.register_stream(own.clone()), own)
    }

    fn pages(&self, pages: u64, stream: &Stream<Emulator>) -> Allocation<Emulator> {
        self.allocator.allocate(Layout::new(pages * PAGE), stream).unwrap()
    }

    fn end(&self) {
        assert_eq!(self.allocator.audit(), Vec::<String>::new());
        assert_eq!(self.device.races(), []);
        assert_eq!(self.device.broken_rules(), []);
    }
}

/// Runs the model under all schedules with few preemptions.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.max_branches = 100_000;
    builder.check(model);
}

/// A free finds the lock taken and queues; who has the lock serves the next request. Whatever the order, the bytes are
/// free at the end, and no request within free frames is refused.
#[test]
fn a_free_is_queued_while_its_heap_serves() {
    explore(|| {
        let site = Site::new();
        let (stream, _) = site.stream();
        let block = site.pages(2, &stream);
        let freer = loom::thread::spawn(move || drop(block));
        drop(site.pages(1, &stream));
        freer.join().unwrap();
        assert_eq!(site.allocator.stats().live_bytes, 0);
        drop(site.pages(4, &stream));
        site.end();
    });
}

/// The last free of a retired stream is queued, or sees the heap off itself: either way its addresses go.
#[test]
fn the_last_free_races_the_retirement_of_its_stream() {
    explore(|| {
        let site = Site::new();
        let (stream, _) = site.stream();
        let block = site.pages(1, &stream);
        let freer = loom::thread::spawn(move || drop(block));
        drop(stream);
        freer.join().unwrap();
        site.allocator.trim();
        assert_eq!(site.device.leaks().reservations, 0);
        site.end();
    });
}

/// The same of a raw block: it is found in the table of streams as long as its stream is registered, and in the registry then.
#[test]
fn the_last_free_of_a_raw_block_races_the_retirement_of_its_stream() {
    explore(|| {
        let site = Site::new();
        let (stream, _) = site.stream();
        let block = site.pages(1, &stream).into_raw();
        let other = Arc::clone(&site);
        let freer = loom::thread::spawn(move || other.allocator.free_raw(block).unwrap());
        drop(stream);
        freer.join().unwrap();
        assert_eq!(site.allocator.stats().live_bytes, 0);
        site.allocator.trim();
        assert_eq!(site.device.leaks().reservations, 0);
        site.end();
    });
}

/// Two streams rise over their ceilings at once: when both are up, the peak knows it.
#[test]
fn two_streams_rise_at_once() {
    explore(|| {
        let site = Site::new();
        let [(first, _), (second, _)] = [site.stream(), site.stream()];
        let other = Arc::clone(&site);
        let riser = loom::thread::spawn(move || (other.pages(1, &second), second));
        let block = site.pages(1, &first);
        let kept = riser.join().unwrap();
        assert_eq!(site.allocator.stats().live_peak_bytes, 2 * PAGE);
        drop((block, kept));
        site.end();
    });
}

/// A free reads the clock of its stream while a thief ends the tick and records the event: the thief's wait covers the
/// free's work, or the free is in the next tick. The race detector sees if it is neither.
#[test]
fn a_free_reads_the_clock_while_a_thief_records() {
    use concertina_emulator::{Access, Work};
    explore(|| {
        let site = Site::new();
        let [(home, own), (thief, taker)] = [site.stream(), site.stream()];
        let [first, second] = [site.pages(2, &home), site.pages(2, &home)];
        drop(first);
        let device = site.device.clone();
        let freer = loom::thread::spawn(move || {
            let write = Access::write(second.address(), 2 * PAGE);
            device.queue(&own, Work::new("last write").touching(write));
            drop(second);
            home
        });
        let stolen = site.pages(2, &thief);
        let write = Access::write(stolen.address(), 2 * PAGE);
        site.device.queue(&taker, Work::new("write of the thief").touching(write));
        let home = freer.join().unwrap();
        let rest = site.pages(2, &thief);
        let write = Access::write(rest.address(), 2 * PAGE);
        site.device.queue(&taker, Work::new("second write of the thief").touching(write));
        drop((stolen, rest, home));
        site.end();
    });
}
