//! Requests and calls that are wrong: each a clear error, and nothing changes.
//!
//! Neighbours: `out_of_memory` has those that are right and too large.

use concertina::{Allocator, Config, ConfigError, Error, Layout, RequestError, Stream};
use concertina_emulator::{Emulator, EmulatorConfig};

use crate::program::{GIB, KIB, MIB};

const PAGE: u64 = 2 * MIB;
const TIB: u64 = 1 << 40;

fn allocator() -> (Emulator, Allocator<Emulator>, Stream<Emulator>) {
    let device = Emulator::new(EmulatorConfig::default()).unwrap();
    let allocator = Allocator::new(device.clone(), Config::default()).unwrap();
    let stream = allocator.register_stream(device.stream());
    (device, allocator, stream)
}

#[test]
fn a_request_that_no_device_could_serve_names_what_is_wrong() {
    let (device, allocator, stream) = allocator();
    let kept = allocator.allocate(Layout::new(PAGE), &stream).unwrap();
    let before = (device.counts(), allocator.stats());
    let too_large = |bytes, alignment| RequestError::TooLarge { bytes, alignment };
    let cases = [
        (Layout::new(0), RequestError::Empty),
        (Layout::new(512).aligned_to(0), RequestError::Alignment { alignment: 0 }),
        (Layout::new(512).aligned_to(768), RequestError::Alignment { alignment: 768 }),
        (Layout::new(512).aligned_to(u64::MAX), RequestError::Alignment { alignment: u64::MAX }),
        (Layout::new(TIB + 1), too_large(TIB + 1, 512)),
        (Layout::new(1 << 60), too_large(1 << 60, 512)),
        (Layout::new(u64::MAX), too_large(u64::MAX, 512)),
        (Layout::new(512).aligned_to(TIB), too_large(512, TIB)),
        (Layout::new(512).aligned_to(1 << 63), too_large(512, 1 << 63)),
    ];
    for (layout, expected) in cases {
        match allocator.allocate(layout, &stream) {
            Err(Error::Request(error)) => assert_eq!(error, expected),
            other => panic!("{layout:?}: {other:?}"),
        }
        let raw = allocator.allocate_raw(layout, &stream);
        assert!(matches!(raw, Err(Error::Request(error)) if error == expected), "{layout:?}: {raw:?}");
        assert!(!expected.to_string().is_empty());
    }
    assert_eq!((device.counts(), allocator.stats()), before, "nothing has happened");
    drop(kept);
}

#[test]
fn the_largest_request_is_out_of_memory_and_no_error_of_the_request() {
    let (device, allocator, stream) = allocator();
    for layout in [Layout::new(TIB), Layout::new(TIB).aligned_to(TIB / 2)] {
        let refused = allocator.allocate(layout, &stream);
        assert!(refused.as_ref().is_err_and(Error::is_out_of_memory), "{refused:?}");
        assert_eq!(device.counts().mapped_bytes, 0, "no frame was created in vain");
    }
    // An alignment is one of addresses, which are plentiful.
    let block = allocator.allocate(Layout::new(512).aligned_to(TIB / 2), &stream).unwrap();
    assert!(block.address().is_aligned_to(TIB / 2));
}

#[test]
fn every_block_is_aligned_as_asked() {
    let (_, allocator, stream) = allocator();
    let mut kept = Vec::new();
    for round in 0..3 {
        for power in 0..30 {
            let layout = Layout::new(700 + round).aligned_to(1 << power);
            let block = allocator.allocate(layout, &stream).unwrap();
            assert!(block.address().is_aligned_to(1 << power), "{block:?}");
            assert!(block.address().is_aligned_to(512), "{block:?}");
            kept.push(block);
        }
        kept.truncate(7);
    }
    assert_eq!(allocator.audit(), Vec::<String>::new());
}

#[test]
fn a_block_is_freed_once() {
    let (_, allocator, stream) = allocator();
    for bytes in [1, 512, 4 * KIB, MIB, 5 * PAGE] {
        let raw = allocator.allocate_raw(Layout::new(bytes), &stream).unwrap();
        let neighbour = allocator.allocate(Layout::new(bytes), &stream).unwrap();
        allocator.free_raw(raw).unwrap();
        let before = allocator.stats();
        assert!(matches!(allocator.free_raw(raw), Err(Error::NotLive(_))));
        assert!(matches!(allocator.record_stream_raw(raw, &stream), Err(Error::NotLive(_))));
        // Nor after the number went to another block.
        let next = allocator.allocate_raw(Layout::new(bytes), &stream).unwrap();
        assert!(matches!(allocator.free_raw(raw), Err(Error::NotLive(_))));
        allocator.free_raw(next).unwrap();
        assert_eq!(allocator.stats(), before);
        assert_eq!(allocator.audit(), Vec::<String>::new());
        drop(neighbour);
    }
}

#[test]
fn a_block_is_not_freed_behind_the_end_of_its_stream() {
    let (_, allocator, stream) = allocator();
    let raw = allocator.allocate(Layout::new(PAGE), &stream).unwrap().into_raw();
    drop(stream);
    allocator.free_raw(raw).unwrap();
    // The stream's heaps are gone by now.
    assert!(matches!(allocator.free_raw(raw), Err(Error::NotLive(_))));
    assert_eq!(allocator.audit(), Vec::<String>::new());
}

#[test]
fn a_setting_that_can_not_be_names_its_value() {
    let device = Emulator::new(EmulatorConfig::default()).unwrap();
    let refused = |config: Config| match Allocator::new(device.clone(), config) {
        Err(Error::Config(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        refused(Config::builder().limit_bytes(PAGE - 1).build()),
        ConfigError::Limit { limit_bytes: PAGE - 1, granularity_bytes: PAGE }
    );
    for reservation_bytes in [0, TIB + 1] {
        assert_eq!(
            refused(Config::builder().reservation_bytes(reservation_bytes).build()),
            ConfigError::Reservation { reservation_bytes }
        );
    }
    let coarse = EmulatorConfig::default().with_granularity(2 * GIB).with_capacity(16 * GIB).unwrap();
    match Allocator::new(Emulator::new(coarse).unwrap(), Config::default()) {
        Err(Error::Config(ConfigError::Granularity { granularity_bytes })) => {
            assert_eq!(granularity_bytes, 2 * GIB);
        }
        other => panic!("{other:?}"),
    }
    let elsewhere = Allocator::new(device.clone(), Config::builder().device(7).build());
    assert!(matches!(elsewhere, Err(Error::Driver(_))), "{elsewhere:?}");
    assert!(device.is_empty());
}

#[test]
fn an_aligned_request_looks_at_every_hole_once_memory_is_short() {
    const BLOCK: u64 = 8 * KIB;
    // As many holes that lie wrong as there may be blocks on 16 pages, and one that does not, which comes last.
    let limit_bytes = 16 * PAGE;
    let device = Emulator::new(EmulatorConfig::default()).unwrap();
    let config = Config::builder().limit_bytes(limit_bytes).build();
    let allocator = Allocator::new(device.clone(), config).unwrap();
    let stream = allocator.register_stream(device.stream());
    let layout = Layout::new(BLOCK);
    let mut blocks: Vec<_> =
        (0..limit_bytes / BLOCK).map(|_| Some(allocator.allocate(layout, &stream).unwrap())).collect();
    let fits = blocks.len() - 8;
    let address = blocks[fits].as_ref().unwrap().address();
    assert!(address.is_aligned_to(64 * KIB));
    for at in (1..blocks.len()).step_by(2).chain([fits]) {
        blocks[at] = None;
    }
    let before = device.counts().memory_calls();
    let aligned = layout.aligned_to(64 * KIB);
    let block = allocator.allocate(aligned, &stream).unwrap();
    assert_eq!(block.address(), address, "the only hole that lies right");
    assert_eq!(device.counts().memory_calls(), before);
    let refused = allocator.allocate(aligned, &stream);
    assert!(refused.as_ref().is_err_and(Error::is_out_of_memory), "{refused:?}");
    assert_eq!(allocator.audit(), Vec::<String>::new());
}
