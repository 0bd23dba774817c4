//! The virtual memory calls through unmodified cudarc, and what is really behind the addresses.
//!
//! Main types: none. Neighbours: `common` has the calls by short names; `streams.rs` and `control.rs` test the rest.

#![allow(unsafe_code, reason = "device memory is followed through raw pointers")]

mod common;

use common::{Context, GIB, PAGE, fresh};
use concertina_libcuda::{Code, DeviceConfig};
use cudarc::driver::sys::CUresult;

/// A word of device memory, through the pointer itself.
fn word(address: u64) -> *mut u64 {
    address as *mut u64
}

#[test]
fn a_frame_at_two_addresses_is_the_same_bytes() {
    let device = fresh(&DeviceConfig::default().with_capacity(GIB));
    let context = Context::new();
    let at = context.reserve(4 * PAGE).unwrap();
    let frame = context.create(PAGE).unwrap();
    context.map(at, PAGE, frame).unwrap();
    context.map(at + 2 * PAGE, PAGE, frame).unwrap();
    context.set_access(at, PAGE).unwrap();
    context.set_access(at + 2 * PAGE, PAGE).unwrap();

    // SAFETY: both addresses are mapped and accessible, and nobody else has them.
    unsafe { word(at + 24).write_volatile(0xfeed) };
    // SAFETY: as above.
    assert_eq!(unsafe { word(at + 2 * PAGE + 24).read_volatile() }, 0xfeed);
    let mut copied = [0_u64; 4];
    context.to_host(&mut copied, at + 2 * PAGE).unwrap();
    assert_eq!(copied, [0, 0, 0, 0xfeed]);
    context.fill(at + 2 * PAGE, 0xab, PAGE).unwrap();
    context.to_host(&mut copied, at + PAGE - 32).unwrap();
    assert_eq!(copied, [0xabab_abab_abab_abab; 4]);

    // Memory comes back only when the last of handle and mappings has gone; then it is clear.
    assert_eq!(context.free_bytes(), GIB - PAGE);
    context.release(frame).unwrap();
    context.unmap(at, PAGE).unwrap();
    assert_eq!(context.free_bytes(), GIB - PAGE);
    // SAFETY: this mapping is still there.
    assert_eq!(unsafe { word(at + 2 * PAGE).read_volatile() }, 0xabab_abab_abab_abab);
    context.unmap(at + 2 * PAGE, PAGE).unwrap();
    assert_eq!(context.free_bytes(), GIB);
    let again = context.create(PAGE).unwrap();
    context.map(at, PAGE, again).unwrap();
    context.set_access(at, PAGE).unwrap();
    // SAFETY: mapped and accessible again.
    assert_eq!(unsafe { word(at).read_volatile() }, 0, "a new frame has nothing of the old one");

    context.unmap(at, PAGE).unwrap();
    context.release(again).unwrap();
    context.unreserve(at, 4 * PAGE).unwrap();
    drop(context);
    common::assert_nothing_held(&device);
}

#[test]
fn what_breaks_a_rule_is_refused_and_named() {
    let device = fresh(&DeviceConfig::default().with_capacity(GIB));
    let context = Context::new();
    let invalid = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    let at = context.reserve(8 * PAGE).unwrap();
    let (big, small) = (context.create(2 * PAGE).unwrap(), context.create(PAGE).unwrap());
    context.map(at, 2 * PAGE, big).unwrap();
    context.set_access(at, 2 * PAGE).unwrap();

    assert_eq!(context.unmap(at, PAGE), invalid);
    assert_eq!(context.set_access(at + PAGE, PAGE), invalid);
    assert_eq!(context.map(at + PAGE, PAGE, small), invalid);
    assert_eq!(context.unmap(at + 2 * PAGE, PAGE), invalid);
    assert_eq!(context.unreserve(at, 8 * PAGE), invalid);
    assert_eq!(context.map(at + 4 * PAGE, PAGE, small + 1), invalid);
    let named: Vec<_> = device.broken_rules(0);
    let rules = [
        "unmap-part",
        "access-part",
        "map-over-mapped",
        "unmap-unmapped",
        "unreserve-mapped",
        "handle-released",
    ];
    assert_eq!(named.len(), rules.len(), "{named:?}");
    for (line, rule) in named.iter().zip(rules) {
        assert!(line.contains(rule), "{line} names {rule}");
    }
    // Nothing has changed: the bytes are there.
    // SAFETY: still mapped and accessible.
    unsafe { word(at + 2 * PAGE - 8).write_volatile(7) };

    context.unmap(at, 2 * PAGE).unwrap();
    context.release(big).unwrap();
    assert_eq!(context.release(big), invalid);
    context.release(small).unwrap();
    context.unreserve(at, 8 * PAGE).unwrap();
    drop(context);
    common::assert_nothing_held(&device);
}

#[test]
fn a_retained_handle_keeps_the_memory() {
    let device = fresh(&DeviceConfig::default().with_capacity(GIB));
    let context = Context::new();
    let at = context.reserve(PAGE).unwrap();
    let frame = context.create(PAGE).unwrap();
    context.map(at, PAGE, frame).unwrap();
    context.set_access(at, PAGE).unwrap();
    context.fill(at, 0x11, PAGE).unwrap();
    context.release(frame).unwrap();
    let again = context.retain(at + 12_345).unwrap();
    assert_eq!(again, frame, "the same memory has the same handle");
    context.unmap(at, PAGE).unwrap();
    context.map(at, PAGE, again).unwrap();
    context.set_access(at, PAGE).unwrap();
    // SAFETY: mapped and accessible.
    assert_eq!(unsafe { word(at).read_volatile() }, 0x1111_1111_1111_1111);
    context.release(again).unwrap();
    context.unmap(at, PAGE).unwrap();
    context.unreserve(at, PAGE).unwrap();
    drop(context);
    common::assert_nothing_held(&device);
}

#[test]
fn access_is_what_was_set() {
    let device = fresh(&DeviceConfig::default().with_capacity(GIB));
    let context = Context::new();
    let at = context.reserve(3 * PAGE).unwrap();
    let frames: Vec<_> = (0..3).map(|_| context.create(PAGE).unwrap()).collect();
    for (page, &frame) in frames.iter().enumerate() {
        context.map(at + page as u64 * PAGE, PAGE, frame).unwrap();
    }
    assert_eq!(context.access(at), Ok(0));
    context.set_access(at, 3 * PAGE).unwrap();
    context.set_access_to(at + PAGE, PAGE, 1).unwrap();
    context.set_access_to(at + 2 * PAGE, PAGE, 0).unwrap();
    let all = |context: &Context| [0, 1, 2].map(|page| context.access(at + page * PAGE + 5).unwrap());
    assert_eq!(all(&context), [3, 1, 0]);

    let invalid = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    let mut word = [0_u64];
    assert_eq!(context.fill(at, 1, PAGE), Ok(()));
    assert_eq!(context.fill(at, 1, PAGE + 1), invalid);
    assert_eq!(context.to_host(&mut word, at + PAGE), Ok(()));
    assert_eq!(context.to_host(&mut word, at + 2 * PAGE - 4), invalid);
    context.set_access(at, 3 * PAGE).unwrap();
    assert_eq!(all(&context), [3, 3, 3]);
    assert_eq!(context.fill(at, 1, 3 * PAGE), Ok(()));
    assert_eq!(context.fill(at, 1, 3 * PAGE + 1), invalid);

    context.unmap(at, 3 * PAGE).unwrap();
    assert!(context.access(at).is_err());
    frames.iter().for_each(|&frame| context.release(frame).unwrap());
    context.unreserve(at, 3 * PAGE).unwrap();
    drop(context);
    common::assert_nothing_held(&device);
}

#[test]
fn the_device_is_full_when_it_is_full() {
    let device = fresh(&DeviceConfig::default().with_capacity(4 * PAGE));
    let context = Context::new();
    let full = Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let frame = context.create(3 * PAGE).unwrap();
    assert_eq!(context.create(2 * PAGE), full);
    assert_eq!(context.malloc(PAGE as usize + 1), full);
    let block = context.malloc(PAGE as usize).unwrap();
    assert_eq!(context.malloc(1), full);
    context.free(block).unwrap();
    context.release(frame).unwrap();
    assert_eq!(device.counts(0).unwrap().mapped_peak_bytes(), 4 * PAGE);
    drop(context);
    common::assert_nothing_held(&device);
}

/// Runs `fatal` in a process of its own, which must die of a fault there.
fn dies_of_a_fault(test: &str, fatal: fn(&Context)) {
    use std::os::unix::process::ExitStatusExt;
    const IN_THE_CHILD: &str = "CONCERTINA_TEST_DIES";
    const SIGSEGV: i32 = 11;
    if std::env::var_os(IN_THE_CHILD).is_some() {
        let _device = fresh(&DeviceConfig::default());
        fatal(&Context::new());
        std::process::exit(0);
    }
    let program = std::env::current_exe().unwrap();
    let child = std::process::Command::new(program)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(IN_THE_CHILD, "1")
        .output()
        .unwrap();
    assert_eq!(child.status.signal(), Some(SIGSEGV), "{child:?}");
}

/// An accessible page with something in it.
fn page_in_use(context: &Context) -> u64 {
    let at = context.reserve(2 * PAGE).unwrap();
    let frame = context.create(PAGE).unwrap();
    context.map(at, PAGE, frame).unwrap();
    context.set_access(at, PAGE).unwrap();
    // SAFETY: the page is mapped and accessible.
    unsafe { word(at).write_volatile(1) };
    at
}

#[test]
fn a_touch_of_a_page_without_access_is_fatal() {
    dies_of_a_fault("a_touch_of_a_page_without_access_is_fatal", |context| {
        let at = context.reserve(2 * PAGE).unwrap();
        let frame = context.create(PAGE).unwrap();
        context.map(at, PAGE, frame).unwrap();
        // SAFETY: it is not safe: the page is mapped, but nobody has access.
        unsafe { word(at).read_volatile() };
    });
}

#[test]
fn a_touch_of_an_unmapped_page_is_fatal() {
    dies_of_a_fault("a_touch_of_an_unmapped_page_is_fatal", |context| {
        let at = page_in_use(context);
        context.unmap(at, PAGE).unwrap();
        // SAFETY: it is not safe: the page has gone.
        unsafe { word(at).read_volatile() };
    });
}

#[test]
fn a_write_to_a_page_for_reading_is_fatal() {
    dies_of_a_fault("a_write_to_a_page_for_reading_is_fatal", |context| {
        let at = page_in_use(context);
        context.set_access_to(at, PAGE, 1).unwrap();
        // SAFETY: the page may be read.
        if unsafe { word(at).read_volatile() } == 1 {
            // SAFETY: it is not safe: it may not be written.
            unsafe { word(at).write_volatile(2) };
        }
    });
}

#[test]
fn a_touch_of_freed_memory_is_fatal() {
    dies_of_a_fault("a_touch_of_freed_memory_is_fatal", |context| {
        let block = context.malloc(64).unwrap();
        // SAFETY: the block is live.
        unsafe { word(block).write_volatile(1) };
        context.free(block).unwrap();
        // SAFETY: it is not safe: the block has gone.
        unsafe { word(block).read_volatile() };
    });
}

#[test]
fn small_mallocs_share_granules_and_large_ones_do_not() {
    let device = fresh(&DeviceConfig::default().with_capacity(16 * PAGE));
    let context = Context::new();
    let small: Vec<u64> = (0..100).map(|_| context.malloc(1000).unwrap()).collect();
    assert_eq!(context.free_bytes(), 15 * PAGE);
    let large = context.malloc(5 * PAGE as usize + 1).unwrap();
    assert_eq!(context.free_bytes(), 9 * PAGE);
    for (index, &block) in small.iter().enumerate() {
        context.fill(block, index as u8, 1000).unwrap();
    }
    context.fill(large, 0xee, 5 * PAGE + 1).unwrap();
    let mut bytes = [0_u8; 1000];
    for (index, &block) in small.iter().enumerate() {
        context.to_host(&mut bytes, block).unwrap();
        assert_eq!(bytes, [index as u8; 1000]);
    }
    let (evens, odds): (Vec<_>, Vec<_>) = small.iter().partition(|&&block| block / 1024 % 2 == 0);
    for &block in evens.iter().chain(&odds) {
        context.free(block).unwrap();
        assert_eq!(context.free(block), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
    }
    assert_eq!(context.free_bytes(), 10 * PAGE);
    context.free(large).unwrap();
    drop(context);
    common::assert_nothing_held(&device);
}

#[test]
fn the_mapping_budget_says_no_before_the_process_is_in_danger() {
    // Small pages: what counts is their number.
    let page = 4096;
    let config = DeviceConfig { granularity_bytes: page, ..DeviceConfig::default() }.with_capacity(GIB);
    let device = fresh(&config);
    let budget = device.max_mappings().expect("a limit on host pages");
    let context = Context::new();
    let at = context.reserve(200_000 * page).unwrap();
    // One frame at every other page: the most memory areas that so many mappings can take.
    let frame = context.create(page).unwrap();
    let mut mapped = 0;
    let refused = loop {
        if let Err(code) = context.map(at + 2 * mapped * page, page, frame) {
            break code;
        }
        mapped += 1;
        assert!(mapped < 200_000, "no limit");
        if mapped <= budget {
            context.set_access(at + 2 * (mapped - 1) * page, page).unwrap();
        } else {
            let over = context.set_access(at + 2 * (mapped - 1) * page, page);
            assert_eq!(over, Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY), "mapping {mapped}");
        }
    };
    assert_eq!(refused, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert!(mapped > budget && mapped <= budget + 2048, "{mapped} mapped, a budget of {budget}");
    // The process is well: it can allocate, and start threads.
    let kept: Vec<Vec<u8>> = (0..200).map(|_| vec![1_u8; 1 << 20]).collect();
    let sum = std::thread::spawn(move || kept.iter().map(|block| u64::from(block[7])).sum::<u64>());
    assert_eq!(sum.join().unwrap(), 200);

    for index in 0..mapped {
        context.unmap(at + 2 * index * page, page).unwrap();
    }
    context.release(frame).unwrap();
    context.unreserve(at, 200_000 * page).unwrap();
    drop(context);
    common::assert_nothing_held(&device);
}

#[test]
fn a_budget_beyond_the_host_is_refused_with_what_to_do() {
    let library = concertina_libcuda::load().unwrap();
    let config = DeviceConfig { max_mappings: Some(1 << 40), ..DeviceConfig::default() };
    let error = library.fresh(&config).unwrap_err().to_string();
    assert!(error.contains("vm.max_map_count"), "{error}");
    assert_eq!(Code::new(2), Some(Code::OUT_OF_MEMORY));
}
