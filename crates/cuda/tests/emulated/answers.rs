//! A driver that is newer than the bindings: codes that they don't know are errors with their number.
//!
//! Main types: none. Neighbours: `src/functions.rs`.

use concertina_cuda::{Cuda, OpenError};
use concertina_vmm::{Accessor, Driver, DriverError, DriverErrorKind};
use cudarc::driver::CudaContext;

use crate::{FRAME, Machine, PAGE, small, stream};

/// No version of `cuda.h` has it.
const NUMBER: u32 = 4_711;

impl Machine {
    /// The next call of the function answers with the number.
    fn answer_with_number(&self, function: &str) {
        // SAFETY: the next call of it is ours, which takes any number.
        unsafe { self.libcuda.fail_with_number(function, 1, NUMBER) }.unwrap();
    }

    #[track_caller]
    fn check<T>(&self, function: &str, call: impl FnOnce() -> Result<T, DriverError>) {
        self.answer_with_number(function);
        let Err(error) = call() else { panic!("{function} did not fail") };
        assert_eq!(error.kind, DriverErrorKind::Invalid, "{function}");
        assert!(error.detail.starts_with("a code without a name (4711): "), "{function}: {error}");
    }
}

#[test]
fn an_unknown_code_is_an_error_with_its_number() {
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    let stream = stream(&context);
    let event = cuda.event_create().unwrap();

    machine.check("cuCtxGetCurrent", || cuda.memory_info());
    machine.check("cuMemGetInfo_v2", || cuda.memory_info());
    machine.check("cuMemGetAllocationGranularity", || cuda.granularity(&FRAME));
    machine.check("cuMemAddressReserve", || cuda.reserve(PAGE, 0));
    let address = cuda.reserve(PAGE, 0).unwrap();
    machine.check("cuMemCreate", || cuda.create(PAGE, &FRAME));
    let handle = cuda.create(PAGE, &FRAME).unwrap();
    machine.check("cuMemMap", || cuda.map(address, PAGE, &handle));
    cuda.map(address, PAGE, &handle).unwrap();
    machine.check("cuMemSetAccess", || cuda.set_access(address, PAGE, &[Accessor::Device(0)]));
    machine.check("cuMemUnmap", || cuda.unmap(address, PAGE));
    cuda.unmap(address, PAGE).unwrap();
    machine.answer_with_number("cuMemRelease");
    let returned = cuda.release(handle).unwrap_err();
    assert!(returned.error.detail.contains("(4711)"), "{}", returned.error);
    cuda.release(returned.owner).unwrap();
    machine.check("cuMemAddressFree", || cuda.unreserve(address, PAGE));
    cuda.unreserve(address, PAGE).unwrap();

    machine.check("cuEventCreate", || cuda.event_create());
    machine.check("cuEventRecord", || cuda.event_record(&event, &stream));
    machine.check("cuEventQuery", || cuda.event_query(&event));
    machine.check("cuEventSynchronize", || cuda.event_synchronize(&event));
    machine.check("cuStreamWaitEvent", || cuda.stream_wait(&stream, &event));
    machine.check("cuStreamIsCapturing", || cuda.capture_status(&stream));
    machine.check("cuMemAlloc_v2", || cuda.malloc(100));
    let malloc = cuda.malloc(100).unwrap();
    machine.check("cuMemFree_v2", || cuda.free(malloc));
    cuda.free(malloc).unwrap();

    drop((event, stream, cuda, context));
    machine.ends_empty();
}

/// The thread's mode or context that can't be put back is logged.
#[test]
fn an_unknown_code_on_the_way_back_is_no_error() {
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    for function in ["cuThreadExchangeStreamCaptureMode", "cuEventDestroy_v2"] {
        machine.answer_with_number(function);
        drop(cuda.event_create().unwrap());
    }
    drop(cuda);
    drop(context);
    // The event that was not destroyed.
    assert_eq!(machine.libcuda.held(0).unwrap().events, 1);
}

#[test]
fn an_unknown_code_at_the_start_is_an_error() {
    let machine = Machine::new(&small());
    for (function, words) in [("cuInit", "to start the driver"), ("cuDeviceGet", "to find the device")] {
        machine.answer_with_number(function);
        let OpenError::NoContext { ordinal: 0, reason } = Cuda::open(0).unwrap_err() else { panic!() };
        assert_eq!(reason, format!("a code without a name (4711): {words}"));
    }
    let context = CudaContext::new(0).unwrap();
    machine.answer_with_number("cuDeviceGetAttribute");
    let OpenError::Probe { error, .. } = Cuda::new(&context).unwrap_err() else { panic!() };
    assert!(error.detail.contains("(4711)"), "{error}");
    drop(context);
    machine.ends_empty();
}
