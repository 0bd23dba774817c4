//! What single calls do when the driver answers in its own way.
//!
//! Main types: none. Neighbours: `contexts` looks at whose calls they are.

use concertina_libcuda::{Code, DeviceConfig, Execution};
use concertina_vmm::{Accessor, Driver, DriverErrorKind};

use crate::{FRAME, Machine, PAGE, Page, small, stream};

const ACCESS: [Accessor; 1] = [Accessor::Device(0)];

/// "Not ready" on set access: one synchronise, one more try.
#[test]
fn access_that_is_not_ready_is_tried_once_more() {
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    let address = cuda.reserve(PAGE, 0).unwrap();
    let handle = cuda.create(PAGE, &FRAME).unwrap();
    cuda.map(address, PAGE, &handle).unwrap();
    let counts = || (machine.calls("cuMemSetAccess"), machine.calls("cuCtxSynchronize"));

    let (sets, waits) = counts();
    machine.libcuda.fail_once("cuMemSetAccess", 1, Code::NOT_READY).unwrap();
    cuda.set_access(address, PAGE, &ACCESS).unwrap();
    assert_eq!(counts(), (sets + 2, waits + 1));

    machine.libcuda.fail_from("cuMemSetAccess", 1, Code::NOT_READY).unwrap();
    let error = cuda.set_access(address, PAGE, &ACCESS).unwrap_err();
    assert_eq!(error.kind, DriverErrorKind::NotReady);
    assert_eq!(counts(), (sets + 4, waits + 2), "tried more than twice");
    machine.libcuda.clear_failures();

    // Other refusals are not tried again.
    machine.libcuda.fail_once("cuMemSetAccess", 1, Code::OUT_OF_MEMORY).unwrap();
    assert!(cuda.set_access(address, PAGE, &ACCESS).unwrap_err().is_out_of_memory());
    assert_eq!(counts(), (sets + 5, waits + 2));

    cuda.unmap(address, PAGE).unwrap();
    cuda.release(handle).unwrap();
    cuda.unreserve(address, PAGE).unwrap();
    drop((context, cuda));
    machine.ends_empty();
}

/// What a driver does with an empty list is told nowhere, so it is not asked.
#[test]
fn access_for_nobody_is_not_asked_of_the_driver() {
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    let page = Page::new(&cuda);
    let sets = machine.calls("cuMemSetAccess");
    assert_eq!(cuda.set_access(page.address, PAGE, &[]).unwrap_err().kind, DriverErrorKind::Invalid);
    assert_eq!(machine.calls("cuMemSetAccess"), sets);
    page.give_back(&cuda);
    drop((context, cuda));
    machine.ends_empty();
}

#[test]
fn an_event_is_done_when_the_work_before_it_is() {
    let config = DeviceConfig { execution: Execution::AtCall, event_lag: 10, ..small() };
    let machine = Machine::new(&config);
    let (context, cuda) = machine.program(0);
    let stream = stream(&context);
    let event = cuda.event_create().unwrap();
    cuda.event_record(&event, &stream).unwrap();
    assert!(!cuda.event_query(&event).unwrap());
    machine.libcuda.advance(10);
    assert!(cuda.event_query(&event).unwrap());
    drop((event, stream, cuda, context));
    machine.ends_empty();
}

/// After a sticky error the event is not destroyed: no call is made from a drop.
#[test]
fn a_drop_makes_no_call_on_a_lost_device() {
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    let (kept, dropped) = (cuda.event_create().unwrap(), cuda.event_create().unwrap());
    let destroyed = machine.calls("cuEventDestroy_v2");
    drop(kept);
    assert_eq!(machine.calls("cuEventDestroy_v2"), destroyed + 1);
    machine.libcuda.fail_once("cuMemCreate", 1, Code::ILLEGAL_ADDRESS).unwrap();
    let error = cuda.create(PAGE, &FRAME).unwrap_err();
    assert_eq!(error.kind, DriverErrorKind::Lost);
    assert!(error.detail.starts_with("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{error}");
    // Names for the code are asked for after the device is lost; from there on, nothing.
    let late = || machine.libcuda.counts(0).unwrap().calls_after_lost();
    let before = late();
    drop(dropped);
    assert_eq!(late(), before);
    drop((cuda, context));
    assert!(late() > before, "the program's own context makes calls, and they are counted");
}

/// Every sticky code that the emulated driver can give is a lost device, and no other is.
#[test]
fn sticky_codes_and_lost_devices_agree() {
    for number in 1..1_000 {
        let Some(code) = Code::new(number) else { continue };
        let lost = concertina_cuda::kind_of(number) == DriverErrorKind::Lost;
        // The context is gone, or the driver: nothing can be done either, though the manual doesn't call it sticky.
        let gone = matches!(code, Code::DEINITIALIZED | Code::CONTEXT_IS_DESTROYED);
        assert_eq!(lost, code.is_sticky() || gone, "{code}");
    }
}
