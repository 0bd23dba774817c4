//! Streams with rules of their own: those of collectives, and the per-thread default ones.
//!
//! Neighbours: `order` has streams that wait for one another.

use std::sync::Barrier;
use std::thread;

use concertina::CrossStream;
use concertina::cuda::{DeviceBuffer, Error};
use cudarc::driver::PushKernelArg;

use crate::{Gate, Machine, PAGE, SHAPE};

/// Elements of a page.
const LEN: usize = PAGE as usize / 4;

#[test]
fn a_stream_of_collectives_is_not_waited_for() {
    let machine = Machine::of_pages(4);
    let memory = machine.memory();
    let (ours, theirs) = (machine.stream(), machine.stream());
    let collective = memory.stream_with(&theirs, CrossStream::Completed).unwrap();
    let stream = memory.stream(&ours).unwrap();
    assert_eq!(memory.stream_with(&theirs, CrossStream::Completed).unwrap().id(), collective.id());
    let (registered, asked) = (CrossStream::DeviceWait, CrossStream::Completed);
    let other = memory.stream_with(&ours, asked).unwrap_err();
    assert!(
        matches!(other, Error::OtherRule { registered: r, asked: a } if (r, a) == (registered, asked)),
        "{other}"
    );

    // Work that only the host ends is queued there, behind it a free.
    let gate = Gate::default();
    let (late, _, ran) = machine.late_sum(&gate);
    let buffer = DeviceBuffer::<u32>::try_zeroed(&collective, 2 * LEN).unwrap();
    let len = buffer.len();
    // SAFETY: the kernel takes a pointer and a count.
    unsafe { theirs.launch_builder(&late).arg(&buffer).arg(&len).launch(SHAPE) }.unwrap();
    drop(buffer);
    // Two pages are left, and serve without a wait for that work.
    let next = DeviceBuffer::<u32>::try_zeroed(&stream, 2 * LEN).unwrap();
    assert_eq!(next.to_vec().unwrap(), vec![0; 2 * LEN]);
    assert!(!ran.is_set());
    assert_eq!(memory.allocator().stats().fences.waits, 0);
    gate.open();
    // Once it is over, its memory serves: the host waits, as there is no other.
    let more = DeviceBuffer::<u32>::try_zeroed(&stream, 2 * LEN).unwrap();
    assert!(ran.is_set());
    drop((next, more, stream, collective, ours, theirs, late));
    machine.ends_empty(memory);
}

#[test]
fn memory_of_a_per_thread_stream_serves_others_when_its_thread_has_seen_it_done() {
    let machine = Machine::of_pages(4);
    let memory = machine.memory();
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            let own = machine.context.per_thread_stream();
            let stream = memory.stream(&own).unwrap();
            drop(DeviceBuffer::<u32>::try_zeroed(&stream, 3 * LEN).unwrap());
            own.synchronize().unwrap();
            barrier.wait();
            barrier.wait();
            // The last handle: the stream's last event is recorded here, where that can be done.
            drop(stream);
            barrier.wait();
        });
        barrier.wait();
        let own = machine.context.per_thread_stream();
        let stream = memory.stream(&own).unwrap();
        let refused = DeviceBuffer::<u32>::try_zeroed(&stream, 2 * LEN).unwrap_err();
        assert!(refused.is_out_of_memory(), "an event can't be recorded from here: {refused}");
        drop(DeviceBuffer::<u32>::try_zeroed(&stream, LEN).unwrap());
        barrier.wait();
        barrier.wait();
        drop(DeviceBuffer::<u32>::try_zeroed(&stream, 2 * LEN).unwrap());
    });
    machine.ends_empty(memory);
}
