//! Buffers on a device without virtual memory: the same lines, on malloc segments.
//!
//! Main types: none. Neighbours: `values` and `order` have the same with virtual memory.

use concertina::cuda::{
    Cuda, CudaOptions, DeviceBuffer, Error, GrowableBuffer, Memory, OpenError, Stream, VirtualMemory,
};
use concertina::{Config, SegmentKind};
use concertina_libcuda::{AccessKind, DeviceConfig};
use cudarc::driver::PushKernelArg;

use crate::{Machine, PAGE, SHAPE, elements};

fn old_device(pages: u64) -> Machine {
    let capacity_bytes = pages * PAGE;
    Machine::of(&DeviceConfig { virtual_memory: false, capacity_bytes, ..DeviceConfig::default() })
}

#[test]
fn the_two_lines_are_the_same_and_the_reason_is_told() {
    let machine = old_device(32);
    let memory = Memory::new(&machine.context).unwrap();
    let allocator = memory.allocator();
    assert_eq!(allocator.segment_kind(), SegmentKind::Malloc);
    let reason = allocator.driver().probe().virtual_memory.to_string();
    assert_eq!(reason, "no: the device's attribute VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED (102) is 0");
    // Who would rather have an error says so.
    let required = CudaOptions::default().with_virtual_memory(VirtualMemory::Required);
    let refused = Cuda::with_options(&machine.context, &required).map_err(Error::from).unwrap_err();
    assert!(matches!(refused, Error::Open(OpenError::NoVirtualMemory { .. })), "{refused}");
    machine.ends_empty(memory);
}

#[test]
fn what_grows_needs_virtual_memory() {
    let mallocs = Config::builder().segments(SegmentKind::Malloc).build();
    for (virtual_memory, config, why) in [
        (false, Config::default(), "the device has none"),
        (true, mallocs, "it was configured with malloc segments"),
    ] {
        let machine = Machine::of(&DeviceConfig { virtual_memory, ..DeviceConfig::default() });
        let cuda = Cuda::new(&machine.context).unwrap();
        let memory = Memory::with_driver(cuda, config).unwrap();
        let stream = memory.stream(&machine.stream()).unwrap();
        let refused = GrowableBuffer::<u8>::try_with_max_len(&stream, 100).unwrap_err();
        let text = format!("a growable needs virtual memory, which this allocator does not have: {why}");
        assert_eq!(refused.to_string(), text);
        drop(stream);
        machine.ends_empty(memory);
    }
}

/// `y = 2 x + y` twice, on two streams, in memory that another stream had before.
#[test]
fn kernels_on_two_streams_give_right_results() {
    let machine = old_device(32);
    let memory = Memory::new(&machine.context).unwrap();
    let add_twice = machine.kernel_on_x(AccessKind::Write, "add_twice", &[8, 8, 8], |launch| {
        let count = launch.parameter::<usize>(1);
        let x = launch.pointer::<u32>(launch.parameter(2), count);
        // SAFETY: the launches below give as many elements of both buffers, in order with their other uses.
        let x = unsafe { std::slice::from_raw_parts(x, count) };
        for (y, x) in elements(launch).iter_mut().zip(x) {
            *y += 2 * x;
        }
    });
    let streams = [(); 3].map(|()| machine.stream());
    let [home, other, before]: [Stream; 3] = [0, 1, 2].map(|index| memory.stream(&streams[index]).unwrap());
    // More than half of the device, so that one of the buffers below must be where this one was.
    let len = (20 * PAGE / 4) as usize;
    drop(DeviceBuffer::try_from_slice(&before, &vec![7_u32; len]).unwrap());

    let n = len / 4;
    let x = DeviceBuffer::try_from_slice(&home, &(0..n as u32).collect::<Vec<_>>()).unwrap();
    let mut y = DeviceBuffer::<u32>::try_zeroed(&home, n).unwrap();
    let launch = |index: usize| streams[index].launch_builder(&add_twice);
    // SAFETY: these are the parameters that were registered, here and below.
    unsafe { launch(0).arg(&mut y).arg(&n).arg(&x).launch(SHAPE) }.unwrap();
    let (mut guard, read) = (y.on_mut(&other).unwrap(), x.on(&other).unwrap());
    // SAFETY: as above.
    unsafe { launch(1).arg(&mut guard).arg(&n).arg(&read).launch(SHAPE) }.unwrap();
    drop((guard, read));
    let expected: Vec<u32> = (0..n as u32).map(|value| 4 * value).collect();
    assert_eq!(y.to_vec().unwrap(), expected);

    // Memory goes from stream to stream, behind work in flight; the contents are those of the last owner.
    for round in 0..20_u32 {
        let stream = [&home, &other, &before][round as usize % 3];
        let buffer = DeviceBuffer::try_from_slice(stream, &vec![round; len / 2]).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), vec![round; len / 2]);
    }
    assert_eq!(memory.allocator().audit(), Vec::<String>::new());
    for function in ["cuMemCreate", "cuMemAddressReserve", "cuMemMap"] {
        assert_eq!(machine.libcuda.calls(function).unwrap(), 0, "{function}");
    }
    assert!(machine.libcuda.calls("cuMemAlloc_v2").unwrap() > 0);
    drop((x, y, home, other, before, streams, add_twice));
    machine.ends_empty(memory);
}

/// All of it is given back when it is dropped in any order with kernels in flight.
#[test]
fn a_drop_with_work_in_flight_is_safe() {
    let machine = old_device(32);
    let memory = Memory::new(&machine.context).unwrap();
    let cuda_stream = machine.stream();
    let stream = memory.stream(&cuda_stream).unwrap();
    let gate = crate::Gate::default();
    let (late_sum, sum, _) = machine.late_sum(&gate);
    let buffer = DeviceBuffer::try_from_slice(&stream, &[3_u32; 1000]).unwrap();
    // SAFETY: these are the parameters that were registered.
    unsafe { cuda_stream.launch_builder(&late_sum).arg(&buffer).arg(&1000_usize).launch(SHAPE) }.unwrap();
    drop((buffer, stream));
    // The trim sees that the work is not done; the close waits for it.
    assert_eq!(memory.allocator().trim().released_bytes, 0);
    gate.open();
    memory.close().unwrap();
    assert_eq!(*sum.lock().unwrap(), Some(3000));
    drop((late_sum, cuda_stream));
    machine.ends();
}
