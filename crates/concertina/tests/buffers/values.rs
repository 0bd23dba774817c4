//! What is put into buffers comes out again, by ours and by cudarc's functions.
//!
//! Main types: none. Neighbours: `order` uses several streams.

use concertina::cuda::DeviceBuffer;
use cudarc::driver::{DeviceSlice, PushKernelArg};

use crate::{Flag, Machine, PAGE, SHAPE};

#[test]
fn constructors_give_what_they_say() {
    let machine = Machine::new();
    let memory = machine.memory();
    let stream = memory.stream(&machine.stream()).unwrap();
    let sent: Vec<u32> = (0..1_000_000).collect();
    let mut buffer = DeviceBuffer::try_from_slice(&stream, &sent).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), sent);
    assert_eq!((buffer.len(), buffer.bytes(), buffer.is_empty()), (1_000_000, 4_000_000, false));
    assert_eq!(memory.allocator().stats().live_bytes, 4_000_000);
    drop(buffer);
    assert_eq!(memory.allocator().stats().live_bytes, 0);
    // The same memory again, where the old elements were.
    buffer = DeviceBuffer::try_zeroed(&stream, 1_000_000).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), vec![0; 1_000_000]);
    buffer.copy_from_slice(&sent).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), sent);
    drop((buffer, stream));
    machine.ends_empty(memory);
}

#[test]
fn a_buffer_of_no_elements_takes_no_memory() {
    let machine = Machine::new();
    let memory = machine.memory();
    let stream = memory.stream(&machine.stream()).unwrap();
    let other = memory.stream(&machine.stream()).unwrap();
    let mut empty = DeviceBuffer::<f64>::try_zeroed(&stream, 0).unwrap();
    assert_eq!((empty.len(), empty.bytes(), empty.address().get()), (0, 0, 0));
    assert_eq!(empty.to_vec().unwrap(), Vec::<f64>::new());
    empty.copy_from_slice(&[]).unwrap();
    assert_eq!(DeviceBuffer::<u8>::try_from_slice(&stream, &[]).unwrap().len(), 0);
    drop(empty.on(&other).unwrap());
    drop(empty.on_mut(&other).unwrap());
    assert_eq!(empty.slice(..).unwrap().len(), 0);
    let cuda_stream = stream.cuda_stream();
    cuda_stream.memset_zeros(&mut empty).unwrap();
    cuda_stream.memcpy_htod(&[], &mut empty).unwrap();
    assert_eq!(cuda_stream.clone_dtoh(&empty).unwrap(), []);
    let stats = memory.allocator().stats();
    assert_eq!((stats.live_blocks, stats.mapped_bytes), (0, 0));
    assert_eq!(machine.libcuda.calls("cuEventRecord").unwrap(), 0);
    drop((empty, stream, other));
    machine.ends_empty(memory);
}

#[test]
fn cudarcs_copies_and_fills_take_buffers_views_and_guards() {
    let machine = Machine::new();
    let memory = machine.memory();
    let (cuda_stream, other) = (machine.stream(), machine.stream());
    let stream = memory.stream(&cuda_stream).unwrap();
    let other_stream = memory.stream(&other).unwrap();
    let mut buffer = DeviceBuffer::<u32>::try_zeroed(&stream, 8).unwrap();
    cuda_stream.memcpy_htod(&[1, 2, 3, 4, 5, 6, 7, 8], &mut buffer).unwrap();
    cuda_stream.memset_zeros(&mut buffer.slice_mut(2..4).unwrap()).unwrap();
    assert_eq!(cuda_stream.clone_dtoh(&buffer).unwrap(), [1, 2, 0, 0, 5, 6, 7, 8]);
    assert_eq!(cuda_stream.clone_dtoh(&buffer.slice(3..=5).unwrap()).unwrap(), [0, 5, 6]);
    // To and from cudarc's own, on another stream.
    let mut slice = other.alloc_zeros::<u32>(8).unwrap();
    other.memcpy_dtod(&buffer.on(&other_stream).unwrap(), &mut slice).unwrap();
    other.memcpy_htod(&[9; 4], &mut slice.slice_mut(..4)).unwrap();
    other.memcpy_dtod(&slice, &mut buffer.on_mut(&other_stream).unwrap()).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [9, 9, 9, 9, 5, 6, 7, 8]);
    assert!(std::sync::Arc::ptr_eq(DeviceSlice::stream(&buffer), &cuda_stream));
    drop((buffer, slice, stream, other_stream, cuda_stream, other));
    machine.ends_empty(memory);
}

#[test]
fn kernels_take_buffers_views_and_guards() {
    let machine = Machine::new();
    let memory = machine.memory();
    let cuda_stream = machine.stream();
    let stream = memory.stream(&cuda_stream).unwrap();
    let [one, two, three, four] = [1, 2, 3, 4].map(|value| machine.fill(value, &Flag::default()).0);
    let mut buffer = DeviceBuffer::<u32>::try_zeroed(&stream, 10).unwrap();
    let launch = |kernel| cuda_stream.launch_builder(kernel);
    // SAFETY: these are the parameters that were registered, here and below.
    unsafe { launch(&one).arg(&mut buffer).arg(&10_usize).launch(SHAPE) }.unwrap();
    // SAFETY: as above.
    unsafe { launch(&two).arg(&mut buffer.slice_mut(2..).unwrap()).arg(&8_usize).launch(SHAPE) }.unwrap();
    let mut guard = buffer.on_mut(&stream).unwrap();
    // SAFETY: as above.
    unsafe { launch(&three).arg(&mut guard).arg(&1_usize).launch(SHAPE) }.unwrap();
    drop(guard);
    let mut view = buffer.slice_mut(4..9).unwrap();
    let mut view = view.slice_mut(1..3).unwrap();
    // SAFETY: as above.
    unsafe { launch(&four).arg(&mut view.on_mut(&stream).unwrap()).arg(&2_usize).launch(SHAPE) }.unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [3, 1, 2, 2, 2, 4, 4, 2, 2, 2]);
    drop((buffer, stream, cuda_stream, one, two, three, four));
    machine.ends_empty(memory);
}

/// On one stream buffers cost what blocks cost: nothing, once the memory is there.
#[test]
fn a_warm_loop_on_one_stream_makes_no_call_but_its_own() {
    let machine = Machine::new();
    let memory = machine.memory();
    let cuda_stream = machine.stream();
    let stream = memory.stream(&cuda_stream).unwrap();
    let (fill, _) = machine.fill(7, &Flag::default());
    let step = || {
        for pages in [5, 3, 2] {
            let len = (pages * PAGE / 4) as usize;
            // SAFETY: the kernel writes before anybody reads.
            let mut buffer = unsafe { DeviceBuffer::<u32>::try_uninit(&stream, len) }.unwrap();
            // SAFETY: these are the parameters that were registered.
            unsafe { cuda_stream.launch_builder(&fill).arg(&mut buffer).arg(&1_usize).launch(SHAPE) }
                .unwrap();
            let _read = buffer.slice(1..).unwrap();
        }
    };
    step();
    let calls = |name| machine.libcuda.calls(name).unwrap();
    let names = ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuEventCreate"];
    let more =
        ["cuEventRecord", "cuEventQuery", "cuStreamWaitEvent", "cuStreamSynchronize", "cuCtxSynchronize"];
    let before: Vec<_> = names.into_iter().chain(more).map(|name| (name, calls(name))).collect();
    for _ in 0..50 {
        step();
    }
    let after: Vec<_> = before.iter().map(|&(name, _)| (name, calls(name))).collect();
    assert_eq!(before, after);
    drop((stream, cuda_stream, fill));
    machine.ends_empty(memory);
}
