//! Our calls while the program captures: they break no capture, and leave the thread's capture mode as it was.
//!
//! Main types: none. Neighbours: `concertina-libcuda` refuses unsafe calls as the manual says (its
//! `tests/captures.rs`).

use concertina_vmm::{CaptureStatus, Driver};
use cudarc::driver::sys::{self, CUstreamCaptureMode};

use crate::{Machine, PAGE, Page, small, stream};

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const FLAGS: sys::CUgraphInstantiate_flags =
    sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;

fn exchange(mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    let mut mode = mode;
    // SAFETY: the place is of a live value.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) }.result().unwrap();
    mode
}

#[test]
fn a_capture_is_seen() {
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    let stream = stream(&context);
    let status = || cuda.capture_status(&stream).unwrap();
    assert_eq!(status(), CaptureStatus::None);
    stream.cuda_stream().unwrap().begin_capture(GLOBAL).unwrap();
    assert_eq!(status(), CaptureStatus::Active);
    stream.cuda_stream().unwrap().synchronize().unwrap_err();
    assert_eq!(status(), CaptureStatus::Invalidated);
    assert!(stream.cuda_stream().unwrap().end_capture(FLAGS).is_err());
    assert_eq!(status(), CaptureStatus::None);
    drop((stream, cuda, context));
    machine.ends_empty();
}

/// The strictest capture, in the very thread that calls: without the relaxed mode each of these calls would be refused.
#[test]
fn our_calls_break_no_capture() {
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    let (captured, other) = (stream(&context), stream(&context));
    let before = cuda.event_create().unwrap();
    for mode in [GLOBAL, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL] {
        captured.cuda_stream().unwrap().begin_capture(GLOBAL).unwrap();
        assert_eq!(exchange(mode), GLOBAL);

        Page::new(&cuda).give_back(&cuda);
        let address = cuda.malloc(100).unwrap();
        cuda.free(address).unwrap();
        cuda.memory_info().unwrap();
        let event = cuda.event_create().unwrap();
        cuda.event_record(&event, &other).unwrap();
        cuda.stream_wait(&other, &event).unwrap();
        cuda.event_synchronize(&event).unwrap();
        assert!(cuda.event_query(&event).unwrap());
        drop(event);
        // A refusal puts the mode back, too.
        cuda.create(PAGE + 1, &crate::FRAME).unwrap_err();

        assert_eq!(cuda.capture_status(&captured).unwrap(), CaptureStatus::Active);
        assert_eq!(exchange(GLOBAL), mode, "the thread's mode is the program's");
        drop(captured.cuda_stream().unwrap().end_capture(FLAGS).unwrap().expect("a graph"));
    }
    // The calls that are asked of a stream itself are not made in another mode: the most frequent ones.
    let exchanged = machine.calls("cuThreadExchangeStreamCaptureMode");
    cuda.event_record(&before, &other).unwrap();
    cuda.stream_wait(&other, &before).unwrap();
    cuda.capture_status(&other).unwrap();
    assert_eq!(machine.calls("cuThreadExchangeStreamCaptureMode"), exchanged);
    drop((before, captured, other, cuda, context));
    machine.ends_empty();
}

/// What a program does to the captured stream itself is not made right by anybody.
#[test]
fn a_captured_event_is_refused() {
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    let captured = stream(&context);
    let event = cuda.event_create().unwrap();
    captured.cuda_stream().unwrap().begin_capture(GLOBAL).unwrap();
    cuda.event_record(&event, &captured).unwrap();
    let error = cuda.event_query(&event).unwrap_err();
    assert!(error.detail.starts_with("CUDA_ERROR_CAPTURED_EVENT (907)"), "{error}");
    assert!(captured.cuda_stream().unwrap().end_capture(FLAGS).is_err(), "the query breaks the capture");
    drop((event, captured, cuda, context));
    machine.ends_empty();
}
