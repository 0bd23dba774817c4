//! Making a driver: what is found out, and what is said when something is missing.
//!
//! Main types: none. Neighbours: `src/trial/tests.rs` fails each step of the trial on the emulator itself.

use concertina_cuda::{Cuda, CudaOptions, Granularity, Missing, OpenError, Support, VirtualMemory};
use concertina_libcuda::{Code, DeviceConfig};
use concertina_vmm::{Call, Capabilities, Device, Driver, DriverErrorKind};
use cudarc::driver::CudaContext;

use crate::{FRAME, Machine, PAGE, small, stream};

#[test]
fn the_probe_finds_what_the_device_is() {
    let machine = Machine::new(&DeviceConfig { devices: 2, max_mappings: Some(1_000), ..small() });
    let (context, cuda) = machine.program(1);
    let probe = cuda.probe();
    assert_eq!(cuda.ordinal(), 1);
    assert_eq!(probe.ordinal, 1);
    assert_eq!(probe.device_name, context.name().unwrap());
    assert!(probe.driver_version.is_some_and(|version| version.major >= 11), "{probe}");
    assert_eq!(probe.virtual_memory, Support::Available);
    let granularity = Granularity { minimum_bytes: PAGE, recommended_bytes: PAGE };
    assert_eq!(probe.granularity, Some(granularity));
    assert_eq!(probe.unmap_spans_mappings, Support::Available);
    assert_eq!(probe.pools, Support::Available);
    assert_eq!(probe.max_mappings, Some(1_000));
    let all = Capabilities { virtual_memory: true, unmap_spans_mappings: true, max_mappings: Some(1_000) };
    assert_eq!(*cuda.capabilities(), all);
    // The trial has given everything back already.
    let held = machine.libcuda.held(1).unwrap();
    assert_eq!((held.frames, held.mappings, held.reservations, held.streams, held.events), (0, 0, 0, 0, 0));
    assert!(machine.libcuda.broken_rules(1).is_empty());
    drop((context, cuda));
    machine.ends_empty();
}

#[test]
fn options_go_before_what_the_device_tells() {
    let machine = Machine::new(&DeviceConfig { max_mappings: Some(1_000), ..small() });
    let context = CudaContext::new(0).unwrap();
    let cuda = Cuda::with_options(&context, &CudaOptions::default().with_max_mappings(17)).unwrap();
    assert_eq!(cuda.capabilities().max_mappings, Some(17));
    drop((context, cuda));
    machine.ends_empty();
}

#[test]
fn what_unmaps_one_by_one_is_found_out() {
    let machine = Machine::new(&DeviceConfig { unmap_spans_mappings: false, ..small() });
    let (context, cuda) = machine.program(0);
    assert!(!cuda.capabilities().unmap_spans_mappings);
    assert!(cuda.capabilities().virtual_memory);
    let table = cuda.probe().to_string();
    assert!(table.contains("unmap spans mappings no: a trial with one page could not unmap two"), "{table}");
    drop((context, cuda));
    machine.ends_empty();
}

#[test]
fn a_driver_without_virtual_memory_is_an_error_with_the_reason() {
    let machine = Machine::new(&DeviceConfig { virtual_memory: false, ..small() });
    let context = CudaContext::new(0).unwrap();
    let required = CudaOptions::default().with_virtual_memory(VirtualMemory::Required);
    let error = Cuda::with_options(&context, &required).unwrap_err();
    let missing = Missing::Attribute { name: "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", number: 102 };
    assert_eq!(error, OpenError::NoVirtualMemory { ordinal: 0, missing });

    // Who can do without gets the rest.
    let cuda = Cuda::new(&context).unwrap();
    assert!(!cuda.capabilities().virtual_memory);
    let address = cuda.malloc(1_000).unwrap();
    cuda.free(address).unwrap();
    let stream = stream(&context);
    let event = cuda.event_create().unwrap();
    cuda.event_record(&event, &stream).unwrap();
    cuda.event_synchronize(&event).unwrap();
    let refused = cuda.create(PAGE, &FRAME).unwrap_err();
    assert_eq!(refused.kind, DriverErrorKind::NotSupported);
    assert!(refused.detail.contains("attribute VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED (102) is 0"), "{refused}");
    assert_eq!(Device::new(cuda.clone(), FRAME).unwrap_err().kind, DriverErrorKind::NotSupported);
    drop((event, stream, cuda, context));
    machine.ends_empty();
}

/// A device may claim virtual memory and fail at it.
#[test]
fn a_step_of_the_trial_that_fails_is_named() {
    let steps = [
        ("cuMemAddressReserve", 1, "reserve addresses"),
        ("cuMemCreate", 1, "create a frame"),
        ("cuMemMap", 1, "map the frame"),
        ("cuMemMap", 2, "map the frame a second time"),
        ("cuMemSetAccess", 1, "give access to two mappings with one call"),
        ("cuStreamCreate", 1, "make a stream"),
        ("cuMemsetD8Async", 1, "write to the page"),
        ("cuMemcpyDtoHAsync_v2", 1, "read from the page"),
        ("cuMemcpyDtoHAsync_v2", 2, "read from the page"),
        ("cuMemRelease", 1, "release the frame"),
        ("cuMemAddressFree", 1, "give the addresses back"),
    ];
    for (function, nth, expected) in steps {
        let machine = Machine::new(&small());
        let context = CudaContext::new(0).unwrap();
        let required = CudaOptions::default().with_virtual_memory(VirtualMemory::Required);
        machine.libcuda.fail_once(function, nth, Code::UNKNOWN).unwrap();
        let error = Cuda::with_options(&context, &required).unwrap_err();
        let OpenError::NoVirtualMemory { missing: Missing::Trial { step, error }, .. } = &error else {
            panic!("{function}: {error}")
        };
        assert_eq!(*step, expected, "{function}");
        assert!(error.detail.contains("CUDA_ERROR_UNKNOWN (999)"), "{error}");
        // The next one is as good as on a device that never failed.
        drop(Cuda::new(&context).unwrap());
        drop(context);
        machine.ends_empty();
    }
}

/// Nothing is said about virtual memory by a device that is full: that is no reason to do without it.
#[test]
fn a_trial_without_memory_is_an_error() {
    let machine = Machine::new(&small());
    let context = CudaContext::new(0).unwrap();
    machine.libcuda.fail_once("cuMemCreate", 1, Code::OUT_OF_MEMORY).unwrap();
    let OpenError::Probe { ordinal: 0, error } = Cuda::new(&context).unwrap_err() else { panic!() };
    assert_eq!((error.kind, error.call), (DriverErrorKind::OutOfMemory, Call::Create));
    drop(context);
    machine.ends_empty();
}

#[test]
fn a_question_that_fails_is_an_error() {
    let machine = Machine::new(&small());
    let context = CudaContext::new(0).unwrap();
    machine.libcuda.fail_once("cuDeviceGetAttribute", 1, Code::NOT_PERMITTED).unwrap();
    let OpenError::Probe { ordinal: 0, error } = Cuda::new(&context).unwrap_err() else { panic!() };
    assert_eq!(error.kind, DriverErrorKind::NotSupported);
    assert!(error.detail.contains("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED (102)"), "{error}");
    drop(context);
    machine.ends_empty();
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    let machine = Machine::new(&DeviceConfig { devices: 2, ..small() });
    let error = Cuda::open(2).unwrap_err();
    let OpenError::NoContext { ordinal: 2, reason } = &error else { panic!("{error}") };
    assert!(reason.contains("INVALID_DEVICE"), "{error}");
    drop(Cuda::open(1).unwrap());
    machine.ends_empty();
}
