//! A small device on host pages, with kernels that fill memory with patterns and look whether they are there.
//!
//! Main types: [`PatternDevice`], [`Mismatch`]. Neighbours: `run` and `steal` launch them.

use core::ffi::c_void;
use core::fmt;
use std::ffi::CString;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use concertina_cuda::Cuda;
use concertina_libcuda::{DeviceConfig, FreshDevice, Launch, load};
use concertina_vmm::Address;
use cudarc::driver::{CudaContext, CudaStream, sys};

pub(crate) const PAGE: u64 = 64 << 10;
const PAGES: u64 = 160;

/// A byte that was not what its owner wrote.
#[derive(Clone, Debug)]
pub(crate) struct Mismatch {
    pattern: u64,
    bytes: u64,
    address: u64,
    expected: u64,
    found: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pattern, bytes, address, expected, found } = self;
        write!(f, "{found:016x} at {address:#x}, not {expected:016x} of pattern {pattern} over {bytes} bytes")
    }
}

/// The first one that a kernel saw.
pub(crate) type Seen = Arc<Mutex<Option<Mismatch>>>;

/// The word of a pattern at an index: no two patterns, and no two places of one, have many in common.
pub(crate) fn word(pattern: u64, index: u64) -> u64 {
    (pattern ^ index.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Place and bytes of the words of a piece of memory; the last may be short.
fn words(start: *mut u8, bytes: u64) -> impl Iterator<Item = (u64, *mut u8, usize)> {
    (0..bytes.div_ceil(8)).map(move |index| {
        let at = index * 8;
        (index, start.wrapping_add(at as usize), (bytes - at).min(8) as usize)
    })
}

fn fill(launch: &Launch<'_>) {
    let [address, bytes, pattern] = [0, 1, 2].map(|index| launch.parameter::<u64>(index));
    for (index, place, length) in words(launch.pointer(address, bytes as usize), bytes) {
        let word = word(pattern, index).to_le_bytes();
        // SAFETY: the program launches it on live blocks of its own; else this faults, which is what is tested.
        unsafe { ptr::copy_nonoverlapping(word.as_ptr(), place, length) };
    }
}

fn check(launch: &Launch<'_>, seen: &Seen) {
    let [address, bytes, pattern] = [0, 1, 2].map(|index| launch.parameter::<u64>(index));
    for (index, place, length) in words(launch.pointer(address, bytes as usize), bytes) {
        let mut found = [0_u8; 8];
        // SAFETY: as in `fill`.
        unsafe { ptr::copy_nonoverlapping(place, found.as_mut_ptr(), length) };
        let mut expected = word(pattern, index).to_le_bytes();
        expected[length..].fill(0);
        if found != expected {
            let [expected, found] = [expected, found].map(u64::from_le_bytes);
            let mismatch = Mismatch { pattern, bytes, address: address + index * 8, expected, found };
            seen.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(mismatch);
            return;
        }
    }
}

/// Fresh for one program.
pub(crate) struct PatternDevice {
    pub(crate) cuda: Cuda,
    pub(crate) context: Arc<CudaContext>,
    seen: Seen,
    module: sys::CUmodule,
    fill: sys::CUfunction,
    check: sys::CUfunction,
    pub(crate) libcuda: FreshDevice,
}

impl PatternDevice {
    pub(crate) fn new() -> Self {
        let config =
            DeviceConfig { granularity_bytes: PAGE, capacity_bytes: PAGES * PAGE, ..DeviceConfig::default() };
        let libcuda = load().expect("built beside the tests").fresh(&config).expect("a device");
        let context = CudaContext::new(0).expect("a context");
        let cuda = Cuda::new(&context).expect("a driver");
        let seen = Seen::default();
        let filled = |launch: &Launch<'_>| vec![launch.writes(0, launch.parameter(1))];
        libcuda.register_kernel_touching("fill", &[8; 3], fill, filled).expect("a name");
        let sink = Arc::clone(&seen);
        let looked_at = |launch: &Launch<'_>| vec![launch.reads(0, launch.parameter(1))];
        let check = move |launch: &Launch<'_>| check(launch, &sink);
        libcuda.register_kernel_touching("check", &[8; 3], check, looked_at).expect("a name");
        let mut module = ptr::null_mut();
        // SAFETY: the emulated driver doesn't look into the image.
        unsafe { sys::cuModuleLoadData(&raw mut module, c"any".as_ptr().cast()) }.result().expect("a module");
        let [fill, check] = ["fill", "check"].map(|name| function(module, name));
        Self { cuda, context, seen, module, fill, check, libcuda }
    }

    /// One more kernel, by its name.
    pub(crate) fn kernel(
        &self,
        name: &str,
        kernel: impl Fn(&Launch<'_>) + Send + Sync + 'static,
    ) -> sys::CUfunction {
        self.libcuda.register_kernel(name, &[8; 3], kernel).expect("a name");
        function(self.module, name)
    }

    /// Fills `bytes` from an address on with a pattern, when the stream gets there.
    pub(crate) fn fill(&self, stream: &CudaStream, at: Address, bytes: u64, pattern: u64) {
        self.launch(self.fill, stream, at, bytes, pattern);
    }

    /// Looks whether they have the pattern, when the stream gets there.
    pub(crate) fn check(&self, stream: &CudaStream, at: Address, bytes: u64, pattern: u64) {
        self.launch(self.check, stream, at, bytes, pattern);
    }

    pub(crate) fn launch(
        &self,
        function: sys::CUfunction,
        stream: &CudaStream,
        at: Address,
        bytes: u64,
        pattern: u64,
    ) {
        let mut values = [at.get(), bytes, pattern];
        let [a, b, c] = &mut values;
        let mut parameters = [a, b, c].map(|value| ptr::from_mut(value).cast::<c_void>());
        // SAFETY: three parameters of eight bytes, as registered; they are copied before the call returns.
        let launched = unsafe {
            sys::cuLaunchKernel(
                function,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                stream.cu_stream(),
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        launched.result().expect("launched");
    }

    /// The first wrong byte that a kernel saw so far.
    pub(crate) fn mismatch(&self) -> Option<Mismatch> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Nothing is left, no rule was broken, no byte was wrong.
    pub(crate) fn end(self) {
        let Self { cuda, context, seen, module, libcuda, .. } = self;
        // SAFETY: nobody launches from it any more.
        unsafe { sys::cuModuleUnload(module) }.result().expect("unloaded");
        drop((cuda, context));
        if let Err(held) = libcuda.check_nothing_held() {
            panic!("{held}");
        }
        assert_eq!(libcuda.races(0), Vec::<String>::new());
        assert_eq!(libcuda.broken_rules(0), Vec::<String>::new());
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mismatch) = seen {
            panic!("seen at the end: {mismatch}");
        }
    }
}

fn function(module: sys::CUmodule, name: &str) -> sys::CUfunction {
    let name = CString::new(name).expect("no zero");
    let mut function = ptr::null_mut();
    // SAFETY: the module is loaded, and the name ends with a zero.
    unsafe { sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) }
        .result()
        .expect("registered");
    function
}
