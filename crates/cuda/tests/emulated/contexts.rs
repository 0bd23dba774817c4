//! Whose calls they are: contexts, threads, streams, and the error slot of the program.
//!
//! Main types: none. Neighbours: `calls` looks at what they answer.

use std::ptr;
use std::sync::Arc;
use std::thread;

use concertina_cuda::Stream;
use concertina_libcuda::{Code, DeviceConfig};
use concertina_vmm::{Driver, DriverError, DriverErrorKind, FrameProperties};
use cudarc::driver::{CudaContext, DriverError as CudaError, sys};

use crate::{FRAME, Machine, PAGE, Page, small, stream};

fn two() -> DeviceConfig {
    DeviceConfig { devices: 2, ..small() }
}

fn current() -> sys::CUcontext {
    let mut current = ptr::null_mut();
    // SAFETY: `current` is ours and outlives the call.
    unsafe { sys::cuCtxGetCurrent(&raw mut current) }.result().unwrap();
    current
}

#[track_caller]
fn refused<T>(result: Result<T, DriverError>, words: &str) {
    let Err(error) = result else { panic!("not refused: {words}") };
    assert_eq!(error.kind, DriverErrorKind::Invalid, "{error}");
    assert!(error.detail.contains(words), "{error}");
}

#[test]
fn what_is_of_another_device_is_refused() {
    let machine = Machine::new(&two());
    let (context_0, cuda_0) = machine.program(0);
    let (context_1, cuda_1) = machine.program(1);
    let (stream_0, stream_1) = (stream(&context_0), stream(&context_1));
    let (event_0, event_1) = (cuda_0.event_create().unwrap(), cuda_1.event_create().unwrap());

    refused(cuda_0.event_record(&event_0, &stream_1), "a stream of another context (device 1)");
    refused(cuda_0.event_record(&event_1, &stream_0), "an event of another context (device 1)");
    refused(cuda_0.event_query(&event_1), "an event of another context (device 1)");
    refused(cuda_0.event_synchronize(&event_1), "an event of another context (device 1)");
    refused(cuda_1.stream_wait(&stream_0, &event_1), "a stream of another context (device 0)");
    refused(cuda_1.stream_wait(&stream_1, &event_0), "an event of another context (device 0)");
    refused(cuda_1.capture_status(&stream_0), "a stream of another context (device 0)");
    refused(cuda_0.create(PAGE, &FrameProperties { device: 1 }), "frames on device 1");
    refused(cuda_1.granularity(&FRAME), "frames on device 0");

    cuda_0.event_record(&event_0, &stream_0).unwrap();
    cuda_1.event_record(&event_1, &stream_1).unwrap();
    drop((event_0, event_1, stream_0, stream_1, cuda_0, cuda_1, context_0, context_1));
    machine.ends_empty();
}

/// The same context of the driver in another value of cudarc's is no other context.
#[test]
fn a_second_value_of_the_primary_context_is_the_same_context() {
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    let second = CudaContext::new(0).unwrap();
    let event = cuda.event_create().unwrap();
    cuda.event_record(&event, &stream(&second)).unwrap();
    cuda.event_synchronize(&event).unwrap();
    drop((event, second, cuda, context));
    machine.ends_empty();
}

#[test]
fn the_threads_own_context_is_put_back() {
    let machine = Machine::new(&two());
    let (context_0, cuda_0) = machine.program(0);
    let (context_1, cuda_1) = machine.program(1);
    context_1.bind_to_thread().unwrap();
    let page = Page::new(&cuda_0);
    assert_eq!(current(), context_1.cu_ctx());
    let event = cuda_0.event_create().unwrap();
    drop(event);
    assert_eq!(current(), context_1.cu_ctx());
    // Also after a refusal.
    cuda_0.create(PAGE + 1, &FRAME).unwrap_err();
    assert_eq!(current(), context_1.cu_ctx());
    page.give_back(&cuda_0);
    let info = cuda_0.memory_info().unwrap();
    assert_eq!(info.free_bytes, info.total_bytes);
    drop((cuda_0, cuda_1, context_0, context_1));
    machine.ends_empty();
}

#[test]
fn a_thread_without_a_context_may_call() {
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    let event = thread::scope(|scope| {
        let made = scope.spawn(|| {
            assert_eq!(current(), ptr::null_mut());
            Page::new(&cuda).give_back(&cuda);
            assert_eq!(current(), context.cu_ctx());
            cuda.event_create().unwrap()
        });
        made.join().unwrap()
    });
    // An event of another thread, dropped in yet another.
    thread::spawn(move || drop(event)).join().unwrap();
    drop((cuda, context));
    machine.ends_empty();
}

#[test]
fn many_threads_call_at_once() {
    let machine = Machine::new(&two());
    let programs = [machine.program(0), machine.program(1)];
    thread::scope(|scope| {
        for number in 0..4_usize {
            let (context, cuda) = &programs[number % 2];
            scope.spawn(move || {
                let stream = stream(context);
                let frame = FrameProperties { device: cuda.ordinal() };
                for _ in 0..100 {
                    let handle = cuda.create(PAGE, &frame).unwrap();
                    let address = cuda.reserve(PAGE, 0).unwrap();
                    cuda.map(address, PAGE, &handle).unwrap();
                    let event = cuda.event_create().unwrap();
                    cuda.event_record(&event, &stream).unwrap();
                    cuda.event_synchronize(&event).unwrap();
                    cuda.unmap(address, PAGE).unwrap();
                    cuda.unreserve(address, PAGE).unwrap();
                    cuda.release(handle).unwrap();
                }
            });
        }
    });
    drop(programs);
    machine.ends_empty();
}

/// Errors of ours don't get into cudarc's slot, and what the program has there we neither take nor return.
#[test]
fn the_error_slot_is_the_programs() {
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    cuda.create(65 * PAGE, &FRAME).unwrap_err();
    let event = cuda.event_create().unwrap();
    machine.libcuda.fail_once("cuEventDestroy_v2", 1, Code::INVALID_VALUE).unwrap();
    drop(event);
    assert_eq!(machine.libcuda.failures("cuEventDestroy_v2").unwrap(), 1);
    assert_eq!(context.check_err(), Ok(()));

    let theirs = CudaError(sys::CUresult::CUDA_ERROR_FILE_NOT_FOUND);
    context.record_err(Err::<(), _>(theirs));
    Page::new(&cuda).give_back(&cuda);
    drop(cuda.event_create().unwrap());
    assert_eq!(context.check_err(), Err(theirs));
    drop((cuda, context));
    // One event is left: its destruction was told to fail.
    assert_eq!(machine.libcuda.held(0).unwrap().events, 1);
}

/// A per-thread default stream is the registering thread's: elsewhere its name would mean another stream.
#[test]
fn a_per_thread_stream_is_refused_in_another_thread() {
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    let stream = Stream::new(context.per_thread_stream());
    let event = cuda.event_create().unwrap();
    cuda.event_record(&event, &stream).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            refused(cuda.event_record(&event, &stream), "per-thread default stream of another thread");
            refused(cuda.stream_wait(&stream, &event), "per-thread default stream of another thread");
        });
    });
    cuda.event_record(&event, &stream).unwrap();
    drop((event, stream, cuda, context));
    machine.ends_empty();
}

#[test]
fn a_stream_is_kept_alive() {
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    let theirs = context.new_stream().unwrap();
    let ours = Stream::from(&theirs);
    let again = ours.clone();
    drop((theirs, ours));
    let event = cuda.event_create().unwrap();
    cuda.event_record(&event, &again).unwrap();
    cuda.event_synchronize(&event).unwrap();
    assert_eq!(Arc::strong_count(again.cuda_stream().unwrap()), 1);
    drop((event, again, cuda, context));
    machine.ends_empty();
}

/// A stream that the program has by its name: the context is kept, and the stream stays the program's.
#[test]
fn a_borrowed_stream_is_not_destroyed() {
    let machine = Machine::new(&two());
    let (context, cuda) = machine.program(0);
    let (_, other) = machine.program(1);
    let theirs = context.new_stream().unwrap();
    // SAFETY: a stream of the context, which lives longer than what is made here.
    let ours = unsafe { Stream::borrowed(&context, theirs.cu_stream()) };
    // SAFETY: null is the legacy default stream of any context.
    let default = unsafe { Stream::borrowed(&context, ptr::null_mut()) };
    assert!(ours.cuda_stream().is_none());
    let kept = Arc::strong_count(&context);
    let event = cuda.event_create().unwrap();
    for stream in [ours.clone(), default] {
        cuda.event_record(&event, &stream).unwrap();
        cuda.stream_wait(&stream, &event).unwrap();
        cuda.event_synchronize(&event).unwrap();
        let foreign = other.event_create().unwrap();
        assert_eq!(other.event_record(&foreign, &stream).unwrap_err().kind, DriverErrorKind::Invalid);
    }
    drop(ours);
    assert_eq!(Arc::strong_count(&context), kept - 2);
    theirs.synchronize().unwrap();
    assert_eq!(machine.calls("cuStreamDestroy_v2"), 2, "those of the two trials");
    drop((event, theirs, cuda, other, context));
    machine.ends_empty();
}

/// The default stream has no number of its own in a context: it is the current context's.
#[test]
fn the_default_stream_is_the_contexts() {
    let machine = Machine::new(&two());
    let (context_0, cuda_0) = machine.program(0);
    let (context_1, cuda_1) = machine.program(1);
    let stream = Stream::new(context_0.default_stream());
    context_1.bind_to_thread().unwrap();
    let event = cuda_0.event_create().unwrap();
    cuda_0.event_record(&event, &stream).unwrap();
    cuda_0.event_synchronize(&event).unwrap();
    assert!(cuda_0.event_query(&event).unwrap());
    drop((event, stream, cuda_0, cuda_1, context_0, context_1));
    machine.ends_empty();
}
