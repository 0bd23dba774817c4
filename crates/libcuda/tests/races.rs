//! The race detector behind the driver: what is not ordered is found, and what is ordered in any of CUDA's ways is not
//! reported.
//!
//! Main types: [`Program`]. Neighbours: the emulator's own tests have the detector; here it is told of what copies, fills
//! and kernels of a CUDA program touch, and of what the program waits for.

#![allow(unsafe_code, reason = "tests call the driver")]

mod common;

use core::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, mpsc};

use common::{Context, PAGE, fresh};
use concertina_libcuda::{Detection, DeviceConfig, Execution, FreshDevice};
use cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

const SHAPE: LaunchConfig = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
const BYTES: usize = 256;

/// Two streams apart from each other and a block of memory that all may use.
struct Program {
    block: u64,
    first: Arc<CudaStream>,
    second: Arc<CudaStream>,
    context: Context,
    device: FreshDevice,
}

impl Program {
    fn on(config: &DeviceConfig) -> Self {
        let device = fresh(config);
        let context = Context::new();
        let (first, second) = (context.context.new_stream().unwrap(), context.context.new_stream().unwrap());
        Self { block: context.malloc(BYTES).unwrap(), first, second, context, device }
    }

    fn new() -> Self {
        Self::on(&DeviceConfig::default())
    }

    /// Fills the block on the stream.
    fn fill(&self, stream: &CudaStream) {
        self.fill_at(self.block, stream);
    }

    fn fill_at(&self, address: u64, stream: &CudaStream) {
        // SAFETY: the address is of a live block, or the call is refused; what is done without order is never looked at.
        let code = unsafe { sys::cuMemsetD8Async(address, 7, BYTES, stream.cu_stream()) };
        assert_eq!(code, CUresult::CUDA_SUCCESS);
    }

    /// Waits until the stream has come here, in a way that no driver call tells of. A device that is slower would not be
    /// done by then, as far as anybody can know.
    fn wait_unseen(&self, stream: &CudaStream) {
        unsafe extern "C" fn send(data: *mut c_void) {
            // SAFETY: it was made by `Box::into_raw`, for this one call.
            let sender = unsafe { Box::from_raw(data.cast::<mpsc::Sender<()>>()) };
            // The test may have failed meanwhile.
            let _ = sender.send(());
        }
        let (sender, receiver) = mpsc::channel::<()>();
        let data = Box::into_raw(Box::new(sender)).cast();
        // SAFETY: the stream is live; function and data go together.
        let code = unsafe { sys::cuLaunchHostFunc(stream.cu_stream(), Some(send), data) };
        assert_eq!(code, CUresult::CUDA_SUCCESS);
        receiver.recv().expect("the function was called");
    }

    /// The reports so far.
    fn races(&self) -> Vec<String> {
        self.device.races(0)
    }

    #[track_caller]
    fn assert_clean(&self) {
        assert_eq!(self.races(), Vec::<String>::new());
    }

    #[track_caller]
    fn assert_one(&self, parts: &[&str]) {
        let races = self.races();
        assert_eq!(races.len(), 1, "{races:?}");
        for part in parts {
            assert!(races[0].contains(part), "{part}: {}", races[0]);
        }
    }

    fn ends(self) {
        self.context.free(self.block).unwrap();
        let Self { first, second, context, device, .. } = self;
        drop((first, second, context));
        if let Err(held) = device.check_nothing_held() {
            panic!("{held}");
        }
    }
}

#[test]
fn two_fills_that_nothing_orders_are_found_with_streams_and_addresses() {
    let program = Program::new();
    program.fill(&program.first);
    program.fill(&program.second);
    program.assert_one(&["nothing orders", "`fill`", "stream 1", "stream 2", "256 bytes"]);
    let raced = program.device.check_no_races().expect_err("it raced").to_string();
    assert_eq!(raced, format!("device 0: {}", program.races()[0]));
    program.ends();
}

#[test]
fn an_event_orders() {
    let program = Program::new();
    program.fill(&program.first);
    let event = program.first.record_event(None).unwrap();
    program.second.wait(&event).unwrap();
    program.fill(&program.second);
    // And back again: the first stream has not waited.
    program.assert_clean();
    program.fill(&program.first);
    program.assert_one(&["stream 1", "stream 2"]);
    drop(event);
    program.ends();
}

#[test]
fn an_event_that_was_recorded_before_the_work_does_not_order() {
    let program = Program::new();
    let event = program.first.record_event(None).unwrap();
    program.fill(&program.first);
    program.second.wait(&event).unwrap();
    program.fill(&program.second);
    program.assert_one(&["nothing orders"]);
    drop(event);
    program.ends();
}

#[test]
fn a_host_that_waits_orders_in_each_of_its_ways() {
    let program = Program::new();
    let ways: [&dyn Fn(); 5] = [
        &|| program.first.synchronize().unwrap(),
        &|| program.context.context.synchronize().unwrap(),
        &|| program.first.record_event(None).unwrap().synchronize().unwrap(),
        &|| while !program.first.record_event(None).unwrap().is_complete() {},
        // A copy to pageable memory is done when the call returns.
        &|| {
            let mut host = [0_u8; 1];
            // SAFETY: the place is live until the call returns, and the block is live.
            let code = unsafe {
                sys::cuMemcpyDtoHAsync_v2(
                    host.as_mut_ptr().cast(),
                    program.block,
                    1,
                    program.first.cu_stream(),
                )
            };
            assert_eq!(code, CUresult::CUDA_SUCCESS);
        },
    ];
    for wait in ways {
        program.fill(&program.first);
        wait();
        program.fill(&program.second);
        program.second.synchronize().unwrap();
    }
    program.assert_clean();
    program.ends();
}

#[test]
fn a_query_that_says_not_yet_orders_nothing() {
    let program = Program::new();
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let inside = Arc::clone(&gate);
    let pass = move |_: &concertina_libcuda::Launch<'_>| {
        let (open, changed) = &*inside;
        let mut open = open.lock().unwrap();
        while !*open {
            open = changed.wait(open).unwrap();
        }
    };
    program.device.register_kernel("pass", &[], pass).unwrap();
    let module = program.context.context.load_module(Ptx::from_src("any text")).unwrap();
    let kernel = module.load_function("pass").unwrap();
    // SAFETY: the kernel takes nothing.
    unsafe { program.first.launch_builder(&kernel).launch(SHAPE) }.unwrap();
    program.fill(&program.first);
    let event = program.first.record_event(None).unwrap();
    assert!(!event.is_complete());
    // SAFETY: the stream is live.
    assert_eq!(unsafe { sys::cuStreamQuery(program.first.cu_stream()) }, CUresult::CUDA_ERROR_NOT_READY);
    program.fill(&program.second);
    program.assert_one(&["nothing orders"]);
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    drop((event, kernel, module));
    program.ends();
}

#[test]
fn copies_and_kernels_touch_what_they_say() {
    let program = Program::new();
    let other = program.context.malloc(BYTES).unwrap();
    let reads = |launch: &concertina_libcuda::Launch<'_>| vec![launch.reads(0, launch.parameter(1))];
    program.device.register_kernel_touching("look", &[8, 8], |_| {}, reads).unwrap();
    let module = program.context.context.load_module(Ptx::from_src("any text")).unwrap();
    let look = module.load_function("look").unwrap();
    let launch = |stream: &Arc<CudaStream>, address: u64| {
        let mut launch = stream.launch_builder(&look);
        let bytes = BYTES as u64;
        launch.arg(&address).arg(&bytes);
        // SAFETY: these are the parameters that were registered.
        unsafe { launch.launch(SHAPE) }.unwrap();
    };
    // Two that read are no race.
    launch(&program.first, program.block);
    launch(&program.second, program.block);
    // SAFETY: both blocks are live.
    let copied =
        unsafe { sys::cuMemcpyDtoDAsync_v2(other, program.block, BYTES, program.second.cu_stream()) };
    assert_eq!(copied, CUresult::CUDA_SUCCESS);
    program.assert_clean();
    launch(&program.first, other);
    program.assert_one(&["`look`", "reads 256 bytes", "`copy`", "writes 256 bytes"]);
    drop((look, module));
    program.context.free(other).unwrap();
    program.ends();
}

#[test]
fn an_unmap_under_work_is_found_and_one_after_it_is_not() {
    let program = Program::new();
    let context = &program.context;
    let address = context.reserve(PAGE).unwrap();
    let frame = context.create(PAGE).unwrap();
    for wait in [true, false] {
        context.map(address, PAGE, frame).unwrap();
        context.set_access(address, PAGE).unwrap();
        program.fill_at(address, &program.first);
        if wait {
            program.first.record_event(None).unwrap().synchronize().unwrap();
        } else {
            program.wait_unseen(&program.first);
        }
        context.unmap(address, PAGE).unwrap();
        if wait {
            program.assert_clean();
        }
    }
    program.assert_one(&["unmap under work", "`fill`"]);
    context.release(frame).unwrap();
    context.unreserve(address, PAGE).unwrap();
    program.ends();
}

#[test]
fn memory_of_the_pool_comes_in_order() {
    let program = Program::new();
    // SAFETY: the stream is live, and so is the place.
    let allocate = |stream: &CudaStream| unsafe {
        let mut address = 0;
        let code = sys::cuMemAllocAsync(&mut address, BYTES, stream.cu_stream());
        assert_eq!(code, CUresult::CUDA_SUCCESS);
        address
    };
    let free = |address: u64, stream: &CudaStream| {
        // SAFETY: the block is live and the stream, too.
        assert_eq!(unsafe { sys::cuMemFreeAsync(address, stream.cu_stream()) }, CUresult::CUDA_SUCCESS);
    };
    let block = allocate(&program.first);
    program.fill_at(block, &program.first);
    free(block, &program.first);
    assert_eq!(allocate(&program.first), block, "the same stream may have it at once");
    program.fill_at(block, &program.first);
    free(block, &program.first);
    // The other one has it when the free is done: the driver sees to that, and the program need not.
    program.wait_unseen(&program.first);
    assert_eq!(allocate(&program.second), block);
    program.fill_at(block, &program.second);
    program.assert_clean();
    // Work that the free does not come after is the program's own mistake.
    program.fill_at(block, &program.first);
    program.assert_one(&["nothing orders"]);
    program.context.context.synchronize().unwrap();
    free(block, &program.second);
    program.ends();
}

#[test]
fn a_graph_is_work_of_the_stream_that_it_is_launched_on() {
    let program = Program::new();
    program.first.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    program.fill(&program.first);
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = program.first.end_capture(flags).unwrap().expect("a graph");
    // Nothing ran yet.
    program.fill(&program.second);
    program.assert_clean();
    graph.launch().unwrap();
    program.assert_one(&["stream 1", "stream 2"]);
    drop(graph);
    program.ends();
}

#[test]
fn the_default_stream_orders_blocking_streams() {
    let program = Program::new();
    let default = program.context.context.default_stream();
    let mut blocking = std::ptr::null_mut();
    // SAFETY: the place of the result is live.
    assert_eq!(unsafe { sys::cuStreamCreate(&mut blocking, 0) }, CUresult::CUDA_SUCCESS);
    let fill = |stream| {
        // SAFETY: the block is live, and so is the stream.
        let code = unsafe { sys::cuMemsetD8Async(program.block, 1, BYTES, stream) };
        assert_eq!(code, CUresult::CUDA_SUCCESS);
    };
    for _ in 0..3 {
        fill(default.cu_stream());
        fill(blocking);
    }
    program.assert_clean();
    // One that does not block stands apart.
    fill(program.first.cu_stream());
    program.assert_one(&["nothing orders"]);
    // SAFETY: the stream is live, and not used after.
    assert_eq!(unsafe { sys::cuStreamDestroy_v2(blocking) }, CUresult::CUDA_SUCCESS);
    drop(default);
    program.ends();
}

#[test]
fn it_can_be_switched_off_and_finds_the_same_where_work_is_done_at_the_call() {
    let off = Program::on(&DeviceConfig::default().with_detection(Detection::Off));
    off.fill(&off.first);
    off.fill(&off.second);
    off.assert_clean();
    off.ends();
    let at_call = Program::on(&DeviceConfig::default().with_execution(Execution::AtCall));
    at_call.fill(&at_call.first);
    at_call.fill(&at_call.second);
    at_call.assert_one(&["nothing orders"]);
    at_call.ends();
}
