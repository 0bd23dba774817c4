//! Streams, events, copies, kernels and pools through cudarc's safe interface.
//!
//! Main types: none. Neighbours: `vmm.rs` tests the virtual memory calls, `control.rs` what the library is told.
//!
//! Nothing sleeps: kernels that must be late wait for the test to open a gate.

#![allow(unsafe_code, reason = "launches, and kernels that follow device addresses")]

mod common;

use std::sync::{Arc, Condvar, Mutex};

use common::{Context, GIB, PAGE, assert_nothing_held, fresh};
use concertina_libcuda::{Backing, DeviceConfig, Execution, FreshDevice, Launch};
use concertina_vmm::Call;
use cudarc::driver::sys::{CUresult, CUstream};
use cudarc::driver::{CudaContext, CudaFunction, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

/// What kernels wait for until the test opens it.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let mut open = self.0.0.lock().unwrap();
        while !*open {
            open = self.0.1.wait(open).unwrap();
        }
    }
}

/// `y[i] += a * x[i]` for i below n.
fn axpy(launch: &Launch<'_>) {
    let (a, count) = (launch.parameter::<f32>(0), launch.parameter::<usize>(3));
    let x = launch.pointer::<f32>(launch.parameter(1), count);
    let y = launch.pointer::<f32>(launch.parameter(2), count);
    for index in 0..count {
        // SAFETY: the test gives `count` elements.
        let product = a * unsafe { x.wrapping_add(index).read() };
        // SAFETY: as above; nobody else writes them.
        unsafe { *y.wrapping_add(index) += product };
    }
}

const AXPY: &[usize] = &[4, 8, 8, 8];

fn register_axpy(device: &FreshDevice) {
    let vectors = |launch: &Launch<'_>| {
        let bytes = 4 * launch.parameter::<u64>(3);
        vec![launch.reads(1, bytes), launch.writes(2, bytes)]
    };
    device.register_kernel_touching("axpy", AXPY, axpy, vectors).unwrap();
}

/// A kernel without parameters that waits for the gate.
fn register_gate(device: &FreshDevice) -> Gate {
    let gate = Gate::default();
    let inside = gate.clone();
    device.register_kernel("wait_for_gate", &[], move |_| inside.pass()).unwrap();
    gate
}

fn function(context: &Arc<CudaContext>, name: &str) -> CudaFunction {
    context.load_module(Ptx::from_src("any text")).unwrap().load_function(name).unwrap()
}

const CONFIG: LaunchConfig =
    LaunchConfig { grid_dim: (4, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };

fn raw(stream: &cudarc::driver::CudaStream) -> CUstream {
    stream.cu_stream()
}

#[test]
fn the_context_tells_what_device_it_is() {
    let device = fresh(&DeviceConfig::default().with_capacity(3 * GIB));
    let context = CudaContext::new(0).unwrap();
    assert_eq!(CudaContext::device_count().unwrap(), 1);
    assert_eq!(context.total_mem().unwrap() as u64, 3 * GIB);
    assert_eq!(context.mem_get_info().unwrap(), (3 << 30, 3 << 30));
    assert!(context.name().unwrap().contains("emulated"));
    assert_eq!(context.compute_capability().unwrap(), (9, 0));
    assert!(context.has_async_alloc());
    assert!(CudaContext::new(1).is_err());
    assert_eq!(device.held(0).unwrap().contexts, 1);
    drop(context);
    assert_nothing_held(&device);
}

#[test]
fn what_is_copied_there_comes_back() {
    for config in [
        DeviceConfig::default(),
        DeviceConfig::default().with_backing(Backing::Software),
        DeviceConfig::default().with_execution(Execution::AtCall),
        DeviceConfig { memory_pools: false, ..DeviceConfig::default() },
    ] {
        let device = fresh(&config);
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        // Longer than a page, so that a block lies in several.
        let sent: Vec<u32> = (0..3_000_000_u32).map(|index| index.wrapping_mul(2_654_435_761)).collect();
        let there = stream.clone_htod(&sent).unwrap();
        let mut again = stream.alloc_zeros::<u32>(sent.len()).unwrap();
        assert!(stream.clone_dtoh(&again).unwrap().iter().all(|&word| word == 0));
        stream.memcpy_dtod(&there.slice(1_000_000..), &mut again.slice_mut(..2_000_000)).unwrap();
        let back = stream.clone_dtoh(&again).unwrap();
        assert!(back[..2_000_000] == sent[1_000_000..], "{config:?}");
        assert!(back[2_000_000..].iter().all(|&word| word == 0), "{config:?}");
        drop((there, again, stream, context));
        assert_nothing_held(&device);
        assert_eq!(device.broken_rules(0), Vec::<String>::new());
    }
}

#[test]
fn a_kernel_on_two_streams_in_the_order_of_an_event() {
    let device = fresh(&DeviceConfig::default());
    register_axpy(&device);
    let gate = register_gate(&device);
    let context = CudaContext::new(0).unwrap();
    let (first, second) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let (axpy, wait) = (function(&context, "axpy"), function(&context, "wait_for_gate"));
    let count = 1000_usize;
    let x = first.clone_htod(&vec![2.0_f32; count]).unwrap();
    let mut y = first.clone_htod(&(0..count).map(|index| index as f32).collect::<Vec<_>>()).unwrap();
    first.synchronize().unwrap();

    // y += 3x behind the gate on one stream; y += 10x on the other, behind the event.
    // SAFETY: the kernel takes nothing.
    unsafe { first.launch_builder(&wait).launch(CONFIG) }.unwrap();
    // SAFETY: these are the parameters that were registered.
    unsafe { first.launch_builder(&axpy).arg(&3.0_f32).arg(&x).arg(&mut y).arg(&count).launch(CONFIG) }
        .unwrap();
    let event = first.record_event(None).unwrap();
    second.wait(&event).unwrap();
    // SAFETY: as above.
    unsafe { second.launch_builder(&axpy).arg(&10.0_f32).arg(&x).arg(&mut y).arg(&count).launch(CONFIG) }
        .unwrap();
    assert!(!event.is_complete(), "the gate is shut");
    gate.open();
    second.synchronize().unwrap();
    assert!(event.is_complete());
    let sums = second.clone_dtoh(&y).unwrap();
    assert!(sums.iter().enumerate().all(|(index, &sum)| sum == index as f32 + 26.0));
    drop((x, y, axpy, wait, event, first, second, context));
    assert_nothing_held(&device);
}

#[test]
fn a_wait_is_for_the_place_that_the_event_had_then() {
    let device = fresh(&DeviceConfig::default());
    let gate = register_gate(&device);
    let context = CudaContext::new(0).unwrap();
    let [held, free, waits] = [(); 3].map(|()| context.new_stream().unwrap());
    let wait = function(&context, "wait_for_gate");
    let event = context.new_event(None).unwrap();
    // SAFETY: the kernel takes nothing.
    unsafe { held.launch_builder(&wait).launch(CONFIG) }.unwrap();
    event.record(&held).unwrap();
    waits.wait(&event).unwrap();
    let behind = waits.record_event(None).unwrap();
    // The event goes elsewhere, and completes there; who waited for the old place still does.
    event.record(&free).unwrap();
    event.synchronize().unwrap();
    free.synchronize().unwrap();
    assert!(event.is_complete());
    assert!(!behind.is_complete());
    gate.open();
    behind.synchronize().unwrap();
    drop((wait, event, behind, held, free, waits, context));
    assert_nothing_held(&device);
}

#[test]
fn the_default_stream_waits_for_blocking_streams_and_they_for_it() {
    use cudarc::driver::sys;
    let device = fresh(&DeviceConfig::default());
    let gate = register_gate(&device);
    let context = Context::new();
    let default = context.context.default_stream();
    let wait = function(&context.context, "wait_for_gate");
    let mut blocking: CUstream = std::ptr::null_mut();
    // SAFETY: the place of the result is live.
    assert_eq!(unsafe { sys::cuStreamCreate(&mut blocking, 0) }, CUresult::CUDA_SUCCESS);
    let apart = context.context.new_stream().unwrap();
    let idle = |stream: CUstream| {
        // SAFETY: the stream is live.
        match unsafe { sys::cuStreamQuery(stream) } {
            CUresult::CUDA_SUCCESS => true,
            CUresult::CUDA_ERROR_NOT_READY => false,
            other => panic!("{other:?}"),
        }
    };
    let block = context.malloc(128).unwrap();
    // SAFETY: the kernel takes nothing.
    unsafe { default.launch_builder(&wait).launch(CONFIG) }.unwrap();
    for (stream, half) in [(blocking, block), (raw(&apart), block + 64)] {
        // SAFETY: the block is live, and so is the stream.
        let code = unsafe { sys::cuMemsetD8Async(half, 1, 64, stream) };
        assert_eq!(code, CUresult::CUDA_SUCCESS);
    }
    apart.synchronize().unwrap();
    assert!(!idle(blocking), "behind the default stream");
    gate.open();
    // SAFETY: the stream is live.
    assert_eq!(unsafe { sys::cuStreamSynchronize(blocking) }, CUresult::CUDA_SUCCESS);
    assert!(idle(blocking));
    // SAFETY: the stream is live, and not used after.
    assert_eq!(unsafe { sys::cuStreamDestroy_v2(blocking) }, CUresult::CUDA_SUCCESS);
    // SAFETY: it is no stream any more, which is refused.
    assert_eq!(unsafe { sys::cuStreamSynchronize(blocking) }, CUresult::CUDA_ERROR_INVALID_HANDLE);
    context.free(block).unwrap();
    drop((wait, apart, default, context));
    assert_nothing_held(&device);
}

#[test]
fn pageable_memory_is_read_at_the_call_and_pinned_memory_later() {
    let device = fresh(&DeviceConfig::default());
    let gate = register_gate(&device);
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let wait = function(&context, "wait_for_gate");
    let mut there = stream.alloc_zeros::<u8>(64).unwrap();
    let mut later = stream.alloc_zeros::<u8>(64).unwrap();
    // SAFETY: it is written before it is read.
    let mut pinned = unsafe { context.alloc_pinned::<u8>(64) }.unwrap();
    let start = pinned.as_mut_ptr().unwrap();
    // SAFETY: it has 64 bytes.
    unsafe { start.write_bytes(1, 64) };
    let mut pageable = vec![1_u8; 64];
    // SAFETY: the kernel takes nothing.
    unsafe { stream.launch_builder(&wait).launch(CONFIG) }.unwrap();
    stream.memcpy_htod(&pageable, &mut there).unwrap();
    stream.memcpy_htod(&pinned, &mut later).unwrap();
    pageable.fill(2);
    // SAFETY: it has 64 bytes. The copy is still to come, and sees this.
    unsafe { start.write_bytes(2, 64) };
    gate.open();
    assert_eq!(stream.clone_dtoh(&there).unwrap(), [1; 64]);
    assert_eq!(stream.clone_dtoh(&later).unwrap(), [2; 64]);
    drop((there, later, pinned, wait, stream, context));
    assert_nothing_held(&device);
}

#[test]
fn a_pool_gives_a_block_again_in_the_order_of_its_stream() {
    let device = fresh(&DeviceConfig::default().with_capacity(16 * PAGE));
    let gate = register_gate(&device);
    let context = CudaContext::new(0).unwrap();
    let (stream, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let wait = function(&context, "wait_for_gate");
    let address = |slice: &cudarc::driver::CudaSlice<u8>, stream: &Arc<cudarc::driver::CudaStream>| {
        use cudarc::driver::DevicePtr;
        slice.device_ptr(stream).0
    };
    let block = stream.alloc_zeros::<u8>(5 * PAGE as usize).unwrap();
    let first = address(&block, &stream);
    // SAFETY: the kernel takes nothing.
    unsafe { stream.launch_builder(&wait).launch(CONFIG) }.unwrap();
    drop(block);
    // The free is behind the gate: another stream gets other memory, its own stream gets it at once.
    let elsewhere = other.alloc_zeros::<u8>(5 * PAGE as usize).unwrap();
    assert_ne!(address(&elsewhere, &other), first);
    let again = stream.alloc_zeros::<u8>(5 * PAGE as usize).unwrap();
    assert_eq!(address(&again, &stream), first);
    assert_eq!(device.counts(0).unwrap().of(Call::Malloc), 2);
    gate.open();
    drop((elsewhere, again));
    // With a threshold of 0, a synchronisation gives everything back.
    context.synchronize().unwrap();
    assert_eq!(device.counts(0).unwrap().mapped_bytes(), 0);
    drop((wait, stream, other, context));
    assert_nothing_held(&device);
}

#[test]
fn a_panic_in_a_kernel_loses_the_device() {
    let device = fresh(&DeviceConfig::default());
    device.register_kernel("wrong", &[8], |launch| _ = launch.parameter::<u32>(0)).unwrap();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let wrong = function(&context, "wrong");
    // SAFETY: the parameter is the one that was registered; the kernel reads it at another size, and panics.
    unsafe { stream.launch_builder(&wrong).arg(&1_u64).launch(CONFIG) }.unwrap();
    let error = stream.synchronize().unwrap_err();
    assert_eq!(error.0, CUresult::CUDA_ERROR_LAUNCH_FAILED);
    assert!(stream.alloc_zeros::<u8>(1).is_err(), "the error stays");
    assert!(device.counts(0).unwrap().calls_after_lost() > 0);
    std::mem::forget((wrong, stream, context));
}

#[test]
fn an_unknown_kernel_and_a_wrong_shape_are_refused() {
    let device = fresh(&DeviceConfig::default());
    register_axpy(&device);
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let module = context.load_module(Ptx::from_src("any text")).unwrap();
    let error = module.load_function("no such kernel").unwrap_err();
    assert_eq!(error.0, CUresult::CUDA_ERROR_NOT_FOUND);
    assert!(format!("{error:?}").contains("not found"), "{error:?}");
    let axpy = module.load_function("axpy").unwrap();
    for block in [0, 2048] {
        let shape = LaunchConfig { block_dim: (block, 1, 1), ..CONFIG };
        // SAFETY: it is not launched.
        let refused = unsafe {
            stream.launch_builder(&axpy).arg(&1.0_f32).arg(&0_u64).arg(&0_u64).arg(&0_usize).launch(shape)
        };
        assert_eq!(refused.unwrap_err().0, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    drop((axpy, module, stream, context));
    assert_nothing_held(&device);
}
