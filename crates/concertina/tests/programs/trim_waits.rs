//! A trim that waits gives back all that is free, whatever kept it and wherever it lies.
//!
//! Neighbours: `rules` has a trim that waits for other streams, `captures` what no trim may take.

use concertina::{Allocator, Config, Layout, SegmentKind, Stream};
use concertina_emulator::{Emulator, EmulatorConfig, EventCompletion, Work};

use crate::program::{KIB, MIB};

/// Small blocks, which wait in bins once they are free, and large ones.
const SIZES: [u64; 2] = [4 * KIB, 20 * MIB];

struct Bench {
    device: Emulator,
    allocator: Allocator<Emulator>,
}

impl Bench {
    /// Work is done when somebody waits for it, and not before.
    fn new(kind: SegmentKind) -> Self {
        let config = EmulatorConfig::default().with_event_completion(EventCompletion::ByHand);
        let config = EmulatorConfig { virtual_memory: kind == SegmentKind::Reserved, ..config };
        let device = Emulator::new(config).unwrap();
        let allocator = Allocator::new(device.clone(), Config::default()).unwrap();
        assert_eq!(allocator.segment_kind(), kind);
        Self { device, allocator }
    }

    /// A block that work uses comes and goes. Returns its stream.
    fn use_and_free(&self, bytes: u64) -> Stream<Emulator> {
        let driver_stream = self.device.stream();
        let stream = self.allocator.register_stream(driver_stream.clone());
        let block = self.allocator.allocate(Layout::new(bytes), &stream).unwrap();
        self.device.queue(&driver_stream, Work::new("fill").writing(block.address(), bytes));
        stream
    }

    fn assert_all_goes(&self, what: &str) {
        let mapped_bytes = self.allocator.stats().mapped_bytes;
        assert!(mapped_bytes > 0);
        let trimmed = self.allocator.trim_wait().unwrap();
        assert_eq!((trimmed.released_bytes, trimmed.waiting_bytes), (mapped_bytes, 0), "{what}");
        assert_eq!(self.allocator.stats().mapped_bytes, 0, "{what}");
        assert_eq!(self.device.broken_rules(), []);
    }
}

#[test]
fn a_trim_that_waits_leaves_nothing_that_is_free() {
    for kind in [SegmentKind::Reserved, SegmentKind::Malloc] {
        for bytes in SIZES {
            let bench = Bench::new(kind);
            let _stream = bench.use_and_free(bytes);
            bench.assert_all_goes(&format!("{kind:?}, {bytes} bytes"));
        }
    }
}

#[test]
fn a_trim_that_waits_leaves_nothing_of_a_retired_stream() {
    for kind in [SegmentKind::Reserved, SegmentKind::Malloc] {
        for bytes in SIZES {
            let bench = Bench::new(kind);
            drop(bench.use_and_free(bytes));
            bench.assert_all_goes(&format!("{kind:?}, {bytes} bytes"));
        }
    }
}
