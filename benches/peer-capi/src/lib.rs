//! Concertina behind the eight C functions that a replay program for allocators in shared libraries asks for, so that it
//! is run by the same clock, traces and fake driver as others are: `benches/peers` says how.
//!
//! Not a C interface for programs: there is one allocator a process, on device 0, and it stays to the end. The driver is
//! found when it is initialised, by `dlopen`; streams are those of the program, by the driver's names for them.
//!
//! A caller in C can't be told of mistakes: they are written to the standard error, and change nothing. A panic does not
//! leave a function: as `extern "C"` says, it ends the process.

#![allow(unsafe_code)]

mod peer;

use core::ffi::{CStr, c_char, c_int, c_void};
use std::slice;
use std::sync::{Mutex, OnceLock, PoisonError};

use peer::{Peer, complain};

static PEER: OnceLock<Peer> = OnceLock::new();

/// What is known of the allocator, as C lays it out. Bytes, or numbers of things.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PeerStats {
    /// Most mapped bytes.
    pub reserved_peak: u64,
    /// Mapped bytes.
    pub reserved_now: u64,
    /// Most live bytes.
    pub allocated_peak: u64,
    /// Live bytes.
    pub allocated_now: u64,
    /// Most live bytes, as asked for: the same here.
    pub requested_peak: u64,
    /// Not counted: 0.
    pub segments_peak: u64,
    /// Not counted: 0.
    pub retries: i64,
    /// Requests that were refused.
    pub ooms: i64,
    /// Frames created.
    pub device_alloc: i64,
    /// Not counted: 0.
    pub device_free: i64,
}

/// The allocator's name and its policy. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn peer_name() -> *const c_char {
    let name: &CStr = peer::policy().map_or(c"concertina", |(_, name)| name);
    name.as_ptr()
}

/// Makes the allocator, for these streams; the environment variable `CONCERTINA_PEER_POLICY` names its policy. Returns 0,
/// or 1 if it is there already or can't be made.
///
/// # Safety
/// `streams` points to `count` streams of the primary context of device 0, or is null with a count of 0; a null among them
/// is the legacy default stream. None is destroyed before the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_init(streams: *const *mut c_void, count: usize) -> c_int {
    static INITIALISING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = INITIALISING.lock().unwrap_or_else(PoisonError::into_inner);
    if PEER.get().is_some() {
        complain(format_args!("it is initialised already"));
        return 1;
    }
    let streams = match count {
        0 => &[],
        // SAFETY: the caller says so.
        _ => unsafe { slice::from_raw_parts(streams, count) },
    };
    // SAFETY: the caller says so of the streams; the value lives as long as the process.
    match unsafe { Peer::new(streams) } {
        Ok(peer) => {
            PEER.get_or_init(|| peer);
            0
        }
        Err(error) => {
            complain(format_args!("no allocator: {error}"));
            1
        }
    }
}

/// Does nothing: threads need no preparation.
#[unsafe(no_mangle)]
pub extern "C" fn peer_thread_init(_stream: c_int) {}

/// A block of `bytes` on a stream, by its number; null if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn peer_alloc(bytes: u64, stream: c_int) -> *mut c_void {
    let address = PEER.get().and_then(|peer| peer.allocate(bytes, stream)).unwrap_or(0);
    // An address of the device: never followed here.
    core::ptr::without_provenance_mut(address as usize)
}

/// Frees a block in the order of the stream that it was allocated on. Size and stream are not looked at.
#[unsafe(no_mangle)]
pub extern "C" fn peer_free(block: *mut c_void, _bytes: u64, _stream: c_int) {
    if let Some(peer) = PEER.get()
        && !block.is_null()
    {
        peer.free(block.addr() as u64);
    }
}

/// Says that work on this stream uses the block, too.
#[unsafe(no_mangle)]
pub extern "C" fn peer_record(block: *mut c_void, stream: c_int) {
    if let Some(peer) = PEER.get()
        && !block.is_null()
    {
        peer.record(block.addr() as u64, stream);
    }
}

/// Gives back what is free, and that no work uses any more.
#[unsafe(no_mangle)]
pub extern "C" fn peer_empty() {
    if let Some(peer) = PEER.get() {
        peer.empty();
    }
}

/// Writes the figures to `to`: zeros if there is no allocator.
///
/// # Safety
/// `to` is null or points to a place for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_stats(to: *mut PeerStats) {
    let figures = PEER.get().map(|peer| {
        let (stats, refused) = peer.stats();
        PeerStats {
            reserved_peak: stats.mapped_peak_bytes,
            reserved_now: stats.mapped_bytes,
            allocated_peak: stats.live_peak_bytes,
            allocated_now: stats.live_bytes,
            requested_peak: stats.live_peak_bytes,
            ooms: refused.cast_signed(),
            device_alloc: stats.created_frames.cast_signed(),
            ..PeerStats::default()
        }
    });
    if !to.is_null() {
        // SAFETY: the caller says so.
        unsafe { to.write(figures.unwrap_or_default()) };
    }
}
