//! Halves of buffers, copies on the device and fills: their values, and their order across streams.
//!
//! Main types: none. Neighbours: `values` and `order` have whole buffers.

use std::thread;

use concertina::cuda::{BufferError, DeviceBuffer, FillValue};
use cudarc::driver::{DeviceRepr, PushKernelArg};

use crate::{Flag, Gate, Machine, SHAPE};
use concertina_libcuda::AccessKind;

#[test]
fn halves_are_the_elements_before_and_behind() {
    let machine = Machine::new();
    let memory = machine.memory();
    let cuda_stream = machine.stream();
    let stream = memory.stream(&cuda_stream).unwrap();
    let mut buffer = DeviceBuffer::try_from_slice(&stream, &[1_u16, 2, 3, 4, 5]).unwrap();
    let (left, right) = buffer.split_at(2).unwrap();
    assert_eq!((left.to_vec().unwrap(), right.to_vec().unwrap()), (vec![1, 2], vec![3, 4, 5]));
    assert_eq!(right.address().get() - left.address().get(), 4);
    let (middle, last) = right.split_at(2).unwrap();
    assert_eq!((middle.to_vec().unwrap(), last.to_vec().unwrap()), (vec![3, 4], vec![5]));
    for at in [0, 5] {
        let (left, right) = buffer.split_at(at).unwrap();
        assert_eq!((left.len(), right.len()), (at, 5 - at));
    }
    let outside = BufferError::Range { start: 6, end: 5, len: 5 };
    assert_eq!(buffer.split_at(6).unwrap_err(), outside);
    assert_eq!(buffer.split_at_mut(6).unwrap_err(), outside);

    let (mut left, mut right) = buffer.split_at_mut(2).unwrap();
    left.copy_from_slice(&[6, 7]).unwrap();
    let (mut middle, mut last) = right.split_at_mut(1).unwrap();
    middle.fill(8).unwrap();
    cuda_stream.memcpy_htod(&[9_u16, 10], &mut last).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [6, 7, 8, 9, 10]);
    drop((buffer, stream, cuda_stream));
    machine.ends_empty(memory);
}

/// One half is the argument of a kernel at home that is not launched yet when the other half is used elsewhere: who
/// comes after both waits for both.
#[test]
fn halves_do_not_hide_each_others_writes() {
    let machine = Machine::new();
    let memory = machine.memory();
    let [home, other, third] = [(); 3].map(|()| machine.stream());
    let [homes, others, thirds] = [&home, &other, &third].map(|stream| memory.stream(stream).unwrap());
    let (gate, open, late_ran) = (Gate::default(), Gate::default(), Flag::default());
    open.open();
    let (inside, flag) = (gate.clone(), late_ran.clone());
    let late = machine.kernel_on_x(AccessKind::Write, "late_fill", &[8, 8], move |launch| {
        inside.pass();
        crate::elements(launch).fill(1);
        flag.set();
    });
    let (fill, _) = machine.fill(7, &late_ran);
    let (sum_up, sum, _) = machine.late_sum(&open);
    let mut buffer = DeviceBuffer::<u32>::try_zeroed(&homes, 100).unwrap();

    let (mut left, mut right) = buffer.split_at_mut(50).unwrap();
    let mut launch = home.launch_builder(&late);
    launch.arg(&mut left).arg(&50_usize);
    // SAFETY: these are the parameters that were registered, here and below.
    unsafe {
        other.launch_builder(&fill).arg(&mut right.on_mut(&others).unwrap()).arg(&50_usize).launch(SHAPE)
    }
    .unwrap();
    // SAFETY: as above.
    unsafe { launch.launch(SHAPE) }.unwrap();
    // SAFETY: as above.
    unsafe { third.launch_builder(&sum_up).arg(&buffer.on(&thirds).unwrap()).arg(&100_usize).launch(SHAPE) }
        .unwrap();
    machine.let_others_run();
    assert_eq!(*sum.lock().unwrap(), None, "the third stream didn't wait for the left half");
    gate.open();
    third.synchronize().unwrap();
    assert_eq!(*sum.lock().unwrap(), Some(50 + 50 * 7));
    drop((buffer, homes, others, thirds, home, other, third, late, fill, sum_up));
    machine.ends_empty(memory);
}

/// Two threads write a half each, with cudarc's copies, on streams of their own.
#[test]
fn threads_write_a_half_each() {
    let machine = Machine::new();
    let memory = machine.memory();
    let home = memory.stream(&machine.stream()).unwrap();
    let mut buffer = DeviceBuffer::<u32>::try_zeroed(&home, 2_000).unwrap();
    for round in 1..=50 {
        let (left, right) = buffer.split_at_mut(1_000).unwrap();
        thread::scope(|scope| {
            for (mut half, value) in [(left, round), (right, 1_000 + round)] {
                let (machine, memory) = (&machine, &memory);
                scope.spawn(move || {
                    let own = machine.stream();
                    let _registered = memory.stream(&own).unwrap();
                    own.memcpy_htod(&vec![value; 1_000], &mut half).unwrap();
                });
            }
        });
        assert_eq!(buffer.to_vec().unwrap(), [vec![round; 1_000], vec![1_000 + round; 1_000]].concat());
    }
    drop((buffer, home));
    machine.ends_empty(memory);
}

#[test]
fn fills_repeat_the_value() {
    fn check<T: FillValue + DeviceRepr + PartialEq + std::fmt::Debug>(machine: &Machine, value: T) {
        let memory = machine.memory();
        let stream = memory.stream(&machine.stream()).unwrap();
        // SAFETY: filled before it is read.
        let mut buffer = unsafe { DeviceBuffer::<T>::try_uninit(&stream, 1_000) }.unwrap();
        buffer.fill(value).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), vec![value; 1_000]);
        let mut empty = DeviceBuffer::<T>::try_from_slice(&stream, &[]).unwrap();
        empty.fill(value).unwrap();
        drop((buffer, empty, stream));
        memory.close().unwrap();
    }
    let machine = Machine::new();
    check(&machine, 200_u8);
    check(&machine, -100_i8);
    check(&machine, 60_000_u16);
    check(&machine, -30_000_i16);
    check(&machine, 4_000_000_000_u32);
    check(&machine, -2_000_000_000_i32);
    check(&machine, 1.5_f32);
    machine.ends();
}

/// A copy comes after a late write to its source on a third stream, and a write to the source after the copy.
#[test]
fn copies_between_streams_are_in_order() {
    let machine = Machine::new();
    let memory = machine.memory();
    let [from_home, to_home, writer] = [(); 3].map(|()| machine.stream());
    let [froms, tos, writers] = [&from_home, &to_home, &writer].map(|stream| memory.stream(stream).unwrap());
    let (gate, late_ran) = (Gate::default(), Flag::default());
    let (inside, flag) = (gate.clone(), late_ran.clone());
    let late = machine.kernel_on_x(AccessKind::Write, "late_fill", &[8, 8], move |launch| {
        inside.pass();
        crate::elements(launch).fill(1);
        flag.set();
    });
    let (fill, saw) = machine.fill(9, &late_ran);
    let mut source = DeviceBuffer::<u32>::try_zeroed(&froms, 100).unwrap();
    // SAFETY: these are the parameters that were registered, here and below.
    unsafe {
        writer.launch_builder(&late).arg(&mut source.on_mut(&writers).unwrap()).arg(&100_usize).launch(SHAPE)
    }
    .unwrap();
    let waits = || {
        let functions = ["cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"];
        functions.map(|function| machine.libcuda.calls(function).unwrap())
    };
    let before = waits();
    let copy = source.try_clone(&tos).unwrap();
    let mut part = DeviceBuffer::<u32>::try_zeroed(&tos, 60).unwrap();
    part.slice_mut(10..).unwrap().copy_from(source.slice(50..).unwrap()).unwrap();
    assert_eq!(waits(), before, "the host waited");
    // SAFETY: as above. At home, plain.
    unsafe { from_home.launch_builder(&fill).arg(&mut source).arg(&100_usize).launch(SHAPE) }.unwrap();
    machine.let_others_run();
    assert_eq!(*saw.lock().unwrap(), None, "the write didn't wait for the copies");
    gate.open();
    assert_eq!(copy.to_vec().unwrap(), [1; 100]);
    assert_eq!(part.to_vec().unwrap(), [vec![0; 10], vec![1; 50]].concat());
    assert_eq!(source.to_vec().unwrap(), [9; 100]);
    assert_eq!(*saw.lock().unwrap(), Some(true));
    drop((copy, part, source, froms, tos, writers, from_home, to_home, writer, late, fill));
    machine.ends_empty(memory);
}

/// The source may be dropped at once: its memory is not another's before it has been read.
#[test]
fn a_source_may_be_dropped_behind_the_copy() {
    const LEN: usize = 3 << 20;
    let machine = Machine::of_pages(16);
    let memory = machine.memory();
    let [from_home, to_home] = [(); 2].map(|()| machine.stream());
    let [froms, tos] = [&from_home, &to_home].map(|stream| memory.stream(stream).unwrap());
    let gate = Gate::default();
    let inside = gate.clone();
    let wait = machine.kernel("wait", &[], move |_| inside.pass());
    let source = DeviceBuffer::try_from_slice(&froms, &vec![3_u8; LEN]).unwrap();
    // SAFETY: the kernel takes nothing.
    unsafe { to_home.launch_builder(&wait).launch(SHAPE) }.unwrap();
    let copy = source.try_clone(&tos).unwrap();
    drop(source);
    let mut next = DeviceBuffer::<u8>::try_zeroed(&froms, LEN).unwrap();
    next.fill(4).unwrap();
    machine.let_others_run();
    gate.open();
    assert_eq!(copy.to_vec().unwrap(), vec![3; LEN]);
    assert_eq!(next.to_vec().unwrap(), vec![4; LEN]);
    drop((copy, next, froms, tos, from_home, to_home, wait));
    machine.ends_empty(memory);
}

#[test]
fn copies_that_do_not_fit_are_refused() {
    let machine = Machine::new();
    let (memory, other_memory) = (machine.memory(), machine.memory());
    let cuda_stream = machine.stream();
    let stream = memory.stream(&cuda_stream).unwrap();
    let foreign = other_memory.stream(&cuda_stream).unwrap();
    let mut buffer = DeviceBuffer::try_from_slice(&stream, &[1_u8, 2, 3]).unwrap();
    let longer = DeviceBuffer::try_from_slice(&stream, &[4_u8; 4]).unwrap();
    let elsewhere = DeviceBuffer::try_from_slice(&foreign, &[5_u8; 3]).unwrap();
    assert_eq!(buffer.copy_from(&longer), Err(BufferError::Length { from: 4, to: 3 }));
    assert_eq!(buffer.copy_from(&elsewhere), Err(BufferError::ForeignStream));
    let error = buffer.try_clone(&foreign).unwrap_err();
    assert!(matches!(error, concertina::cuda::Error::Buffer(BufferError::ForeignStream)), "{error}");
    assert_eq!(buffer.to_vec().unwrap(), [1, 2, 3]);
    drop((buffer, longer, elsewhere, stream, foreign, cuda_stream));
    other_memory.close().unwrap();
    machine.ends_empty(memory);
}
