//! VPMM's rules, each worked out by hand.
//!
//! Neighbours: random programs with kernels are in `tests/stitch` of this crate.

use std::collections::BTreeMap;

use concertina_emulator::{EmulatedStream, Emulator, EmulatorConfig, EventCompletion, Fault};
use concertina_trace::target::TargetError;
use concertina_vmm::{Call, DriverErrorKind};

use super::{Vpmm, VpmmBlock, VpmmConf};
use crate::baseline::Baseline;
use crate::pool_error::PoolError;

const MIB: u64 = 1 << 20;
/// Programs that are written down in pages.
const PAGE: u64 = 2 * MIB;

/// A pool on a device of its own, and the blocks that the program has.
struct Program {
    device: Emulator,
    streams: Vec<EmulatedStream>,
    pool: Vpmm<Emulator>,
    blocks: BTreeMap<u32, VpmmBlock>,
}

impl Program {
    fn new(conf: &str, capacity_pages: u64) -> Self {
        Self::with_events(conf, capacity_pages, EventCompletion::AtOnce)
    }

    fn with_events(conf: &str, capacity_pages: u64, completion: EventCompletion) -> Self {
        let config = EmulatorConfig::default().with_event_completion(completion);
        let device = Emulator::new(config.with_capacity(capacity_pages * PAGE).unwrap()).unwrap();
        let mut pool = Vpmm::new(device.clone(), conf.parse().unwrap()).unwrap();
        let streams: Vec<_> = (0..2).map(|_| device.stream()).collect();
        streams.iter().for_each(|stream| pool.add_stream(stream.clone()));
        Self { device, streams, pool, blocks: BTreeMap::new() }
    }

    fn try_bytes(&mut self, id: u32, bytes: u64, stream: u32) -> Result<u64, TargetError> {
        let block = self.pool.allocate(bytes, stream)?;
        let address = block.address().get();
        assert!(self.blocks.insert(id, block).is_none(), "{id} is live");
        Ok(address)
    }

    /// A block of so many pages on a stream; its address.
    fn on(&mut self, id: u32, pages: u64, stream: u32) -> u64 {
        self.try_bytes(id, pages * PAGE, stream).unwrap()
    }

    /// The same on stream 0.
    fn a(&mut self, id: u32, pages: u64) -> u64 {
        self.on(id, pages, 0)
    }

    fn f(&mut self, ids: &[u32]) {
        ids.iter().for_each(|id| self.pool.free(self.blocks.remove(id).unwrap()).unwrap());
    }

    fn count(&self, call: Call) -> u64 {
        self.device.counts().of(call)
    }

    /// Pages held and zombies; maps, grants of access and unmaps.
    fn figures(&self) -> ([u64; 2], [u64; 3]) {
        let pages = [self.pool.held_bytes() / PAGE, self.pool.zombie_bytes() / PAGE];
        (pages, [Call::Map, Call::SetAccess, Call::Unmap].map(|call| self.count(call)))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        assert_eq!(self.device.broken_rules().len(), 0, "{:?}", self.device.broken_rules());
    }
}

#[test]
fn pages_are_created_one_by_one_and_made_accessible_at_once() {
    let mut program = Program::new("", 1024);
    assert_eq!(program.count(Call::Reserve), 1);
    assert_eq!(program.device.counts().reserved_bytes, 8 << 40, "DEFAULT_VA_SIZE");
    program.try_bytes(1, 5 * PAGE - 1, 0).unwrap();
    assert_eq!((program.count(Call::Create), program.figures()), (5, ([5, 0], [5, 1, 0])));
    assert_eq!(program.pool.address_peak_bytes(), 5 * PAGE);
    // Pages are never given back.
    program.f(&[1]);
    program.pool.release_cached().unwrap();
    assert_eq!(program.figures(), ([5, 0], [5, 1, 0]));
    // The source's page size: the granularity or a multiple.
    let mut program = Program::new("page_size:6291456,va_size:62914560", 1024);
    program.a(1, 3);
    program.a(2, 4);
    assert_eq!((program.count(Call::Create), program.pool.held_bytes()), (1 + 2, 9 * PAGE));
}

#[test]
fn the_smallest_region_is_taken_from_its_start_and_joins_its_neighbours() {
    let mut program = Program::new("", 1024);
    let (first, _, third, _) = (program.a(1, 10), program.a(2, 1), program.a(3, 6), program.a(4, 1));
    program.f(&[1, 3]);
    assert_eq!(program.a(5, 4), third, "6 are fewer than 10");
    assert_eq!(program.a(6, 2), third + 4 * PAGE);
    assert_eq!(program.a(7, 10), first);
    // `free_region_insert`: 10 and 1 join, and 4 and 2 with them.
    program.f(&[7, 5, 6, 2]);
    assert_eq!(program.a(8, 17), first);
    assert_eq!(program.figures(), ([18, 0], [18, 4, 0]));
    assert_eq!(program.pool.defragmentations(), 4, "the first four requests");
    // An event of its own for each page that was created at once, and for each free.
    assert_eq!((program.count(Call::EventCreate), program.count(Call::EventRecord)), (10, 10));
}

/// The example of the paper, in pages: +10 +1 -10 +4 +11, with so many more pages at hand. What the code of the
/// commit does is another thing in cases B to D: it moves the oldest pages, not the first region as a whole.
#[test]
fn the_example_of_the_paper() {
    for (more, figures, zombies) in [
        // A: the 4 are cut from the 10, the 11 from the others.
        (11, ([22, 0], [22, 1, 0]), 0),
        // B: the 4 are cut from those 7, whose 3 others and 8 of the 10 move.
        (7, ([18, 11], [18 + 11, 2, 0]), 11),
        // C: of 4 nothing is left, all 10 move and one page is created.
        (4, ([16, 10], [16 + 10, 3, 0]), 10),
        // D: the 4 are cut from the 10. 3 are created, behind the 2 that are left at the end, and join them; 6 move.
        (2, ([16, 6], [16 + 6, 3, 0]), 6),
    ] {
        let mut program = Program::new(&format!("pages:{}", 11 + more), 64);
        let first = program.a(1, 10);
        let second = program.a(2, 1);
        assert_eq!(second, first + 10 * PAGE);
        program.f(&[1]);
        let third = program.a(3, 4);
        assert_eq!(third == first, more == 11 || more == 2, "{more}");
        program.a(4, 11);
        assert_eq!(program.figures(), figures, "{more} more");
        assert_eq!(program.pool.used_bytes(), 16 * PAGE);
        assert_eq!(program.pool.zombie_bytes(), zombies * PAGE);
        // What was left behind is unmapped with the next request, in as many calls as there were regions.
        program.a(5, 1);
        assert_eq!(program.pool.zombie_bytes(), 0, "{more} more");
    }
}

#[test]
fn the_shortfall_alone_is_created_and_the_oldest_pages_move_first() {
    let mut program = Program::new("", 1024);
    for (id, pages) in [(1, 3), (2, 1), (3, 4), (4, 1), (5, 5), (6, 1)] {
        program.a(id, pages);
    }
    let creates = program.count(Call::Create);
    program.f(&[3, 1, 5]);
    // 12 are free, no 6 in a row: the 4 and 2 of the 3 move.
    let moved = program.a(7, 6);
    assert_eq!(program.count(Call::Create), creates);
    assert_eq!(program.pool.zombie_bytes(), 6 * PAGE);
    // 1 and 5 are left. 8 take both, and 2 new pages that come first; two grants.
    let (maps, grants) = (program.count(Call::Map), program.count(Call::SetAccess));
    program.a(8, 8);
    assert_eq!(program.count(Call::Create), creates + 2);
    assert_eq!((program.count(Call::Map) - maps, program.count(Call::SetAccess) - grants), (8, 2));
    // The zombies of before were unmapped, the 4 and the 2; of now there are the 1 and the 5.
    assert_eq!((program.count(Call::Unmap), program.pool.zombie_bytes()), (2, 6 * PAGE));
    // The smallest hole that fits is used: that of the 4.
    program.f(&[7]);
    program.a(9, 3);
    program.a(10, 3);
    assert_eq!(program.blocks[&9].address().get(), moved);
}

#[test]
fn holes_that_zombies_leave_are_used_again() {
    let mut program = Program::new("", 1024);
    let first = program.a(1, 4);
    program.a(2, 1);
    program.f(&[1]);
    program.a(3, 6);
    // The 4 pages moved; their addresses are a hole when the next request comes, which takes new pages there.
    assert_eq!(program.a(4, 4), first);
    assert_eq!(program.figures(), ([11, 0], [5 + 6 + 4, 5, 1]));
}

#[test]
fn of_another_stream_only_what_is_done_is_taken_as_it_is() {
    for done in [true, false] {
        let mut program = Program::with_events("", 1024, EventCompletion::ByHand);
        let first = program.on(1, 4, 1);
        program.f(&[1]);
        if done {
            program.device.complete_stream(&program.streams[1]);
        }
        let second = program.on(2, 3, 0);
        assert_eq!(second == first, done);
        // Otherwise three pages are mapped again, behind a wait on the device.
        assert_eq!(program.count(Call::StreamWait), u64::from(!done));
        assert_eq!(
            (program.pool.device_waits(), program.count(Call::EventSynchronize)),
            (u64::from(!done), 0)
        );
        assert_eq!(program.figures().0, [4, if done { 0 } else { 3 }]);
        // The rest is stream 0's in the one case, and still stream 1's in the other.
        let rest = program.on(3, 1, u32::from(!done));
        assert_eq!(rest, first + 3 * PAGE);
        assert_eq!(program.count(Call::Create), 4);
    }
}

#[test]
fn the_own_pages_move_first_and_others_wait() {
    let mut program = Program::with_events("", 1024, EventCompletion::ByHand);
    program.on(1, 2, 1);
    program.on(2, 2, 0);
    program.on(3, 1, 0);
    program.on(4, 2, 0);
    // Stream 1's are the oldest.
    program.f(&[1, 2, 4]);
    program.on(5, 4, 0);
    assert_eq!(program.count(Call::StreamWait), 0, "the two of 2 are enough");
    program.f(&[5]);
    program.on(6, 5, 0);
    assert_eq!(program.count(Call::StreamWait), 1);
    assert_eq!(program.pool.held_bytes(), 7 * PAGE);
}

#[test]
fn a_zombie_stays_until_its_event_is_complete() {
    let mut program = Program::with_events("", 1024, EventCompletion::ByHand);
    program.a(1, 4);
    program.a(2, 1);
    program.f(&[1]);
    program.a(3, 6);
    program.a(4, 1);
    program.a(5, 1);
    assert_eq!((program.pool.zombie_bytes(), program.count(Call::Unmap)), (4 * PAGE, 0));
    program.device.complete_stream(&program.streams[0]);
    program.a(6, 1);
    assert_eq!((program.pool.zombie_bytes(), program.count(Call::Unmap)), (0, 1));
}

#[test]
fn streams_that_used_a_block_are_waited_for_on_the_device_by_its_own() {
    let mut program = Program::with_events("", 1024, EventCompletion::ByHand);
    program.on(1, 4, 0);
    program.pool.record_stream(program.blocks.get_mut(&1).unwrap(), 1).unwrap();
    program.pool.record_stream(program.blocks.get_mut(&1).unwrap(), 0).unwrap();
    let records = program.count(Call::EventRecord);
    program.f(&[1]);
    assert_eq!(program.count(Call::EventRecord), records + 2, "on stream 1, and on 0 behind the wait for it");
    assert_eq!(program.count(Call::StreamWait), 1);
    assert_eq!(program.pool.device_waits(), 0, "the program's own");
}

#[test]
fn below_a_page_a_malloc_stands_in() {
    let mut program = Program::new("", 1024);
    program.try_bytes(1, PAGE - 1, 0).unwrap();
    assert_eq!((program.count(Call::Malloc), program.count(Call::Create)), (1, 0));
    program.f(&[1]);
    assert_eq!(program.count(Call::Free), 1);
    assert_eq!(program.pool.address_peak_bytes(), PAGE - 1);
}

#[test]
fn addresses_are_reserved_chunk_by_chunk() {
    // Two pages of a chunk of four are in the way of three.
    let mut program = Program::new(&format!("va_size:{}", 4 * PAGE), 1024);
    program.a(1, 2);
    program.a(2, 3);
    assert_eq!(program.count(Call::Reserve), 2);
    assert_eq!(program.pool.address_peak_bytes(), 5 * PAGE);
    // More than a chunk is refused.
    let error = program.try_bytes(3, 5 * PAGE, 0).expect_err("too much");
    assert!(matches!(error, TargetError::OutOfMemory(_)), "{error}");
}

#[test]
fn what_is_refused_leaves_everything_as_it_was() {
    let mut program = Program::new("", 8);
    program.a(1, 3);
    let error = program.try_bytes(2, 6 * PAGE, 0).expect_err("5 are left");
    assert!(matches!(error, TargetError::OutOfMemory(_)), "{error}");
    assert!(error.to_string().contains("12582912 bytes asked for, 6291456 held"), "{error}");
    assert_eq!(program.device.counts().mapped_bytes, 3 * PAGE);
    assert_eq!(program.a(3, 5), program.blocks[&1].address().get() + 3 * PAGE);
    program.f(&[1, 3]);
    // They joined; 8 are mapped where they are, and so never fail.
    program.a(4, 8);
    program.f(&[4]);
    program.a(5, 4);
    program.a(6, 1);
    program.f(&[5]);
    // 7 are 3 and 4. The third map fails, the two before it are undone.
    program.device.fail(Fault::once(Call::Map, 3, DriverErrorKind::NotReady));
    let mappings = program.device.counts().mappings;
    assert!(matches!(program.try_bytes(7, 7 * PAGE, 0), Err(TargetError::Failed(_))));
    assert_eq!(program.device.counts().mappings, mappings);
    program.a(7, 7);
    assert!(matches!(program.try_bytes(8, 0, 0), Err(TargetError::Failed(_))));
    assert!(matches!(program.try_bytes(8, PAGE, 7), Err(TargetError::Failed(_))));
    for conf in ["page_size:3145728", "va_size:3145728"] {
        let conf: VpmmConf = conf.parse().unwrap();
        assert!(matches!(Vpmm::new(program.device.clone(), conf), Err(PoolError::FrameSize { .. })));
    }
}
