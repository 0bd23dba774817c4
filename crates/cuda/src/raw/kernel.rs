//! Kernels for measurements: one that runs as long as it is let, and one that reads at random.
//!
//! Main types: [`Kernels`], [`Spin`]. Neighbours: `area` is what is read; the emulated `libcuda` has functions of the host
//! under the same names (`Library::register_measuring_kernels`).

use core::ffi::{CStr, c_void};
use core::fmt;
use core::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use concertina_vmm::{Call, Driver as _, DriverError, DriverErrorKind};
use cudarc::driver::sys;

use super::Area;
use crate::context::Context;
use crate::cuda::Cuda;
use crate::event::Event;
use crate::functions;
use crate::stream::Stream;

/// Both kernels, in PTX that any device with virtual memory compiles. (PTX ISA, "Special Registers": `%globaltimer` counts
/// nanoseconds.)
///
/// `concertina_spin` sets the second word, and runs until the first is not 0 or so many nanoseconds have gone by.
///
/// `concertina_gather` reads words at places of a linear congruential generator (multiplier and increment: Knuth's MMIX).
/// Its store is never done but for one sum of 2^32; it keeps the loads from being dropped.
const PTX: &CStr = c"
.version 6.0
.target sm_50
.address_size 64

.visible .entry concertina_spin(.param .u64 words, .param .u64 limit)
{
    .reg .pred %over;
    .reg .b32 %told, %one;
    .reg .b64 %words, %limit, %since, %now;
    ld.param.u64 %words, [words];
    ld.param.u64 %limit, [limit];
    cvta.to.global.u64 %words, %words;
    mov.u64 %since, %globaltimer;
    mov.u32 %one, 1;
    st.volatile.global.u32 [%words+4], %one;
    membar.sys;
SPIN:
    ld.volatile.global.u32 %told, [%words];
    setp.ne.u32 %over, %told, 0;
    @%over bra SPUN;
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %since;
    setp.lt.u64 %over, %now, %limit;
    @%over bra SPIN;
SPUN:
    ret;
}

.visible .entry concertina_gather(.param .u64 start, .param .u64 words, .param .u64 reads)
{
    .reg .pred %more, %odd;
    .reg .b32 %block, %threads, %thread, %word, %sum;
    .reg .b64 %start, %words, %reads, %state, %at, %index;
    ld.param.u64 %start, [start];
    ld.param.u64 %words, [words];
    ld.param.u64 %reads, [reads];
    cvta.to.global.u64 %start, %start;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    cvt.u64.u32 %index, %thread;
    mad.wide.u32 %index, %block, %threads, %index;
    mul.lo.s64 %state, %index, -7046029254386353131;
    mov.u32 %sum, 0;
GATHER:
    mad.lo.u64 %state, %state, 6364136223846793005, 1442695040888963407;
    mul.hi.u64 %at, %state, %words;
    shl.b64 %at, %at, 2;
    add.u64 %at, %at, %start;
    ld.global.u32 %word, [%at];
    add.u32 %sum, %sum, %word;
    sub.u64 %reads, %reads, 1;
    setp.ne.u64 %more, %reads, 0;
    @%more bra GATHER;
    setp.eq.u32 %odd, %sum, 0x9e3779b9;
    @!%odd bra GATHERED;
    st.global.u32 [%start], %sum;
GATHERED:
    ret;
}
";

/// Threads of a block that gathers.
const THREADS: u32 = 256;

/// How long a kernel may take to begin: other work of the device may go before.
const START: Duration = Duration::from_secs(10);

/// The call that stands for a kernel in errors: like a record, it is put on a stream.
const CALL: Call = Call::EventRecord;

/// The kernels, loaded, and the two words that the host and one of them share.
pub struct Kernels {
    cuda: Cuda,
    module: sys::CUmodule,
    spin: sys::CUfunction,
    gather: sys::CUfunction,
    /// Pinned memory of the host: told to end, has begun.
    words: *mut c_void,
    /// The same for the device.
    words_address: u64,
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernels").field("cuda", &self.cuda).finish_non_exhaustive()
    }
}

impl Kernels {
    pub(super) fn load(cuda: &Cuda) -> Result<Self, DriverError> {
        // From here on a failure drops it, which gives back what there is.
        let mut kernels = Self {
            cuda: cuda.clone(),
            module: ptr::null_mut(),
            spin: ptr::null_mut(),
            gather: ptr::null_mut(),
            words: ptr::null_mut(),
            words_address: 0,
        };
        let context = Arc::clone(&cuda.context);
        context.call(CALL, format_args!("to load the kernels for measurements"), || {
            // SAFETY: the handle is ours and outlives the call; the text ends with 0.
            unsafe { functions::cuModuleLoadData(&raw mut kernels.module, PTX.as_ptr().cast()) }
        })?;
        kernels.spin = kernels.function(&context, c"concertina_spin")?;
        kernels.gather = kernels.function(&context, c"concertina_gather")?;
        context.call(CALL, format_args!("8 bytes of pinned memory"), || {
            // SAFETY: the pointer is ours and outlives the call.
            unsafe { functions::cuMemHostAlloc(&raw mut kernels.words, 8, sys::CU_MEMHOSTALLOC_DEVICEMAP) }
        })?;
        context.call(CALL, format_args!("the address of pinned memory"), || {
            // SAFETY: the address is ours and outlives the call; the memory was given above.
            unsafe {
                functions::cuMemHostGetDevicePointer_v2(&raw mut kernels.words_address, kernels.words, 0)
            }
        })?;
        Ok(kernels)
    }

    fn function(&self, context: &Context, name: &CStr) -> Result<sys::CUfunction, DriverError> {
        let mut function = ptr::null_mut();
        context.call(CALL, format_args!("the kernel {}", name.to_string_lossy()), || {
            // SAFETY: the handle is ours and outlives the call; the module is loaded, and the name ends with 0.
            unsafe { functions::cuModuleGetFunction(&raw mut function, self.module, name.as_ptr()) }
        })?;
        Ok(function)
    }

    /// The words that the host writes (the first) and reads (the second).
    fn word(&self, index: usize) -> &AtomicU32 {
        let word = self.words.cast::<u32>().wrapping_add(index);
        // SAFETY: two aligned words were allocated, live as long as this value, and are only touched through atomics here,
        // and by volatile accesses of the device.
        unsafe { AtomicU32::from_ptr(word) }
    }

    /// Starts a kernel on `stream` that runs until it is told to end, at most for `limit`, and waits until it has begun.
    ///
    /// # Errors
    /// What the driver says; not ready if it did not begin in time.
    pub fn spin(&mut self, stream: &Stream, limit: Duration) -> Result<Spin<'_>, DriverError> {
        self.cuda.check_stream(CALL, stream)?;
        let event = self.cuda.event_create()?;
        self.word(0).store(0, Ordering::Release);
        self.word(1).store(0, Ordering::Release);
        let mut words = self.words_address;
        let mut nanoseconds = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let mut parameters = [(&raw mut words).cast::<c_void>(), (&raw mut nanoseconds).cast()];
        self.cuda.context.call(CALL, format_args!("a kernel that runs for {limit:?}"), || {
            // SAFETY: the function is loaded and takes these two; the words live until the kernel has ended, for which the
            // guard below waits, as does the drop of this value.
            unsafe {
                functions::cuLaunchKernel(
                    self.spin,
                    1,
                    1,
                    1,
                    1,
                    1,
                    1,
                    0,
                    stream.raw(),
                    parameters.as_mut_ptr(),
                    ptr::null_mut(),
                )
            }
        })?;
        let spin = Spin { kernels: self, event };
        spin.kernels.cuda.event_record(&spin.event, stream)?;
        let launched = Instant::now();
        while spin.kernels.word(1).load(Ordering::Acquire) == 0 {
            if launched.elapsed() > START {
                let why = format!("a kernel did not begin within {START:?}");
                return Err(DriverError::new(DriverErrorKind::NotReady, CALL, why));
            }
            std::thread::yield_now();
        }
        Ok(spin)
    }

    /// Queues on `stream` reads of 4 bytes at random places of `area`: `blocks` times 256 times `reads`, which is returned.
    ///
    /// # Errors
    /// What the driver says; invalid where nothing is asked for, or too much.
    pub fn gather(&self, area: &Area, blocks: u32, reads: u32, stream: &Stream) -> Result<u64, DriverError> {
        self.cuda.check_stream(CALL, stream)?;
        self.cuda.check_context(CALL, "an area", area.cuda().context())?;
        if blocks == 0 || blocks > 0xffff || reads == 0 {
            let why = format!("{blocks} blocks of {reads} reads: 1 to 65535, and 1 or more");
            return Err(DriverError::new(DriverErrorKind::Invalid, CALL, why));
        }
        let mut start = area.address().get();
        let mut words = area.bytes() / 4;
        let mut reads = u64::from(reads);
        let mut parameters =
            [(&raw mut start).cast::<c_void>(), (&raw mut words).cast(), (&raw mut reads).cast()];
        self.cuda.context.call(CALL, format_args!("a kernel that reads {}", area.address()), || {
            // SAFETY: the function is loaded and takes these three. It reads, and writes at most, words of the area, which
            // stays until work is done: its drop waits.
            unsafe {
                functions::cuLaunchKernel(
                    self.gather,
                    blocks,
                    1,
                    1,
                    THREADS,
                    1,
                    1,
                    0,
                    stream.raw(),
                    parameters.as_mut_ptr(),
                    ptr::null_mut(),
                )
            }
        })?;
        Ok(u64::from(blocks) * u64::from(THREADS) * reads)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let context = &self.cuda.context;
        if context.is_closed() {
            return;
        }
        // A kernel whose launch was not followed by its guard may still run.
        if !self.words.is_null() {
            self.word(0).store(1, Ordering::Release);
        }
        let mut given_back = self.cuda.raw_calls().synchronize();
        if !self.words.is_null() {
            let free = || {
                context.call(CALL, format_args!("to free pinned memory"), || {
                    // SAFETY: it was given once, is freed here only, and no kernel runs any more.
                    unsafe { functions::cuMemFreeHost(self.words) }
                })
            };
            given_back = given_back.and(free().or_else(|_| free()));
        }
        if !self.module.is_null() {
            let unload = || {
                context.call(CALL, format_args!("to unload the kernels for measurements"), || {
                    // SAFETY: it was loaded once, is unloaded here only, and its functions go with this value.
                    unsafe { functions::cuModuleUnload(self.module) }
                })
            };
            given_back = given_back.and(unload().or_else(|_| unload()));
        }
        if let Err(error) = given_back {
            tracing::warn!(%error, "the kernels for measurements were not given back");
        }
    }
}

/// A kernel that runs. It is told to end, and waited for, when this goes.
#[derive(Debug)]
#[must_use = "the kernel ends when this is dropped"]
pub struct Spin<'a> {
    kernels: &'a mut Kernels,
    event: Event,
}

impl Spin<'_> {
    /// Whether it still runs.
    ///
    /// # Errors
    /// What the driver says.
    pub fn is_running(&self) -> Result<bool, DriverError> {
        Ok(!self.kernels.cuda.event_query(&self.event)?)
    }

    /// Tells it to end, and waits until it has.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stop(self) -> Result<(), DriverError> {
        self.kernels.word(0).store(1, Ordering::Release);
        self.kernels.cuda.event_synchronize(&self.event)
    }
}

impl Drop for Spin<'_> {
    fn drop(&mut self) {
        self.kernels.word(0).store(1, Ordering::Release);
        let cuda = &self.kernels.cuda;
        if cuda.context.is_closed() {
            return;
        }
        // The kernel shares its words with the next one.
        if let Err(error) = cuda.raw_calls().synchronize() {
            tracing::warn!(%error, "a kernel for measurements was not waited for");
        }
    }
}
