//! The calls that only measurements make.
//!
//! Main types: none. Neighbours: `concertina_bench` has the test of all of them together, with every failure.

use std::time::Duration;

use concertina_cuda::{Access, Purpose};
use concertina_libcuda::{Code, DeviceConfig};
use concertina_vmm::{Driver as _, DriverErrorKind};

use crate::{FRAME, Machine, PAGE, Page, read, small, stream, write};

#[test]
fn an_area_has_its_frames_where_the_order_says() {
    let machine = Machine::new(&small());
    {
        let (context, cuda) = machine.program(0);
        let stream = stream(&context);
        let raw = cuda.raw_calls();
        // Places 0 and 2 show the same frame: what is written at one is read at the other.
        let area = raw.mapped_area(PAGE, &[2, 0, 2, 1]).unwrap();
        assert_eq!((area.bytes(), machine.calls("cuMemSetAccess")), (4 * PAGE, 2));
        write(&context, area.address(), b"first");
        assert_eq!(&read::<5>(&context, area.address().add(2 * PAGE)), b"first");
        assert_eq!(&read::<5>(&context, area.address().add(PAGE)), &[0; 5]);
        // Places 0 and 1 go to 2 and 3, and so the frame of 0 stays as it is.
        assert_eq!(area.copy_half(&stream).unwrap(), 2 * PAGE);
        let mut bytes = [1; 6];
        area.read(2 * PAGE, &mut bytes, &stream).unwrap();
        assert_eq!(&bytes, b"first\0");
        area.fill(9, &stream).unwrap();
        area.read(4 * PAGE - 6, &mut bytes, &stream).unwrap();
        assert_eq!(bytes, [9; 6]);
        let error = area.read(4 * PAGE - 5, &mut bytes, &stream).unwrap_err();
        assert_eq!(error.kind, DriverErrorKind::Invalid, "{error}");
        area.give_back().unwrap();
        let error = raw.mapped_area(PAGE, &[0, 2]).unwrap_err();
        assert!(error.to_string().contains("frame 2 of 2 frames"), "{error}");
        assert_eq!(raw.mapped_area(u64::MAX, &[0, 1]).unwrap_err().kind, DriverErrorKind::Invalid);
    }
    machine.ends_empty();
}

#[test]
fn an_area_that_can_not_be_made_leaves_nothing() {
    let machine = Machine::new(&small());
    {
        let (_, cuda) = machine.program(0);
        let before = cuda.memory_info().unwrap();
        for (function, nth) in
            [("cuMemAddressReserve", 1), ("cuMemCreate", 3), ("cuMemMap", 2), ("cuMemSetAccess", 1)]
        {
            machine.libcuda.fail_once(function, nth, Code::OUT_OF_MEMORY).unwrap();
            let error = cuda.raw_calls().mapped_area(PAGE, &[0, 1, 2]).unwrap_err();
            assert!(error.is_out_of_memory(), "{function}: {error}");
            assert_eq!(cuda.memory_info().unwrap(), before, "{function}");
        }
        // More than the device has.
        assert!(cuda.raw_calls().malloc_area(before.total_bytes + 1).unwrap_err().is_out_of_memory());
    }
    machine.ends_empty();
}

#[test]
fn a_kernel_runs_until_it_is_told_or_its_time_is_over() {
    let machine = Machine::new(&small());
    machine.libcuda.register_measuring_kernels().unwrap();
    {
        let (context, cuda) = machine.program(0);
        let stream = stream(&context);
        let mut kernels = cuda.raw_calls().kernels().unwrap();
        let spin = kernels.spin(&stream, Duration::from_secs(3_600)).unwrap();
        assert!(spin.is_running().unwrap());
        spin.stop().unwrap();
        // Dropped, it is waited for as well: the next one has the same words.
        drop(kernels.spin(&stream, Duration::from_secs(3_600)).unwrap());
        let spin = kernels.spin(&stream, Duration::from_millis(5)).unwrap();
        // A free waits for it.
        let address = cuda.malloc(PAGE).unwrap();
        cuda.free(address).unwrap();
        assert!(!spin.is_running().unwrap());
        drop(spin);

        let area = cuda.raw_calls().malloc_area(PAGE).unwrap();
        assert_eq!(kernels.gather(&area, 2, 3, &stream).unwrap(), 2 * 256 * 3);
        for (blocks, reads) in [(0, 1), (1, 0), (1 << 16, 1)] {
            let error = kernels.gather(&area, blocks, reads, &stream).unwrap_err();
            assert_eq!(error.kind, DriverErrorKind::Invalid, "{error}");
        }
    }
    machine.ends_empty();
}

#[test]
fn kernels_that_are_not_there_are_an_error() {
    let machine = Machine::new(&small());
    {
        let (_, cuda) = machine.program(0);
        let error = cuda.raw_calls().kernels().unwrap_err();
        assert!(error.to_string().contains("concertina_spin"), "{error}");
    }
    machine.ends_empty();
}

#[test]
fn access_is_what_was_set() {
    let machine = Machine::new(&small());
    {
        let (_, cuda) = machine.program(0);
        let raw = cuda.raw_calls();
        let page = Page::new(&cuda);
        assert_eq!(raw.access(page.address).unwrap(), Access::ReadWrite);
        let place = cuda.reserve(PAGE, 0).unwrap();
        assert_eq!(raw.access(place).unwrap_err().kind, DriverErrorKind::Invalid);
        cuda.map(place, PAGE, &page.handle).unwrap();
        assert_eq!(raw.access(place).unwrap(), Access::None);
        cuda.unmap(place, PAGE).unwrap();
        cuda.unreserve(place, PAGE).unwrap();
        page.give_back(&cuda);
    }
    machine.ends_empty();
}

#[test]
fn what_the_allocator_never_asks_reaches_the_driver() {
    let machine = Machine::new(&small());
    {
        let (_, cuda) = machine.program(0);
        let raw = cuda.raw_calls();
        let place = cuda.reserve(2 * PAGE, 0).unwrap();
        let handle = cuda.create(2 * PAGE, &FRAME).unwrap();
        let maps = machine.calls("cuMemMap");
        for (bytes, offset) in [(PAGE, 0), (PAGE, PAGE), (4 * PAGE, 0)] {
            let error = raw.map_part(place, bytes, offset, &handle).unwrap_err();
            assert_eq!(error.kind, DriverErrorKind::Invalid, "{error}");
        }
        assert_eq!(machine.calls("cuMemMap"), maps + 3);
        cuda.release(handle).unwrap();
        cuda.unreserve(place, 2 * PAGE).unwrap();

        assert_eq!(raw.granularity_for(Purpose::Plain).unwrap(), PAGE);
        let error = raw.create_for(PAGE, Purpose::ExportAsFile).unwrap_err();
        assert_eq!(error.kind, DriverErrorKind::NotSupported, "{error}");
        cuda.release(raw.create_for(PAGE, Purpose::Plain).unwrap()).unwrap();
    }
    machine.ends_empty();
}

#[test]
fn blocks_of_the_pool_go_round_until_it_is_trimmed() {
    let machine = Machine::new(&small());
    {
        let (context, cuda) = machine.program(0);
        let (stream, raw) = (stream(&context), cuda.raw_calls());
        let first = raw.pool_malloc(PAGE, &stream).unwrap();
        raw.pool_free(first, &stream).unwrap();
        assert_eq!(raw.pool_malloc(PAGE, &stream).unwrap(), first);
        raw.pool_free(first, &stream).unwrap();
        assert_eq!(raw.pool_free(first, &stream).unwrap_err().kind, DriverErrorKind::Invalid);
        raw.synchronize().unwrap();
        raw.trim_pool().unwrap();
        let info = cuda.memory_info().unwrap();
        assert_eq!(info.free_bytes, info.total_bytes);
    }
    machine.ends_empty();
    drop(machine);
    let machine = Machine::new(&DeviceConfig { memory_pools: false, ..small() });
    let (context, cuda) = machine.program(0);
    let error = cuda.raw_calls().pool_malloc(PAGE, &stream(&context)).unwrap_err();
    assert_eq!(error.kind, DriverErrorKind::NotSupported, "{error}");
}
