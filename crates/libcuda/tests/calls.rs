//! Calls of the driver that cudarc doesn't wrap, or not so that a test sees all of them: fills, copies between any two
//! places, pinned memory, functions of the host, times, pools.
//!
//! Main types: none. Neighbours: `streams.rs` and `vmm.rs` test what programs mostly do.

#![allow(unsafe_code, reason = "calls of the driver that cudarc doesn't wrap")]

mod common;

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use common::{Context, PAGE, assert_nothing_held, fresh};
use concertina_libcuda::{Backing, DeviceConfig};
use cudarc::driver::sys::{self, CUresult, CUstream};
use cudarc::driver::{CudaContext, CudaSlice};

/// A call of the driver that must be done.
macro_rules! done {
    ($function:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: the pointers are of live values of the right type.
        assert_eq!(unsafe { sys::$function($($arg),*) }, CUresult::CUDA_SUCCESS, stringify!($function));
    };
}

/// A call of the driver that must be refused.
macro_rules! refused {
    ($code:ident, $function:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: the pointers are of live values of the right type.
        assert_eq!(unsafe { sys::$function($($arg),*) }, CUresult::$code, stringify!($function));
    };
}

const NULL: CUstream = std::ptr::null_mut();

#[test]
fn fills_of_every_width() {
    for backing in [Backing::HostPages, Backing::Software] {
        let config = DeviceConfig { granularity_bytes: 4096, ..DeviceConfig::default() };
        let device = fresh(&config.with_backing(backing));
        let context = Context::new();
        let block = context.malloc(3 * 4096).unwrap();
        done!(cuMemsetD8_v2(block, 0x11, 3 * 4096));
        done!(cuMemsetD16_v2(block + 2, 0x2233, 3));
        done!(cuMemsetD32_v2(block + 4092, 0x4455_6677, 2));
        done!(cuMemsetD8_v2(block, 1, 0));
        let mut bytes = vec![0_u8; 3 * 4096];
        context.to_host(&mut bytes, block).unwrap();
        let mut expected = vec![0x11_u8; 3 * 4096];
        expected[2..8].copy_from_slice(&[0x33, 0x22, 0x33, 0x22, 0x33, 0x22]);
        expected[4092..4100].copy_from_slice(&[0x77, 0x66, 0x55, 0x44, 0x77, 0x66, 0x55, 0x44]);
        assert!(bytes == expected, "{backing:?}");
        refused!(CUDA_ERROR_INVALID_VALUE, cuMemsetD16_v2(block + 1, 1, 1));
        refused!(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(block + 2, 1, 1));
        refused!(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(block, 1, usize::MAX / 2));
        refused!(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(block + 3 * 4096 - 1, 1, 2));
        context.free(block).unwrap();
        drop(context);
        assert_nothing_held(&device);
    }
}

#[test]
fn copies_between_any_two_places() {
    let device = fresh(&DeviceConfig { devices: 2, ..DeviceConfig::default() });
    let (here, there) = (Context::new(), CudaContext::new(1).unwrap());
    let far = {
        there.bind_to_thread().unwrap();
        here.malloc(64).unwrap()
    };
    here.context.bind_to_thread().unwrap();
    let near = here.malloc(64).unwrap();
    let mut host = [7_u8; 64];
    done!(cuMemcpy(near, host.as_ptr() as u64, 64));
    done!(cuMemcpyPeer(far, there.cu_ctx(), near, here.context.cu_ctx(), 64));
    done!(cuMemsetD8_v2(near, 0, 64));
    done!(cuMemcpyAsync(near, far, 32, NULL));
    done!(cuMemcpyAsync(host.as_mut_ptr() as u64, near, 64, NULL));
    assert_eq!(host[..32], [7; 32]);
    assert_eq!(host[32..], [0; 32]);
    // Overlapping, forwards.
    done!(cuMemcpyDtoD_v2(near + 8, near, 32));
    done!(cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), near, 64));
    assert_eq!(host[..40], [7; 40]);
    refused!(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD_v2(near, near + PAGE, 8));
    refused!(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(host.as_ptr() as u64, host.as_ptr().cast(), 8));
    refused!(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(near, std::ptr::null(), 8));
    refused!(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(0, host.as_ptr().cast(), 1));
    // No bytes at no address, as of an empty buffer.
    done!(cuMemcpyHtoD_v2(0, host.as_ptr().cast(), 0));
    done!(cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), 0, 0));
    done!(cuMemcpyDtoD_v2(0, near, 0));
    here.free(near).unwrap();
    here.free(far).unwrap();
    drop((here, there));
    assert_nothing_held(&device);
    assert!(device.held(1).unwrap().is_empty());
}

/// What a program keeps in a thread-local goes after the driver's own thread-locals have, if it was first.
#[test]
fn destructors_of_thread_locals_may_call() {
    thread_local! {
        static KEPT: RefCell<Option<CudaSlice<u8>>> = const { RefCell::new(None) };
    }
    let device = fresh(&DeviceConfig::default());
    let made = || CudaContext::new(0).unwrap().new_stream().unwrap().clone_htod(&[1_u8; 100]).unwrap();
    thread::spawn(move || KEPT.with_borrow_mut(|kept| *kept = Some(made()))).join().unwrap();
    assert_eq!(device.calls("cuMemFreeAsync").unwrap(), 1);
    assert_eq!(device.failures("cuStreamDestroy_v2").unwrap(), 0);
    assert_nothing_held(&device);
}

#[test]
fn pinned_memory_is_known_by_its_range() {
    let device = fresh(&DeviceConfig::default());
    let context = Context::new();
    let mut start: *mut c_void = std::ptr::null_mut();
    done!(cuMemHostAlloc(&mut start, 5000, 0));
    assert_eq!(start as usize % 4096, 0);
    let mut address = 0;
    done!(cuMemHostGetDevicePointer_v2(&mut address, start, 0));
    assert_eq!(address, start as u64);
    assert_eq!(device.held(0).unwrap().pinned, 1);
    let mut own = vec![0_u8; 100];
    let own_start: *mut c_void = own.as_mut_ptr().cast();
    refused!(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer_v2(&mut address, own_start, 0));
    refused!(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(own_start));
    done!(cuMemHostRegister_v2(own_start, 100, 0));
    refused!(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(own_start, 10, 0));
    refused!(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(own_start));
    done!(cuMemHostUnregister(own_start));
    done!(cuMemFreeHost(start));
    refused!(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(start));
    refused!(CUDA_ERROR_INVALID_VALUE, cuMemHostAlloc(&mut start, 0, 0));
    drop(context);
    assert_nothing_held(&device);
}

unsafe extern "C" fn add_one(counter: *mut c_void) {
    // SAFETY: the test gives a counter that lives until it has synchronised.
    let counter = unsafe { &*counter.cast::<AtomicU32>() };
    counter.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_function_of_the_host_runs_in_its_place() {
    let device = fresh(&DeviceConfig::default());
    let context = Context::new();
    let counter = AtomicU32::new(0);
    let data = (&raw const counter).cast_mut().cast::<c_void>();
    let stream = context.context.new_stream().unwrap();
    for _ in 0..10 {
        done!(cuLaunchHostFunc(stream.cu_stream(), Some(add_one), data));
    }
    stream.synchronize().unwrap();
    assert_eq!(counter.load(Ordering::Relaxed), 10);
    drop((stream, context));
    assert_nothing_held(&device);
}

#[test]
fn times_are_taken_of_timed_events_only() {
    let device = fresh(&DeviceConfig::default());
    let context = Context::new();
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let [first, second] = [(); 2].map(|()| context.context.new_event(timed).unwrap());
    let stream = context.context.new_stream().unwrap();
    assert!(first.elapsed_ms(&second).is_err(), "not recorded");
    first.record(&stream).unwrap();
    second.record(&stream).unwrap();
    let forwards = first.elapsed_ms(&second).unwrap();
    assert!(forwards >= 0.0);
    assert_eq!(second.elapsed_ms(&first).unwrap(), -forwards);
    let untimed = context.context.new_event(None).unwrap();
    untimed.record(&stream).unwrap();
    untimed.synchronize().unwrap();
    assert_eq!(first.elapsed_ms(&untimed).unwrap_err().0, CUresult::CUDA_ERROR_INVALID_HANDLE);
    drop((first, second, untimed, stream, context));
    assert_nothing_held(&device);
}

#[test]
fn each_thread_has_its_own_default_stream() {
    let device = fresh(&DeviceConfig::default());
    let context = Context::new();
    fn per_thread() -> CUstream {
        2 as CUstream
    }
    let id = || {
        let mut id = 0;
        done!(cuStreamGetId(per_thread(), &mut id));
        id
    };
    let mine = id();
    assert_eq!(id(), mine);
    thread::scope(|scope| {
        scope.spawn(|| {
            context.context.bind_to_thread().unwrap();
            assert_ne!(id(), mine);
        });
    });
    done!(cuStreamSynchronize(per_thread()));
    refused!(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy_v2(per_thread()));
    drop(context);
    assert_nothing_held(&device);
}

fn threshold(pool: sys::CUmemoryPool, bytes: u64) {
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let mut bytes = bytes;
    done!(cuMemPoolSetAttribute(pool, attribute, (&raw mut bytes).cast()));
}

fn figure(pool: sys::CUmemoryPool, attribute: sys::CUmemPool_attribute) -> u64 {
    let mut value = 0_u64;
    done!(cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()));
    value
}

#[test]
fn a_pool_keeps_what_its_threshold_says() {
    use sys::CUmemPool_attribute::{
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT as RESERVED, CU_MEMPOOL_ATTR_USED_MEM_CURRENT as USED,
        CU_MEMPOOL_ATTR_USED_MEM_HIGH as USED_HIGH,
    };
    let device = fresh(&DeviceConfig::default().with_capacity(16 * PAGE));
    let context = Context::new();
    let mut pool: sys::CUmemoryPool = std::ptr::null_mut();
    done!(cuDeviceGetDefaultMemPool(&mut pool, 0));
    threshold(pool, 5 * PAGE);
    let blocks = [2, 3, 4].map(|pages| {
        let mut block = 0;
        done!(cuMemAllocAsync(&mut block, (pages * PAGE) as usize, NULL));
        block
    });
    assert_eq!((figure(pool, USED), figure(pool, RESERVED)), (9 * PAGE, 9 * PAGE));
    for block in blocks {
        done!(cuMemFreeAsync(block, NULL));
        refused!(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(block, NULL));
        refused!(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block));
    }
    assert_eq!(figure(pool, USED), 0);
    done!(cuCtxSynchronize());
    let kept = figure(pool, RESERVED);
    assert!(kept <= 5 * PAGE && kept > 0, "{kept} kept");
    assert_eq!(context.free_bytes(), 16 * PAGE - kept);
    // Out of memory: what is freed and kept makes room.
    let mut whole = 0;
    done!(cuMemAllocAsync(&mut whole, (16 * PAGE) as usize, NULL));
    done!(cuMemFree_v2(whole));
    done!(cuMemPoolTrimTo(pool, 0));
    assert_eq!((figure(pool, RESERVED), figure(pool, USED_HIGH)), (0, 16 * PAGE));
    assert_eq!(context.free_bytes(), 16 * PAGE);
    drop(context);
    assert_nothing_held(&device);
}

#[test]
fn a_destroyed_pool_gives_back_what_is_freed_later() {
    let device = fresh(&DeviceConfig::default());
    let context = Context::new();
    // SAFETY: all zeros are a value of this C struct.
    let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    let mut pool: sys::CUmemoryPool = std::ptr::null_mut();
    done!(cuMemPoolCreate(&mut pool, &properties));
    threshold(pool, u64::MAX);
    let mut block = 0;
    let mut other = 0;
    done!(cuMemAllocFromPoolAsync(&mut block, PAGE as usize, pool, NULL));
    done!(cuMemAllocFromPoolAsync(&mut other, PAGE as usize, pool, NULL));
    done!(cuMemPoolDestroy(pool));
    let mut none = 0;
    refused!(CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync(&mut none, 1, pool, NULL));
    assert_eq!(device.held(0).unwrap().mallocs, 2);
    done!(cuMemFree_v2(block));
    assert_eq!(device.held(0).unwrap().mallocs, 1);
    done!(cuMemFreeAsync(other, NULL));
    drop(context);
    assert_nothing_held(&device);
}
