//! What the library is told: failures, lost devices, devices that lack something, software pages.
//!
//! Main types: none. Neighbours: `src/control` is the Rust side, `src/exports/control.rs` the other.

#![allow(unsafe_code, reason = "calls of the driver that cudarc doesn't wrap")]

mod common;

use common::{Context, GIB, PAGE, assert_nothing_held, fresh};
use concertina_libcuda::{
    Backing, Code, ConfigError, ControlError, DeviceConfig, Execution, LoadError, load, load_from,
};
use concertina_vmm::Call;
use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, result};

#[test]
fn a_call_fails_by_its_name_and_number() {
    let device = fresh(&DeviceConfig::default().with_capacity(GIB));
    let context = Context::new();
    device.fail_once("cuMemCreate", 2, Code::NOT_PERMITTED).unwrap();
    device.fail_from("cuMemAddressReserve", 1, Code::OUT_OF_MEMORY).unwrap();
    let frame = context.create(PAGE).unwrap();
    assert_eq!(context.create(PAGE), Err(CUresult::CUDA_ERROR_NOT_PERMITTED));
    let second = context.create(PAGE).unwrap();
    for _ in 0..3 {
        assert_eq!(context.reserve(PAGE), Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    }
    device.clear_failures();
    let at = context.reserve(PAGE).unwrap();
    assert_eq!((device.calls("cuMemCreate").unwrap(), device.failures("cuMemCreate").unwrap()), (3, 1));
    assert_eq!(device.failures("cuMemAddressReserve").unwrap(), 3);
    // What failed never reached the device.
    let counts = device.counts(0).unwrap();
    assert_eq!((counts.of(Call::Create), counts.of(Call::Reserve)), (2, 1));
    assert_eq!(counts.failed(Call::Create), 0);

    let unknown = device.fail_once("cuMemTeleport", 1, Code::OUT_OF_MEMORY).unwrap_err();
    assert_eq!(unknown, ControlError::Refused { function: "fail", code: Code::NOT_FOUND });
    assert!(device.calls("cuMemTeleport").is_err());
    assert!(device.fail_once("cuMemMap", 1, Code::SUCCESS).is_err());
    context.release(frame).unwrap();
    context.release(second).unwrap();
    context.unreserve(at, PAGE).unwrap();
    drop(context);
    assert_nothing_held(&device);
}

#[test]
fn failures_by_chance_are_the_same_for_the_same_seed() {
    let pattern = |seed| {
        let device = fresh(&DeviceConfig::default().with_capacity(GIB));
        let context = Context::new();
        device.fail_by_chance(300_000, seed, Code::OUT_OF_MEMORY).unwrap();
        let made: Vec<bool> = (0..64).map(|_| context.create(PAGE).is_ok()).collect();
        let failed = made.iter().filter(|&&made| !made).count() as u64;
        assert_eq!(device.counts(0).unwrap().failed(Call::Create), failed);
        assert!((5..40).contains(&failed), "{failed} of 64 at 30 %");
        made
    };
    assert_eq!(pattern(1), pattern(1));
    assert_ne!(pattern(1), pattern(2));
    let device = fresh(&DeviceConfig::default());
    assert!(device.fail_by_chance(1, 1, Code::ILLEGAL_ADDRESS).is_err());
}

#[test]
fn a_lost_device_stays_lost_until_a_reset() {
    let device = fresh(&DeviceConfig::default());
    let context = Context::new();
    assert!(device.lose(Code::OUT_OF_MEMORY).is_err(), "that is not sticky");
    device.fail_once("cuMemCreate", 1, Code::ILLEGAL_ADDRESS).unwrap();
    let lost = Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(context.create(PAGE), lost);
    assert_eq!(context.create(PAGE), lost);
    assert_eq!(context.reserve(PAGE), lost);
    assert_eq!(device.counts(0).unwrap().calls_after_lost(), 2);
    assert!(CudaContext::new(0).is_err());
    let described = format!("{:?}", CudaContext::new(0).err().unwrap());
    assert!(described.contains("illegal address"), "{described}");
    std::mem::forget(context);
    device.reset(&DeviceConfig::default()).unwrap();
    let context = Context::new();
    assert!(context.create(PAGE).is_ok());
}

#[test]
fn handles_of_before_a_reset_are_refused() {
    let device = fresh(&DeviceConfig::default());
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    device.reset(&DeviceConfig::default()).unwrap();
    assert_eq!(stream.synchronize().unwrap_err().0, CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert!(context.synchronize().is_err());
    // SAFETY: it is no stream any more, which is refused.
    let code = unsafe { sys::cuStreamSynchronize(stream.cu_stream()) };
    assert_eq!(code, CUresult::CUDA_ERROR_INVALID_HANDLE);
    std::mem::forget((stream, context));
}

#[test]
fn a_call_without_a_context_is_refused() {
    let device = fresh(&DeviceConfig::default());
    let context = CudaContext::new(0).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: a plain call.
            let refused = unsafe { result::malloc_sync(64) };
            assert_eq!(refused.unwrap_err().0, CUresult::CUDA_ERROR_INVALID_CONTEXT);
            context.bind_to_thread().unwrap();
            // SAFETY: a plain call.
            let block = unsafe { result::malloc_sync(64) }.unwrap();
            // SAFETY: the block is live.
            unsafe { result::free_sync(block) }.unwrap();
        });
    });
    drop(context);
    assert_nothing_held(&device);
}

#[test]
fn each_device_has_its_own_memory() {
    let config = DeviceConfig { devices: 2, ..DeviceConfig::default() };
    let device = fresh(&config.with_capacity(4 * PAGE));
    let (first, second) = (CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap());
    let on_first = first.default_stream().clone_htod(&[1_u8; 100]).unwrap();
    let on_second = second.default_stream().clone_htod(&[2_u8; 100]).unwrap();
    assert_eq!(second.default_stream().clone_dtoh(&on_second).unwrap(), [2; 100]);
    assert_eq!(first.default_stream().clone_dtoh(&on_first).unwrap(), [1; 100]);
    assert_eq!(device.held(0).unwrap().mapped_bytes, PAGE);
    assert_eq!(device.held(1).unwrap().mapped_bytes, PAGE);
    assert!(device.held(2).is_err());
    let mut can = 1;
    // SAFETY: the place of the result is live.
    let code = unsafe { sys::cuDeviceCanAccessPeer(&mut can, 0, 1) };
    assert_eq!((code, can), (CUresult::CUDA_SUCCESS, 0));
    drop((on_first, on_second, first, second));
    for ordinal in [0, 1] {
        let held = device.held(ordinal).unwrap();
        assert!(held.is_empty(), "device {ordinal}: {held}");
    }
}

#[test]
fn a_device_without_virtual_memory_says_so() {
    let config = DeviceConfig { virtual_memory: false, ..DeviceConfig::default() };
    let device = fresh(&config);
    let context = Context::new();
    let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED;
    assert_eq!(context.context.attribute(attribute).unwrap(), 0);
    let unsupported = Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    assert_eq!(context.reserve(PAGE), unsupported);
    assert_eq!(context.create(PAGE), unsupported);
    let block = context.malloc(64).unwrap();
    context.free(block).unwrap();
    drop(context);
    assert_nothing_held(&device);
}

#[test]
fn software_pages_alias_and_have_no_limit() {
    let config = DeviceConfig { granularity_bytes: 4096, ..DeviceConfig::default() };
    let device = fresh(&config.with_capacity(GIB).with_backing(Backing::Software));
    assert_eq!(device.max_mappings(), None);
    let context = Context::new();
    let (page, pages) = (4096, 100_000);
    let at = context.reserve(pages * page).unwrap();
    let frames = [context.create(page).unwrap(), context.create(page).unwrap()];
    for index in 0..pages {
        context.map(at + index * page, page, frames[index as usize % 2]).unwrap();
    }
    context.set_access(at, pages * page).unwrap();
    // A copy over three pages, of which the first and the third are the same.
    let sent: Vec<u8> = (0..2 * page).map(|index| (index % 251) as u8).collect();
    context.to_device(at + 100, &sent[..page as usize]).unwrap();
    let mut back = vec![0_u8; 3 * page as usize];
    context.to_host(&mut back, at + 50_000 * page).unwrap();
    let whole = page as usize;
    assert_eq!(back[100..whole], sent[..whole - 100]);
    assert_eq!(back[whole..whole + 100], sent[whole - 100..whole]);
    assert_eq!(back[2 * whole..], back[..whole]);
    // What is not accessible is refused, not fatal.
    assert_eq!(context.fill(at + pages * page, 1, 1), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
    context.unmap(at, pages * page).unwrap();
    frames.iter().for_each(|&frame| context.release(frame).unwrap());
    let frame = context.create(page).unwrap();
    context.map(at, page, frame).unwrap();
    context.set_access(at, page).unwrap();
    context.to_host(&mut back[..whole], at).unwrap();
    assert!(back[..whole].iter().all(|&byte| byte == 0), "a new frame has nothing of an old one");
    context.unmap(at, page).unwrap();
    context.release(frame).unwrap();
    context.unreserve(at, pages * page).unwrap();
    drop(context);
    assert_nothing_held(&device);
}

#[test]
fn events_complete_by_the_model_where_work_is_done_at_the_call() {
    let config = DeviceConfig { event_lag: 10, ..DeviceConfig::default() };
    let device = fresh(&config.with_execution(Execution::AtCall));
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let event = stream.record_event(None).unwrap();
    let query = || {
        // SAFETY: the event is live.
        unsafe { sys::cuEventQuery(event.cu_event()) }
    };
    assert_eq!(query(), CUresult::CUDA_ERROR_NOT_READY);
    device.advance(9);
    assert_eq!(query(), CUresult::CUDA_ERROR_NOT_READY);
    device.advance(1);
    assert_eq!(query(), CUresult::CUDA_SUCCESS);
    event.record(&stream).unwrap();
    assert_eq!(query(), CUresult::CUDA_ERROR_NOT_READY);
    event.synchronize().unwrap();
    assert_eq!(query(), CUresult::CUDA_SUCCESS);
    let counts = device.counts(0).unwrap();
    assert_eq!(counts.host_waits(), 1);
    assert_eq!(counts.of(Call::EventRecord), 2);
    assert_eq!(counts.of(Call::EventQuery), 5);
    drop((event, stream, context));
    assert_nothing_held(&device);
}

#[test]
fn a_device_that_can_not_be_is_refused_by_name() {
    let library = load().unwrap();
    let error = library.fresh(&DeviceConfig { devices: 9, ..DeviceConfig::default() }).unwrap_err();
    assert_eq!(error, ControlError::Config(ConfigError::Devices { devices: 9 }));
    let error = library.fresh(&DeviceConfig { granularity_bytes: 5, ..DeviceConfig::default() });
    assert!(error.unwrap_err().to_string().contains("granularity of 5 bytes"));
}

#[test]
fn the_library_is_loaded_once_and_stands_for_libcuda() {
    let library = load().unwrap();
    assert!(std::ptr::eq(library, load().unwrap()));
    // Whatever path is named later, this process has its driver.
    assert!(std::ptr::eq(library, load_from("/nonexistent".as_ref()).unwrap()));
    assert!(library.path().ends_with("libconcertina_libcuda.so"));
    let error = LoadError::NotFound { directory: "somewhere".into() };
    assert!(error.to_string().contains("somewhere"));
}

#[test]
fn every_code_is_one_that_the_bindings_know() {
    let _device = fresh(&DeviceConfig::default());
    // The name that the library gives for a number is the name that the bindings have for it.
    let (mut known, mut text) = (0, std::ptr::null());
    for number in 0..1000 {
        let Some(code) = Code::new(number) else { continue };
        known += 1;
        // SAFETY: every code that the library knows is one of the bindings', which this test is about: a number that is
        // none would be seen here first, under a checker of undefined behaviour.
        let of_bindings: CUresult = unsafe { std::mem::transmute(number) };
        assert_eq!(format!("{of_bindings:?}"), code.name());
        // SAFETY: the place of the result is live.
        let done = unsafe { sys::cuGetErrorName(of_bindings, &mut text) };
        assert_eq!(done, CUresult::CUDA_SUCCESS);
        // SAFETY: a call that is done gives a text that stays.
        let name = unsafe { std::ffi::CStr::from_ptr(text) };
        assert_eq!(name.to_str().unwrap(), code.name());
    }
    assert_eq!(known, 87);
}
