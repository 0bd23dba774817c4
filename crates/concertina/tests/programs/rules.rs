//! Worked examples of streams with rules of their own, and of the host waiting as a last resort.
//!
//! Neighbours: `order` has the same rules for all streams of an allocator.

use concertina::{Allocation, Allocator, Config, CrossStream, HostWait, Layout, Stream};
use concertina_emulator::{EmulatedStream, Emulator, EmulatorConfig, EventCompletion};

use crate::program::MIB;

const PAGE: u64 = 2 * MIB;

/// A device of four pages whose work ends when the test says so, and an allocator on it.
struct Four {
    device: Emulator,
    allocator: Allocator<Emulator>,
}

impl Four {
    fn new(host_wait: HostWait) -> Self {
        let config = EmulatorConfig::default().with_capacity(4 * PAGE).unwrap();
        let device = Emulator::new(config.with_event_completion(EventCompletion::ByHand)).unwrap();
        let allocator =
            Allocator::new(device.clone(), Config::builder().host_wait(host_wait).build()).unwrap();
        Self { device, allocator }
    }

    fn stream(&self, rule: CrossStream) -> (Stream<Emulator>, EmulatedStream) {
        let own = self.device.stream();
        (self.allocator.register_stream_with(own.clone(), rule), own)
    }

    fn pages(&self, pages: u64, stream: &Stream<Emulator>) -> Option<Allocation<Emulator>> {
        match self.allocator.allocate(Layout::new(pages * PAGE), stream) {
            Ok(allocation) => Some(allocation),
            Err(error) => {
                assert!(error.is_out_of_memory(), "{error}");
                None
            }
        }
    }

    /// Waits on the device and waits of the host so far.
    fn waits(&self) -> (u64, u64) {
        let fences = self.allocator.stats().fences;
        (fences.waits, fences.host_waits)
    }
}

#[test]
fn between_two_streams_the_stricter_rule_holds() {
    use CrossStream::{Completed, DeviceWait, Never};
    // The rules of the first owner and of the taker; whether it may take what is in use still, and what is done.
    let cases = [
        (DeviceWait, DeviceWait, true, true),
        (DeviceWait, Completed, false, true),
        (Completed, DeviceWait, false, true),
        (Completed, Completed, false, true),
        (Never, DeviceWait, false, false),
        (DeviceWait, Never, false, false),
    ];
    for (owner, taker, at_once, when_done) in cases {
        let four = Four::new(HostWait::Never);
        let (owner_stream, own) = four.stream(owner);
        let (taker_stream, _) = four.stream(taker);
        drop(four.pages(4, &owner_stream).expect("the device has them"));
        let taken = four.pages(3, &taker_stream);
        assert_eq!(taken.is_some(), at_once, "{owner:?} to {taker:?}");
        assert_eq!(four.waits(), (u64::from(at_once), 0), "{owner:?} to {taker:?}");
        drop(taken);
        four.device.complete_stream(&own);
        let taken = four.pages(3, &taker_stream);
        assert_eq!(taken.is_some(), when_done, "{owner:?} to {taker:?}, done");
        assert_eq!(four.allocator.audit(), Vec::<String>::new());
    }
}

#[test]
fn a_pending_block_is_not_taken_back_behind_a_stream_that_nobody_waits_for() {
    for (rule, served) in [(CrossStream::DeviceWait, true), (CrossStream::Completed, false)] {
        let four = Four::new(HostWait::Never);
        let (home, _) = four.stream(CrossStream::DeviceWait);
        let (collective, own) = four.stream(rule);
        let block = four.pages(4, &home).expect("the device has them");
        block.record_stream(&collective).unwrap();
        drop(block);
        assert_eq!(four.pages(4, &home).is_some(), served, "{rule:?}");
        assert_eq!(four.waits().1, 0);
        four.device.complete_stream(&own);
        assert!(four.pages(4, &home).is_some(), "{rule:?}, done");
    }
}

#[test]
fn the_host_waits_for_one_event_and_only_where_it_may() {
    // Between two streams that don't wait for one another on the device, and for a pending block.
    let four = Four::new(HostWait::LastResort);
    let (first, _) = four.stream(CrossStream::Completed);
    let (second, _) = four.stream(CrossStream::Completed);
    drop(four.pages(4, &first).expect("the device has them"));
    let block = four.pages(2, &second).expect("the host waits");
    assert_eq!(four.waits(), (0, 1));
    block.record_stream(&first).unwrap();
    drop(block);
    let block = four.pages(4, &second).expect("the host waits once more");
    assert_eq!(four.waits(), (0, 2));
    // Nothing is in flight that could help.
    assert!(four.pages(1, &first).is_none());
    assert_eq!(four.waits(), (0, 2));
    drop(block);
    assert_eq!(four.allocator.audit(), Vec::<String>::new());
}

#[test]
fn a_request_that_never_fits_waits_for_nothing() {
    let four = Four::new(HostWait::LastResort);
    let (first, _) = four.stream(CrossStream::Completed);
    let (second, _) = four.stream(CrossStream::Completed);
    drop(four.pages(4, &first).expect("the device has them"));
    assert!(four.pages(5, &second).is_none());
    assert_eq!(four.waits(), (0, 0));
}

#[test]
fn a_trim_that_waits_gives_everything_back() {
    let four = Four::new(HostWait::Never);
    let (first, _) = four.stream(CrossStream::DeviceWait);
    let (second, _) = four.stream(CrossStream::DeviceWait);
    let block = four.pages(2, &first).expect("the device has them");
    block.record_stream(&second).unwrap();
    drop(block);
    assert_eq!(four.allocator.trim().released_bytes, 0, "all of it may be in use");
    let trimmed = four.allocator.trim_wait().unwrap();
    assert_eq!((trimmed.released_bytes, trimmed.waiting_bytes), (2 * PAGE, 0));
    assert_eq!(four.allocator.stats().mapped_bytes, 0);
    assert_eq!(four.waits().0, 0);
}

#[test]
fn stale_pages_go_in_a_quiet_moment() {
    let four = Four::new(HostWait::Never);
    let streams = [(); 3].map(|()| four.stream(CrossStream::DeviceWait));
    for (stream, _) in &streams {
        drop(four.pages(4, stream).expect("the device has them"));
    }
    assert_eq!(four.device.counts().mappings, 12);
    assert_eq!(four.allocator.unmap_stale_to(0), 0, "work may use them still");
    four.device.complete_all();
    assert_eq!(four.allocator.unmap_stale_to(10), 2);
    assert_eq!(four.allocator.unmap_stale_to(0), 6);
    // The last stream holds its pages.
    let calls = four.device.counts().memory_calls();
    assert!(four.pages(4, &streams[2].0).is_some());
    assert_eq!(four.device.counts().memory_calls(), calls);
}
