//! Bad use is refused with words that help; nothing panics, nothing is lost.
//!
//! Main types: none. Neighbours: `values` has the right use.

use concertina::cuda::{BufferError, DeviceBuffer, Error};
use concertina::{Config, DriverErrorKind};
use concertina_libcuda::{Code, DeviceConfig, load};
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, DriverError, PushKernelArg};

use crate::{Flag, Gate, Machine, PAGE, SHAPE};

#[test]
fn lengths_that_can_not_be_are_refused() {
    let machine = Machine::new();
    let memory = machine.memory();
    let stream = memory.stream(&machine.stream()).unwrap();
    for len in [usize::MAX, usize::MAX / 8 + 1, usize::MAX / 16 + 1] {
        let error = DeviceBuffer::<u64>::try_zeroed(&stream, len).unwrap_err();
        let Error::Buffer(BufferError::TooLong { elements, element_bytes: 8 }) = error else {
            panic!("{error}")
        };
        assert_eq!(elements, len);
    }
    let error = DeviceBuffer::<u64>::try_zeroed(&stream, usize::MAX).unwrap_err();
    let text = "18446744073709551615 elements of 8 bytes are 2^63 bytes or more: no device has as many";
    assert_eq!(error.to_string(), text);
    // It could be counted, and is more than there is.
    let error = DeviceBuffer::<u8>::try_zeroed(&stream, 65 * PAGE as usize).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    drop(stream);
    machine.ends_empty(memory);
}

#[test]
fn ranges_and_lengths_that_do_not_fit_are_refused() {
    let machine = Machine::new();
    let memory = machine.memory();
    let stream = memory.stream(&machine.stream()).unwrap();
    let mut buffer = DeviceBuffer::<u16>::try_from_slice(&stream, &[1, 2, 3]).unwrap();
    assert_eq!(buffer.slice(2..5).unwrap_err(), BufferError::Range { start: 2, end: 5, len: 3 });
    assert_eq!(buffer.slice_mut(4..).unwrap_err(), BufferError::Range { start: 4, end: 3, len: 3 });
    assert!(buffer.slice(1..).unwrap().slice(..3).is_err());
    assert_eq!(buffer.copy_from_slice(&[1; 4]), Err(BufferError::Length { from: 4, to: 3 }));
    assert_eq!(buffer.to_vec().unwrap(), [1, 2, 3]);
    drop((buffer, stream));
    machine.ends_empty(memory);
}

#[test]
fn streams_of_others_are_refused() {
    let config = DeviceConfig { devices: 2, capacity_bytes: 64 * PAGE, ..DeviceConfig::default() };
    let libcuda = load().unwrap().fresh(&config).unwrap();
    let machine = Machine { context: CudaContext::new(0).unwrap(), libcuda };
    let elsewhere = CudaContext::new(1).unwrap();
    let memory = machine.memory();
    let error = memory.stream(&elsewhere.new_stream().unwrap()).unwrap_err();
    assert!(matches!(error, Error::WrongContext { stream: 1, memory: 0 }), "{error}");
    // Both have a default stream, of the same name.
    assert!(memory.stream(&elsewhere.default_stream()).is_err());

    let other_memory = machine.memory();
    let cuda_stream = machine.stream();
    let stream = memory.stream(&cuda_stream).unwrap();
    let other = other_memory.stream(&cuda_stream).unwrap();
    let mut buffer = DeviceBuffer::<u16>::try_from_slice(&stream, &[1, 2, 3]).unwrap();
    assert_eq!(buffer.on(&other).unwrap_err(), BufferError::ForeignStream);
    assert_eq!(buffer.on_mut(&other).unwrap_err(), BufferError::ForeignStream);
    drop((buffer, stream, other, cuda_stream, elsewhere));
    other_memory.close().unwrap();
    machine.ends_empty(memory);
}

#[test]
fn a_stream_is_registered_once() {
    let machine = Machine::new();
    let memory = machine.memory();
    let cuda_stream = machine.stream();
    let stream = memory.stream(&cuda_stream).unwrap();
    assert_eq!(memory.stream(&cuda_stream).unwrap().id(), stream.id());
    let first = stream.id();
    drop(stream);
    // Retired; it may come back.
    let again = memory.stream(&cuda_stream).unwrap();
    assert_ne!(again.id(), first);
    drop((again, cuda_stream));
    machine.ends_empty(memory);
}

#[test]
fn memory_in_use_is_not_closed() {
    let machine = Machine::new();
    let memory = machine.memory();
    let stream = memory.stream(&machine.stream()).unwrap();
    let buffer = DeviceBuffer::<u8>::try_zeroed(&stream, 100).unwrap();
    drop(stream);
    let error = memory.clone().close().unwrap_err();
    assert!(matches!(error, Error::Allocator(concertina::Error::InUse(_))), "{error}");
    drop(buffer);
    machine.ends_empty(memory);
}

/// A copy or fill of cudarc's.
type Attempt<'a> = dyn FnMut(&mut DeviceBuffer<u8>) -> Result<(), DriverError> + 'a;

/// The driver's refusals are told with its words, and leave everything as it was.
#[test]
fn failed_calls_are_told() {
    let machine = Machine::new();
    let memory = machine.memory();
    let [home, other] = [(); 2].map(|()| machine.stream());
    let [homes, others] = [&home, &other].map(|stream| memory.stream(stream).unwrap());
    let fail = |function| machine.libcuda.fail_once(function, 1, Code::INVALID_VALUE).unwrap();
    fail("cuMemsetD8Async");
    let error = DeviceBuffer::<u8>::try_zeroed(&homes, 100).unwrap_err();
    assert!(error.to_string().starts_with("the fill failed: CUDA_ERROR_INVALID_VALUE (1)"), "{error}");
    fail("cuMemcpyHtoDAsync_v2");
    let error = DeviceBuffer::try_from_slice(&homes, &[1_u8; 100]).unwrap_err();
    assert!(error.to_string().starts_with("the copy to the device failed: "), "{error}");
    assert_eq!(memory.allocator().stats().live_bytes, 0);

    let mut buffer = DeviceBuffer::try_from_slice(&homes, &[1_u8; 100]).unwrap();
    fail("cuMemcpyDtoHAsync_v2");
    let error = buffer.to_vec().unwrap_err();
    assert!(matches!(&error, BufferError::Transfer { kind: DriverErrorKind::Invalid, .. }), "{error}");
    fail("cuEventRecord");
    let error = buffer.on_mut(&others).unwrap_err();
    assert!(matches!(&error, BufferError::Order(_)), "{error}");
    // A copy that can't be put in order is not made.
    fail("cuEventRecord");
    assert!(other.clone_dtoh(&buffer).is_err());
    assert_eq!(other.clone_dtoh(&buffer.on(&others).unwrap()).unwrap(), [1; 100]);
    // Whatever the copy or fill: the driver refuses the null pointer.
    let mut slice = other.alloc_zeros::<u8>(100).unwrap();
    let refused: [&mut Attempt<'_>; 5] = [
        &mut |buffer| other.memset_zeros(buffer),
        &mut |buffer| other.memcpy_htod(&[2; 100], buffer),
        &mut |buffer| other.memcpy_dtoh(buffer, &mut [0; 100]),
        &mut |buffer| other.memcpy_dtod(buffer, &mut slice),
        &mut |buffer| other.memcpy_dtod(&home.clone_htod(&[2; 100])?, buffer),
    ];
    for (number, attempt) in refused.into_iter().enumerate() {
        // So that the other stream has to wait for the home stream.
        buffer.copy_from_slice(&[1; 100]).unwrap();
        fail("cuEventRecord");
        assert_eq!(attempt(&mut buffer), Err(DriverError(CUresult::CUDA_ERROR_INVALID_VALUE)), "{number}");
    }
    assert_eq!(buffer.to_vec().unwrap(), [1; 100]);
    drop(slice);
    // None of it is in the slot where cudarc keeps errors of the program's.
    assert_eq!(machine.context.check_err(), Ok(()));
    drop((buffer, homes, others, home, other));
    machine.ends_empty(memory);
}

/// A kernel whose buffer can't be put in order is not launched: it would follow a null pointer, and lose the device.
#[test]
fn a_kernel_out_of_order_is_not_launched() {
    let machine = Machine::new();
    let memory = machine.memory();
    let [home, other] = [(); 2].map(|()| machine.stream());
    let [homes, others] = [&home, &other].map(|stream| memory.stream(stream).unwrap());
    let (gate, ran) = (Gate::default(), Flag::default());
    let inside = gate.clone();
    let late = machine.kernel("late", &[8, 8], move |_| inside.pass());
    let (fill, _) = machine.fill(7, &ran);
    let mut buffer = DeviceBuffer::try_from_slice(&homes, &[1_u32; 100]).unwrap();
    // SAFETY: these are the parameters that were registered, here and below.
    unsafe {
        other.launch_builder(&late).arg(&mut buffer.on_mut(&others).unwrap()).arg(&100_usize).launch(SHAPE)
    }
    .unwrap();
    let launches = machine.libcuda.calls("cuLaunchKernel").unwrap();
    machine.libcuda.fail_once("cuStreamWaitEvent", 1, Code::OUT_OF_MEMORY).unwrap();
    let mut launch = home.launch_builder(&fill);
    launch.arg(&mut buffer).arg(&100_usize);
    // SAFETY: as above.
    let refused = unsafe { launch.launch(SHAPE) };
    assert_eq!(refused.unwrap_err(), DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    assert_eq!(machine.libcuda.calls("cuLaunchKernel").unwrap(), launches);
    // That was all: the error was taken, and the next launch is in order.
    assert_eq!(machine.context.check_err(), Ok(()));
    // SAFETY: as above.
    unsafe { home.launch_builder(&fill).arg(&mut buffer).arg(&100_usize).launch(SHAPE) }.unwrap();
    gate.open();
    assert_eq!(buffer.to_vec().unwrap(), [7; 100]);
    drop((buffer, homes, others, home, other, late, fill));
    machine.ends_empty(memory);
}

/// What the program has in that slot is the program's to see.
#[test]
fn errors_of_the_program_stay_its_own() {
    let machine = Machine::new();
    let memory = machine.memory();
    let stream = memory.stream(&machine.stream()).unwrap();
    let theirs = DriverError(CUresult::CUDA_ERROR_FILE_NOT_FOUND);
    machine.context.record_err(Err::<(), _>(theirs));
    let buffer = DeviceBuffer::try_from_slice(&stream, &[1_u8; 100]).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [1; 100]);
    drop(DeviceBuffer::<u8>::try_zeroed(&stream, 7).unwrap());
    drop((buffer, stream));
    assert_eq!(machine.context.check_err(), Err(theirs));
    machine.ends_empty(memory);
}

#[test]
fn settings_for_another_device_are_refused() {
    let machine = Machine::new();
    let cuda = concertina::cuda::Cuda::new(&machine.context).unwrap();
    let config = Config::builder().device(3).build();
    let error = concertina::cuda::Memory::with_driver(cuda, config).unwrap_err();
    assert!(error.to_string().contains("device 3"), "{error}");
    machine.ends();
}
