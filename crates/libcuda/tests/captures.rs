//! Captures and graphs, through cudarc: what is captured is done later, and what a capture forbids is refused.
//!
//! Main types: [`Program`]. Neighbours: `src/capture.rs` has the rules.

#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "launches, and kernels that follow device addresses")]

mod common;

use std::sync::Arc;
use std::thread;

use concertina_libcuda::{DeviceConfig, FreshDevice};
use cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode, CUstreamCaptureStatus};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaGraph, CudaSlice, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;

use common::{assert_nothing_held, fresh};

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const THREAD_LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
const FLAGS: sys::CUgraphInstantiate_flags =
    sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
const SHAPE: LaunchConfig = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };

/// A stream, a number on the device, and a kernel `times_plus(x, factor, summand)`.
struct Program {
    number: CudaSlice<u32>,
    kernel: CudaFunction,
    stream: Arc<CudaStream>,
    context: Arc<CudaContext>,
    device: FreshDevice,
}

impl Program {
    fn new() -> Self {
        let device = fresh(&DeviceConfig::default());
        let times_plus = |launch: &concertina_libcuda::Launch<'_>| {
            let at = launch.pointer::<u32>(launch.parameter(0), 1);
            // SAFETY: the tests launch it on the number, in an order in which nobody else has it.
            let number = unsafe { &mut *at };
            *number = *number * launch.parameter::<u32>(1) + launch.parameter::<u32>(2);
        };
        let number = |launch: &concertina_libcuda::Launch<'_>| vec![launch.writes(0, 4)];
        device.register_kernel_touching("times_plus", &[8, 4, 4], times_plus, number).unwrap();
        let context = CudaContext::new(0).unwrap();
        // cudarc's own tracking waits for events from outside, which no capture takes.
        // SAFETY: the tests order their streams themselves.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().unwrap();
        let kernel = context.load_module(Ptx::from_src("any text")).unwrap();
        let kernel = kernel.load_function("times_plus").unwrap();
        let number = stream.clone_htod(&[1_u32]).unwrap();
        // Any stream may have it from here on.
        stream.synchronize().unwrap();
        Self { number, kernel, stream, context, device }
    }

    fn times_plus(&mut self, stream: &CudaStream, factor: u32, summand: u32) -> Result<(), DriverError> {
        let mut launch = stream.launch_builder(&self.kernel);
        launch.arg(&mut self.number).arg(&factor).arg(&summand);
        // SAFETY: these are the parameters that were registered.
        unsafe { launch.launch(SHAPE) }.map(drop)
    }

    fn number(&self) -> u32 {
        self.stream.clone_dtoh(&self.number).unwrap()[0]
    }

    fn ends(self) {
        let Self { number, kernel, stream, context, device } = self;
        drop((number, kernel, stream, context));
        assert_nothing_held(&device);
    }
}

fn code<T>(result: Result<T, DriverError>) -> CUresult {
    result.map_or_else(|error| error.0, |_| CUresult::CUDA_SUCCESS)
}

/// The graph is not `Debug`.
fn end(stream: &Arc<CudaStream>) -> Result<CudaGraph, DriverError> {
    stream.end_capture(FLAGS).map(|graph| graph.expect("a graph"))
}

fn exchange(mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    let mut mode = mode;
    // SAFETY: the place is of a live value.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }.result().unwrap();
    mode
}

fn malloc() -> CUresult {
    let mut address = 0;
    // SAFETY: the place is of a live value.
    let code = unsafe { sys::cuMemAlloc_v2(&mut address, 100) };
    if code == CUresult::CUDA_SUCCESS {
        // SAFETY: it was just given.
        unsafe { sys::cuMemFree_v2(address) }.result().unwrap();
    }
    code
}

#[test]
fn what_is_captured_is_done_when_the_graph_is_launched() {
    let mut program = Program::new();
    let stream = Arc::clone(&program.stream);
    stream.begin_capture(GLOBAL).unwrap();
    program.times_plus(&stream, 10, 2).unwrap();
    program.times_plus(&stream, 10, 3).unwrap();
    let graph = end(&stream).unwrap();
    assert_eq!(program.number(), 1, "it was done at the capture");
    graph.launch().unwrap();
    assert_eq!(program.number(), 123);
    graph.launch().unwrap();
    assert_eq!(program.number(), 12_323);
    assert_eq!(program.device.held(0).unwrap().graphs, 2);
    drop((graph, stream));
    program.ends();
}

/// Copies and fills are captured, too; host memory is read when the graph runs.
#[test]
fn host_memory_is_read_at_the_launch() {
    let mut program = Program::new();
    let stream = Arc::clone(&program.stream);
    let mut host = vec![5_u32];
    stream.begin_capture(GLOBAL).unwrap();
    stream.memcpy_htod(&host, &mut program.number).unwrap();
    program.times_plus(&stream, 10, 1).unwrap();
    let graph = end(&stream).unwrap();
    host[0] = 6;
    graph.launch().unwrap();
    assert_eq!(program.number(), 61);
    drop((graph, stream));
    program.ends();
}

#[test]
fn a_stream_that_waits_for_an_event_of_the_capture_is_part_of_it() {
    let mut program = Program::new();
    let (stream, other) = (Arc::clone(&program.stream), program.context.new_stream().unwrap());
    let status = |stream: &CudaStream| stream.capture_status().unwrap();
    stream.begin_capture(GLOBAL).unwrap();
    program.times_plus(&stream, 10, 2).unwrap();
    let fork = stream.record_event(None).unwrap();
    assert_eq!(status(&other), CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
    other.wait(&fork).unwrap();
    assert_eq!(status(&other), CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    program.times_plus(&other, 10, 3).unwrap();
    let join = other.record_event(None).unwrap();
    stream.wait(&join).unwrap();
    program.times_plus(&stream, 10, 4).unwrap();
    let graph = end(&stream).unwrap();
    assert_eq!(status(&other), CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
    graph.launch().unwrap();
    assert_eq!(program.number(), 1_234);
    drop((graph, fork, join, stream, other));
    program.ends();
}

#[test]
fn a_fork_that_is_not_joined_gives_no_graph() {
    let mut program = Program::new();
    let (stream, other) = (Arc::clone(&program.stream), program.context.new_stream().unwrap());
    stream.begin_capture(GLOBAL).unwrap();
    let fork = stream.record_event(None).unwrap();
    other.wait(&fork).unwrap();
    program.times_plus(&other, 10, 3).unwrap();
    assert_eq!(code(end(&stream)), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    // It is over all the same.
    program.times_plus(&other, 10, 4).unwrap();
    other.synchronize().unwrap();
    assert_eq!(program.number(), 14);
    drop((fork, stream, other));
    program.ends();
}

#[test]
fn what_is_outside_is_not_waited_for() {
    let mut program = Program::new();
    let stream = Arc::clone(&program.stream);
    let outside = stream.record_event(None).unwrap();
    stream.begin_capture(GLOBAL).unwrap();
    assert_eq!(code(stream.wait(&outside)), CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    let invalidated = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    assert_eq!(code(program.times_plus(&stream, 1, 1)), invalidated);
    assert_eq!(stream.capture_status().unwrap(), CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    assert_eq!(code(end(&stream)), invalidated);
    program.times_plus(&stream, 1, 1).unwrap();
    assert_eq!(program.number(), 2);
    drop((outside, stream));
    program.ends();
}

#[test]
fn two_captures_are_not_merged() {
    let program = Program::new();
    let (stream, other) = (Arc::clone(&program.stream), program.context.new_stream().unwrap());
    stream.begin_capture(GLOBAL).unwrap();
    other.begin_capture(GLOBAL).unwrap();
    let event = stream.record_event(None).unwrap();
    assert_eq!(code(other.wait(&event)), CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE);
    for stream in [&stream, &other] {
        assert_eq!(code(end(stream)), CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    drop((event, stream, other));
    program.ends();
}

#[test]
fn the_host_waits_for_nothing_captured() {
    let program = Program::new();
    let stream = Arc::clone(&program.stream);
    let event = program.context.new_event(None).unwrap();
    // SAFETY: the event is live, here and below.
    let query = || unsafe { sys::cuEventQuery(event.cu_event()) };
    let attempts: [(&dyn Fn() -> CUresult, CUresult); 4] = [
        (&|| code(stream.synchronize()), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
        (&|| code(program.context.synchronize()), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
        (&query, CUresult::CUDA_ERROR_CAPTURED_EVENT),
        (&|| code(event.synchronize()), CUresult::CUDA_ERROR_CAPTURED_EVENT),
    ];
    for (attempt, expected) in attempts {
        // Even in the mode in which unsafe calls may be made.
        stream.begin_capture(RELAXED).unwrap();
        event.record(&stream).unwrap();
        let before = exchange(RELAXED);
        assert_eq!(attempt(), expected);
        exchange(before);
        assert_eq!(code(end(&stream)), CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        event.record(&stream).unwrap();
        event.synchronize().unwrap();
    }
    drop((event, stream));
    program.ends();
}

/// By the manual's table: the mode of the capture, that of the thread which calls, and whether it began the capture.
#[test]
fn unsafe_calls_are_refused_by_the_modes_of_capture_and_thread() {
    let program = Program::new();
    let (context, stream) = (&program.context, &program.stream);
    let may = |capture: CUstreamCaptureMode, own: CUstreamCaptureMode, by_another_thread: bool| {
        stream.begin_capture(capture).unwrap();
        let call = || {
            context.bind_to_thread().unwrap();
            let before = exchange(own);
            let code = malloc();
            assert_eq!(exchange(before), own);
            code
        };
        let code_of_call =
            if by_another_thread { thread::scope(|scope| scope.spawn(call).join().unwrap()) } else { call() };
        let (refused, broken) = (
            CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        );
        match (code_of_call, code(end(stream))) {
            (CUresult::CUDA_SUCCESS, CUresult::CUDA_SUCCESS) => true,
            (call, end) if (call, end) == (refused, broken) => false,
            other => panic!("{other:?} for {capture:?}, {own:?}, {by_another_thread}"),
        }
    };
    for (capture, own, another, expected) in [
        (GLOBAL, GLOBAL, false, false),
        (GLOBAL, GLOBAL, true, false),
        (GLOBAL, THREAD_LOCAL, false, false),
        (GLOBAL, THREAD_LOCAL, true, true),
        (GLOBAL, RELAXED, false, true),
        (GLOBAL, RELAXED, true, true),
        (THREAD_LOCAL, GLOBAL, false, false),
        (THREAD_LOCAL, GLOBAL, true, true),
        (THREAD_LOCAL, THREAD_LOCAL, false, false),
        (THREAD_LOCAL, THREAD_LOCAL, true, true),
        (THREAD_LOCAL, RELAXED, false, true),
        (RELAXED, GLOBAL, false, true),
        (RELAXED, GLOBAL, true, true),
        (RELAXED, THREAD_LOCAL, false, true),
    ] {
        assert_eq!(may(capture, own, another), expected, "{capture:?}, {own:?}, {another}");
    }
    assert_eq!(exchange(GLOBAL), GLOBAL);
    program.ends();
}

#[test]
fn a_capture_is_ended_where_it_began() {
    let program = Program::new();
    let (stream, other) = (&program.stream, program.context.new_stream().unwrap());
    assert_eq!(code(end(stream)), CUresult::CUDA_ERROR_ILLEGAL_STATE);
    stream.begin_capture(THREAD_LOCAL).unwrap();
    assert_eq!(code(stream.begin_capture(THREAD_LOCAL)), CUresult::CUDA_ERROR_ILLEGAL_STATE);
    let fork = stream.record_event(None).unwrap();
    other.wait(&fork).unwrap();
    assert_eq!(code(end(&other)), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    assert_eq!(code(end(stream)), CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    stream.begin_capture(THREAD_LOCAL).unwrap();
    let elsewhere = thread::scope(|scope| scope.spawn(|| code(end(stream))).join().unwrap());
    assert_eq!(elsewhere, CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    assert_eq!(code(end(stream)), CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    stream.begin_capture(RELAXED).unwrap();
    thread::scope(|scope| scope.spawn(|| assert!(end(stream).is_ok())).join().unwrap());
    let legacy = program.context.default_stream();
    assert_eq!(code(legacy.begin_capture(RELAXED)), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    drop((fork, other, legacy));
    program.ends();
}
