//! What a call costs the host: the emulator must not be what a replay waits for. The aim is under 100 ns a call.
//!
//! Main types: [`Device`], with 64 GiB mapped page by page, as a busy replay has it. Neighbours: `src/device.rs`. Each
//! figure is of one group of calls, named by its calls.

use std::hint::black_box;

use concertina_emulator::{
    Detection, EmulatedHandle, EmulatedStream, Emulator, EmulatorConfig, EventCompletion, Work,
};
use concertina_vmm::{Accessor, Address, Driver, FrameProperties};
use criterion::{Criterion, criterion_group, criterion_main};

const PAGE: u64 = 2 << 20;
const PAGES: u64 = 32_768;
const PROPERTIES: FrameProperties = FrameProperties { device: 0 };
const ACCESSORS: [Accessor; 1] = [Accessor::Device(0)];

struct Device {
    emulator: Emulator,
    /// The mapped pages, and as many unmapped ones behind them.
    address: Address,
    /// One page more.
    spare: EmulatedHandle,
    stream: EmulatedStream,
    /// Takes places in no order.
    step: u64,
}

impl Device {
    fn new() -> Self {
        Self::with(Detection::On)
    }

    fn with(detection: Detection) -> Self {
        let config = EmulatorConfig::default()
            .with_detection(detection)
            .with_event_completion(EventCompletion::AfterOperations(1_000));
        let emulator = Emulator::new(config).unwrap();
        for _ in 0..16 {
            emulator.reserve(64 * PAGE, 0).unwrap();
        }
        let address = emulator.reserve(2 * PAGES * PAGE, 0).unwrap();
        for page in 0..PAGES {
            let handle = emulator.create(PAGE, &PROPERTIES).unwrap();
            emulator.map(address.add(page * PAGE), PAGE, &handle).unwrap();
        }
        emulator.set_access(address, PAGES * PAGE, &ACCESSORS).unwrap();
        let spare = emulator.create(PAGE, &PROPERTIES).unwrap();
        let stream = emulator.stream();
        Self { emulator, address, spare, stream, step: 0 }
    }

    /// The next of the mapped pages' numbers, in no order.
    fn next(&mut self) -> u64 {
        self.step = self.step.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.step >> 33) % PAGES
    }
}

fn memory_calls(criterion: &mut Criterion) {
    let mut device = Device::new();
    criterion.bench_function("map, unmap: 2 calls", |bencher| {
        bencher.iter(|| {
            let address = device.address.add((PAGES + device.next()) * PAGE);
            device.emulator.map(address, PAGE, &device.spare).unwrap();
            device.emulator.unmap(address, PAGE).unwrap();
        });
    });
    criterion.bench_function("map, set access, unmap: 3 calls", |bencher| {
        bencher.iter(|| {
            let address = device.address.add((PAGES + device.next()) * PAGE);
            device.emulator.map(address, PAGE, &device.spare).unwrap();
            device.emulator.set_access(address, PAGE, &ACCESSORS).unwrap();
            device.emulator.unmap(address, PAGE).unwrap();
        });
    });
    criterion.bench_function("set access over 64 mappings: 1 call", |bencher| {
        bencher.iter(|| {
            let address = device.address.add((device.next() / 64 * 64) * PAGE);
            device.emulator.set_access(address, 64 * PAGE, &ACCESSORS).unwrap();
        });
    });
    criterion.bench_function("create, release: 2 calls", |bencher| {
        bencher.iter(|| {
            let handle = device.emulator.create(PAGE, &PROPERTIES).unwrap();
            device.emulator.release(handle).unwrap();
        });
    });
    criterion.bench_function("resolve", |bencher| {
        bencher.iter(|| {
            let address = device.address.add(device.next() * PAGE + 512);
            black_box(device.emulator.resolve(address));
        });
    });
}

fn events(criterion: &mut Criterion) {
    let device = Device::new();
    let event = device.emulator.event_create().unwrap();
    let other = device.emulator.stream();
    criterion.bench_function("event record, query, stream wait, advance: 4 calls", |bencher| {
        bencher.iter(|| {
            // Or else nothing would ever be done.
            device.emulator.advance(1);
            device.emulator.event_record(&event, &device.stream).unwrap();
            black_box(device.emulator.event_query(&event).unwrap());
            device.emulator.stream_wait(&other, &event).unwrap();
        });
    });
    criterion.bench_function("event create, drop", |bencher| {
        bencher.iter(|| drop(device.emulator.event_create().unwrap()));
    });
    criterion.bench_function("advance", |bencher| bencher.iter(|| device.emulator.advance(1)));
}

fn mallocs(criterion: &mut Criterion) {
    for (name, bytes) in [("large", 10 * PAGE), ("small", 10_000)] {
        let mut device = Device::new();
        let mut live: Vec<Address> =
            (0..1_000).map(|_| device.emulator.malloc(bytes).unwrap_or_default()).collect();
        live.retain(|&address| address != Address::default());
        criterion.bench_function(
            &format!("free, malloc of {name} ones, {} live: 2 calls", live.len()),
            |bencher| {
                bencher.iter(|| {
                    let which = device.next() as usize % live.len();
                    device.emulator.free(live[which]).unwrap();
                    live[which] = device.emulator.malloc(bytes).unwrap();
                });
            },
        );
    }
}

/// A kernel that is queued, by the pages that it writes, in no order and in one: with the race detector and without.
fn kernels(criterion: &mut Criterion) {
    for detection in [Detection::On, Detection::Off] {
        let mut device = Device::with(detection);
        for pages in [1, 50, 1_000] {
            criterion.bench_function(
                &format!("kernel over {pages} pages, detection {detection:?}"),
                |bencher| {
                    bencher.iter(|| {
                        let first = device.next() % (PAGES - pages);
                        let work = Work::new("write").writing(device.address.add(first * PAGE), pages * PAGE);
                        device.emulator.advance(1);
                        black_box(device.emulator.queue(&device.stream, work));
                    });
                },
            );
        }
        criterion.bench_function(&format!("kernel over 1 KiB, detection {detection:?}"), |bencher| {
            bencher.iter(|| {
                let at = device.next() % 1_024 * 4_096;
                let work = Work::new("write").writing(device.address.add(at), 1_024);
                device.emulator.advance(1);
                black_box(device.emulator.queue(&device.stream, work));
            });
        });
    }
}

criterion_group!(benches, memory_calls, events, mallocs, kernels);
criterion_main!(benches);
