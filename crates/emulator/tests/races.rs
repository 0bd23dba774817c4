//! The race detector, report by report, each with a near miss that is none.
//!
//! Main types: [`Device`]. Neighbours: `race_model` compares it with a graph on random programs.

use concertina_emulator::{
    Access, AccessKind, Detection, EmulatedEvent, EmulatedHandle, EmulatedStream, Emulator, EmulatorConfig,
    EventCompletion, Race, Work,
};
use concertina_vmm::{Accessor, Address, Driver, FrameProperties};

const PAGE: u64 = 2 << 20;

/// An emulator with 16 pages of addresses.
struct Device {
    emulator: Emulator,
    base: Address,
}

impl Device {
    fn new(completion: EventCompletion) -> Self {
        let emulator = Emulator::new(EmulatorConfig::default().with_event_completion(completion)).unwrap();
        let base = emulator.reserve(16 * PAGE, 0).unwrap();
        Self { emulator, base }
    }

    /// A device with so many pages mapped, a frame each.
    fn with_pages(pages: u64) -> Self {
        let device = Self::new(EventCompletion::AtOnce);
        for page in 0..pages {
            device.back(page);
        }
        device
    }

    fn page(&self, page: u64) -> Address {
        self.base.add(page * PAGE)
    }

    /// Maps a new frame at a page, with access.
    fn back(&self, page: u64) -> EmulatedHandle {
        let handle = self.emulator.create(PAGE, &FrameProperties::default()).unwrap();
        self.map(page, &handle);
        handle
    }

    fn map(&self, page: u64, handle: &EmulatedHandle) {
        self.emulator.map(self.page(page), PAGE, handle).unwrap();
        self.emulator.set_access(self.page(page), PAGE, &[Accessor::Device(0)]).unwrap();
    }

    fn streams<const N: usize>(&self) -> [EmulatedStream; N] {
        [(); N].map(|()| self.emulator.stream())
    }

    fn read(&self, stream: &EmulatedStream, address: Address, bytes: u64) {
        self.emulator.queue(stream, Work::new("read").reading(address, bytes));
    }

    fn write(&self, stream: &EmulatedStream, address: Address, bytes: u64) {
        self.emulator.queue(stream, Work::new("write").writing(address, bytes));
    }

    fn record(&self, stream: &EmulatedStream) -> EmulatedEvent {
        let event = self.emulator.event_create().unwrap();
        self.emulator.event_record(&event, stream).unwrap();
        event
    }

    fn assert_right(&self) {
        assert_eq!(self.emulator.races(), []);
    }

    /// The one report that there must be.
    fn only_race(&self) -> Race {
        let races = self.emulator.races();
        assert_eq!(races.len(), 1, "{races:#?}");
        races.into_iter().next().unwrap()
    }
}

// --- two accesses to the same bytes ---------------------------------------------------------------------------------

#[test]
fn two_writes_through_different_addresses_of_one_frame_race() {
    let device = Device::new(EventCompletion::AtOnce);
    let handle = device.back(0);
    device.map(5, &handle);
    let [left, right] = device.streams();
    let first = device.emulator.block_allocated("weights", device.page(0), 4096, &left);
    device
        .emulator
        .queue(&left, Work::new("update").touching(Access::write(device.page(0), 4096).of_block(first)));
    device.write(&right, device.page(5).add(1024), 512);

    let memory = device.emulator.resolve(device.page(5)).unwrap().memory;
    let Race::Unordered { first, second, memory: found, offset_bytes, first_address, second_address, bytes } =
        device.only_race()
    else {
        panic!("{:?}", device.emulator.races())
    };
    assert_eq!((first.kernel.as_str(), second.kernel.as_str()), ("update", "write"));
    assert_eq!((first.stream, second.stream), (left.number(), right.number()));
    assert_eq!((first.number, second.number), (2, 1), "the allocation is the first of its stream");
    assert_eq!((first.block.as_deref(), second.block), (Some("weights"), None));
    assert_eq!((first.address, first.bytes), (device.page(0), 4096));
    assert_eq!((second.address, second.bytes), (device.page(5).add(1024), 512));
    assert_eq!((first.kind, second.kind), (AccessKind::Write, AccessKind::Write));
    assert_eq!((found, offset_bytes, bytes), (memory, 1024, 512));
    assert_eq!((first_address, second_address), (device.page(0).add(1024), device.page(5).add(1024)));
    let text = device.only_race().to_string();
    for part in ["`update`", "number 2 on stream 0", "weights", "`write`", "stream 1", "from byte 1024 on"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_read_and_a_write_race_and_two_reads_do_not() {
    let device = Device::with_pages(1);
    let [left, right] = device.streams();
    device.read(&left, device.page(0), PAGE);
    device.read(&right, device.page(0), PAGE);
    device.assert_right();
    device.write(&right, device.page(0), 1);
    let Race::Unordered { first, second, .. } = device.only_race() else { panic!() };
    assert_eq!((first.kind, first.stream), (AccessKind::Read, left.number()));
    assert_eq!((second.kind, second.stream), (AccessKind::Write, right.number()));
}

#[test]
fn neighbours_do_not_race() {
    let device = Device::with_pages(2);
    let [left, right] = device.streams();
    device.write(&left, device.page(0).add(512), 512);
    device.write(&right, device.page(0), 512);
    device.write(&right, device.page(0).add(1024), PAGE);
    device.write(&left, device.page(0).add(PAGE + 1024), 512);
    device.assert_right();
}

#[test]
fn a_conflict_over_many_pages_is_one_report() {
    let device = Device::with_pages(4);
    let [left, right] = device.streams();
    device.write(&left, device.page(0), 3 * PAGE);
    device.read(&right, device.page(1).add(512), 3 * PAGE - 512);
    let Race::Unordered { bytes, offset_bytes, .. } = device.only_race() else { panic!() };
    assert_eq!((bytes, offset_bytes), (2 * PAGE - 512, 512));
}

#[test]
fn a_kernel_does_not_race_with_itself_nor_with_its_stream() {
    let device = Device::with_pages(1);
    let [stream] = device.streams();
    let both = Work::new("add in place").reading(device.page(0), PAGE).writing(device.page(0), 512);
    device.emulator.queue(&stream, both);
    device.write(&stream, device.page(0), PAGE);
    device.assert_right();
}

#[test]
fn waits_on_the_device_order_and_run_through_a_third_stream() {
    for middle_waits in [true, false] {
        let device = Device::with_pages(1);
        let [left, middle, right] = device.streams();
        device.write(&left, device.page(0), PAGE);
        let event = device.record(&left);
        if middle_waits {
            device.emulator.stream_wait(&middle, &event).unwrap();
        }
        device.emulator.queue_wait(&right, &middle);
        device.write(&right, device.page(0), PAGE);
        assert_eq!(device.emulator.races().is_empty(), middle_waits);
    }
}

#[test]
fn a_wait_orders_what_came_before_the_record_only() {
    let device = Device::with_pages(2);
    let [left, right] = device.streams();
    device.write(&left, device.page(0), PAGE);
    let event = device.record(&left);
    device.write(&left, device.page(1), PAGE);
    device.emulator.stream_wait(&right, &event).unwrap();
    device.write(&right, device.page(0), PAGE);
    device.assert_right();
    device.write(&right, device.page(1), PAGE);
    device.only_race();
}

#[test]
fn a_wait_takes_the_record_as_it_was() {
    let device = Device::with_pages(1);
    let [left, right, third] = device.streams();
    device.write(&left, device.page(0), PAGE);
    let event = device.record(&left);
    device.emulator.stream_wait(&right, &event).unwrap();
    device.emulator.event_record(&event, &third).unwrap();
    device.write(&right, device.page(0), PAGE);
    device.assert_right();
    // The event stands for the third stream now, which comes after nothing.
    device.emulator.stream_wait(&third, &event).unwrap();
    device.read(&third, device.page(0), 1);
    device.only_race();
}

#[test]
fn completion_alone_orders_nothing_and_the_host_that_sees_it_does() {
    for sees in [false, true] {
        let device = Device::with_pages(1);
        let [left, right] = device.streams();
        device.write(&left, device.page(0), PAGE);
        let event = device.record(&left);
        if sees {
            assert!(device.emulator.event_query(&event).unwrap());
        }
        device.write(&right, device.page(0), PAGE);
        assert_eq!(device.emulator.races().is_empty(), sees, "it was done in both cases");
    }
}

#[test]
fn every_way_in_which_the_host_can_see_orders() {
    type See = fn(&Device, &EmulatedStream, &EmulatedEvent);
    let ways: [See; 4] = [
        |device, _, event| device.emulator.event_synchronize(event).unwrap(),
        |device, left, _| device.emulator.synchronize_stream(left).unwrap(),
        |device, _, _| device.emulator.synchronize_device().unwrap(),
        |device, _, _| {
            let address = device.emulator.malloc(512).unwrap();
            device.emulator.free(address).unwrap();
        },
    ];
    for see in ways {
        let device = Device::with_pages(1);
        let [left, right] = device.streams();
        device.write(&left, device.page(0), PAGE);
        let event = device.record(&left);
        see(&device, &left, &event);
        device.write(&right, device.page(0), PAGE);
        device.assert_right();
        device.write(&left, device.page(0), PAGE);
        device.only_race();
    }
}

#[test]
fn a_query_that_finds_it_not_done_and_a_full_queue_order_nothing() {
    let device = Device::new(EventCompletion::ByHand);
    device.back(0);
    let [left, right] = device.streams();
    let queued = device.emulator.queue(&left, Work::new("write").writing(device.page(0), PAGE));
    let event = device.record(&left);
    assert!(!device.emulator.event_query(&event).unwrap());
    device.emulator.catch_up(&queued).unwrap();
    assert!(device.emulator.is_done(&queued));
    device.write(&right, device.page(0), PAGE);
    device.only_race();
}

#[test]
fn a_signal_orders_if_it_was_queued_before() {
    for awaits in [true, false] {
        let device = Device::with_pages(2);
        let [left, right] = device.streams();
        let signal = device.emulator.signal();
        device.write(&left, device.page(0), PAGE);
        device.emulator.queue(&left, Work::new("tell").sending(&signal).writing(device.page(1), PAGE));
        let work = Work::new("use").writing(device.page(0), PAGE);
        device.emulator.queue(&right, if awaits { work.awaiting(&signal) } else { work });
        assert_eq!(device.emulator.races().is_empty(), awaits);
        // The kernel that sends it goes on.
        device.write(&right, device.page(1), PAGE);
        assert_eq!(device.emulator.races().len(), if awaits { 1 } else { 2 });
    }
}

#[test]
fn memory_of_malloc_races_like_any_other() {
    let device = Device::new(EventCompletion::AtOnce);
    let [left, right] = device.streams();
    let (small, other) = (device.emulator.malloc(1000).unwrap(), device.emulator.malloc(1000).unwrap());
    device.write(&left, small, 1000);
    device.write(&right, other, 1000);
    device.assert_right();
    device.write(&right, small.add(999), 1);
    device.only_race();
}

#[test]
fn new_memory_in_the_place_of_old_is_other_memory() {
    let device = Device::new(EventCompletion::AtOnce);
    let handle = device.back(0);
    let [left, right] = device.streams();
    device.write(&left, device.page(0), PAGE);
    device.emulator.synchronize_stream(&left).unwrap();
    device.emulator.unmap(device.page(0), PAGE).unwrap();
    device.emulator.release(handle).unwrap();
    device.back(0);
    device.write(&right, device.page(0), PAGE);
    device.assert_right();
}

// --- pages ----------------------------------------------------------------------------------------------------------

#[test]
fn a_page_that_is_not_mapped_or_has_no_access_is_named() {
    let device = Device::with_pages(2);
    let [stream] = device.streams();
    device.read(&stream, device.page(1), 3 * PAGE);
    let Race::NotMapped { access, address } = device.only_race() else { panic!() };
    assert_eq!((access.kernel.as_str(), address), ("read", device.page(2)));

    let handle = device.emulator.create(PAGE, &FrameProperties::default()).unwrap();
    device.emulator.map(device.page(2), PAGE, &handle).unwrap();
    device.read(&stream, device.page(1), 2 * PAGE);
    let races = device.emulator.races();
    let Race::NoAccess { address, .. } = races[1] else { panic!("{races:?}") };
    assert_eq!(address, device.page(2));
    device.emulator.set_access(device.page(2), PAGE, &[Accessor::Device(0)]).unwrap();
    device.read(&stream, device.page(1), 2 * PAGE);
    assert_eq!(device.emulator.races().len(), 2);

    // Beyond everything, and where no malloc is.
    device.read(&stream, Address::new(u64::MAX - 10), 10);
    device.read(&stream, Address::new(512), 1);
    assert_eq!(device.emulator.races().len(), 4);
    let freed = device.emulator.malloc(512).unwrap();
    device.emulator.free(freed).unwrap();
    device.read(&stream, freed, 512);
    assert!(matches!(device.emulator.races()[4], Race::NotMapped { .. }));
}

#[test]
fn an_unmap_under_work_that_the_host_has_not_seen_done() {
    for (seen, completion) in
        [(false, EventCompletion::AtOnce), (true, EventCompletion::AtOnce), (true, EventCompletion::ByHand)]
    {
        let device = Device::new(completion);
        for page in 0..3 {
            device.back(page);
        }
        let [stream] = device.streams();
        device.read(&stream, device.page(0), 3 * PAGE);
        let event = device.record(&stream);
        if seen {
            device.emulator.event_synchronize(&event).unwrap();
        }
        device.emulator.unmap(device.page(0), 2 * PAGE).unwrap();
        if seen {
            device.assert_right();
        } else {
            let Race::Unmapped { access, address, bytes } = device.only_race() else { panic!() };
            assert_eq!((access.kernel.as_str(), access.bytes), ("read", 3 * PAGE));
            assert_eq!((address, bytes), (device.page(0), 2 * PAGE));
        }
    }
}

#[test]
fn an_unmap_looks_at_its_own_addresses_only() {
    let device = Device::new(EventCompletion::AtOnce);
    let handle = device.back(0);
    device.map(1, &handle);
    let [left, right] = device.streams();
    device.write(&left, device.page(0), PAGE);
    let event = device.record(&left);
    // Later work through another address stands for it in the frame, not in the mapping.
    device.emulator.stream_wait(&right, &event).unwrap();
    device.write(&right, device.page(1), PAGE);
    device.emulator.event_synchronize(&event).unwrap();
    device.emulator.unmap(device.page(0), PAGE).unwrap();
    device.assert_right();
    device.emulator.unmap(device.page(1), PAGE).unwrap();
    let Race::Unmapped { access, .. } = device.only_race() else { panic!() };
    assert_eq!(access.stream, right.number());
}

#[test]
fn an_older_use_through_the_address_is_not_forgotten_for_a_newer_elsewhere() {
    let device = Device::new(EventCompletion::AtOnce);
    let handle = device.back(0);
    device.map(1, &handle);
    let [stream] = device.streams();
    device.write(&stream, device.page(0), PAGE);
    device.write(&stream, device.page(1), PAGE);
    device.emulator.unmap(device.page(0), PAGE).unwrap();
    let Race::Unmapped { access, .. } = device.only_race() else { panic!() };
    assert_eq!(access.number, 1);
}

#[test]
fn a_new_mapping_in_an_old_place_has_no_uses() {
    let device = Device::with_pages(1);
    let [stream] = device.streams();
    device.write(&stream, device.page(0), PAGE);
    device.emulator.synchronize_device().unwrap();
    device.emulator.unmap(device.page(0), PAGE).unwrap();
    let handle = device.back(0);
    device.emulator.unmap(device.page(0), PAGE).unwrap();
    device.emulator.release(handle).unwrap();
    device.assert_right();
}

// --- blocks ---------------------------------------------------------------------------------------------------------

#[test]
fn work_on_a_freed_block_is_found_even_in_order() {
    let device = Device::with_pages(1);
    let [stream, other] = device.streams();
    let block = device.emulator.block_allocated("tokens", device.page(0), 1024, &stream);
    let work = |block| Work::new("late").touching(Access::read(device.page(0), 1024).of_block(block));
    device.emulator.queue(&stream, work(block));
    device.emulator.block_freed(block, &stream);
    device.assert_right();
    device.emulator.queue(&stream, work(block));
    let Race::FreedBlock { access, freed_on } = device.only_race() else { panic!() };
    assert_eq!((access.block.as_deref(), freed_on), (Some("tokens"), Some(stream.number())));
    assert!(device.only_race().to_string().contains("tokens"));

    // The place has another owner. Who means the old block is found; who means the place is not.
    let next = device.emulator.block_allocated("logits", device.page(0), PAGE, &stream);
    device.emulator.queue(&stream, work(next));
    device.read(&stream, device.page(0), 1024);
    assert_eq!(device.emulator.races().len(), 1);
    device.emulator.queue(&stream, work(block));
    assert_eq!(device.emulator.races().len(), 2);
    // Freed twice.
    device.emulator.block_freed(block, &other);
    let races = device.emulator.races();
    assert!(matches!(&races[2], Race::FreedBlock { access, .. } if access.kernel == "free"), "{races:?}");
}

#[test]
fn work_by_address_alone_finds_a_freed_block_until_the_place_is_given_again() {
    let device = Device::with_pages(1);
    let [stream] = device.streams();
    let block = device.emulator.block_allocated("a", device.page(0).add(512), 512, &stream);
    device.emulator.block_freed(block, &stream);
    device.read(&stream, device.page(0), 512);
    device.assert_right();
    device.read(&stream, device.page(0), 513);
    assert!(matches!(device.only_race(), Race::FreedBlock { .. }));
    device.emulator.block_allocated("b", device.page(0), 1024, &stream);
    device.read(&stream, device.page(0), 513);
    assert_eq!(device.emulator.races().len(), 1);
}

#[test]
fn the_next_owner_comes_after_the_work_of_the_last_one() {
    for waits in [true, false] {
        let device = Device::with_pages(1);
        let [left, right] = device.streams();
        let block = device.emulator.block_allocated("first", device.page(0), PAGE, &left);
        device.read(&left, device.page(0), PAGE);
        device.emulator.block_freed(block, &left);
        if waits {
            device.emulator.queue_wait(&right, &left);
        }
        device.emulator.block_allocated("second", device.page(0), PAGE, &right);
        if waits {
            device.assert_right();
        } else {
            let races = device.emulator.races();
            let kernels: Vec<_> = races.iter().map(|race| race.access().kernel.as_str()).collect();
            assert_eq!(
                kernels,
                ["allocation", "allocation"],
                "after the first allocation and after its read"
            );
            assert!(races.iter().all(|race| race.access().block.as_deref() == Some("second")));
        }
    }
}

#[test]
fn work_on_another_stream_comes_after_the_allocation() {
    for waits in [true, false] {
        let device = Device::with_pages(1);
        let [left, right] = device.streams();
        device.emulator.block_allocated("early", device.page(0), PAGE, &left);
        if waits {
            device.emulator.queue_wait(&right, &left);
        }
        device.read(&right, device.page(0), 512);
        if waits {
            device.assert_right();
        } else {
            let Race::Unordered { first, second, .. } = device.only_race() else { panic!() };
            assert_eq!((first.kernel.as_str(), second.kernel.as_str()), ("allocation", "read"));
        }
    }
}

#[test]
fn an_allocation_is_no_work_that_an_unmap_can_come_too_early_for() {
    let device = Device::with_pages(1);
    let [stream] = device.streams();
    device.emulator.block_allocated("unused", device.page(0), PAGE, &stream);
    device.emulator.unmap(device.page(0), PAGE).unwrap();
    device.assert_right();
}

#[test]
fn work_outside_of_its_block() {
    let device = Device::with_pages(1);
    let [stream] = device.streams();
    let block = device.emulator.block_allocated("short", device.page(0), 1024, &stream);
    let touch =
        |access: Access| device.emulator.queue(&stream, Work::new("k").touching(access.of_block(block)));
    touch(Access::read(device.page(0).add(1000), 24));
    device.assert_right();
    touch(Access::read(device.page(0).add(1000), 25));
    let Race::OutsideBlock { address, bytes, .. } = device.only_race() else { panic!() };
    assert_eq!((address, bytes), (device.page(0), 1024));
}

// --- memory of the detector -----------------------------------------------------------------------------------------

#[test]
fn what_the_host_has_seen_done_is_forgotten() {
    let device = Device::with_pages(16);
    let streams: [_; 3] = device.streams();
    let mut most = 0;
    for round in 0..20_000_u64 {
        let stream = &streams[(round % 3) as usize];
        // Cells of 512 bytes all over, so that nothing is replaced.
        let at = (round * 7919 * 512) % (16 * PAGE);
        device.read(stream, device.base.add(at), 512);
        if round % 100 == 0 {
            let event = device.record(stream);
            device.emulator.event_synchronize(&event).unwrap();
        }
        most = most.max(device.emulator.remembered_accesses());
    }
    assert!(most < 5_000, "{most} of 20,000 accesses were remembered");
    device.assert_right();
}

#[test]
fn without_a_host_that_looks_later_work_stands_for_earlier() {
    let device = Device::with_pages(1);
    let [stream] = device.streams();
    for _ in 0..20_000 {
        device.write(&stream, device.page(0), PAGE);
    }
    assert!(device.emulator.remembered_accesses() < 5_000);
    let [other] = device.streams();
    device.write(&other, device.page(0), 1);
    let Race::Unordered { first, .. } = device.only_race() else { panic!() };
    assert_eq!(first.number, 20_000);
}

#[test]
fn reports_end_at_a_thousand() {
    let device = Device::with_pages(1);
    let [stream] = device.streams();
    (0..1_100).for_each(|_| device.read(&stream, device.page(7), 1));
    assert_eq!(device.emulator.races().len(), 1_000);
}

#[test]
fn switched_off_it_looks_at_nothing() {
    let config = EmulatorConfig::default().with_detection(Detection::Off);
    let emulator = Emulator::new(config).unwrap();
    let stream = emulator.stream();
    let block = emulator.block_allocated("any", Address::new(4096), 1, &stream);
    emulator.queue(&stream, Work::new("k").touching(Access::write(Address::new(4096), 1).of_block(block)));
    emulator.block_freed(block, &stream);
    emulator.block_freed(block, &stream);
    assert_eq!(emulator.races(), []);
}
