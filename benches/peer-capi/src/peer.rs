//! The allocator behind the C functions.
//!
//! Main types: [`Peer`], [`PeerError`]. Neighbours: `lib` has the functions; `concertina::ByAddress` finds a block by its address.

use core::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use concertina::{Address, Allocator, ByAddress, Config, Layout, Policy, Stats, Stream};
use concertina_cuda::cudarc::driver::sys::CUstream;
use concertina_cuda::{Cuda, OpenError, Support};

/// Names the policy.
const VARIABLE: &str = "CONCERTINA_PEER_POLICY";

/// Why there is no allocator.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerError {
    /// The environment asks for what there isn't.
    #[error("{VARIABLE}={0}: it may be balanced, which it is when not set, or lean")]
    Policy(String),
    /// No driver, or no device.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The device has no virtual memory, which all figures rest on.
    #[error("the device has no virtual memory: {0}")]
    NoVirtualMemory(String),
    /// The allocator refuses.
    #[error(transparent)]
    Allocator(#[from] concertina::Error),
}

/// The policy that the environment asks for, with its name.
pub(crate) fn policy() -> Result<(Policy, &'static core::ffi::CStr), PeerError> {
    let word = std::env::var_os(VARIABLE).unwrap_or_default();
    match word.to_str() {
        Some("" | "balanced") => Ok((Policy::Balanced, c"concertina balanced")),
        Some("lean") => Ok((Policy::Lean, c"concertina lean")),
        _ => Err(PeerError::Policy(word.to_string_lossy().into_owned())),
    }
}

/// An allocator by address, and the streams of its program by number.
#[derive(Debug)]
pub(crate) struct Peer {
    allocator: Allocator<Cuda>,
    streams: Vec<Stream<Cuda>>,
    by_address: ByAddress<Cuda>,
    refused: AtomicU64,
}

impl Peer {
    /// An allocator on the first device, for these streams.
    ///
    /// # Safety
    /// They are null (the legacy default stream) or streams of the device's primary context, which live as long as the
    /// value does.
    pub(crate) unsafe fn new(streams: &[*mut c_void]) -> Result<Self, PeerError> {
        let (policy, _) = policy()?;
        let cuda = Cuda::open(0)?;
        if let Support::Missing(why) = &cuda.probe().virtual_memory {
            return Err(PeerError::NoVirtualMemory(why.to_string()));
        }
        let context = cuda.context().clone();
        let config = Config::builder().name("peer").policy(policy).device(cuda.ordinal()).build();
        let allocator = Allocator::new(cuda, config)?;
        let register = |raw: &*mut c_void| {
            let raw: CUstream = raw.cast();
            // SAFETY: the caller promises that it is one of this context's, and lives on.
            let stream = unsafe { concertina_cuda::Stream::borrowed(&context, raw) };
            allocator.register_stream(stream)
        };
        let streams = streams.iter().map(register).collect();
        let by_address = allocator.by_address();
        Ok(Self { allocator, streams, by_address, refused: AtomicU64::new(0) })
    }

    /// The address of a block; `None` if there is none.
    #[inline]
    pub(crate) fn allocate(&self, bytes: u64, stream: i32) -> Option<u64> {
        let allocated =
            self.stream(stream).map(|stream| self.by_address.allocate(Layout::new(bytes), stream));
        let Some(Ok(address)) = allocated else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        Some(address.get())
    }

    /// Frees the block at an address, in the order of its stream.
    #[inline]
    pub(crate) fn free(&self, address: u64) {
        if let Err(error) = self.by_address.free(Address::new(address)) {
            complain(format_args!("a free: {error}"));
        }
    }

    /// Notes that work on another stream uses the block.
    pub(crate) fn record(&self, address: u64, stream: i32) {
        let Some(on) = self.stream(stream) else {
            return complain(format_args!("a use of {address:#x} on stream {stream}, which is none"));
        };
        if let Err(error) = self.by_address.record_stream(Address::new(address), on) {
            complain(format_args!("a use on stream {stream}: {error}"));
        }
    }

    /// Gives back what is free.
    pub(crate) fn empty(&self) {
        self.allocator.trim();
    }

    /// The figures, and how many requests were refused.
    pub(crate) fn stats(&self) -> (Stats, u64) {
        (self.allocator.stats(), self.refused.load(Ordering::Relaxed))
    }

    #[inline]
    fn stream(&self, number: i32) -> Option<&Stream<Cuda>> {
        self.streams.get(usize::try_from(number).ok()?)
    }
}

/// Tells what a caller in C can't be told by a value.
#[cold]
pub(crate) fn complain(what: core::fmt::Arguments<'_>) {
    eprintln!("concertina-peer-capi: {what}");
}
