//! The shared library as a replay program uses it: opened by its path, over the emulated libcuda.
//!
//! Main type: [`Functions`]. Neighbours: `benches/peers` has such programs, and another driver. One test, since there is one
//! allocator a process.

#![cfg(target_os = "linux")]
// Functions found by name are called.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;

use concertina_cuda::cudarc::driver::{CudaContext, CudaStream};
use concertina_libcuda::{DeviceConfig, load};
use libloading::Library;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const PAGE: u64 = 2 << 20;
const PAGES: u64 = 64;

/// As the C header that replay programs have lays it out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Stats {
    reserved_peak: u64,
    reserved_now: u64,
    allocated_peak: u64,
    allocated_now: u64,
    requested_peak: u64,
    segments_peak: u64,
    retries: i64,
    ooms: i64,
    device_alloc: i64,
    device_free: i64,
}

/// The exported functions.
#[derive(Clone, Copy)]
struct Functions {
    name: extern "C" fn() -> *const c_char,
    init: unsafe extern "C" fn(*const *mut c_void, usize) -> c_int,
    thread_init: extern "C" fn(c_int),
    alloc: extern "C" fn(u64, c_int) -> *mut c_void,
    free: extern "C" fn(*mut c_void, u64, c_int),
    record: extern "C" fn(*mut c_void, c_int),
    empty: extern "C" fn(),
    stats: unsafe extern "C" fn(*mut Stats),
}

impl Functions {
    /// Those of the library that cargo builds beside this program.
    fn find() -> Self {
        let mut path = std::env::current_exe().unwrap();
        path.set_file_name("libconcertina_peer_capi.so");
        // It has an allocator to the end of the process.
        let library = Box::leak(Box::new(open(path)));
        macro_rules! find {
            ($name:literal) => {
                // SAFETY: the library's function of this name has the type of the field.
                *unsafe { library.get($name) }.unwrap()
            };
        }
        Self {
            name: find!(b"peer_name"),
            init: find!(b"peer_init"),
            thread_init: find!(b"peer_thread_init"),
            alloc: find!(b"peer_alloc"),
            free: find!(b"peer_free"),
            record: find!(b"peer_record"),
            empty: find!(b"peer_empty"),
            stats: find!(b"peer_stats"),
        }
    }

    fn init(&self, streams: &[*mut c_void]) -> c_int {
        // SAFETY: they are streams of the primary context, or null, and live until the test ends.
        unsafe { (self.init)(streams.as_ptr(), streams.len()) }
    }

    fn stats(&self) -> Stats {
        let mut stats = Stats { retries: -1, ..Stats::default() };
        // SAFETY: the place is of a live value.
        unsafe { (self.stats)(&raw mut stats) };
        stats
    }

    /// The address, or 0.
    fn alloc(&self, bytes: u64, stream: c_int) -> u64 {
        (self.alloc)(bytes, stream).addr() as u64
    }

    fn free(&self, address: u64) {
        (self.free)(ptr::without_provenance_mut(address as usize), 0, -1);
    }

    fn record(&self, address: u64, stream: c_int) {
        (self.record)(ptr::without_provenance_mut(address as usize), stream);
    }
}

fn open(path: PathBuf) -> Library {
    // SAFETY: its initialisers are those of Rust's standard library.
    unsafe { Library::new(&path) }.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// From 1 byte to 8 MiB, log-uniform.
fn size(random: &mut ChaCha8Rng) -> u64 {
    random.random_range(0.0..23.0_f64).exp2() as u64
}

#[test]
fn a_replay_program_is_served() {
    let config = DeviceConfig { capacity_bytes: PAGES * PAGE, ..DeviceConfig::default() };
    let libcuda = load().unwrap().fresh(&config).unwrap();
    let peer = Functions::find();

    nothing_is_there_before_the_start(&peer);
    let context = CudaContext::new(0).unwrap();
    let streams: Vec<Arc<CudaStream>> = (0..2).map(|_| context.new_stream().unwrap()).collect();
    let raw = [ptr::null_mut(), streams[0].cu_stream().cast(), streams[1].cu_stream().cast()];
    assert_eq!(peer.init(&raw), 0);
    assert_eq!(peer.init(&raw), 1, "there is one already");

    blocks_are_apart(&peer);
    mistakes_change_nothing(&peer);
    a_full_device_is_told(&peer);
    threads_free_for_one_another(&peer);

    // The first records what must be done before memory can go; once it is, the second gives all back.
    (peer.empty)();
    context.synchronize().unwrap();
    (peer.empty)();
    let end = peer.stats();
    assert_eq!((end.allocated_now, end.reserved_now), (0, 0), "{end:?}");
    assert!(end.reserved_peak <= PAGES * PAGE && end.reserved_peak >= end.allocated_peak, "{end:?}");
    assert_eq!(libcuda.broken_rules(0), Vec::<String>::new());
}

fn nothing_is_there_before_the_start(peer: &Functions) {
    // SAFETY: a static text.
    assert_eq!(unsafe { CStr::from_ptr((peer.name)()) }, c"concertina balanced");
    assert_eq!(peer.alloc(512, 0), 0);
    peer.free(512);
    peer.record(512, 0);
    (peer.empty)();
    assert_eq!(peer.stats(), Stats::default());
}

/// A random program on three streams: no two live blocks overlap, and live bytes are those of the program.
fn blocks_are_apart(peer: &Functions) {
    let mut random = ChaCha8Rng::seed_from_u64(6);
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    let mut peak = 0;
    for number in 0..20_000 {
        let stream = random.random_range(0..3);
        if live.values().sum::<u64>() < PAGES / 2 * PAGE && random.random_bool(0.6) {
            let bytes = size(&mut random);
            let address = peer.alloc(bytes, stream);
            assert!(address != 0 && address.is_multiple_of(512), "{number}: {bytes} bytes at {address:#x}");
            let before = live.range(..address + bytes).next_back();
            assert!(
                before.is_none_or(|(at, bytes)| at + bytes <= address),
                "{number}: {before:x?} {address:x}"
            );
            live.insert(address, bytes);
            peak = peak.max(live.values().sum());
        } else if let Some((&address, _)) = live.iter().nth(random.random_range(0..=live.len())) {
            if random.random_bool(0.2) {
                peer.record(address, stream);
            } else {
                peer.free(address);
                live.remove(&address);
            }
        }
        if number % 1_000 == 0 {
            assert_eq!(peer.stats().allocated_now, live.values().sum::<u64>());
        }
    }
    assert_eq!(peer.stats().allocated_peak, peak);
    assert_eq!(peer.stats().ooms, 0);
    for address in live.into_keys() {
        peer.free(address);
    }
    assert_eq!(peer.stats().allocated_now, 0);
}

fn mistakes_change_nothing(peer: &Functions) {
    assert_eq!((peer.alloc(0, 0), peer.alloc(512, 3), peer.alloc(512, -1)), (0, 0, 0));
    assert_eq!(peer.alloc(u64::MAX, 0), 0);
    let block = peer.alloc(4096, 1);
    let before = peer.stats();
    assert_eq!((before.allocated_now, before.ooms), (4096, 4));
    for address in [0, 1, 512, block + 1, block + 512, block - 512, u64::MAX] {
        peer.free(address);
        peer.record(address, 1);
    }
    peer.record(block, 9);
    assert_eq!(peer.stats(), before);
    peer.free(block);
    peer.free(block);
    assert_eq!(peer.stats().allocated_now, 0);
    assert_eq!(peer.alloc(4096, 1), block, "its place is free");
    peer.free(block);
}

fn a_full_device_is_told(peer: &Functions) {
    let before = peer.stats().ooms;
    assert_eq!(peer.alloc((PAGES + 1) * PAGE, 0), 0);
    let most = peer.alloc(PAGES * PAGE, 1);
    assert_ne!(most, 0, "all frames are free");
    assert_eq!(peer.alloc(PAGE, 2), 0);
    assert_eq!(peer.stats().ooms, before + 2);
    peer.free(most);
    let again = peer.alloc(PAGE, 2);
    assert_ne!(again, 0);
    peer.free(again);
}

/// Each of two threads has a stream, and leaves the free of every second block to the other, unless that one is slow.
fn threads_free_for_one_another(peer: &Functions) {
    let (to_first, first) = sync_channel::<u64>(8);
    let (to_second, second) = sync_channel::<u64>(8);
    thread::scope(|scope| {
        for (stream, to_other, own) in [(1, to_second, first), (2, to_first, second)] {
            scope.spawn(move || {
                (peer.thread_init)(stream);
                let mut random = ChaCha8Rng::seed_from_u64(stream as u64);
                for number in 0..20_000 {
                    let address = peer.alloc(size(&mut random) / 8 + 1, stream);
                    assert_ne!(address, 0);
                    if number % 2 == 0 || to_other.try_send(address).is_err() {
                        peer.free(address);
                    }
                    own.try_iter().for_each(|address| peer.free(address));
                }
                drop(to_other);
                own.iter().for_each(|address| peer.free(address));
            });
        }
    });
    assert_eq!(peer.stats().allocated_now, 0);
}
