//! What lies behind addresses.
//!
//! Main types: none. Neighbours: `contract` looks at which calls are refused, this at the bytes.

use concertina_vmm::{Accessor, Call, Driver, DriverErrorKind};

use crate::{FRAME, Machine, PAGE, Page, read, small, write};

const ACCESS: [Accessor; 1] = [Accessor::Device(0)];

#[test]
fn two_addresses_of_one_frame_show_the_same_bytes() {
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    let page = Page::new(&cuda);
    let alias = cuda.reserve(2 * PAGE, 0).unwrap();
    cuda.map(alias.add(PAGE), PAGE, &page.handle).unwrap();
    cuda.set_access(alias.add(PAGE), PAGE, &ACCESS).unwrap();

    write(&context, page.address, b"first");
    assert_eq!(&read::<5>(&context, alias.add(PAGE)), b"first");
    write(&context, alias.add(2 * PAGE - 4), b"last");
    assert_eq!(&read::<4>(&context, page.address.add(PAGE - 4)), b"last");

    cuda.unmap(alias.add(PAGE), PAGE).unwrap();
    cuda.unreserve(alias, 2 * PAGE).unwrap();
    page.give_back(&cuda);
    drop((context, cuda));
    machine.ends_empty();
}

/// A steal: the frame goes on under another address with what was written, and comes back by a revival.
#[test]
fn bytes_go_with_the_frame() {
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    let page = Page::new(&cuda);
    write(&context, page.address, b"before");
    let thief = cuda.reserve(PAGE, 0).unwrap();
    cuda.map(thief, PAGE, &page.handle).unwrap();
    cuda.set_access(thief, PAGE, &ACCESS).unwrap();
    assert_eq!(&read::<6>(&context, thief), b"before");
    write(&context, thief, b"behind");
    cuda.unmap(thief, PAGE).unwrap();
    assert_eq!(&read::<6>(&context, page.address), b"behind");
    cuda.unreserve(thief, PAGE).unwrap();
    page.give_back(&cuda);
    drop((context, cuda));
    machine.ends_empty();
}

#[test]
fn two_frames_do_not_share_bytes() {
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    let (one, other) = (Page::new(&cuda), Page::new(&cuda));
    write(&context, one.address, &[1; 64]);
    write(&context, other.address, &[2; 64]);
    assert_eq!(read(&context, one.address), [1; 64]);
    assert_eq!(read(&context, other.address), [2; 64]);
    one.give_back(&cuda);
    other.give_back(&cuda);
    drop((context, cuda));
    machine.ends_empty();
}

#[test]
fn running_out_is_told_in_the_drivers_words() {
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    let error = cuda.create(65 * PAGE, &FRAME).unwrap_err();
    assert_eq!((error.kind, error.call), (DriverErrorKind::OutOfMemory, Call::Create));
    let expected = format!("CUDA_ERROR_OUT_OF_MEMORY (2), out of memory: {} bytes on device 0", 65 * PAGE);
    assert_eq!(error.detail, expected);
    drop((context, cuda));
    machine.ends_empty();
}

/// The driver itself would map the head of a handle; a frame is mapped whole.
#[test]
fn the_head_of_a_handle_is_not_mapped() {
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    let address = cuda.reserve(2 * PAGE, 0).unwrap();
    let handle = cuda.create(2 * PAGE, &FRAME).unwrap();
    let maps = machine.calls("cuMemMap");
    let error = cuda.map(address, PAGE, &handle).unwrap_err();
    assert_eq!(error.kind, DriverErrorKind::Invalid);
    assert!(error.detail.contains("of a handle of 4194304"), "{error}");
    assert_eq!(machine.calls("cuMemMap"), maps, "the driver was asked");
    cuda.release(handle).unwrap();
    cuda.unreserve(address, 2 * PAGE).unwrap();
    drop((context, cuda));
    machine.ends_empty();
}

/// A release that the driver refuses gives the handle back, and it can be released later.
#[test]
fn a_refused_release_returns_the_handle() {
    let machine = Machine::new(&small());
    let (context, cuda) = machine.program(0);
    let handle = cuda.create(PAGE, &FRAME).unwrap();
    machine.libcuda.fail_once("cuMemRelease", 1, concertina_libcuda::Code::NOT_READY).unwrap();
    let returned = cuda.release(handle).unwrap_err();
    assert_eq!(returned.error.kind, DriverErrorKind::NotReady);
    assert_eq!(returned.owner.bytes(), PAGE);
    cuda.release(returned.owner).unwrap();
    drop((context, cuda));
    machine.ends_empty();
}
