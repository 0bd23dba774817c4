//! Stream waits that the program does not know of: they hang a program whose kernels wait for one another, and with
//! `CrossStream::Completed` there are none.
//!
//! Neighbours: `order` has what is waited for, the emulator finds the hang.

use concertina::{CrossStream, Policy};
use concertina_emulator::{EventCompletion, Hang, HangLink, WaitOrigin, Work};

use crate::program::{MIB, Setup};
use crate::world::World;

const PAGE: u64 = 2 * MIB;

/// A collective of two ranks, each on a stream: each kernel waits until the other has begun. Rank 1 needs memory before it
/// can begin, and rank 0 has just freed some. Returns what the host's wait at the end said, and the waits on the device.
fn collective(cross_stream: CrossStream, completion: EventCompletion) -> (Result<(), Hang>, u64) {
    let setup = Setup { cross_stream, completion, policy: Policy::Lean, ..Setup::plain(PAGE, 8) };
    let mut world = World::new(&setup);
    let device = world.device.clone();
    let streams = [0, 1].map(|rank: usize| world.streams[rank].own.clone());
    let arrived = [device.signal(), device.signal()];
    let rank = |rank: usize| {
        Work::new(format!("all reduce, rank {rank}")).sending(&arrived[rank]).awaiting(&arrived[1 - rank])
    };

    let block = world.must_allocate(4 * PAGE, 0);
    device.queue(&streams[0], rank(0));
    world.free_at(block);
    let block = world.must_allocate(4 * PAGE, 1);
    device.queue(&streams[1], rank(1));
    world.free_at(block);

    let waited = device.synchronize_stream(&streams[1]);
    let waits = world.allocator.stats().fences.waits;
    if waited.is_err() {
        // Who can end it here is the test.
        device.send(&arrived[1]);
    }
    device.synchronize_device().unwrap();
    world.check();
    world.end_empty();
    (waited, waits)
}

const COMPLETIONS: [EventCompletion; 5] = [
    EventCompletion::AtOnce,
    EventCompletion::AfterOperations(7),
    EventCompletion::ByHand,
    EventCompletion::BySeed(11),
    EventCompletion::ByClock,
];

#[test]
fn a_hidden_stream_wait_hangs_a_collective_and_is_reported() {
    for completion in COMPLETIONS {
        let (waited, waits) = collective(CrossStream::DeviceWait, completion);
        let hang = waited.expect_err("rank 1 is behind the wait for rank 0, which waits for it");
        assert_eq!(waits, 1);
        let links = [
            HangLink::Wait { stream: 1, on: 0, origin: WaitOrigin::DriverCall },
            HangLink::Signal {
                kernel: "all reduce, rank 0".to_owned(),
                stream: 0,
                signal: 1,
                sender: Some(("all reduce, rank 1".to_owned(), 1)),
            },
        ];
        assert_eq!((hang.stream, &hang.links[..]), (1, &links[..]), "{completion:?}: {hang}");
        assert!(hang.is_cycle());
    }
}

#[test]
fn a_program_that_lets_only_completed_work_go_does_not_hang() {
    for cross_stream in [CrossStream::Completed, CrossStream::Never] {
        for completion in COMPLETIONS {
            let (waited, waits) = collective(cross_stream, completion);
            assert_eq!((waited, waits), (Ok(()), 0), "{cross_stream:?}, {completion:?}");
        }
    }
}
