//! The kernels that `concertina-cuda` measures devices with, as functions of the host.
//!
//! Main types: none. Neighbours: `concertina_cuda::Kernels` has the same in PTX, and launches them by these names; `library`
//! registers any kernel.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::launch::Launch;
use super::library::{ControlError, Library};

impl Library {
    /// Registers `concertina_spin` and `concertina_gather`, which do here what their originals do on a GPU: the one runs until
    /// it is told to end or its time is over, the other reads words at random places.
    ///
    /// The first needs streams that run by themselves ([`Execution::Workers`](crate::Execution::Workers)): on others it is
    /// over, when its time is, before the launch returns.
    ///
    /// # Errors
    /// As [`Library::register_kernel`].
    pub fn register_measuring_kernels(&self) -> Result<(), ControlError> {
        self.register_kernel("concertina_spin", &[8, 8], spin)?;
        let words = |launch: &Launch<'_>| vec![launch.reads(0, 4 * launch.parameter::<u64>(1))];
        self.register_kernel_touching("concertina_gather", &[8, 8, 8], gather, words)
    }
}

/// Parameters: the address of two words, told to end and has begun; and a limit in nanoseconds.
fn spin(launch: &Launch<'_>) {
    let since = Instant::now();
    // Pinned memory of the host: its address on the device is its own.
    let words = launch.parameter::<u64>(0) as *mut u32;
    let limit = Duration::from_nanos(launch.parameter(1));
    let word = |index| {
        // SAFETY: the launch gives two words of pinned memory, which its program frees after the kernel's end, and touches
        // only through atomics meanwhile.
        unsafe { AtomicU32::from_ptr(words.wrapping_add(index)) }
    };
    word(1).store(1, Ordering::Release);
    while word(0).load(Ordering::Acquire) == 0 && since.elapsed() < limit {
        std::thread::yield_now();
    }
}

/// Parameters: the address of memory, its words, and how many reads each thread makes.
fn gather(launch: &Launch<'_>) {
    let (start, words) = (launch.parameter::<u64>(0), launch.parameter::<u64>(1));
    let reads: u64 = launch.parameter(2);
    let threads = u64::from(launch.grid()[0]) * u64::from(launch.block()[0]);
    let mut sum = 0_u32;
    for index in 0..threads {
        let mut state = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for _ in 0..reads {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (u128::from(state) * u128::from(words)) >> 64;
            let word = launch.pointer::<u32>(start + 4 * at as u64, 1);
            // SAFETY: the launch gives that many accessible words; `at` is below their number.
            sum = sum.wrapping_add(unsafe { word.read_volatile() });
        }
    }
    std::hint::black_box(sum);
}
